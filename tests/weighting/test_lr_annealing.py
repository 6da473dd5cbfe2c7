import numpy as np
import pytest
import torch

import mtlkit
from tests.weighting.strategies import drawn

PAPER = "lr_annealing(wrt=parameters, alpha=0.5)"


def test_worked_example():
    method = mtlkit.create_method(PAPER, 3)
    rows = torch.tensor([[4.0, -8.0], [1.0, 3.0], [-0.5, 0.5]], dtype=torch.float64)
    # ratios 8 / 2 and 8 / 0.5, halfway from 1
    merged = method.combine(rows)
    torch.testing.assert_close(merged, rows[0] + 2.5 * rows[1] + 8.5 * rows[2])
    # ratios as before, halfway from 2.5 and 8.5
    merged = method.combine(rows)
    torch.testing.assert_close(merged, rows[0] + 3.25 * rows[1] + 12.25 * rows[2])


@pytest.mark.parametrize("reference", ["max", "mean"])
def test_thirty_steps_equal_a_plain_implementation(reference):
    method = mtlkit.create_method(
        f"lr_annealing(wrt=parameters, alpha=0.1, reference={reference}, primary=1)", 3
    )
    lambdas = np.ones(3)
    for seed in range(30):
        rows = drawn(seed, 3, 20) * torch.tensor([[1.0], [0.1], [10.0]], dtype=torch.float64)
        sizes = np.abs(rows.numpy())
        top = getattr(sizes[1], reference)()
        lambdas = 0.9 * lambdas + 0.1 * top / sizes.mean(axis=1)
        lambdas[1] = 1
        np.testing.assert_allclose(method.combine(rows).numpy(), lambdas @ rows.numpy(), rtol=1e-9)


def test_at_the_features_all_gradients_get_the_norm_of_the_reference():
    method = mtlkit.create_method("lr_annealing(alpha=1.0, primary=depth)", ("seg", "depth"))
    weights = method.weights(torch.diag(torch.tensor([4.0, 9.0], dtype=torch.float64)))
    assert weights.tolist() == pytest.approx([1.5, 1.0])


@pytest.mark.parametrize("zero", [0, 1])
def test_a_gradient_of_zero_leaves_the_weights(zero):
    method = mtlkit.create_method(PAPER, 2)
    rows = torch.tensor([[4.0, -8.0], [1.0, 3.0]])
    method.combine(rows)
    before = method.parts[0].state_dict()["lambdas"].tolist()
    rows[zero] = 0
    method.combine(rows)
    assert method.parts[0].state_dict()["lambdas"].tolist() == before == [1.0, 2.5]


def test_without_the_reference_task_the_weights_stay():
    method = mtlkit.create_method("lr_annealing(alpha=0.5)", 2)
    z = torch.ones(1, 2, requires_grad=True)
    for factors in ((6.0, 2.0), (None, 3.0)):
        z.grad = None
        views = method(z * 1)
        losses = [None if f is None else f * v[0, 0] for f, v in zip(factors, views, strict=True)]
        method.total(losses).backward()
    # (1 + 3) / 2 from the first step
    assert z.grad.tolist() == [[6.0, 0.0]]
