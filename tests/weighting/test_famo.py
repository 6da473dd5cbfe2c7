import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_sequence():
    method = mtlkit.create_method("famo(lr=0.025)", 2)
    assert step(method, [1.0, 1.0])[1] == pytest.approx([0.5, 0.5])
    # log-losses fell by (log 2, 0): the gradient is +-0.17, so Adam's first step is -+0.025
    total, weights = step(method, [0.5, 1.0])
    assert method.parts[0].logits.tolist() == pytest.approx([-0.025, 0.025], rel=1e-6)
    share = 1 / (1 + math.exp(0.05))
    scale = 1 / (share / 0.5 + (1 - share))
    assert weights == pytest.approx([scale * share / 0.5, scale * (1 - share)])
    assert weights == pytest.approx([0.655465, 0.344535], abs=1e-6)
    assert total == pytest.approx(scale)


def test_logits_follow_adam_on_the_change_of_the_log_losses():
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(30, 4, generator=generator, dtype=torch.float64) + 0.1
    method = mtlkit.create_method("famo(lr=0.1, gamma=0.01)", 4)
    logits = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    adam = torch.optim.Adam([logits], lr=0.1, weight_decay=0.01)
    step(method, values[0].tolist())
    for before, after in itertools.pairwise(values):
        adam.zero_grad()
        (logits.softmax(dim=0) @ (before.log() - after.log())).backward()
        adam.step()
        step(method, after.tolist())
        torch.testing.assert_close(method.parts[0].logits, logits.detach())


def test_weights_equal_torchjd_when_it_is_updated_with_the_next_losses():
    """TorchJD adds 1e-8 to the losses, hence the tolerance."""
    from torchjd.scalarization import FAMO

    generator = torch.Generator().manual_seed(0)
    for case in range(40):
        count = 1 + case % 5
        ours, theirs = mtlkit.create_method("famo", count), FAMO(count).double()
        for index in range(5):  # 200 steps in all
            values = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
            if index:
                theirs.update(values)
            stacked = values.clone().requires_grad_()
            theirs(stacked).backward()
            assert step(ours, values.tolist())[1] == pytest.approx(stacked.grad.tolist(), rel=1e-5)


