import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.loss_steps import step


def test_worked_example():
    # along (1, 1) / sqrt 2: d1 = 4 / sqrt 2, what is across is (1, -1), d2 = sqrt 2
    total, weights = step(mtlkit.create_method("pbi(theta=2.0)", 2), [3.0, 1.0])
    root = math.sqrt(2)
    assert total == pytest.approx(4 / root + 2 * root)
    assert weights == pytest.approx([1 / root + 2 / root, 1 / root - 2 / root])


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=5),
    st.sampled_from([1e-12, 1e-6, 1e6, 1e12]),
)
def test_weights_do_not_depend_on_a_common_unit(values, unit):
    # away from the direction itself, where d2 has no gradient
    assume(max(values[0] / 2, *values[1:]) > 1.01 * min(values[0] / 2, *values[1:]))
    method = mtlkit.create_method("pbi(preference={'0': 2})", len(values))
    _, weights = step(method, values)
    _, scaled = step(method, [unit * value for value in values])
    assert scaled == pytest.approx(weights, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("unit", [1e-12, 0.1, 1.0, 1e12])
def test_on_the_preferred_direction_the_subgradient_is_the_direction(unit):
    method = mtlkit.create_method("pbi(preference=[1, 2, 2])", 3)
    total, weights = step(method, [unit, 2 * unit, 2 * unit])
    assert weights == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert total == pytest.approx(3 * unit)


def test_values_and_gradients_equal_torchjd():
    """TorchJD adds 1e-12 under a root, hence the tolerance; one task alone is compared too."""
    from torchjd.scalarization import PBI

    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        count = 1 + case % 6
        preference = torch.rand(count, generator=generator, dtype=torch.float64) + 0.05
        ideal = torch.rand(count, generator=generator, dtype=torch.float64)
        stacked = 1 + 3 * torch.rand(count, generator=generator, dtype=torch.float64)
        stacked.requires_grad_()
        expected = PBI(5.0, preference, ideal)(stacked)
        expected.backward()
        method = mtlkit.create_method("pbi", count, preference=preference.tolist(), ideal=ideal.tolist())
        total, weights = step(method, stacked.tolist())
        assert total == pytest.approx(expected.item(), abs=1e-5)
        assert weights == pytest.approx(stacked.grad.tolist(), rel=1e-6, abs=1e-6)
