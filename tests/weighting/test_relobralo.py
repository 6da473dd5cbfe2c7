import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.engine.randomness import uniform
from tests.weighting.loss_steps import step


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def test_worked_example():
    method = mtlkit.create_method("relobralo(alpha=0.5, rho=1.0)", 2)
    assert step(method, [4.0, 2.0])[1] == pytest.approx([1.0, 1.0])
    # 2 softmax(2/4, 2/2)
    second = 2 * softmax(np.array([0.5, 1.0]))
    assert step(method, [2.0, 2.0])[1] == pytest.approx(second.tolist())
    # the mean of those and 2 softmax(1/2, 2/2)
    assert step(method, [1.0, 2.0])[1] == pytest.approx(second.tolist())
    third = 0.5 * second + 0.5 * 2 * softmax(np.array([1.0, 0.5]))
    assert step(method, [1.0, 1.0])[1] == pytest.approx(third.tolist())


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.99])
def test_thirty_steps_equal_a_plain_implementation(rho):
    losses = np.random.default_rng(0).uniform(0.1, 5, (30, 3))
    method = mtlkit.create_method(f"relobralo(alpha=0.8, rho={rho}, temperature=0.5, seed=3)", 3)
    lambdas = np.ones(3)
    lookbacks = 0
    for t, row in enumerate(losses):
        if t:
            past = uniform(3, torch.tensor(t), 1).item() < rho
            lookbacks += not past
            alpha = 0.8 if t > 1 else 0.0
            kept = lambdas if past else 3 * softmax(row / (0.5 * losses[0]))
            lambdas = alpha * kept + (1 - alpha) * 3 * softmax(row / (0.5 * losses[t - 1]))
        assert step(method, row.tolist())[1] == pytest.approx(lambdas.tolist())
    assert lookbacks >= {0.0: 29, 0.5: 5, 0.99: 0}[rho]


def test_the_slower_a_loss_falls_the_larger_its_weight_and_they_sum_to_the_number_of_tasks():
    method = mtlkit.create_method("relobralo", 3)
    for t in range(20):
        _, weights = step(method, [0.5**t, 0.9**t, 1.0])
    assert weights[0] < weights[1] < weights[2]
    assert sum(weights) == pytest.approx(3)


def test_seeds_draw_different_lookbacks():
    losses = np.random.default_rng(0).uniform(0.1, 5, (20, 2))
    paths = set()
    for seed in range(3):
        method = mtlkit.create_method(f"relobralo(rho=0.5, seed={seed})", 2)
        paths.add(tuple(step(method, row.tolist())[1][0] for row in losses))
    assert len(paths) == 3


def test_a_reference_of_zero_has_the_ratio_one():
    method = mtlkit.create_method("relobralo(rho=0.0)", 2)
    for values in ([0.0, 1.0], [3.0, 1.0], [0.0, 1.0]):
        _, weights = step(method, values)
    assert np.isfinite(weights).all()
