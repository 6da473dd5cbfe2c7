import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mtlkit
from mtlkit.errors import UsageError

OPTIONS = {"beta": 0.4, "beta_sigma": 0.5, "gamma": 1.0, "gamma_sigma": 0.25, "rho": 0.1}


class ByThePaper:
    """Equations 6 to 10, on the gradients themselves; an absent task keeps its average and its weight."""

    def __init__(self, tasks: int, size: int, beta, beta_sigma, gamma, gamma_sigma, rho):
        self.averages = np.zeros((tasks, size))
        self.weights = np.full(tasks, 1 / tasks)
        self.rates = beta, beta_sigma, gamma, gamma_sigma
        self.rho = rho
        self.steps = 0

    def merge(self, rows: dict[int, np.ndarray]) -> np.ndarray:
        beta, beta_sigma, gamma, gamma_sigma = self.rates
        self.steps += 1
        for task, row in rows.items():
            self.averages[task] -= beta / self.steps**beta_sigma * (self.averages[task] - row)
        present = list(rows)
        averages, share = self.averages[present], self.weights[present].sum()
        weights = self.weights[present] / share
        slope = averages @ averages.T @ weights + self.rho * weights
        weights = nearest_on_simplex(weights - gamma / self.steps**gamma_sigma * slope)
        self.weights[present] = weights * share
        return weights @ averages


