import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def drawn(seed, tasks, size):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tasks, size, generator=generator, dtype=torch.float64)
    return rows * torch.logspace(-1, 1, tasks, dtype=torch.float64)[:, None]


def test_worked_example():
    # unit gradients e1, e2: the direction (1, 1) / sqrt 2, asked for 3 / sqrt 2 + 4 / sqrt 2 of it
    method = mtlkit.create_method("config", 2)
    merged = method.combine(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    assert merged.tolist() == pytest.approx([3.5, 3.5])
    assert method.stats.weights.tolist() == pytest.approx([3.5 / 3, 3.5 / 4])


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_all_tasks_have_the_same_positive_cosine_and_the_length_is_their_demand(seed, tasks):
    rows = drawn(seed, tasks, 12)
    merged = mtlkit.create_method("config", tasks).combine(rows)
    unit = merged / merged.norm()
    cosines = (rows @ unit) / rows.norm(dim=1)
    assert cosines.min() > 0
    assert (cosines.max() - cosines.min()) < 1e-6 * cosines.max()
    assert merged.norm().item() == pytest.approx((rows @ unit).sum().item(), rel=1e-6)


@given(st.integers(0, 10_000), st.sampled_from([1e-12, 1e-6, 1e6, 1e12]))
def test_it_scales_with_the_gradients(seed, scale):
    rows = drawn(seed, 4, 12).float()
    method = mtlkit.create_method("config", 4)
    torch.testing.assert_close(
        method.combine(rows * scale) / scale, method.combine(rows), rtol=1e-3, atol=1e-3
    )


def test_it_equals_torchjd():
    from torchjd.aggregation import ConFIG

    for case in range(200):
        rows = drawn(case, 1 + case % 7, 20)
        merged = mtlkit.create_method("config", len(rows)).combine(rows)
        torch.testing.assert_close(merged, ConFIG()(rows), rtol=1e-6, atol=1e-8)


def test_it_equals_torchjd_for_dependent_zero_and_repeated_gradients():
    from torchjd.aggregation import ConFIG

    for case in range(50):
        rows = drawn(case, 4, 10)
        rows[2] = rows[0] + 2 * rows[1]
        rows[3] = rows[0] if case % 2 else 0
        merged = mtlkit.create_method("config", 4).combine(rows)
        torch.testing.assert_close(merged, ConFIG()(rows), rtol=1e-5, atol=1e-7)


def test_dependent_gradients_in_float32_are_not_led_by_rounding():
    rows = drawn(5, 3, 1000)
    rows[2] = rows[0] + rows[1]
    exact = mtlkit.create_method("config", 3).combine(rows)
    single = mtlkit.create_method("config", 3).combine(rows.float())
    torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-3)


def test_opposite_gradients_give_zero():
    rows = torch.tensor([[1.0, 2.0], [-2.0, -4.0]])
    assert mtlkit.create_method("config", 2).combine(rows).tolist() == [0.0, 0.0]


def test_nearly_opposite_gradients_are_served_across():
    angle = 1e-2
    rows = torch.tensor([[1.0, angle], [-1.0, angle]], dtype=torch.float64)
    merged = mtlkit.create_method("config", 2).combine(rows)
    assert merged[0].abs() < 1e-12
    assert merged[1].item() == pytest.approx(2 * angle)


def test_zero_gradients_give_zero_and_one_that_is_not_finite_gives_nan():
    method = mtlkit.create_method("config", 2)
    assert method.combine(torch.zeros(2, 3)).tolist() == [0.0, 0.0, 0.0]
    assert all(map(math.isnan, method.combine(torch.tensor([[1.0, math.inf], [1.0, 1.0]])).tolist()))


def test_a_preference_is_torchjd_s_vector_and_sets_the_cosines():
    from torchjd.aggregation import ConFIG

    for case in range(100):
        rows = drawn(case, 1 + case % 7, 20)
        preference = drawn(case + 1000, 1, len(rows))[0].abs()
        options = {"preference": preference.tolist()}
        merged = mtlkit.create_method("config", len(rows), **options).combine(rows)
        torch.testing.assert_close(merged, ConFIG(pref_vector=preference)(rows), rtol=1e-6, atol=1e-8)
        cosines = (rows @ merged) / rows.norm(dim=1)
        ratios = cosines / preference
        torch.testing.assert_close(ratios, ratios.mean().expand_as(ratios), rtol=1e-6, atol=0)
