import sys

import pytest
import torch

import mtlkit
from mtlkit.errors import MissingExtraError, SpecError, UnknownNameError
from tests.networks import SmallNet, train

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


def test_it_trains_with_rotations_as_the_method_of_that_name_does():
    ends = []
    for merge in ("torchjd(name=IMTLG)", "imtl_g"):
        torch.manual_seed(0)
        net = SmallNet(f"rotate+{merge}").double()
        generator = torch.Generator().manual_seed(1)
        train(net, [torch.randn(8, 4, generator=generator, dtype=torch.float64) for _ in range(5)])
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        assert (net.method.rotations - torch.eye(6)).abs().max() > 1e-4
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-8, atol=1e-8)


def test_gradients_that_are_not_finite_are_not_given_to_torchjd():
    rows = gradients()
    rows[1, 3] = torch.inf
    for name in ("IMTLG", "ConFIG"):
        assert torch.isnan(mtlkit.create_method(f"torchjd(name={name})", 3).combine(rows)).all()


def test_random_aggregators_repeat_their_draws_in_every_instance_and_change_them_from_step_to_step():
    one, other = (mtlkit.create_method("torchjd(name=Random)", 3) for _ in range(2))
    first, second = one.combine(gradients()), one.combine(gradients())
    torch.manual_seed(1)  # the caller's own generator has no influence
    assert torch.equal(other.combine(gradients()), first)
    assert not torch.equal(first, second)


def test_wrong_names_and_options_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'MGDA'"):
        mtlkit.create_method("torchjd(name=MGD)", 2)
    with pytest.raises(SpecError, match="cannot be made with options"):
        mtlkit.create_method("torchjd(name=MGDA, options={nonsense: 1})", 2)


def test_without_torchjd_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mtlkit\[dev\]'"):
        mtlkit.create_method("torchjd", 2)
