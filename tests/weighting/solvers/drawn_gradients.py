"""Matrices of K gradients that the solvers are tried on."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

__all__ = ["draw", "gradients", "norms_of", "seeds"]

KINDS = [
    "plain",
    "dependent",
    "duplicate",
    "ill_conditioned",
    "unequal_norms",
    "conflicting",
    "zero_row",
]
seeds = st.integers(0, 2**32 - 1)


def draw(seed: int, count: int, kind: str) -> np.ndarray:
    """(K, N) gradients."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, count + 2))
    if kind == "dependent":
        rows = rng.normal(size=(count, max(1, count // 2)))
    elif kind == "duplicate":
        rows[-1] = rows[0]
    elif kind == "ill_conditioned":  # the Gram matrix has condition number 1e12
        left, _, right = np.linalg.svd(rows, full_matrices=False)
        rows = left * np.logspace(0, -6, count) @ right
    elif kind == "unequal_norms":
        rows *= rng.permutation(np.logspace(0, 6, count))[:, None]
    elif kind == "conflicting":
        rows -= rows.mean(axis=0) * 0.999
    elif kind == "zero_row":
        rows[rng.integers(count)] = 0
    return rows


def norms_of(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


def gradients(least: int = 2, most: int = 12, kinds: list[str] = KINDS) -> st.SearchStrategy:
    """Gradients of all kinds for ``least`` to ``most`` tasks."""
    return st.builds(draw, seeds, st.integers(least, most), st.sampled_from(kinds))
