import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def weights(method, values):
    losses = [None if v is None else torch.tensor(v, dtype=torch.float64) for v in values]
    losses = [None if loss is None else loss.requires_grad_() for loss in losses]
    method.total(losses).backward()
    return [None if loss is None else loss.grad.item() for loss in losses]


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=5))
def test_the_first_losses_become_one(values):
    method = mtlkit.create_method("normalize", len(values))
    total = method.total([torch.tensor(v, dtype=torch.float64) for v in values])
    assert total.item() == pytest.approx(len(values))


def test_worked_sequence_with_a_burn_in():
    method = mtlkit.create_method("normalize(burn_in=3)", 2)
    assert weights(method, [4.0, 10.0]) == pytest.approx([0.25, 0.1])
    assert weights(method, [2.0, 1.0]) == pytest.approx([0.25, 0.1])
    assert weights(method, [0.5, 2.0]) == pytest.approx([2.0, 0.5])  # read anew at step 3
    assert weights(method, [9.0, 9.0]) == pytest.approx([2.0, 0.5])


def test_without_burn_in_the_first_losses_stay():
    method = mtlkit.create_method("normalize(burn_in=0)", 1)
    for value in (4.0, 2.0, 1.0, 8.0):
        assert weights(method, [value]) == pytest.approx([0.25])


def test_a_task_counts_its_own_steps():
    method = mtlkit.create_method("normalize(burn_in=2)", 2)
    assert weights(method, [4.0, None]) == [0.25, None]
    assert weights(method, [2.0, 10.0]) == pytest.approx([0.5, 0.1])
    assert weights(method, [8.0, 5.0]) == pytest.approx([0.5, 0.2])


def test_a_loss_of_zero_is_no_reference():
    method = mtlkit.create_method("normalize(burn_in=0)", 1)
    assert weights(method, [0.0]) == [1.0]
    assert weights(method, [4.0]) == [0.25]
    assert weights(method, [0.0]) == [0.25]


def test_the_sign_of_a_loss_is_kept():
    method = mtlkit.create_method("normalize", 1)
    assert method.total([torch.tensor(-4.0)]).item() == -1.0


def test_evaluation_uses_the_references_and_keeps_none():
    method = mtlkit.create_method("normalize(burn_in=2)", 1)
    weights(method, [4.0])
    method.eval()
    assert method.total([torch.tensor(2.0)]).item() == 0.5
    assert method.parts[0].reference.tolist() == [4.0]
