"""Batches of several sources: which sources a step draws from, and which of their samples.

The schedule is a function of the seed, the epoch and the number of the batch. So every process knows
all of it, and a resumed run needs only its position.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch.utils.data import BatchSampler

from mtlkit.config.spec import parse_call
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError, UsageError, unknown_name

BatchesOf: TypeAlias = Literal["one", "all"]
_MIXINGS = ("uniform", "proportional", "temperature")


class Draw(NamedTuple):
    """One sample: the number of its source, its index there, and the number of the pass."""

    source: int
    sample: int
    turn: int


def mixing_shares(mixing: str, sizes: Sequence[float]) -> list[float]:
    """Return the fraction of every source, given their numbers of samples.

    ``mixing`` is ``uniform``, ``proportional`` to the sizes, or ``temperature(T)``, proportional to
    size^(1/T), which lies between the two.
    """
    part = parse_call(mixing)
    if part.name not in _MIXINGS:
        raise unknown_name("mixing", part.name, _MIXINGS)
    power = {"uniform": 0.0, "proportional": 1.0}.get(part.name)
    given = [*part.arguments, *part.options.values()]
    if power is None:
        if len(given) != 1 or not isinstance(given[0], int | float) or not given[0] >= 1:
            raise SpecError(f"mixing temperature(T) needs one number T, 1 or more, not {mixing!r}")
        power = 1 / given[0]
    elif given:
        raise SpecError(f"mixing {part.name} takes no options: {mixing!r}")
    weights = [size**power for size in sizes]
    return [weight / sum(weights) for weight in weights]


class MixedBatches:
    """Batches of :class:`Draw`, for a :class:`~mtlkit.data.mixture.Mixture`.

    A source that is exhausted restarts in a new order. An epoch has as many samples as all sources
    together, for every mixing; ``proportional`` reads each source once.

    Args:
        samplers: the sampler of each source, by name.
        sizes: batch size; or that of each source, in the order of ``samplers``.
        mixing: see :func:`mixing_shares`.
        batches: ``one`` draws a source for every step, as often per epoch as its fraction says; ``all``
            divides a batch (of the sum of the sizes) by the fractions, with at least one sample of each
            source.
        seed: seed of the draws and the orders.
    """

    def __init__(
        self,
        samplers: Mapping[str, Any],
        sizes: int | Sequence[int],
        *,
        mixing: str,
        batches: BatchesOf,
        seed: int,
    ) -> None:
        if batches not in get_args(BatchesOf):
            raise SpecError(f"batches must be 'one' or 'all', not {batches!r}")
        self.seed = seed
        self.epoch = 0
        self.batches = batches
        pairs = enumerate(samplers.items())
        self._streams = [_Stream(number, name, sampler, seed) for number, (name, sampler) in pairs]
        counts = [len(stream) for stream in self._streams]
        if batches == "one":
            self._sizes = [sizes] * len(counts) if isinstance(sizes, int) else list(sizes)
            passes = [count / size for count, size in zip(counts, self._sizes, strict=True)]
            self._steps = max(len(counts), int(sum(passes)))
            self._turns = _divide(self._steps, mixing_shares(mixing, passes))
            return
        size = sizes if isinstance(sizes, int) else sum(sizes)
        if size < len(counts):
            raise SpecError(
                f"a batch of {size} cannot hold samples of {len(counts)} sources; use a larger batch, "
                "or batches=one"
            )
        self._steps = max(1, sum(counts) // size)
        self._sizes = _divide(size, mixing_shares(mixing, counts))

    def __len__(self) -> int:
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Draw]]:
        return self._of_one() if self.batches == "one" else self._of_all()

    def _of_one(self) -> Iterator[list[Draw]]:
        turns = self._turns
        order = np.repeat(np.arange(len(turns)), turns)
        generator(self.seed, "sources", "turns", self.epoch).shuffle(order)
        taken = [self.epoch * count for count in turns]
        for source in order.tolist():
            size = self._sizes[source]
            yield self._streams[source].take(taken[source] * size, size)
            taken[source] += 1

    def _of_all(self) -> Iterator[list[Draw]]:
        # interleaved, so that every process has samples of all sources in its part of the batch
        places = [((i + 0.5) / n, source) for source, n in enumerate(self._sizes) for i in range(n)]
        order = [source for _, source in sorted(places)]
        for step in range(self.epoch * self._steps, (self.epoch + 1) * self._steps):
            pairs = zip(self._streams, self._sizes, strict=True)
            drawn = [iter(stream.take(step * size, size)) for stream, size in pairs]
            yield [next(drawn[source]) for source in order]


class InTurn:
    """Every sample once, one source after the other, for evaluation."""

    def __init__(self, samplers: Sequence[Any], sizes: Sequence[int]) -> None:
        pairs = zip(samplers, sizes, strict=True)
        self._batches = [BatchSampler(sampler, size, drop_last=False) for sampler, size in pairs]

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    def __iter__(self) -> Iterator[list[Draw]]:
        for source, batches in enumerate(self._batches):
            for indices in batches:
                yield [Draw(source, index, 0) for index in indices]


class _Stream:
    """The endless samples of one source: pass after pass, each in its own order."""

    def __init__(self, number: int, name: str, sampler: Any, seed: int) -> None:
        self.number = number
        self.name = name
        self.sampler = sampler
        self.seed = seed
        self._turn = -1
        self._order: list[int] = []
        if len(sampler) == 0:
            raise UsageError(f"source {name!r} has no samples")

    def __len__(self) -> int:
        return len(self.sampler)

    def take(self, first: int, count: int) -> list[Draw]:
        """Return ``count`` samples, of which the first is number ``first`` of the stream."""
        draws: list[Draw] = []
        while len(draws) < count:
            turn, place = divmod(first + len(draws), len(self))
            chosen = self._order_of(turn)[place : place + count - len(draws)]
            draws += [Draw(self.number, index, turn) for index in chosen]
        return draws

    def _order_of(self, turn: int) -> list[int]:
        if turn != self._turn:
            sampler = copy.copy(self.sampler)
            # by the source's name, so that a single-task run reads it in the same order
            random = int(generator(self.seed, "sources", self.name, turn).integers(2**63))
            if hasattr(sampler, "generator"):
                sampler.generator = torch.Generator().manual_seed(random)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(turn)
            self._turn, self._order = turn, list(sampler)
            if len(self._order) != len(self):
                raise UsageError(
                    f"the sampler of source {self.name!r} has length {len(self)}, but gave "
                    f"{len(self._order)} samples"
                )
        return self._order


def _divide(whole: int, shares: Sequence[float]) -> list[int]:
    """Divide ``whole`` by the shares, rounded by largest remainder; each part is at least 1."""
    spare = whole - len(shares)
    exact = [max(share * whole - 1, 0.0) for share in shares]
    scale = spare / sum(exact) if sum(exact) else 0.0
    exact = [value * scale for value in exact]
    parts = [int(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda k: parts[k] - exact[k])
    for k in order[: spare - sum(parts)]:
        parts[k] += 1
    return [part + 1 for part in parts]
