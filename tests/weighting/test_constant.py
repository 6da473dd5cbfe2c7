import pytest
import torch

import mtlkit


def weights(method, values):
    losses = [None if v is None else torch.tensor(v).requires_grad_() for v in values]
    method.total(losses).backward()
    return [None if loss is None else loss.grad.item() for loss in losses]


def test_losses_are_multiplied_by_the_given_numbers():
    method = mtlkit.create_method("constant(weights=[2, 0.5])", 2)
    assert method.total([torch.tensor(3.0), torch.tensor(4.0)]).item() == 8.0
    assert weights(method, [3.0, 4.0]) == [2.0, 0.5]


def test_gradients_are_multiplied_by_the_given_numbers():
    method = mtlkit.create_method("constant(weights=[1, 2])", 2)
    rows = torch.tensor([[3.0, -1.0], [0.5, 4.0]], dtype=torch.float64)
    assert method.combine(rows).tolist() == [4.0, 7.0]
    assert method.combine(rows, torch.tensor([9.0, 5.0])).tolist() == [4.0, 7.0]
    assert method.weights(rows @ rows.T).tolist() == [1.0, 2.0]


def test_a_merge_is_given_the_multiplied_gradients():
    method = mtlkit.create_method("constant(weights=[1, 3])+mgda", 2)
    rows = torch.eye(2, dtype=torch.float64)
    # the shortest vector between (1, 0) and (0, 3) has the weights 0.9 and 0.1
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.9, 0.3]).double())
    torch.testing.assert_close(method.weights(rows), torch.tensor([0.9, 0.3]).double())


def test_names_that_a_mapping_leaves_out_keep_one():
    assert weights(mtlkit.create_method("constant(weights={b: 3})", ["a", "b"]), [1.0, 1.0]) == [
        1.0,
        3.0,
    ]
    assert weights(mtlkit.create_method("constant", 2), [1.0, 1.0]) == [1.0, 1.0]


def test_an_absent_task_does_not_shift_the_numbers():
    assert weights(mtlkit.create_method("constant(weights=[2, 3, 4])", 3), [None, 1.0, 1.0]) == [
        None,
        3.0,
        4.0,
    ]


def test_factors_multiply_with_those_of_other_parts():
    method = mtlkit.create_method("constant(weights=[2, 8])+gls", 2)
    losses = [torch.tensor(1.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)]
    total = method.total(losses)
    total.backward()
    assert total.item() == pytest.approx(4.0)  # geometric mean of 2 and 8
    assert [loss.grad.item() for loss in losses] == pytest.approx([2.0, 2.0])
