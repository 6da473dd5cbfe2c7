import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_the_mean_is_moved_until_the_first_task_does_not_lose():
    rows = torch.tensor([[1.0, 0.0], [-2.0, 1.0]])  # mean (-0.5, 0.5)
    method = mtlkit.create_method("dualproj", 2)
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(method.weights(rows @ rows.T), torch.tensor([1.0, 0.5]))


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_merged_gradient_conflicts_with_no_task(seed, tasks, size):
    rows = drawn(seed, tasks, size)
    merged = mtlkit.create_method("dualproj", tasks).combine(rows)
    assert (rows @ merged >= -1e-12 * rows.norm(dim=1) * rows.norm()).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_no_vector_without_conflict_is_nearer_to_the_mean(seed, tasks):
    rows = drawn(seed, tasks, 5)
    mean = rows.mean(dim=0)
    merged = mtlkit.create_method("dualproj", tasks).combine(rows)
    # the projection onto a cone: what was added is orthogonal to the result
    assert ((merged - mean) @ merged).abs() <= 1e-12 * rows.square().sum()
    candidates = mtlkit.create_method("upgrad", tasks).combine(rows)
    assert (merged - mean).norm() <= (candidates - mean).norm() + 1e-12


def test_agrees_with_torchjd_on_drawn_matrices():
    pytest.importorskip("quadprog")
    pytest.importorskip("qpsolvers")
    from torchjd.aggregation import DualProj
    from torchjd.linalg import QuadprogProjector

    for seed in range(200):
        tasks = 2 + seed % 6
        rows = drawn(seed, tasks, 12)
        theirs = DualProj(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-10))(rows)
        ours = mtlkit.create_method("dualproj", tasks).combine(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_preference_is_torchjd_s_vector():
    pytest.importorskip("quadprog")
    pytest.importorskip("qpsolvers")
    from torchjd.aggregation import DualProj
    from torchjd.linalg import QuadprogProjector

    for seed in range(100):
        tasks = 2 + seed % 6
        rows = drawn(seed, tasks, 12)
        preference = drawn(seed + 1000, 1, tasks)[0].abs()
        projector = QuadprogProjector(norm_eps=0.0, reg_eps=1e-10)
        theirs = DualProj(pref_vector=preference, projector=projector)(rows)
        ours = mtlkit.create_method("dualproj", tasks, preference=preference.tolist()).combine(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
