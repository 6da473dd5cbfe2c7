import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_a_secondary_task_is_guaranteed_its_fraction():
    rows = torch.tensor([[3.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    merged = mtlkit.create_method("pcd(tau=0.75)", 2).combine(rows)
    # in units of the norms d = (1, 0.75), scaled to the length 3 of the primary gradient
    torch.testing.assert_close(merged, 3 * torch.tensor([0.8, 0.6], dtype=torch.float64))


def test_the_primary_task_may_be_named():
    rows = drawn(0, 3, 5)
    named = mtlkit.create_method("pcd(primary=depth)", ("seg", "normals", "depth")).combine(rows)
    first = mtlkit.create_method("pcd", 3).combine(rows[[2, 0, 1]])
    torch.testing.assert_close(named, first)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([0.0, 0.02, 0.5]))
def test_secondary_tasks_progress_and_the_primary_norm_is_kept(seed, tasks, tau):
    rows = drawn(seed, tasks, tasks + 3)
    merged = mtlkit.create_method("pcd", tasks, tau=tau).combine(rows)
    assert merged.norm().item() == pytest.approx(rows[0].norm().item())
    unit = rows / rows.norm(dim=1, keepdim=True)
    progress = unit[1:] @ merged
    assert (progress >= -1e-9).all()
    if tau:
        assert (progress > 0).all()


def test_without_conflict_it_is_the_primary_gradient():
    rows = torch.tensor([[1.0, 1.0], [1.0, 0.5], [0.2, 0.9]])
    torch.testing.assert_close(mtlkit.create_method("pcd", 3).combine(rows), rows[0])


def test_a_primary_gradient_of_zero_stops_the_step():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.5]])
    assert (mtlkit.create_method("pcd", 2).combine(rows) == 0).all()


def test_constraints_that_exclude_each_other_are_dropped():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    torch.testing.assert_close(mtlkit.create_method("pcd(tau=0.1)", 3).combine(rows), rows[0])


def test_agrees_with_torchjd_on_drawn_matrices():
    from torchjd.aggregation import PCD

    for start in range(0, 200, 5):
        tasks = 2 + start % 7
        ours = mtlkit.create_method("pcd(tau=0.1, beta=0.9)", tasks)
        theirs = PCD(tau=0.1, beta=0.9, eps=0.0)
        for seed in range(start, start + 5):
            rows = drawn(seed, tasks, 10)
            torch.testing.assert_close(ours.combine(rows), theirs(rows), rtol=1e-6, atol=1e-8)
