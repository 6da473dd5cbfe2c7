"""Groups of tasks: the planted ones are found, and none where there are none."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.grouping.planted import diagnose, planted
from mtlkit.diagnosis.groups import find_groups
from mtlkit.diagnosis.probe import Probe


@st.composite
def similarities(draw):
    count = draw(st.integers(1, 9))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = generator.random((count, count)) ** draw(st.integers(1, 4))
    return (table + table.T) / 2


@given(similarities(), st.randoms())
def test_groups_hold_every_task_once_and_tasks_may_be_permuted(table, random):
    groups = find_groups(table).groups
    assert sorted(task for group in groups for task in group) == list(range(len(table)))
    order = list(range(len(table)))
    random.shuffle(order)
    moved = find_groups(table[np.ix_(order, order)]).groups
    assert sorted(sorted(order[k] for k in group) for group in moved) == groups


@given(st.floats(0, 1), st.integers(1, 12), st.integers(0, 1000))
def test_tasks_that_are_all_alike_stay_together(level, count, seed):
    noise = 0.1 * level * np.random.default_rng(seed).random((count, count))
    assert len(find_groups(np.full((count, count), level) + noise + noise.T).groups) == 1


def test_one_similar_pair_among_unrelated_tasks_is_no_group():
    table = np.full((6, 6), 0.05)
    table[0, 1] = table[1, 0] = 0.9
    assert len(find_groups(table).groups) == 1


def test_unknown_pairs_leave_all_together():
    table = np.kron(np.eye(2), np.ones((3, 3)))
    table[0], table[:, 0] = np.nan, np.nan
    assert len(find_groups(table).groups) == 1


def similarity(gradients):
    """What the probe makes of the (N, d) gradients of each task."""
    probe = Probe(tuple(f"t{k}" for k in range(len(gradients))), "features", torch.nn.Module())
    for k, rows in enumerate(gradients):
        probe._keep(k, 0)(rows)
    return probe.similarity()


def test_similarity_ignores_rotations_signs_and_scales_and_is_zero_by_chance():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 8, generator=generator)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    found = similarity([rows, -1e6 * rows @ rotation, torch.randn(64, 8, generator=generator)])
    torch.testing.assert_close(found[0, 1], torch.tensor(1.0), atol=1e-4, rtol=0)
    drawn = [similarity(torch.randn(2, 64, 8, generator=generator))[0, 1] for _ in range(50)]
    assert abs(float(torch.stack(drawn).mean())) < 0.02


def test_similarity_counts_only_samples_that_both_tasks_have():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 8, generator=generator)
    partly = rows.clone()
    partly[32:] = 0.0
    found = similarity([rows, partly, torch.where(torch.arange(64)[:, None] < 32, 0.0, rows)])
    assert found[0, 1] > 0.95
    assert torch.isnan(found[1, 2])  # no sample in common


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "strength"), [((3, 3), 0.8), ((2, 2, 2), 0.8), ((6,), 0.9), ((1,) * 6, 0.0)]
)
def test_planted_groups_are_found_and_no_others(sizes, strength):
    """A short version of ``python -m benchmarks.grouping``."""
    for seed in (200, 201):
        assert diagnose(seed, sizes, strength).summary.grouping.groups == planted(sizes)
