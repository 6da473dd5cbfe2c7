"""What the API page documents, and what the packages export."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import mtlkit

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(\w+):: (\S+)", re.MULTILINE)


def documented() -> dict[str, Any]:
    """Objects of the page by their names on it; those of a module that it documents whole included."""
    found: dict[str, Any] = {}
    for kind, name in _DIRECTIVE.findall(PAGE.read_text()):
        if kind == "module":
            module = importlib.import_module(name)
            found |= {f"{name}.{key}": value for key, value in members(module).items()}
        elif kind != "method":
            found[name] = _resolve(name)
    return found


def members(module: ModuleType) -> dict[str, Any]:
    """What ``:members:`` shows of a module: its ``__all__``, or its own functions and classes."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and value.__module__ == module.__name__
    }


def exported() -> dict[str, Any]:
    """Objects in the ``__all__`` of mtlkit and its packages."""
    packages = [m.name for m in pkgutil.walk_packages(mtlkit.__path__, "mtlkit.") if m.ispkg]
    found: dict[str, Any] = {}
    for name in ["mtlkit", *packages]:
        package = importlib.import_module(name)
        private = any(part.startswith("_") for part in name.split("."))
        for key in [] if private else getattr(package, "__all__", []):
            found[f"{name}.{key}"] = getattr(package, key)
    return found


def public_objects() -> dict[str, Any]:
    """Exported objects, each once, by where it is defined."""
    return {_home(name, value): value for name, value in exported().items()}


def _home(name: str, value: Any) -> str:
    is_named = inspect.isclass(value) or inspect.isroutine(value)
    return f"{value.__module__}.{value.__qualname__}" if is_named else name


def _resolve(name: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
