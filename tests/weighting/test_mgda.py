import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import mtlkit
from mtlkit.errors import UsageError
from tests.weighting.strategies import drawn


def test_orthogonal_gradients_are_weighted_by_inverse_squares():
    gram = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    weights = mtlkit.create_method("mgda", 2).weights(gram)
    torch.testing.assert_close(weights, torch.tensor([0.8, 0.2], dtype=torch.float64))
    equal = mtlkit.create_method("mgda(normalize=l2)", 2).weights(gram)
    torch.testing.assert_close(equal, torch.full((2,), 0.5, dtype=torch.float64))


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 9))
def test_the_conditions_of_karush_kuhn_and_tucker_hold(seed, tasks, size):
    rows = drawn(seed, tasks, size)
    gram = rows @ rows.T
    weights = mtlkit.create_method("mgda", tasks).weights(gram)
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1)
    products = gram @ weights
    square = weights @ products
    assert (products >= square - 1e-12 * gram.diagonal().max()).all()
    assert (weights * (products - square)).abs().max() <= 1e-12 * gram.diagonal().max()


@pytest.mark.parametrize(
    ("normalize", "expected"),
    # gradients of norm 1 and 2, losses 1 and 4: weights are inverse squares of the normalized norms
    [("none", [0.8, 0.2]), ("l2", [0.5, 0.5]), ("loss", [0.2, 0.8]), ("loss+", [1 / 17, 16 / 17])],
)
def test_gradients_are_divided_by_norm_and_loss_to_find_the_weights(normalize, expected):
    method = mtlkit.create_method("mgda", 2, normalize=normalize)
    z = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    first, second = method(z)
    method.total([first[0, 0] + 1, 2 * second[0, 1] + 4]).backward()
    wanted = torch.tensor([[expected[0], 2 * expected[1]]], dtype=torch.float64)
    torch.testing.assert_close(z.grad, wanted)


@pytest.mark.parametrize("wrt", ["features", "parameters"])
def test_two_totals_of_one_backward_use_their_own_losses(wrt):
    method = mtlkit.create_method("mgda(normalize=loss)", 2, wrt=wrt)
    first, second = (nn.Parameter(torch.zeros(1, 2, dtype=torch.float64)) for _ in range(2))

    def total(point: torch.Tensor, losses: tuple[float, float]) -> torch.Tensor:
        one, two = method(point * 1)
        return method.total([one[0, 0] + losses[0], 2 * two[0, 1] + losses[1]])

    # gradients of norm 1 and 2, divided by the losses: 1 and 1/2 with (1, 4), 1/4 and 2 with (4, 1)
    t1, t2 = total(first, (1.0, 4.0)), total(second, (4.0, 1.0))
    (t1 + t2).backward()
    torch.testing.assert_close(first.grad, torch.tensor([[0.2, 2 * 0.8]], dtype=torch.float64))
    wanted = torch.tensor([[64 / 65, 2 * 1 / 65]], dtype=torch.float64)
    torch.testing.assert_close(second.grad, wanted)


def test_two_totals_of_one_backward_use_their_own_losses_without_a_fork():
    method = mtlkit.create_method("mgda(normalize=loss, wrt=parameters)", 2)
    first, second = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    t1 = method.total([first[0] + 1, 2 * first[1] + 4])
    t2 = method.total([second[0] + 4, 2 * second[1] + 1])
    (t1 + t2).backward()
    torch.testing.assert_close(first.grad, torch.tensor([0.2, 2 * 0.8], dtype=torch.float64))
    torch.testing.assert_close(second.grad, torch.tensor([64 / 65, 2 / 65], dtype=torch.float64))


def test_losses_may_be_given_to_combine():
    rows = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    merged = mtlkit.create_method("mgda(normalize=loss)", 2).combine(rows, torch.tensor([1.0, -4.0]))
    torch.testing.assert_close(merged, torch.tensor([0.2, 2 * 0.8], dtype=torch.float64))


def test_a_task_whose_loss_is_zero_gets_no_weight():
    method = mtlkit.create_method("mgda(normalize=loss)", 2)
    z = torch.zeros(1, 2, requires_grad=True)
    first, second = method(z)
    method.total([first[0, 0], second[0, 1] + 1]).backward()
    torch.testing.assert_close(z.grad, torch.tensor([[0.0, 1.0]]))


def test_normalization_by_losses_needs_them():
    method = mtlkit.create_method("mgda(normalize=loss)", 2)
    with pytest.raises(UsageError, match="needs the losses"):
        method.combine(torch.eye(2))
    with pytest.raises(UsageError, match="needs the losses"):
        method.weights(torch.eye(2))


def test_is_the_point_that_torchjd_approaches():
    from torchjd.aggregation import MGDA

    for seed in range(200):
        rows = drawn(seed, 2 + seed % 6, 10)
        ours = mtlkit.create_method("mgda", len(rows)).combine(rows)
        theirs = MGDA(epsilon=1e-9, max_iters=100)(rows)
        gap = theirs.square().sum() - ours.square().sum()
        # what the shortest vector of a convex set is to all others
        assert (theirs - ours).square().sum() <= gap + 1e-12
        # what Frank and Wolfe's method guarantees after 100 steps
        assert gap <= 8 * rows.square().sum(dim=1).max() / 102
