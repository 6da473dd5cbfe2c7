"""Random numbers that are equal on every process, on every device, and after a restart.

The generator is counter based: a draw is a hash of (seed, counter, position). So it needs no state but
the counter, costs no communication and no synchronisation, can be traced by compilers, and position
``i`` of a batch that is split over processes gets the number that it would get in one process.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["normal", "random_orders", "uniform"]

_MASK = 0x7FFFFFFF  # 31 bits, so that all constants fit into an int32


def uniform(seed: int, counter: Tensor, *shape: int, stream: int = 0, offset: int = 0) -> Tensor:
    """Numbers of [0, 1) in float32.

    Args:
        seed: chooses the sequence.
        counter: whole number on the device of the draw; another counter is another draw.
        shape: of the result.
        stream: sequences that are independent of each other at the same counter.
        offset: position of the first number.
    """
    return _bits(seed, counter, shape, stream, offset).to(torch.float32) * 2.0**-24


def normal(seed: int, counter: Tensor, *shape: int, stream: int = 0) -> Tensor:
    """Standard normal numbers in float32, by Box and Muller's transform."""
    radii, angles = uniform(seed, counter, 2, *shape, stream=stream + 101)
    return torch.sqrt(-2 * torch.log1p(-radii)) * torch.cos(2 * math.pi * angles)


def random_orders(seed: int, counter: Tensor, count: int) -> Tensor:
    """(count, count - 1) random orders: row i has all numbers below ``count`` but i."""
    keys = _bits(seed, counter, (count, count - 1), stream=1)
    # equal keys must not be ordered differently by different processors
    orders = keys.argsort(dim=1, stable=True)
    return orders + (orders >= torch.arange(count, device=keys.device)[:, None])


def _bits(seed: int, counter: Tensor, shape: tuple[int, ...], stream: int, offset: int = 0) -> Tensor:
    """Whole numbers of 24 bits, as many as a float32 can hold."""
    salted = _constant(seed, stream, 0x1B873593), _constant(seed, stream, 0x3C6EF372)
    key = _mix((counter ^ salted[0]).to(torch.int32)) + salted[1]
    index = torch.arange(offset, offset + math.prod(shape), dtype=torch.int32, device=counter.device)
    return ((_mix(index ^ key) >> 8) & 0xFFFFFF).reshape(shape)


def _constant(seed: int, stream: int, salt: int) -> int:
    """A whole number of 31 bits, in which every bit of the arguments counts."""
    x = (seed * 0x9E3779B1 + stream * 0x85EBCA6B + salt) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return (x ^ (x >> 16)) & _MASK


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every input bit changes every output bit.

    Products wrap around; shifts are those of unsigned numbers. (C. Wellons' lowbias32 constants.)
    """
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)
