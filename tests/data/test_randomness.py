"""Numbers fixed by (seed, epoch, sample)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.data.randomness import sample_uniform, split_indices


@given(
    st.integers(0, 2**63), st.integers(0, 10**6), st.lists(st.integers(0, 10**9), min_size=1, max_size=9)
)
def test_a_samples_numbers_do_not_depend_on_the_other_samples(seed, epoch, indices):
    together = sample_uniform(seed, epoch, indices, 4)
    for row, index in enumerate(indices):
        assert np.array_equal(sample_uniform(seed, epoch, [index], 4)[0], together[row])
    assert ((together >= 0) & (together < 1)).all()


def test_numbers_are_uniform_and_uncorrelated_over_samples_epochs_and_seeds():
    from scipy.stats import kstest

    for seed, epoch in ((0, 0), (0, 1), (1, 0), (123456, 99)):
        numbers = sample_uniform(seed, epoch, np.arange(5000), 3)
        for column in numbers.T:
            assert kstest(column, "uniform").pvalue > 1e-4
        assert np.abs(np.corrcoef(numbers.T) - np.eye(3)).max() < 0.06
    one, two, three = (
        sample_uniform(s, e, np.arange(5000), 1)[:, 0] for s, e in ((0, 0), (0, 1), (1, 0))
    )
    for a, b in ((one, two), (one, three), (two, three), (one[1:], one[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


@given(st.integers(10, 200), st.floats(0.05, 0.4), st.floats(0.05, 0.4), st.integers(0, 1000))
def test_a_split_is_a_partition(count, first, second, seed):
    parts = split_indices(count, [first, second], np.random.default_rng(seed))
    assert len(parts) == 3
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert len(parts[1]) == max(1, round(first * count))
