import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_orthogonal_gradients_are_divided_by_their_norms():
    gram = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    weights = mtlkit.create_method("nash_mtl", 2).weights(gram)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5], dtype=torch.float64))


def test_two_gradients_at_sixty_degrees_get_the_root_of_two_thirds():
    gram = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    weights = mtlkit.create_method("nash_mtl", 2).weights(gram)
    torch.testing.assert_close(weights, torch.full((2,), math.sqrt(2 / 3), dtype=torch.float64))


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_gram_matrix_times_weights_is_one_over_weights(seed, tasks):
    rows = drawn(seed, tasks, tasks + 2)
    gram = rows @ rows.T
    weights = mtlkit.create_method("nash_mtl", tasks).weights(gram)
    assert (weights > 0).all()
    torch.testing.assert_close(gram @ weights, 1 / weights, rtol=1e-8, atol=0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_merged_gradient_has_norm_root_of_the_number_of_tasks_unless_clipped(seed, tasks):
    rows = drawn(seed, tasks, tasks + 2)
    free = mtlkit.create_method("nash_mtl", tasks).combine(rows)
    assert free.norm().item() == pytest.approx(math.sqrt(tasks))
    clipped = mtlkit.create_method("nash_mtl", tasks, max_norm=0.5).combine(rows)
    torch.testing.assert_close(clipped, free * (0.5 / math.sqrt(tasks)))


def test_weights_are_kept_between_the_steps_that_solve():
    method = mtlkit.create_method("nash_mtl(update_every=3)", 2)
    every = mtlkit.create_method("nash_mtl", 2)
    first = drawn(0, 2, 4)
    expected = every.weights(first @ first.T)
    for seed in range(3):
        rows = drawn(seed, 2, 4)
        torch.testing.assert_close(method.combine(rows), expected @ rows)
    rows = drawn(3, 2, 4)
    torch.testing.assert_close(method.combine(rows), every.combine(rows))


def test_two_totals_of_one_backward_are_two_steps():
    method = mtlkit.create_method("nash_mtl(update_every=3)", 2)
    plain = mtlkit.create_method("nash_mtl(update_every=3)", 2)
    for start in (0, 2, 4):
        points = [torch.zeros(1, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        rows = [drawn(start + index, 2, 4) for index in range(2)]
        totals = []
        for point, slopes in zip(points, rows, strict=True):
            views = method(point)
            totals.append(method.total([(v * s).sum() for v, s in zip(views, slopes, strict=True)]))
        (totals[0] + totals[1]).backward()
        # autograd visits the later junction first
        torch.testing.assert_close(points[1].grad[0], plain.combine(rows[1]))
        torch.testing.assert_close(points[0].grad[0], plain.combine(rows[0]))
    assert method.parts[0].age == 6


def test_a_task_that_was_never_present_makes_all_bargain_again():
    method = mtlkit.create_method("nash_mtl(update_every=3)", 3)
    z = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    rows = drawn(0, 3, 4)
    for present in ((0, 1), (0, 1, 2)):
        z.grad = None
        losses = [(view * row).sum() for view, row in zip(method(z), rows, strict=True)]
        method.total([loss if k in present else None for k, loss in enumerate(losses)]).backward()
        chosen = rows[list(present)]
        expected = mtlkit.create_method("nash_mtl", len(present)).combine(chosen)
        torch.testing.assert_close(z.grad[0], expected)


def test_opposite_gradients_have_nothing_to_agree_on():
    rows = torch.tensor([[1.0, 0.0], [-3.0, 0.0]])
    assert (mtlkit.create_method("nash_mtl", 2).combine(rows) == 0).all()


@pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP")
def test_direction_agrees_with_torchjd_on_drawn_matrices():
    pytest.importorskip("cvxpy")
    pytest.importorskip("ecos")
    from torchjd.aggregation import NashMTL

    differences = []
    for seed in range(60):
        tasks = 2 + seed % 2
        rows = drawn(seed, tasks, 12)
        ours = mtlkit.create_method("nash_mtl", tasks).combine(rows)
        theirs = NashMTL(tasks, max_norm=0.0)(rows)
        assert (rows @ ours > 0).all()
        differences.append(1 - torch.cosine_similarity(ours, theirs, dim=0).item())
    # TorchJD stops after 20 programs, for some matrices far from the solution
    assert sorted(differences)[30] < 1e-4
    assert sum(difference < 1e-2 for difference in differences) >= 57


def test_without_bound_max_norm_may_be_none_or_zero():
    rows = drawn(0, 3, 5)
    free = mtlkit.create_method("nash_mtl", 3).combine(rows)
    assert torch.equal(mtlkit.create_method("nash_mtl(max_norm=0.0)", 3).combine(rows), free)
