"""Plugins: a user's files or modules that register data sets, methods, networks or tasks.

Each process loads them itself, because every training has the setting ``plugins``.
"""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from mtlkit.errors import ConfigError

_LOCATION = re.compile(r"(?P<file>[^()'\"]+\.py):(?P<spec>.+)", re.DOTALL)
_listeners: list[Callable[[ModuleType], None]] = []
_OWN = Path(__file__).parent.parent
_LIBRARIES = {"site-packages", "dist-packages", Path(inspect.__file__).parent.name}


def split_location(spec: Any) -> tuple[str | None, Any]:
    """Split ``my.py:Cars(size=3)`` into file and rest; the file is None if none is named."""
    found = _LOCATION.fullmatch(spec.strip()) if isinstance(spec, str) else None
    return (None, spec) if found is None else (found["file"], found["spec"])


def load_location(spec: Any) -> Any:
    """Load the file of ``my.py:Cars(size=3)`` and return the rest; return anything else unchanged."""
    file, rest = split_location(spec)
    if file is not None:
        load_plugin(file)
    return rest


def resolve_plugin(plugin: str) -> str:
    """Return the absolute path of a file, for processes in other folders; a module's name unchanged."""
    is_file = plugin.endswith(".py") or "/" in plugin or "\\" in plugin
    return str(Path(plugin).expanduser().resolve()) if is_file else plugin


def on_load(listener: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Register a function to be called with the module of every plugin that is loaded; a decorator."""
    _listeners.append(listener)
    return listener


def load_plugin(plugin: str) -> ModuleType:
    """Import a Python file or a module, once per process.

    Raises:
        ConfigError: if it is missing, its name is taken, or its code fails; with file and line.
    """
    name = resolve_plugin(plugin)
    path = Path(name) if name.endswith(".py") else None
    if path is not None:
        name = _module_name(path)
    try:
        module = importlib.import_module(name)
        for listener in _listeners:
            listener(module)
    except (Exception, SystemExit) as error:
        place = users_line(error) or plugin
        raise ConfigError(f"plugin {place}: {describe_error(error)}") from None
    return module


def _module_name(path: Path) -> str:
    """Return the name to import a file by, after appending its folder to Python's search path.

    The worker processes of data loaders can only import a module by its own name.
    """
    name = path.stem
    if not path.is_file():
        raise ConfigError(f"plugin {path}: no such file")
    if not name.isidentifier():
        raise ConfigError(f"plugin {path}: its name must be a Python identifier, such as my.py")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    known: Any = sys.modules.get(name)
    spec = find_spec(name) if known is None else None
    origin = getattr(known, "__file__", None) if spec is None else spec.origin
    if origin is None or Path(origin).resolve() != path:
        raise ConfigError(f"plugin {path}: another module is named {name!r} ({origin}); rename the file")
    return name


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error on one line."""
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def users_line(error: BaseException) -> str:
    """Return file and line of the user's own code nearest to the error; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        foreign = path.is_file() and _OWN not in path.parents and path != Path(sys.argv[0])
        if foreign and not _LIBRARIES.intersection(path.parts):
            return f"{path}, line {frame.lineno}"
    return ""
