import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import SpecError
from tests.weighting.strategies import drawn


def test_two_conflicting_gradients_are_projected_onto_each_others_planes():
    gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    weights = mtlkit.create_method("upgrad", 2).weights(gram)
    torch.testing.assert_close(weights, torch.full((2,), 0.75, dtype=torch.float64))


@pytest.mark.parametrize("method", ["upgrad", "dualproj"])
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_merged_gradient_conflicts_with_no_task(method, seed, tasks, size):
    rows = drawn(seed, tasks, size)
    merged = mtlkit.create_method(method, tasks).combine(rows)
    assert (rows @ merged >= -1e-12 * rows.norm(dim=1) * rows.norm()).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_without_conflict_it_is_the_mean(seed, tasks):
    rows = drawn(seed, tasks, 5).abs()
    merged = mtlkit.create_method("upgrad", tasks).combine(rows)
    torch.testing.assert_close(merged, rows.mean(dim=0))


def test_a_preference_weighs_the_projections():
    gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]], dtype=torch.float64)
    # the projections are g1 + g2 / 2 and g2 + g1 / 2
    weights = mtlkit.create_method("upgrad(preference=[2, 1])", 2).weights(gram)
    torch.testing.assert_close(weights, torch.tensor([2.5, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("name", ["UPGrad", "DualProj"])
@pytest.mark.parametrize("prefers", [False, True])
def test_agrees_with_torchjd_with_and_without_a_preference(name, prefers):
    pytest.importorskip("quadprog")
    pytest.importorskip("qpsolvers")
    from torchjd import aggregation
    from torchjd.linalg import QuadprogProjector

    # its default adds 1e-4 to the diagonal; with less it comes near the exact solution
    projector = QuadprogProjector(norm_eps=0.0, reg_eps=1e-10)
    for seed in range(150):
        tasks = 2 + seed % 6
        rows = drawn(seed, tasks, 12)
        preference = drawn(seed + 1000, 1, tasks)[0].abs() * (torch.arange(tasks) != seed % 9)
        theirs = getattr(aggregation, name)(preference if prefers else None, projector=projector)(rows)
        options = {"preference": preference.tolist()} if prefers else {}
        ours = mtlkit.create_method(name.lower(), tasks, **options).combine(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["upgrad", "dualproj", "aligned_mtl", "config"])
def test_preferences_are_checked_and_may_name_the_tasks(method):
    rows = drawn(0, 2, 5)
    named = mtlkit.create_method(f"{method}(preference={{b: 3}})", ("a", "b"))
    listed = mtlkit.create_method(f"{method}(preference=[1, 3])", ("a", "b"))
    torch.testing.assert_close(named.combine(rows), listed.combine(rows))
    assert str(mtlkit.create_method(str(listed), ("a", "b"))) == str(listed)
    for wrong in ("[0, 0]", "[-1, 2]", "[1]"):
        with pytest.raises(SpecError, match=f"preference of {method}"):
            mtlkit.create_method(f"{method}(preference={wrong})", 2)


@pytest.mark.parametrize("method", ["upgrad", "dualproj", "aligned_mtl", "config"])
def test_without_a_task_the_others_keep_their_preference(method):
    full = mtlkit.create_method(f"{method}(preference=[2, 5, 1])", 3)
    smaller = mtlkit.create_method(f"{method}(preference=[2, 1])", 2)
    slopes = drawn(0, 3, 6)
    z = torch.ones(6, dtype=torch.float64, requires_grad=True)
    views = full(z)
    full.total([views[0] @ slopes[0], None, views[2] @ slopes[2]]).backward()
    torch.testing.assert_close(z.grad, smaller.combine(slopes[[0, 2]]))
