import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step

positive = st.lists(st.floats(0.01, 100), min_size=2, max_size=6)


@given(positive)
def test_it_tends_to_the_maximum_as_mu_tends_to_zero(values):
    total, weights = step(
        mtlkit.create_method("stch(mu=1e-6, warmup=0, transform=none)", len(values)), values
    )
    assert total == pytest.approx(max(values), abs=1e-5)
    assert sum(weights) == pytest.approx(1.0)
    total, _ = step(mtlkit.create_method("stch(mu=1e-6, warmup=0)", len(values)), values)
    assert total == pytest.approx(math.log(max(values)), abs=1e-5)


@given(positive, st.floats(0.05, 5))
def test_it_lies_above_the_maximum_by_at_most_mu_log_k(values, mu):
    total, _ = step(
        mtlkit.create_method(f"stch(mu={mu}, warmup=0, transform=none)", len(values)), values
    )
    assert max(values) - 1e-9 <= total <= max(values) + mu * math.log(len(values)) + 1e-9


@given(positive)
def test_the_gradient_tends_to_that_of_the_mean_as_mu_grows(values):
    _, weights = step(mtlkit.create_method("stch(mu=1e9, warmup=0)", len(values)), values)
    assert weights == pytest.approx([1 / len(values) / value for value in values], rel=1e-6)


def test_worked_example():
    # log(1 + 3) = 2 log 2; softmax(log 1, log 3) = 1/4, 3/4; divided by the losses
    total, weights = step(mtlkit.create_method("stch(mu=1.0, warmup=0)", 2), [1.0, 3.0])
    assert total == pytest.approx(math.log(4))
    assert weights == pytest.approx([0.25, 0.25])


def test_warm_up_minimizes_the_mean_logarithm_and_then_divides_by_its_mean_losses():
    method = mtlkit.create_method("stch(mu=0.5, warmup=4)", 2)
    for values in ([9.0, 9.0], [8.0, 1.0], [1.0, 2.0], [3.0, 6.0]):
        total, weights = step(method, values)
        assert total == pytest.approx(sum(map(math.log, values)) / 2)
        assert weights == pytest.approx([0.5 / value for value in values])
    # the second half's means are 2 and 4; squares of (1/2, 4/4): 1/4 and 1
    total, weights = step(method, [1.0, 4.0])
    assert total == pytest.approx(0.5 * math.log(1.25))
    assert weights == pytest.approx([0.2 / 1.0, 0.8 / 4.0])


def test_a_present_task_that_is_still_warming_up_holds_back_the_others():
    method = mtlkit.create_method("stch(mu=0.5, warmup=2)", 2)

    def weights(first, second):
        losses = [torch.tensor(first, dtype=torch.float64, requires_grad=True), second]
        losses[1] = None if second is None else torch.tensor(second, requires_grad=True)
        method.total(losses).backward()
        return [None if loss is None else loss.grad.item() for loss in losses]

    assert weights(4.0, None) == [pytest.approx(0.25), None]
    assert weights(2.0, 8.0) == pytest.approx([0.25, 0.0625])
    assert weights(1.0, 4.0) == pytest.approx([0.5, 0.125])  # the second task's second step
    # now n = 2 and 4, of the second halves; squares of (2/2, 2/4): 1 and 1/4
    assert weights(2.0, 2.0) == pytest.approx([0.8 / 2, 0.2 / 2])


def test_values_and_gradients_equal_torchjd():
    """TorchJD's preferences sum to one, ours have mean one: f(mu) there is f(K mu) / K here."""
    from torchjd.scalarization import STCH

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 6
        preference = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
        preference = preference / preference.sum()
        mu = 0.05 + torch.rand((), generator=generator).item()
        stacked = (5 * torch.rand(count, generator=generator, dtype=torch.float64)).requires_grad_()
        expected = STCH(mu, preference)(stacked)
        expected.backward()
        ours = mtlkit.create_method(
            "stch(warmup=0, transform=none)", count, mu=count * mu, preference=preference.tolist()
        )
        total, weights = step(ours, stacked.tolist())
        assert total / count == pytest.approx(expected.item())
        assert [w / count for w in weights] == pytest.approx(stacked.grad.tolist())


def test_small_mu_and_large_losses_do_not_overflow():
    total, weights = step(mtlkit.create_method("stch(mu=1e-8, warmup=0, transform=none)", 2), [1e9, 1.0])
    assert total == pytest.approx(1e9)
    assert weights == pytest.approx([1.0, 0.0])


def test_a_loss_of_zero_takes_no_part():
    total, weights = step(mtlkit.create_method("stch(warmup=0)", 3), [0.0, 2.0, 2.0])
    assert total == pytest.approx(2 * math.log(2))
    assert weights == pytest.approx([0.0, 0.25, 0.25])
    assert step(mtlkit.create_method("stch(warmup=0)", 2), [0.0, 0.0]) == (0.0, [0.0, 0.0])
