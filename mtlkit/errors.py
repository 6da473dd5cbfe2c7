"""What mtlkit raises. Every message says what was given, what is accepted and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ConfigError",
    "MissingExtraError",
    "MtlkitError",
    "NonFiniteError",
    "SpecError",
    "UnknownNameError",
    "UsageError",
]


class MtlkitError(Exception):
    """Base of all errors that mtlkit raises on purpose."""


class SpecError(MtlkitError, ValueError):
    """A config string, mapping or option that cannot be understood."""


class UnknownNameError(SpecError, LookupError):
    """A method, architecture, option, task or key that does not exist."""


class UsageError(MtlkitError, RuntimeError):
    """Calls that do not make a training step, such as a backward without a fork."""


class ConfigError(SpecError):
    """A configuration file that does not fit its schema."""


class NonFiniteError(MtlkitError, FloatingPointError):
    """A loss or gradient that is not finite, where the policy is to stop."""


class MissingExtraError(MtlkitError, ImportError):
    """An optional dependency is needed and absent."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'mtlkit[{extra}]'"
        )


def unknown_name(kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a wrong name: nearest names first, then the full list."""
    names = sorted(known)
    near = get_close_matches(given, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    listing = ", ".join(names) if names else "(none)"
    return UnknownNameError(f"unknown {kind} {given!r}{hint} known: {listing}")
