"""The counter-based generator behaves like one, and is equal wherever it must be."""

import copy

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


def test_all_orders_of_three_are_equally_likely():
    orders = SharedRandom(0).permutations(6000, 3)
    codes = orders[:, 0] * 9 + orders[:, 1] * 3 + orders[:, 2]
    _, counts = torch.unique(codes, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


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