@given(
    st.lists(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(1e-9, 1e9),
)
def test_weights_are_convex_and_do_not_depend_on_a_common_unit(sequence, unit):
    plain, scaled = mtlkit.create_method("famo", 3), mtlkit.create_method("famo", 3)
    for values in sequence:
        _, weights = step(plain, values)
        _, others = step(scaled, [unit * value for value in values])
        assert sum(weights) == pytest.approx(1.0)
        assert min(weights) >= 0
        assert others == pytest.approx(weights, rel=1e-4)


def test_the_task_that_falls_faster_loses_weight():
    method = mtlkit.create_method("famo", 2)
    for power in range(10):
        step(method, [0.5**power, 0.9**power])
    assert method.parts[0].logits[0] < 0 < method.parts[0].logits[1]


def test_an_absent_task_is_compared_with_its_own_last_loss():
    method = mtlkit.create_method("famo(gamma=0.0)", 3)
    step(method, [1.0, 1.0, 1.0])
    step(method, [1.0, 1.0, None])
    before = method.parts[0].logits.clone()
    assert before.tolist() == [0.0, 0.0, 0.0]
    step(method, [1.0, 1.0, 0.5])
    assert method.parts[0].logits.tolist() == pytest.approx([0.025, 0.025, -0.025], rel=0.4)
    assert method.parts[0].logits[2] < 0
    assert method.parts[0].updates.tolist() == [2, 2, 1]


def test_a_loss_of_zero_is_not_compared_with():
    method = mtlkit.create_method("famo(gamma=0.0)", 2)
    step(method, [4.0, 1.0])
    assert step(method, [0.0, 1.0])[1] == [0.0, 1.0]
    assert method.parts[0].last_logs.tolist() == pytest.approx([math.log(4), 0.0])
    step(method, [2.0, 1.0])  # half of the last loss that was not zero: it fell
    assert method.parts[0].updates.tolist() == [1, 2]
    assert method.parts[0].logits[0] < 0 < method.parts[0].logits[1]


def test_bounds_are_subtracted():
    method = mtlkit.create_method("famo(min_losses={b: 1.0})", ["a", "b"])
    assert step(method, [1.0, 1.5])[1] == pytest.approx([1 / 3, 2 / 3])
    # a loss at its bound takes no part; below it, there is no logarithm
    assert step(method, [1.0, 1.0])[1] == [1.0, 0.0]
    assert math.isnan(step(method, [1.0, 0.5])[0])


def test_the_logits_are_no_parameters():
    assert not list(mtlkit.create_method("famo", 2).parameters())


class AuthorsFAMO:
    """The authors' rule: the logits are Adam's, and `update` follows the step on the same batch."""

    def __init__(self, tasks: int, lr: float, gamma: float) -> None:
        self.lr, self.gamma = lr, gamma
        self.logits, self.first, self.second = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks)
        self.updates = np.zeros(tasks)

    def weights(self, losses, present):
        z = np.exp(self.logits[present]) / np.exp(self.logits[present]).sum()
        return z / losses / (z / losses).sum()

    def update(self, before, after, present):
        z = np.exp(self.logits[present]) / np.exp(self.logits[present]).sum()
        jacobian = np.diag(z) - np.outer(z, z)
        gradient = jacobian.T @ (np.log(before) - np.log(after)) + self.gamma * self.logits[present]
        self.updates[present] += 1
        self.first[present] += 0.1 * (gradient - self.first[present])
        self.second[present] += 0.001 * (gradient**2 - self.second[present])
        first = self.first[present] / (1 - 0.9 ** self.updates[present])
        second = self.second[present] / (1 - 0.999 ** self.updates[present])
        self.logits[present] -= self.lr * first / (np.sqrt(second) + 1e-8)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_second_pass_is_the_authors_rule_on_the_losses_of_one_batch(missing):
    random = np.random.default_rng(3)
    features = torch.tensor(random.normal(size=(30, 16, 5)))
    targets = torch.tensor(random.normal(size=(30, 4, 16, 1)))
    layer, heads = torch.nn.Linear(5, 3).double(), [torch.nn.Linear(3, 1).double() for _ in range(4)]
    method = mtlkit.create_method("famo(second_pass=True, lr=0.1, gamma=0.01)", 4)
    parameters = [p for module in (layer, *heads) for p in module.parameters()]
    optimizer, rule = torch.optim.SGD(parameters, lr=0.1), AuthorsFAMO(4, 0.1, 0.01)
    for x, y in zip(features, targets, strict=True):
        there = random.random(4) >= missing
        there[random.integers(4)] = True

        def measure(x=x, y=y, there=there):
            z = layer(x).tanh()
            losses = [(heads[k](z) - y[k]).square().mean() for k in range(4)]
            return [loss if present else None for loss, present in zip(losses, there, strict=True)]

        losses = measure()
        before = np.array([loss.item() for loss in losses if loss is not None])
        optimizer.zero_grad()
        total = method.total(losses)
        weights = torch.autograd.grad(
            total, [loss for loss in losses if loss is not None], retain_graph=True
        )
        np.testing.assert_allclose(weights, rule.weights(before, there), rtol=1e-6)
        total.backward()
        optimizer.step()
        with torch.no_grad():
            again = measure()
        method.update(again)
        method.update(again)  # there is nothing left to compare
        rule.update(before, np.array([loss.item() for loss in again if loss is not None]), there)
        np.testing.assert_allclose(method.parts[0].logits, rule.logits, atol=1e-6)
    assert method.parts[0].updates.tolist() == rule.updates.tolist()
    assert np.abs(rule.logits).min() > 0.01


def test_the_second_pass_compares_losses_as_the_parts_before_it_weigh_them():
    methods = [
        mtlkit.create_method(spec, 2)
        for spec in ("famo(second_pass=True)", "constant(weights=[3.0, 0.2])+famo(second_pass=True)")
    ]
    for method in methods:
        method.total([torch.tensor(1.0), torch.tensor(2.0)])
        method.update([torch.tensor(0.9), torch.tensor(1.0)])
    plain, weighed = (method.parts[-1].logits for method in methods)
    assert plain[0] > 0 > plain[1]
    torch.testing.assert_close(plain, weighed)


def test_an_update_with_a_loss_below_its_bound_or_without_losses_changes_nothing():
    method = mtlkit.create_method("famo(second_pass=True, min_losses=[0.5, 0.5])", 2)
    method.total([torch.tensor(1.0), torch.tensor(2.0)])
    method.update([torch.tensor(0.1), torch.tensor(1.0)])
    method.update([None, None])
    assert method.parts[0].logits.tolist() == [0.0, 0.0]
