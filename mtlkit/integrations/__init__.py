"""Methods of mtlkit in the training loops of other packages, which are imported when used."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("huggingface", "libmtl", "lightning")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