def nearest_on_simplex(point: np.ndarray) -> np.ndarray:
    """By bisection for the common shift."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        shift = (low + high) / 2
        if np.maximum(point - shift, 0).sum() > 1:
            low = shift
        else:
            high = shift
    return np.maximum(point - high, 0)


def degrees(one: torch.Tensor, two: np.ndarray) -> float:
    """Angle between two vectors, exact also for small angles."""
    first, second = one / one.norm(), torch.from_numpy(two / np.linalg.norm(two))
    return math.degrees(2 * math.asin(min(1.0, float((first - second).norm()) / 2)))


class Net(nn.Module):
    """A backbone and three heads; every head reaches every parameter of the backbone."""

    def __init__(self, fork: bool):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(3))
        self.method = mtlkit.create_method("moco(wrt=parameters)", 3, shared=self.backbone, **OPTIONS)
        self.fork = fork
        self.double()

    def losses(self, x: torch.Tensor) -> list[torch.Tensor]:
        z = self.backbone(x)
        views = self.method(z) if self.fork else [z] * 3
        targets = [3 * torch.sin((k + 1) * x.sum(dim=1)) + k for k in range(3)]
        return [
            (head(view)[:, 0] - target).square().mean()
            for head, view, target in zip(self.heads, views, targets, strict=True)
        ]

    def rows(self, x: torch.Tensor, present: list[int]) -> dict[int, np.ndarray]:
        """Gradients of the shared parameters, loss by loss."""
        fork, self.fork = self.fork, False
        losses = self.losses(x)
        self.fork = fork
        shared = list(self.backbone.parameters())
        return {
            k: torch.cat(
                [g.flatten() for g in torch.autograd.grad(losses[k], shared, retain_graph=True)]
            )
            .numpy()
            .copy()
            for k in present
        }


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def test_first_steps_are_those_worked_by_hand():
    method = mtlkit.create_method("moco(gamma_sigma=0.0, beta_sigma=0.0)", 2)
    rows = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    # Y / mean = diag(0.4, 1.6); w = (0.5, 0.5) - 0.1 * (0.2, 0.8), brought back to sum one
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.53, 2 * 0.47], dtype=torch.float64))
    other = torch.diag(torch.tensor([3.0, 2.0], dtype=torch.float64))
    # Y = diag(5, 4), Y / mean = diag(5, 4) / 4.5
    moved = torch.tensor([0.53 * (1 - 0.1 * 5 / 4.5), 0.47 * (1 - 0.1 * 4 / 4.5)], dtype=torch.float64)
    moved = moved + (1 - moved.sum()) / 2
    torch.testing.assert_close(method.combine(other), moved * torch.tensor([3.0, 2.0]).double())


def test_first_step_on_parameters_is_that_worked_by_hand():
    method = mtlkit.create_method("moco(wrt=parameters)", 2)
    # Y = diag(2, 4) / 2, Y Y' = diag(1, 4); w = (0.5, 0.5) - 0.1 * (0.5, 2), brought back to sum one
    merged = method.combine(torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64)))
    torch.testing.assert_close(merged, torch.tensor([0.575, 2 * 0.425], dtype=torch.float64))
    assert method.parts[0].tracked.tolist() == [[1.0, 0.0], [0.0, 2.0]]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_on_one_matrix_the_weights_tend_to_those_of_mgda(seed, tasks):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tasks, 12, dtype=torch.float64, generator=generator)
    method = mtlkit.create_method("moco(gamma=0.5, gamma_sigma=0.0)", tasks)
    for _ in range(150):
        merged = method.combine(rows)
    shortest = mtlkit.create_method("mgda", tasks).combine(rows)
    assert merged.norm() <= shortest.norm() * 1.01


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_on_parameters_it_is_the_rule_of_the_paper(seed, tasks):
    generator = torch.Generator().manual_seed(seed)
    method = mtlkit.create_method("moco(wrt=parameters)", tasks, **OPTIONS)
    paper = ByThePaper(tasks, 12, **OPTIONS)
    for _ in range(10):
        rows = torch.randn(tasks, 12, dtype=torch.float64, generator=generator)
        merged = method.combine(rows)
        expected = paper.merge(dict(enumerate(rows.numpy())))
        assert degrees(merged, expected) < 1e-4
        torch.testing.assert_close(merged, torch.from_numpy(expected))
        torch.testing.assert_close(method.parts[0].w, torch.from_numpy(paper.weights))


@pytest.mark.parametrize("fork", [True, False], ids=["features", "losses"])
def test_a_network_follows_the_rule_of_the_paper_also_without_a_task(fork):
    net = Net(fork)
    paper = ByThePaper(3, sum(p.numel() for p in net.backbone.parameters()), **OPTIONS)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(12):
        present = [0, 2] if step % 4 == 2 else [0, 1, 2]
        expected = paper.merge(net.rows(batch(step), present))
        optimizer.zero_grad()
        losses = net.losses(batch(step))
        net.method.total([loss if k in present else None for k, loss in enumerate(losses)]).backward()
        merged = torch.cat([p.grad.flatten() for p in net.backbone.parameters()])
        assert degrees(merged, expected) < 1e-4
        torch.testing.assert_close(merged, torch.from_numpy(expected))
        optimizer.step()
    assert (net.method.parts[0].w - 1 / 3).abs().max() > 0.05
    torch.testing.assert_close(net.method.parts[0].tracked, torch.from_numpy(paper.averages))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("before", [0, 3])
def test_on_parameters_training_continues_bit_for_bit_from_a_state_dict(before, dtype):
    rows = torch.randn(7, 3, 20, generator=torch.Generator().manual_seed(0), dtype=dtype)
    method = mtlkit.create_method("moco(wrt=parameters)", 3)
    for step in range(before):
        method.combine(rows[step])
    resumed = mtlkit.create_method("moco(wrt=parameters)", 3)
    assert resumed.parts[0].tracked.shape == (3, 0)
    resumed.load_state_dict(copy.deepcopy(method.state_dict()), strict=True)
    assert resumed.parts[0].tracked.shape == (3, 20 if before else 0)
    for step in range(before, 7):
        assert torch.equal(resumed.combine(rows[step]), method.combine(rows[step]))
    assert torch.equal(resumed.parts[0].tracked, method.parts[0].tracked)


def test_on_parameters_a_step_that_is_not_finite_is_forgotten():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    method, other = (mtlkit.create_method("moco(wrt=parameters)", 3) for _ in range(2))
    bad = rows.clone()
    bad[1, 2] = torch.nan
    assert torch.isnan(method.combine(bad)).all()  # the first step, when there is no average yet
    for _ in range(2):
        assert torch.equal(method.combine(rows), other.combine(rows))
        assert torch.isnan(method.combine(bad)).all()


def test_on_parameters_another_number_of_coordinates_is_an_error():
    method = mtlkit.create_method("moco(wrt=parameters)", 2)
    method.combine(torch.eye(2))
    with pytest.raises(UsageError, match="have to be the same in every step"):
        method.combine(torch.ones(2, 3))


def test_the_weight_of_an_absent_task_is_kept():
    method = mtlkit.create_method("moco(gamma=0.5)", 3)
    method.combine(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    before = method.parts[0].w.clone()
    z = torch.randn(4, 3, requires_grad=True, generator=torch.Generator().manual_seed(0))
    views = method(z)
    method.total([views[0].square().sum(), None, (views[2] - 1).square().sum()]).backward()
    assert method.parts[0].w[1] == before[1]
    assert method.parts[0].w[0] != before[0]
    torch.testing.assert_close(method.parts[0].w.sum().item(), 1.0)
