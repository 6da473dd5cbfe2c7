"""User code without packaging: files or modules that register data sets, methods, networks or tasks.

Every process loads them itself: ``plugins`` is a key in the settings of every training.
"""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable
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
    """The file and the rest of ``my.py:Cars(size=3)``; None and ``spec`` where no file is named."""
    found = _LOCATION.fullmatch(spec.strip()) if isinstance(spec, str) else None
    return (None, spec) if found is None else (found["file"], found["spec"])


def load_location(spec: Any) -> Any:
    """Load the file of ``my.py:Cars(size=3)`` and return the rest; anything else is returned as is."""
    file, rest = split_location(spec)
    if file is not None:
        load_plugin(file)
    return rest


def resolve_plugin(plugin: str) -> str:
    """A file's whole path, so that a process in another folder finds it; a module's name as it is."""
    is_file = plugin.endswith(".py") or "/" in plugin or "\\" in plugin
    return str(Path(plugin).expanduser().resolve()) if is_file else plugin


def on_load(listener: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Call ``listener`` with the module of every plugin that is loaded from now on; a decorator."""
    _listeners.append(listener)
    return listener


def load_plugins(plugins: Iterable[str]) -> None:
    """Load all; see :func:`load_plugin`."""
    for plugin in plugins:
        load_plugin(plugin)


def load_plugin(plugin: str) -> ModuleType:
    """Import a Python file or a module, once per process.

    Raises:
        ConfigError: where it is absent, its name is taken, or its code fails: with file and line.
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
        raise ConfigError(f"plugin {_explain(error, plugin, path)}") from None
    return module


def _module_name(path: Path) -> str:
    """The name to import a file by; its folder becomes one that Python searches, after all others.

    A module with a name of its own, not one made up here, is what data loaders' processes can import.
    """
    name = path.stem
    if not path.is_file():
        raise ConfigError(f"plugin {path}: there is no such file")
    if not name.isidentifier():
        raise ConfigError(f"plugin {path}: its name must be one that Python can import, such as my.py")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    known: Any = sys.modules.get(name)
    spec = find_spec(name) if known is None else None
    origin = getattr(known, "__file__", None) if spec is None else spec.origin
    if origin is None or Path(origin).resolve() != path:
        raise ConfigError(
            f"plugin {path}: another module is called {name!r} ({origin}); rename the file"
        )
    return name


def _explain(error: BaseException, plugin: str, path: Path | None) -> str:
    """The error in one sentence, with the line of the plugin that led to it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and Path(frame.filename) == path]
    loaded = [
        frame for frame in frames if "importlib" not in frame.filename and frame.name == "<module>"
    ]
    places = own or loaded
    return f"{places[-1].filename}, line {places[-1].lineno}: {said}" if places else f"{plugin}: {said}"


def users_line(error: BaseException) -> str:
    """File and line of the user's own code nearest to the error; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        foreign = path.is_file() and _OWN not in path.parents and path != Path(sys.argv[0])
        if foreign and not _LIBRARIES.intersection(path.parts):
            return f"{path}, line {frame.lineno}"
    return ""
