"""The junction and the rotations with a backbone that is cut into pieces by FSDP2.

Accelerate's FSDP plugin cannot be run here: on CPU, Accelerate keeps ``DistributedType.MULTI_CPU`` and
leaves the plugin out without a word (``tests/cli/test_train.py`` starts it so, and wants our warning).
So the sharding is torch's own, which the plugin calls.
"""

import pytest
import torch

from tests.training import run_sharded
from tests.training.processes import run_together


@pytest.mark.parametrize(
    ("train", "method"),
    [
        pytest.param(run_sharded.in_a_loop, "rotograd", marks=pytest.mark.slow),
        (run_sharded.with_a_trainer, "uw+upgrad(wrt=parameters)"),
    ],
)
def test_a_sharded_model_ends_with_the_parameters_of_a_whole_one(train, method, tmp_path):
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    train(method, one)
    run_together(train, method, two)
    whole, sharded = torch.load(one), torch.load(two)
    assert whole.shape == sharded.shape
    assert (whole - sharded).abs().max() < 1e-5
