"""Random numbers as a function of (seed, epoch, sample), independent of the reading order.

A data loader with four workers, a resumed run and a run on two machines draw the same augmentation for
the same sample of the same epoch. Each number is a hash of its coordinates (SplitMix64, Steele et al.,
2014), computed for a whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mtlkit.errors import SpecError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer: every input bit affects every output bit."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def sample_uniform(
    seed: int, epoch: int, indices: Sequence[int] | NDArray[np.integer], count: int
) -> NDArray[np.float64]:
    """Return numbers in [0, 1) of shape (len(indices), count) set by seed, epoch and index only."""
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64 by definition
        key = _mix(np.array([seed % 2**64], dtype=np.uint64) * _GOLDEN + np.uint64(epoch + 1))  # (1,)
        rows = _mix((np.asarray(indices, dtype=np.uint64) + np.uint64(1)) * _GOLDEN ^ key)  # (B,)
        columns = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        bits = _mix(rows[:, None] + columns[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a generator for one purpose: ``generator(seed, "multimnist", "train")``."""
    words = [crc32(item.encode()) if isinstance(item, str) else item for item in purpose]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))


def generator_or_none(seed: int | None, *purpose: str | int) -> np.random.Generator | None:
    """Return :func:`generator` of a seed; None for None."""
    return None if seed is None else generator(seed, *purpose)


def split_indices(
    count: int,
    shares: Sequence[float],
    random: np.random.Generator,
    test_random: np.random.Generator | None = None,
) -> list[NDArray[np.int64]]:
    """Return a random partition of ``range(count)``; the first part is what the shares leave.

    With ``test_random``, only that generator determines the last part. So several seeds can share their
    test samples and differ in the others.
    """
    if test_random is not None:
        test = split_indices(count, shares, test_random)[-1]
        rest = np.setdiff1d(np.arange(count), test)
        scaled = [share * count / len(rest) for share in shares[:-1]]
        return [*(rest[part] for part in split_indices(len(rest), scaled, random)), test]
    order = random.permutation(count)
    sizes = [max(1, round(share * count)) if share else 0 for share in shares]
    if sum(sizes) >= count:
        raise SpecError(f"{count} samples are too few to hold out {sum(sizes)} of them")
    bounds = np.cumsum([count - sum(sizes), *sizes])[:-1]
    return [np.sort(part) for part in np.split(order, bounds)]
