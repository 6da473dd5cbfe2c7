"""Random numbers that are equal on every process, saved with the method, and traced by compilers.

The generator is counter based: a draw is a hash of (seed, counter, position), so it needs no state
but two integers, costs no communication, and position ``i`` of a batch that is split over processes
gets the number that it would get in one process.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtlkit.host import readable

__all__ = ["SharedRandom"]

# what is left of a seed, and the distance of streams: both within 32 bits with a sign
_MASK = 0x7FFFFFFF
_WORD = 0xFFFFFFFF
_STREAM = 0x1E3779B1
# Up to here, numbers are drawn one by one in less time than an array of them.
_FEW = 16


class SharedRandom(nn.Module):
    """Draws that depend on seed and counter alone. The counter moves by :meth:`advance`."""

    seed: Tensor
    counter: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(seed & _MASK))
        self.register_buffer("counter", torch.tensor(0))

    def uniform(self, *shape: int, stream: int = 0, offset: int = 0) -> Tensor:
        """Numbers of [0, 1) in float32; ``offset`` is the position of the first one."""
        bits = self._bits(shape, stream, offset)
        if isinstance(bits, Tensor):
            return bits.to(torch.float32) * 2.0**-24
        numbers = bits.astype(np.float32)
        numbers *= 2.0**-24
        return torch.from_numpy(numbers)

    def normal(self, *shape: int, stream: int = 0) -> Tensor:
        """Standard normal numbers, by Box and Muller's transform."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform(*shape, stream=2 * stream + 101)))
        return radius * torch.cos(2 * math.pi * self.uniform(*shape, stream=2 * stream + 102))

    def others(self, count: int) -> Tensor | np.ndarray:
        """(count, count - 1) random orders: row i has all numbers below ``count`` but i.

        An array where the counter is at hand, and else a tensor.
        """
        keys = self._bits((count, count - 1), stream=1)
        # equal keys must not be ordered differently by different processors
        if isinstance(keys, Tensor):
            orders = keys.argsort(dim=1, stable=True)
            return orders + (orders >= torch.arange(count, device=keys.device)[:, None])
        sorted_keys = keys.argsort(axis=1, kind="stable")
        return sorted_keys + (sorted_keys >= np.arange(count)[:, None])

    def advance(self, finite: Tensor) -> None:
        """Move on to the next step's numbers, unless this step is to be skipped."""
        if not readable(self.counter):
            self.counter.add_(finite.to(self.counter.dtype))
        elif finite:
            self.counter.numpy()[()] += 1  # a fifth of what torch takes for one number

    def _bits(self, shape: tuple[int, ...], stream: int, offset: int = 0) -> Tensor | np.ndarray:
        """Whole numbers of 24 bits, as many as a float32 can hold.

        An array where the counter is at hand, which is quicker, and else a tensor.
        """
        # zero is a fixed point of the mixing; the constants keep seed 0 and step 0 away from it
        shift, count = (_STREAM * stream) & _MASK, math.prod(shape)
        counter = self.counter
        if readable(counter):
            key = _mix_unsigned((int(counter) + shift + 0x1B873593) & _WORD)
            key = _mix_unsigned((int(self.seed) + 0x3C6EF372 + key) & _WORD)
            if count <= _FEW:
                few = [_mix_unsigned(position ^ key) >> 8 for position in range(offset, offset + count)]
                return np.array(few, dtype=np.uint32).reshape(shape)
            positions = np.arange(offset, offset + count, dtype=np.uint32)
            positions ^= np.uint32(key)
            return (_mix_unsigned(positions) >> 8).reshape(shape)
        state = torch.stack([self.seed, self.counter + shift]).to(torch.int32)
        traced_key = _mix(state[0] + 0x3C6EF372 + _mix(state[1] + 0x1B873593))
        index = torch.arange(offset, offset + count, dtype=torch.int32, device=self.counter.device)
        return ((_mix(index ^ traced_key) >> 8) & 0xFFFFFF).reshape(shape)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every input bit changes every output bit.

    Products wrap around; shifts are those of unsigned numbers. (C. Wellons' lowbias32 constants.)
    """
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def _mix_unsigned(x: Any) -> Any:
    """The same on a Python number below 2^32, or in place on an array of uint32."""
    x ^= x >> 16
    x *= 0x7FEB352D
    if isinstance(x, int):  # an array wraps around by itself
        x &= _WORD
    x ^= x >> 15
    x *= 0x846CA68B
    if isinstance(x, int):
        x &= _WORD
    x ^= x >> 16
    return x
