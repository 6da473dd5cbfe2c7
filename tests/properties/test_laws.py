"""Laws that every registered method obeys, or declares in ``waived_laws`` why it does not.

A method is covered on the day that it is registered: the tests run over ``mtlkit.list_methods()``.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from tests.networks import SmallNet, train

NAMES = mtlkit.list_methods()
LAWS = frozenset(
    "permutation scale single_task zero_rows identical_rows nonfinite gram_path junction absent_task "
    "state_dict spec distributed".split()
)


def create(name: str, tasks: int, width: int = 6):
    return mtlkit.create_method(name, tasks, feature_dim=width)


def skip_if_waived(name: str, law: str) -> None:
    assert law in LAWS
    for part in create(name, 2).parts:
        if law in part.waived_laws:
            pytest.skip(f"{part.name} waives the law {law!r}: {part.waived_laws[law]}")


@st.composite
def gradients(draw, tasks=st.integers(2, 6), conflicting=True):
    """(K, N) in float64, in general position, some with strong conflicts and unequal norms."""
    count = draw(tasks)
    size = draw(st.integers(2 * count, 3 * count + 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    if conflicting and draw(st.booleans()):
        rows[1] = -rows[0] + 0.3 * rows[1]
    return (
        rows * torch.logspace(0, draw(st.sampled_from([0.0, 2.0])), count, dtype=torch.float64)[:, None]
    )


def same(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-6) -> bool:
    return bool((left - right).norm() <= tolerance * max(left.norm(), right.norm()))


@pytest.mark.parametrize("name", NAMES)
def test_waived_laws_exist_and_give_a_reason(name):
    for part in create(name, 2).parts:
        for law, reason in part.waived_laws.items():
            assert law in LAWS, f"{part.name} waives an unknown law {law!r}"
            assert len(reason) > 10


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(rows=gradients(), seed=st.integers(0, 1000))
def test_merge_is_unchanged_when_tasks_are_permuted(name, rows, seed):
    skip_if_waived(name, "permutation")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    merged = create(name, len(rows)).combine(rows)
    assert same(create(name, len(rows)).combine(rows[order]), merged)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(rows=gradients(), exponent=st.floats(-12, 12))
def test_direction_is_unchanged_when_all_gradients_are_scaled(name, rows, exponent):
    skip_if_waived(name, "scale")
    merged = create(name, len(rows)).combine(rows)
    scaled = create(name, len(rows)).combine(rows * 10**exponent)
    assert scaled.norm() > 0
    assert same(scaled / scaled.norm(), merged / merged.norm())


@pytest.mark.parametrize("name", NAMES)
def test_direction_is_unchanged_at_the_ends_of_the_range_in_single_precision(name):
    skip_if_waived(name, "scale")
    rows = torch.randn(4, 16)
    merged = create(name, 4).combine(rows)
    for factor in (1e-12, 1e12):
        scaled = create(name, 4).combine(rows * factor)
        assert same(scaled / scaled.norm(), merged / merged.norm(), 1e-3)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(rows=gradients(tasks=st.just(1), conflicting=False))
def test_a_single_task_is_left_as_it_is(name, rows):
    skip_if_waived(name, "single_task")
    assert same(create(name, 1).combine(rows), rows[0])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(rows=gradients(), zeros=st.integers(1, 6))
def test_zero_gradients_are_finite(name, rows, zeros):
    skip_if_waived(name, "zero_rows")
    rows[: min(zeros, len(rows))] = 0
    method = create(name, len(rows))
    for _ in range(2):
        merged = method.combine(rows)
        assert torch.isfinite(merged).all()
    if not rows.any():
        assert not merged.any()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(rows=gradients(conflicting=False))
def test_identical_gradients_give_their_own_direction(name, rows):
    skip_if_waived(name, "identical_rows")
    rows = rows[:1].repeat(len(rows), 1)
    merged = create(name, len(rows)).combine(rows)
    factor = merged.norm() / rows[0].norm()
    assert math.isfinite(factor)
    assert same(merged, factor * rows[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_non_finite_gradients_give_a_non_finite_merge_and_leave_the_state(name, bad):
    skip_if_waived(name, "nonfinite")
    rows = torch.randn(3, 10)
    method = create(name, 3)
    method.combine(rows)
    before = copy.deepcopy(method.state_dict())
    twin = create(name, 3)
    twin.load_state_dict(before)
    poisoned = rows.clone()
    poisoned[1, 3] = bad
    assert not torch.isfinite(method.combine(poisoned)).all()
    after = method.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert torch.equal(method.combine(rows), twin.combine(rows))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(rows=gradients())
def test_combine_is_the_sum_weighted_by_the_gram_matrix(name, rows):
    skip_if_waived(name, "gram_path")
    method = create(name, len(rows))
    merge = method.merge_part
    if merge is not None and merge.needs_whole_gradients:
        with pytest.raises(mtlkit.MtlkitError, match="no weight per task"):
            method.weights(rows @ rows.T)
        return
    for _ in range(2):
        weights = method.weights(rows @ rows.T)
        assert weights.shape == (len(rows),)
        assert same(method.combine(rows), weights @ rows)


def batches(count: int, dtype=torch.float64, labels=None):
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(8, 4, generator=generator, dtype=dtype) for _ in range(count)]
    return draws if labels is None else [(x, labels) for x in draws]


def feature_rows(net: SmallNet, x: torch.Tensor):
    """(K, N) gradients of each loss with respect to the features, one backward per task."""
    z = net.backbone(x).detach().requires_grad_()
    values, rows = [], []
    for k, head in enumerate(net.heads):
        target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
        loss = ((head(z)[:, 0] - target) ** 2).mean()
        rows.append(torch.autograd.grad(loss, z)[0].flatten())
        values.append(loss.detach())
    return torch.stack(rows), torch.stack(values)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_through_the_junction_is_the_combination_of_task_gradients(name):
    skip_if_waived(name, "junction")
    net = SmallNet(name).double()
    (x,) = batches(1)
    rows, losses = feature_rows(net, x)
    twin = copy.deepcopy(net.method)
    features = net.backbone(x)
    caught = []
    features.register_hook(caught.append)
    forked = net.method(features)
    values = []
    for k, (head, feature) in enumerate(zip(net.heads, forked, strict=True)):
        target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
        values.append(((head(feature)[:, 0] - target) ** 2).mean())
    net.method.total(values).backward()
    assert same(caught[0].flatten(), twin.combine(rows, losses))


@pytest.mark.parametrize("name", NAMES)
def test_an_absent_task_is_as_if_the_method_was_made_without_it(name):
    skip_if_waived(name, "absent_task")
    full = SmallNet(name, tasks=3).double()
    smaller = SmallNet(name, tasks=2).double()
    smaller.backbone.load_state_dict(full.backbone.state_dict())
    for mine, theirs in ((0, 0), (1, 2)):
        smaller.heads[mine].load_state_dict(full.heads[theirs].state_dict())

    def losses(net, pairs, x):
        forked = net.method(net.backbone(x))
        result = [None] * len(net.heads)
        for mine, k in pairs:
            target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
            result[mine] = ((net.heads[mine](forked[mine])[:, 0] - target) ** 2).mean()
        return result

    for x in batches(3):
        for net, pairs in ((full, [(0, 0), (2, 2)]), (smaller, [(0, 0), (1, 2)])):
            net.zero_grad()
            net.method.total(losses(net, pairs, x)).backward()
        for left, right in zip(full.backbone.parameters(), smaller.backbone.parameters(), strict=True):
            assert same(left.grad, right.grad)
            with torch.no_grad():
                left -= 0.01 * left.grad
                right.copy_(left)


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_bit_for_bit_from_a_state_dict(name):
    skip_if_waived(name, "state_dict")

    def optimizer(net):
        return torch.optim.Adam(net.parameters(), lr=0.01)

    xs = batches(7)
    net = SmallNet(name).double()
    first = optimizer(net)
    train(net, xs[:4], first)
    saved, saved_optimizer = copy.deepcopy(net.state_dict()), copy.deepcopy(first.state_dict())
    other = SmallNet(name).double()
    other.load_state_dict(saved, strict=True)
    second = optimizer(other)
    second.load_state_dict(saved_optimizer)
    train(net, xs[4:], first)
    train(other, xs[4:], second)
    for key, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_the_string_of_a_method_makes_the_same_method(name):
    skip_if_waived(name, "spec")
    method = create(name, 3)
    again = create(str(method), 3)
    assert str(again) == str(method)
    assert type(again) is type(method)
    assert again.spec == method.spec
