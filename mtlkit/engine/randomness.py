"""Random numbers that are equal on every process, on every device, and after a restart.

The generator is counter based: a draw is a hash of (seed, counter, position). So it needs no state but
the counter, costs no communication and no synchronization, and position ``i`` of a batch that is split
over processes gets the number that it would get in one process. Compilers see one operator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mtlkit.engine.compiled import define

# Odd numbers of 64 bits, as signed ones: 2**64 divided by the golden ratio, and degski's factor.
_COUNTER, _FACTOR = 0x9E3779B97F4A7C15 - 2**64, 0xD6E8FEB86659FD93 - 2**64
_SEED, _STREAM = 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85


def uniform(seed: int, counter: Tensor, *shape: int, stream: int = 0, offset: int = 0) -> Tensor:
    """Uniform float32 numbers in [0, 1).

    Args:
        seed: chooses the sequence.
        counter: integer on the device of the draw; another counter is another draw.
        shape: shape of the result.
        stream: sequences that are independent of each other at the same counter.
        offset: position of the first number.

    >>> first, again = (uniform(0, torch.tensor(7), 3) for _ in range(2))
    >>> torch.equal(first, again), bool((first < 1).all())
    (True, True)
    """
    upper = _bits(seed, counter, shape, stream, offset) >> 40  # 24 bits, as many as a float32 can hold
    return upper.to(torch.float32) * 2.0**-24 + 0.5


def normal(seed: int, counter: Tensor, *shape: int, stream: int = 0) -> Tensor:
    """Standard normal numbers in float32, by the inverse of their distribution function.

    >>> normal(0, torch.tensor(7), 2, 3).shape
    torch.Size([2, 3])
    """
    # odd multiples of 2**-24 between -1 and 1
    symmetric = 2 * uniform(seed, counter, *shape, stream=stream + 101) - (1 - 2.0**-24)
    return math.sqrt(2) * torch.erfinv(symmetric)


def random_orders(seed: int, counter: Tensor, count: int) -> Tensor:
    """(count, count - 1) random orders: row i has all numbers below ``count`` but i.

    >>> orders = random_orders(0, torch.tensor(7), 3)
    >>> sorted(orders[0].tolist())
    [1, 2]
    """
    keys = _bits(seed, counter, (count, count), stream=1)
    keys.diagonal().fill_(-(2**63))  # so that i comes first in row i, and can be left out
    return keys.argsort(dim=1)[:, 1:]


def _bits(seed: int, counter: Tensor, shape: tuple[int, ...], stream: int, offset: int = 0) -> Tensor:
    """64-bit hashes of all arguments; the upper bits are the most random."""
    start = (seed * _SEED + stream * _STREAM) % 2**62 + offset
    if torch.compiler.is_compiling():
        hashed: Tensor = _hash_operator(counter, start, math.prod(shape))
        return hashed.reshape(shape)
    return _hash(counter, start, math.prod(shape)).reshape(shape)


def _hash(counter: Tensor, start: int, count: int) -> Tensor:
    """(count,) hashes of the counter and the positions from ``start`` on.

    Products wrap around. Right shifts keep the sign, so two numbers share each hash, which 24 bits do
    not show.
    """
    x = torch.arange(start, start + count, device=counter.device)  # changed in place: it may be long
    x.mul_(_FACTOR).add_(counter.long() * _COUNTER)
    for _ in range(2):  # a product carries every bit to the upper half, and the shift brings it down
        x.bitwise_xor_(x >> 32).mul_(_FACTOR)
    return x


_hash_operator = define(
    "random_bits(Tensor counter, int start, int count) -> Tensor",
    _hash,
    lambda counter, start, count: counter.new_empty(count, dtype=torch.int64),
)
