"""The seed of a run reaches the method that the run makes."""

from dataclasses import replace

import pytest
import torch

from benchmarks.paper.toy.problems import AUTHORS, CONVEX, run_regression
from mtlkit.training.checkpoints import Checkpoints
from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import build_model, run


def method_of(spec: str, seed: int):
    config = TrainConfig.make({"data": "multidigits", "method": spec, "seed": seed}, "test")
    return build_model(config)[0].method


def draw(spec: str, seed: int) -> torch.Tensor:
    method = method_of(spec, seed)
    if "rotate" in spec or "rotograd" in spec:
        return method.rotations.detach()
    grads = torch.randn(len(method.tasks), 50, generator=torch.Generator().manual_seed(1))
    return method.combine(grads)


@pytest.mark.parametrize(
    "spec", ["rotograd(start=random)", "pcgrad", "graddrop", "random", "cr_mogm(inner=random)"]
)
def test_two_seeds_are_two_draws_and_one_seed_is_one(spec):
    first, again, other = draw(spec, 1), draw(spec, 1), draw(spec, 2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_seed_in_the_string_wins():
    assert torch.equal(draw("random(seed=5)", 1), draw("random(seed=5)", 2))
    assert method_of("cr_mogm(inner=random(seed=5))", 1).parts[0].inner == "random(seed=5)"


def test_the_toy_problems_draw_their_rotations_with_their_seed():
    training = replace(AUTHORS, epochs=1)
    first, other = (run_regression(CONVEX, "rotograd", seed, training).rotations[0] for seed in (0, 1))
    assert not torch.allclose(first, other)


def test_a_resumed_run_keeps_its_draws(tmp_path):
    def config(folder, steps):
        settings = {"data": "multidigits", "method": "random", "seed": 3, "steps": steps}
        return TrainConfig.make({**settings, "output": str(tmp_path / folder), "test": False}, "test")

    def weights(result):
        _, state = Checkpoints(result.folder / "checkpoints").latest()
        return state["model"]

    whole = weights(run(config("whole", 6), progress=False))
    run(config("parts", 6), progress=False, stop_at=3)
    resumed = weights(run(config("parts", 6), resume="auto", progress=False))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
