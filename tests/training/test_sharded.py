"""The junction and the rotations with a backbone that is cut into pieces by FSDP2.

Accelerate's FSDP plugin cannot be run here: on CPU, Accelerate keeps ``DistributedType.MULTI_CPU`` and
leaves the plugin out without a word (``tests/cli/test_train.py`` starts it so, and wants our warning).
So the sharding is torch's own, which the plugin calls.
"""

import pytest
import torch

from tests.training.processes import run_processes


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param("loop", "rotograd", marks=pytest.mark.slow),
        ("trainer", "uw+upgrad(wrt=parameters)"),
    ],
)
def test_a_sharded_model_ends_with_the_parameters_of_a_whole_one(kind, method, tmp_path):
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    run_processes(["-m", "tests.training.run_sharded", kind, method, str(one)], 1)
    run_processes(["-m", "tests.training.run_sharded", kind, method, str(two)], 2)
    whole, sharded = torch.load(one), torch.load(two)
    assert whole.shape == sharded.shape
    assert (whole - sharded).abs().max() < 1e-5
