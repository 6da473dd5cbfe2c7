"""What the API pages document, and what the packages export."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import mtlkit
from mtlkit.config.registry import methods
from mtlkit.errors import MissingExtraError

PAGES = Path(__file__).parents[2] / "docs" / "api"
_DIRECTIVE = re.compile(
    r"^\.\. (?:auto|py:)(\w+):: (\S+)(?:\n   :members: *(.*))?(?:\n   :exclude-members: *(.*))?",
    re.MULTILINE,
)


def documented() -> dict[str, Any]:
    """Objects by their names on the pages; modules and methods with pages of their own included."""
    own = [methods.get(name) for name in methods.names() if name not in methods.aliases()]
    found = {f"{method.__module__}.{method.__qualname__}": method for method in own}
    text = "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
    for kind, name, shown, hidden in _DIRECTIVE.findall(text):
        if kind == "module":
            members = _members(importlib.import_module(name))
            names = {*(shown.split(", ") if shown else members)} - {*hidden.split(", ")}
            found |= {f"{name}.{key}": members[key] for key in names}
        elif kind != "method":
            with contextlib.suppress(MissingExtraError):  # of packages that `dev` does not hold
                found[name] = _resolve(name)
    return found


def exported() -> dict[str, Any]:
    """Objects in the ``__all__`` of mtlkit and its packages."""
    found: dict[str, Any] = {}
    for package in packages().values():
        for key in getattr(package, "__all__", []):
            with contextlib.suppress(MissingExtraError):  # of packages that `dev` does not hold
                found[f"{package.__name__}.{key}"] = getattr(package, key)
    return found


def packages() -> dict[str, ModuleType]:
    """mtlkit and its packages by name, those inside packages included; ``_names`` are private."""
    found = {"mtlkit": mtlkit}
    for module in pkgutil.walk_packages(mtlkit.__path__, "mtlkit."):
        if module.ispkg and "._" not in module.name:
            found[module.name] = importlib.import_module(module.name)
    return found


def public_callables() -> dict[str, Any]:
    """Functions and classes that are exported or documented, by their names."""
    return {
        found.__qualname__: found
        for found in [*exported().values(), *documented().values()]
        if inspect.isclass(found) or inspect.isroutine(found)
    }


def _members(module: ModuleType) -> dict[str, Any]:
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


def _resolve(name: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
