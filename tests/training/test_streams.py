"""A stream is read once, whatever the number of processes: same steps, same evaluation as one process."""

import pytest
import torch

from tests.training.processes import run_small
from tests.training.small_problem import flat, make_stream, make_trainer


# 33 = 4 * 8 + 1: the second process has no sample in the last batch of the epoch
@pytest.mark.parametrize("size", [pytest.param(21, marks=pytest.mark.slow), 33])
def test_two_processes_train_on_a_stream_and_evaluate_it_as_one_does(tmp_path, size):
    options = {"method": "pcgrad", "data": {"size": size, "missing": 0.3}, "stream": True}
    options["fit"] = {"epochs": 2}
    one, two = (run_small(tmp_path, options, world) for world in (1, 2))
    assert one["step"] == two["step"] == 2 * -(-size // 8)
    assert (one["parameters"] - two["parameters"]).abs().max() < 1e-5
    for task, metrics in one["metrics"].items():
        assert two["metrics"][task] == pytest.approx(metrics, abs=1e-5)


def test_a_stream_resumes_bit_for_bit_within_an_epoch_and_between_two(tmp_path):
    whole = make_trainer("rotograd", dropout=0.3)
    whole.fit(make_stream(40), steps=13)
    for name, stop in (("within", 7), ("between", 5)):
        make_trainer("rotograd", dropout=0.3, output=tmp_path / name).fit(
            make_stream(40), make_stream(9, 1), steps=stop
        )
        torch.manual_seed(5)
        again = make_trainer("rotograd", dropout=0.3, output=tmp_path / name)
        again.fit(make_stream(40), make_stream(9, 1), steps=13, resume="auto")
        assert torch.equal(flat(whole.model), flat(again.model))
