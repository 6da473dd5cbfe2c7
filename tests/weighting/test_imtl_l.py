import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def leaves(values):
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_at_the_optimum_all_scaled_losses_are_one(values):
    method = mtlkit.create_method("imtl_l", len(values)).double()
    with torch.no_grad():
        method.parts[0].log_scales.copy_(-torch.tensor(values).double().log())
    losses = leaves(values)
    method.total(losses).backward()
    assert method.parts[0].log_scales.grad.abs().max() < 1e-6
    for loss, value in zip(losses, values, strict=True):
        assert loss.grad.item() * value == pytest.approx(1.0, rel=1e-6)


def test_at_first_it_is_the_sum():
    method = mtlkit.create_method("imtl_l", 2)
    losses = leaves([3.0, 0.5])
    total = method.total(losses)
    total.backward()
    assert total.item() == 3.5
    assert [loss.grad.item() for loss in losses] == [1.0, 1.0]
    assert method.parts[0].log_scales.grad.tolist() == [2.0, -0.5]  # e^0 L - 1


def test_values_and_gradients_equal_torchjd():
    from torchjd.scalarization import IMTLL

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 8
        theirs, ours = IMTLL(count).double(), mtlkit.create_method("imtl_l", count).double()
        with torch.no_grad():
            theirs.log_scale.copy_(torch.randn(count, generator=generator))
            ours.parts[0].log_scales.copy_(theirs.log_scale)
        stacked = torch.rand(count, generator=generator, dtype=torch.float64).requires_grad_()
        expected = theirs(stacked)
        expected.backward()
        losses = leaves(stacked.tolist())
        total = ours.total(losses)
        total.backward()
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(torch.stack([loss.grad for loss in losses]), stacked.grad)
        torch.testing.assert_close(ours.parts[0].log_scales.grad, theirs.log_scale.grad)


def test_imtl_stands_for_both_of_its_halves():
    assert str(mtlkit.create_method("imtl", 2)) == "imtl_l+imtl_g"
