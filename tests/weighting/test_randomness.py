"""The counter-based generator behaves like one, and is equal wherever it must be."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats

from mtlkit.weighting.randomness import SharedRandom


def test_numbers_are_uniform_over_positions_counters_and_seeds():
    over_positions = SharedRandom(0).uniform(20_000)
    random = SharedRandom(1)
    over_counters = []
    for _ in range(4000):
        over_counters.append(random.uniform(1))
        random.advance(torch.tensor(True))
    over_seeds = torch.cat([SharedRandom(seed).uniform(1) for seed in range(4000)])
    for sample in (over_positions, torch.cat(over_counters), over_seeds):
        assert stats.kstest(sample.numpy(), "uniform").pvalue > 1e-3
        assert sample.min() >= 0
        assert sample.max() < 1


def test_neighbouring_positions_counters_and_streams_are_uncorrelated():
    random = SharedRandom(0)
    first = random.uniform(20_000)
    other_stream = random.uniform(20_000, stream=1)
    random.advance(torch.tensor(True))
    later = random.uniform(20_000)
    for left, right in ((first[:-1], first[1:]), (first, later), (first, other_stream)):
        assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 0.03


def test_normal_numbers_are_standard_normal():
    sample = SharedRandom(3).normal(20_000)
    assert stats.kstest(sample.numpy(), "norm").pvalue > 1e-3


def test_all_orders_of_three_others_are_equally_likely():
    random, drawn = SharedRandom(0), []
    for _ in range(6000):
        drawn.append(random.others(4)[2])
        random.advance(torch.tensor(True))
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_orders_of_the_others_leave_out_oneself(count):
    orders = SharedRandom(count).others(count)
    assert orders.shape == (count, count - 1)
    for task, order in enumerate(orders):
        assert sorted([task, *order]) == list(range(count))


def test_traced_and_plain_orders_are_the_same():
    random = SharedRandom(5)
    torch._dynamo.reset()
    for count in (3, 12):
        traced = torch.compile(random.others, fullgraph=True, backend="eager")(count)
        assert np.array_equal(traced.numpy(), random.others(count))


def test_few_numbers_are_those_of_a_longer_draw():
    random = SharedRandom(7)
    assert torch.equal(random.uniform(16, offset=3), random.uniform(40)[3:19])


def test_a_draw_does_not_depend_on_how_it_is_split():
    random = SharedRandom(0)
    whole = random.uniform(10)
    assert torch.equal(torch.cat([random.uniform(4), random.uniform(6, offset=4)]), whole)


def test_the_state_continues_and_a_skipped_step_is_drawn_again():
    random = SharedRandom(0)
    random.advance(torch.tensor(True))
    twin = copy.deepcopy(random)
    expected = random.uniform(5)
    random.advance(torch.tensor(False))
    assert torch.equal(random.uniform(5), expected)
    other = SharedRandom(9)
    other.load_state_dict(twin.state_dict())
    assert torch.equal(other.uniform(5), expected)


def test_traced_and_plain_draws_are_the_same():
    random = SharedRandom(123)
    for _ in range(3):
        random.advance(torch.tensor(True))
    torch._dynamo.reset()
    traced = torch.compile(random.uniform, fullgraph=True, backend="eager")
    for stream in (0, 1, 7):
        assert torch.equal(traced(64, stream=stream), random.uniform(64, stream=stream))
