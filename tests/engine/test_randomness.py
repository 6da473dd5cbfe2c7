"""The counter-based generator behaves like one, and is equal wherever it must be."""

import numpy as np
import pytest
import torch
from scipy import stats

from mtlkit.engine.randomness import normal, random_orders, uniform

FIRST, SECOND = torch.tensor(0), torch.tensor(1)


def test_numbers_are_uniform_over_positions_counters_and_seeds():
    over_positions = uniform(0, FIRST, 20_000)
    over_counters = torch.cat([uniform(1, torch.tensor(counter), 1) for counter in range(4000)])
    over_seeds = torch.cat([uniform(seed, FIRST, 1) for seed in range(4000)])
    for sample in (over_positions, over_counters, over_seeds):
        assert stats.kstest(sample.numpy(), "uniform").pvalue > 1e-3
        assert sample.min() >= 0
        assert sample.max() < 1


def test_neighboring_positions_counters_seeds_and_streams_are_uncorrelated():
    first = uniform(0, FIRST, 20_000)
    others = [uniform(0, FIRST, 20_000, stream=1), uniform(0, SECOND, 20_000), uniform(1, FIRST, 20_000)]
    for left, right in ((first[:-1], first[1:]), *((first, other) for other in others)):
        assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 0.03


@pytest.mark.parametrize("shift", [1, 2, 3, 64, 1000, 2**16, 5 * 2**19, 2**24, 5 * 2**28, 2**32])
def test_numbers_of_shifted_positions_are_independent(shift):
    first, second = (uniform(0, FIRST, 200_000, offset=offset) for offset in (0, shift))
    assert_independent(first, second)


@pytest.mark.parametrize("change", [1, 2, 3, 5, 8, 1000, 2**16, 2**20])
def test_numbers_of_other_counters_seeds_and_streams_are_independent(change):
    first = uniform(0, FIRST, 200_000)
    assert_independent(first, uniform(0, torch.tensor(change), 200_000))
    assert_independent(first, uniform(change, FIRST, 200_000))
    assert_independent(first, uniform(0, FIRST, 200_000, stream=change))


def test_single_numbers_of_following_counters_are_independent():
    drawn = torch.stack([uniform(0, torch.tensor(counter), 4) for counter in range(20_000)])
    for left, right in ((0, 1), (1, 2), (0, 3)):
        assert_independent(drawn[:, left], drawn[:, right], cells=16)
    for lag in (1, 2, 3, 5, 8):
        assert_independent(drawn[:-lag, 0], drawn[lag:, 0], cells=16)


def assert_independent(first: torch.Tensor, second: torch.Tensor, cells: int = 64) -> None:
    """Pairs fill a square evenly, and so do their differences, the finer structure of a weak hash."""
    counted = (first * cells).long() * cells + (second * cells).long()
    differences = ((second - first) % 1 * cells**2).long().clamp(max=cells**2 - 1)
    for numbers in (counted, differences):
        counts = torch.bincount(numbers, minlength=cells**2)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-5


def test_every_bit_of_a_position_changes_half_of_the_bits_of_its_number():
    numbers = (uniform(0, FIRST, 2**16).double() * 2**24).long()
    for bit in range(16):
        changed = numbers ^ numbers[torch.arange(2**16) ^ 2**bit]
        shares = [((changed >> place) & 1).double().mean() for place in range(24)]
        assert 0.48 < min(shares) <= max(shares) < 0.52


def test_the_largest_seeds_and_offsets_can_be_drawn():
    for seed in (2**63 - 1, 2**64 + 3, -1):
        assert stats.kstest(uniform(seed, FIRST, 2000, offset=2**40).numpy(), "uniform").pvalue > 1e-3


def test_normal_numbers_are_finite_and_as_often_negative_as_positive():
    sample = normal(0, FIRST, 2**20)
    assert torch.isfinite(sample).all()
    assert 4 < sample.max() < 6
    assert -6 < sample.min() < -4
    assert abs((sample > 0).double().mean() - 0.5) < 0.003


def test_normal_numbers_are_standard_normal():
    sample = normal(3, FIRST, 20_000)
    assert stats.kstest(sample.numpy(), "norm").pvalue > 1e-3
    other = normal(3, FIRST, 20_000, stream=1)
    assert abs(torch.corrcoef(torch.stack([sample, other]))[0, 1]) < 0.03


def test_all_orders_of_three_others_are_equally_likely():
    drawn = [random_orders(0, torch.tensor(counter), 4)[2].numpy() for counter in range(6000)]
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_orders_of_the_others_leave_out_oneself(count):
    orders = random_orders(count, FIRST, count)
    assert orders.shape == (count, count - 1)
    for task, order in enumerate(orders.tolist()):
        assert sorted([task, *order]) == list(range(count))


def test_a_draw_has_the_shape_that_is_asked_for():
    assert torch.equal(uniform(7, FIRST, 4, 5), uniform(7, FIRST, 20).reshape(4, 5))
    assert normal(7, FIRST, 2, 3).shape == (2, 3)
    assert uniform(7, FIRST, 3).dtype == torch.float32


def test_a_draw_does_not_depend_on_how_it_is_split():
    whole = uniform(0, SECOND, 10)
    assert torch.equal(torch.cat([uniform(0, SECOND, 4), uniform(0, SECOND, 6, offset=4)]), whole)


def test_the_same_seed_and_counter_draw_the_same_and_others_do_not():
    draw = uniform(0, FIRST, 50)
    assert torch.equal(uniform(0, torch.tensor(1, dtype=torch.int32), 50), uniform(0, SECOND, 50))
    for other in (uniform(1, FIRST, 50), uniform(0, SECOND, 50), uniform(0, FIRST, 50, stream=1)):
        assert not torch.isclose(other, draw).any()


def test_large_seeds_and_counters_do_not_repeat_each_other():
    seeds = [2**31 - 1, 2**31 - 2, 12345]
    counters = [0, 2**31 - 1, 10**6]
    draws = {tuple(uniform(s, torch.tensor(c), 3).tolist()) for s in seeds for c in counters}
    assert len(draws) == 9


def test_traced_and_plain_draws_are_the_same():
    torch.compiler.reset()
    traced = torch.compile(uniform, fullgraph=True, backend="aot_eager")
    counter = torch.tensor(3)
    for stream in (0, 1, 7):
        assert torch.equal(
            traced(123, counter, 64, stream=stream), uniform(123, counter, 64, stream=stream)
        )


def test_traced_and_plain_orders_are_the_same():
    torch.compiler.reset()
    traced = torch.compile(random_orders, fullgraph=True, backend="aot_eager")
    for count in (3, 12):
        assert torch.equal(traced(5, SECOND, count), random_orders(5, SECOND, count))
