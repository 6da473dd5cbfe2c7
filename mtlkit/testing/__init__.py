"""Laws for plugin authors: checks that every method or architecture must pass. They need no pytest."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtlkit.testing.architectures import check_architecture
    from mtlkit.testing.methods import LAWS, check_method

__all__ = ["LAWS", "check_architecture", "check_method"]

_MODULES = {
    "LAWS": "mtlkit.testing.methods",
    "check_architecture": "mtlkit.testing.architectures",
    "check_method": "mtlkit.testing.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
