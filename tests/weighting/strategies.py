"""Gradient matrices that tests draw."""

from __future__ import annotations

import torch
from hypothesis import strategies as st


def drawn(seed: int, tasks: int, size: int) -> torch.Tensor:
    """(K, N) standard normal numbers."""
    return torch.randn(tasks, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def gradients(draw, tasks=st.integers(2, 6), dtype=torch.float64):
    """(K, N), N >= K: in general position, some conflicting, some of unequal norms."""
    count = draw(tasks)
    size = draw(st.integers(count, 2 * count + 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    kind = draw(st.sampled_from(["plain", "conflict", "aligned"]))
    if kind == "conflict" and count > 1:
        rows[1] = -rows[0] + 0.3 * rows[1]
    if kind == "aligned":
        rows = rows + 2 * rows[:1]
    spread = draw(st.sampled_from([0.0, 1.0]))
    return (rows * torch.logspace(0, spread, count, dtype=torch.float64)[:, None]).to(dtype)
