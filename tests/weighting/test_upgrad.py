import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_two_conflicting_gradients_are_projected_onto_each_others_planes():
    gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    weights = mtlkit.create_method("upgrad", 2).weights(gram)
    torch.testing.assert_close(weights, torch.full((2,), 0.75, dtype=torch.float64))


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_merged_gradient_conflicts_with_no_task(seed, tasks, size):
    rows = drawn(seed, tasks, size)
    merged = mtlkit.create_method("upgrad", tasks).combine(rows)
    assert (rows @ merged >= -1e-12 * rows.norm(dim=1) * rows.norm()).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_without_conflict_it_is_the_mean(seed, tasks):
    rows = drawn(seed, tasks, 5).abs()
    merged = mtlkit.create_method("upgrad", tasks).combine(rows)
    torch.testing.assert_close(merged, rows.mean(dim=0))


def test_small_gradients_are_projected_like_large_ones():
    rows = drawn(0, 3, 3)
    method = mtlkit.create_method("upgrad", 3)
    torch.testing.assert_close(method.combine(rows * 1e-9) * 1e9, method.combine(rows))


def test_agrees_with_torchjd_on_drawn_matrices():
    pytest.importorskip("quadprog")
    pytest.importorskip("qpsolvers")
    from torchjd.aggregation import UPGrad
    from torchjd.linalg import QuadprogProjector

    for seed in range(200):
        tasks = 2 + seed % 6
        rows = drawn(seed, tasks, 12)
        # its default adds 1e-4 to the diagonal; with less it comes near the exact solution
        theirs = UPGrad(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-10))(rows)
        ours = mtlkit.create_method("upgrad", tasks).combine(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
