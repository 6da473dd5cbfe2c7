import sys

import pytest
import torch

import mtlkit
from mtlkit.errors import MissingExtraError, SpecError, UnknownNameError
from tests.training.small_problem import make_loader, make_trainer

aggregation = pytest.importorskip("torchjd.aggregation")


def gradients(rows: int = 3, columns: int = 20) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["AlignedMTL", "IMTLG", "MGDA", "Mean", "ConFIG"])
def test_the_adapter_merges_as_torchjd_does(name):
    method = mtlkit.create_method(f"torchjd(name={name})", 3)
    expected = getattr(aggregation, name)()(gradients())
    assert torch.allclose(method.combine(gradients()), expected, atol=1e-5)


def test_a_gram_based_aggregator_has_weights_and_others_do_not():
    assert mtlkit.create_method("torchjd(name=MGDA)", 3).weights(torch.eye(3)).shape == (3,)
    with pytest.raises(mtlkit.MtlkitError, match="no weight per task"):
        mtlkit.create_method("torchjd(name=ConFIG)", 3).weights(torch.eye(3))


def test_options_reach_the_aggregator():
    method = mtlkit.create_method("torchjd(name=TrimmedMean, options={trim_number: 1})", 3)
    assert torch.allclose(method.combine(gradients()), gradients().median(dim=0).values)
    again = mtlkit.create_method(str(method), 3)
    assert str(again) == str(method)


@pytest.mark.filterwarnings("ignore:no validation set")
def test_it_trains_and_goes_together_with_rotations():
    trainer = make_trainer("rotate+torchjd(name=IMTLG)")
    trainer.fit(make_loader(), epochs=2)
    assert trainer.method.stats is not None


def test_wrong_names_and_options_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'MGDA'"):
        mtlkit.create_method("torchjd(name=MGD)", 2)
    with pytest.raises(SpecError, match="cannot be made with options"):
        mtlkit.create_method("torchjd(name=MGDA, options={nonsense: 1})", 2)


def test_without_torchjd_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mtlkit\[dev\]'"):
        mtlkit.create_method("torchjd", 2)
