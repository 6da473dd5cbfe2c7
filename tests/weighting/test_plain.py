"""Sum and mean."""

import torch
from hypothesis import given, settings
from torchjd import aggregation

import mtlkit
from tests.weighting.strategies import gradients


def test_sum_and_mean_by_hand():
    rows = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    assert mtlkit.create_method("sum", 2).combine(rows).tolist() == [4.0, -2.0]
    assert mtlkit.create_method("mean", 2).combine(rows).tolist() == [2.0, -1.0]


@settings(max_examples=200)
@given(gradients())
def test_they_equal_torchjd(rows):
    for name, peer in (("sum", aggregation.Sum()), ("mean", aggregation.Mean())):
        torch.testing.assert_close(mtlkit.create_method(name, len(rows)).combine(rows), peer(rows))


def test_the_mean_is_taken_over_the_tasks_that_are_present():
    z = torch.zeros(1, 2, requires_grad=True)
    method = mtlkit.create_method("mean", 3)
    views = method(z)
    method.total([2 * views[0][0, 0], None, 6 * views[2][0, 1]]).backward()
    assert z.grad.tolist() == [[1.0, 3.0]]


def test_the_sum_needs_no_fork_and_is_the_same_with_one():
    grads = []
    for fork in (True, False):
        method = mtlkit.create_method("sum", 2)
        z = torch.ones(1, 2, requires_grad=True)
        one, two = method(z) if fork else (z, z)
        method.total([one.square().sum(), 3 * two.sum()]).backward()
        assert (method.stats is not None) == fork
        grads.append(z.grad)
    assert torch.equal(*grads)
