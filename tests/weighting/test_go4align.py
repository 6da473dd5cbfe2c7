from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.weighting.go4align import group_means
from tests.weighting.loss_steps import step


def best_means(values: np.ndarray, groups: int) -> tuple[float, np.ndarray]:
    """Least squared deviations of all partitions, and the groups' means, by enumeration."""
    found = []
    for labels in product(range(groups), repeat=len(values)):
        if len(set(labels)) == groups:
            chosen = np.array(labels)
            means = np.array([values[chosen == label].mean() for label in labels])
            found.append((((values - means) ** 2).sum(), means))
    return min(found, key=lambda pair: pair[0])


def test_worked_example():
    # p = 1/3 each: s = 7/3, 7/3, 7/15 for losses 1, 1, 5; the groups are {1, 1} and {5}
    _, weights = step(mtlkit.create_method("go4align(eta=0.0)", 3), [1.0, 1.0, 5.0])
    assert weights == pytest.approx([7 / 3, 7 / 3, 7 / 15])
    # one group: the mean of 7/3, 7/3 and 7/15
    _, weights = step(mtlkit.create_method("go4align(eta=0.0, num_groups=1)", 3), [1.0, 1.0, 5.0])
    assert weights == pytest.approx([77 / 45] * 3)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_thirty_steps_equal_a_plain_implementation(groups):
    losses = np.random.default_rng(groups).uniform(0.1, 5, (30, 4))
    method = mtlkit.create_method(f"go4align(num_groups={groups}, eta=0.05)", 4)
    p = np.full(4, 0.25)
    for row in losses:
        p = p * np.exp(-0.05 * row)
        p = p / p.sum()
        _, expected = best_means(p * row.sum() / row, groups)
        assert step(method, row.tolist())[1] == pytest.approx(expected.tolist())


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 6))
def test_no_partition_into_groups_is_better(values, groups):
    groups = min(groups, len(values))
    found = group_means(torch.tensor(values, dtype=torch.float64), groups)
    cost, _ = best_means(np.array(values), groups)
    deviations = (found - torch.tensor(values, dtype=torch.float64)).square().sum()
    assert deviations.item() == pytest.approx(cost, rel=1e-6, abs=1e-9 * max(values) ** 2)


def test_with_a_group_per_task_every_weighted_loss_is_p_times_the_sum():
    values = [0.5, 2.0, 8.0]
    total, weights = step(mtlkit.create_method("go4align(num_groups=3, eta=0.0)", 3), values)
    assert [w * v for w, v in zip(weights, values, strict=True)] == pytest.approx([10.5 / 3] * 3)
    assert total == pytest.approx(10.5)


def test_a_loss_below_zero_takes_no_step_and_one_of_zero_has_no_weight():
    method = mtlkit.create_method("go4align(num_groups=3)", 3)
    assert np.isnan(step(method, [-1.0, 1.0, 1.0])[0])
    assert step(method, [0.0, 1.0, 2.0])[1][0] == 0
