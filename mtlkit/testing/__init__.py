"""Laws for plugin authors: checks that every architecture or method must pass. They need no pytest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtlkit.testing.architectures import check_architecture

__all__ = ["check_architecture"]

_MODULES = {"check_architecture": "mtlkit.testing.architectures"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
