"""Deprecation warnings: what to write instead, and until which release the old name works."""

from __future__ import annotations

import warnings

__all__ = ["MtlkitDeprecationWarning", "warn_deprecated"]


class MtlkitDeprecationWarning(FutureWarning):
    """Something of mtlkit will be removed; shown by default, because it concerns users."""


def warn_deprecated(old: str, new: str, *, removed_in: str, stacklevel: int = 3) -> None:
    """Warn that ``old`` still works, and what replaces it.

    Args:
        old: the name or option, as users write it.
        new: what to write instead.
        removed_in: release without it; at least two minor releases after the first with the warning.
        stacklevel: 3 points to the caller of the function that calls this one.
    """
    warnings.warn(
        f"{old} will be removed in mtlkit {removed_in}; write {new}",
        MtlkitDeprecationWarning,
        stacklevel=stacklevel,
    )
