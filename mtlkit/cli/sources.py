"""Classes of methods as their source says: reading it needs no torch."""

from __future__ import annotations

import ast
import inspect
import math
import sys
import textwrap
import typing
from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from mtlkit.config import search
from mtlkit.config.annotations import Ge, Gt, Le, Lt

_PACKAGE = Path(__file__).parent.parent
_BASE = "GradientAggregator"
# what an annotation or a class attribute of a method may name
_KNOWN: dict[str, Any] = {
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal")},
    **{name: getattr(abc, name) for name in ("Mapping", "Sequence")},
    **{kind.__name__: kind for kind in (Ge, Gt, Le, Lt)},
    **{name: kind for name, kind in vars(search).items() if not name.startswith("_")},
    **{kind.__name__: kind for kind in (bool, dict, float, frozenset, int, list, str, tuple)},
    "math": math,
}
REQUIRED: Any = inspect.Parameter.empty
"""The default of an option that has none."""


@dataclass
class ClassSource:
    """A class statement and those of its bases, the base of all methods left out."""

    module: str
    node: ast.ClassDef
    names: Mapping[str, Any]
    """What the names of its module stand for, where that is known."""
    bases: list[ClassSource] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Import path of the class."""
        return f"{self.module}.{self.node.name}"

    @cached_property
    def chain(self) -> list[ClassSource]:
        """The class and its bases, in the order in which Python looks up an attribute."""
        return [self, *(source for base in self.bases for source in base.chain)]

    @property
    def docstring(self) -> str:
        """The docstring without its indentation; empty where there is none."""
        return ast.get_docstring(self.node) or ""

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions that the class or a base defines."""
        found: dict[str, ast.FunctionDef] = {}
        for source in self.chain:
            for node in source.node.body:
                if isinstance(node, ast.FunctionDef):
                    found.setdefault(node.name, node)
        return found

    def attribute(self, name: str, default: Any) -> Any:
        """The value of a class attribute; ``default`` where there is none that is a plain value."""
        for source in self.chain:
            for targets, value in _assignments(source.node.body):
                if name in targets:
                    return _evaluate(value, source.names, default)
        return default

    def mentions(self, *names: str) -> bool:
        """Whether the code of the class or of a base uses one of these names."""
        for source in self.chain:
            for node in ast.walk(source.node):
                used = getattr(node, "id", None) or getattr(node, "attr", None)
                if used in names:
                    return True
        return False

    def options(self) -> dict[str, tuple[Any, Any]]:
        """Default and annotation of each keyword-only argument, own ones first."""
        found: dict[str, tuple[Any, Any]] = {}
        for source in [*self.chain, base_class()]:
            function = _function(source.node, "__init__")
            if function is None:
                continue
            arguments = function.args
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                value = REQUIRED if default is None else _evaluate(default, source.names, None)
                found.setdefault(
                    argument.arg, (value, _evaluate(argument.annotation, source.names, Any))
                )
            if arguments.kwarg is None:
                break
        return found


@cache
def built_in() -> tuple[dict[str, ClassSource], dict[str, str]]:
    """The methods of mtlkit by name, and the aliases with what they stand for."""
    classes: dict[str, ClassSource] = {}
    methods: dict[str, ClassSource] = {}
    aliases: dict[str, str] = {}
    everywhere = _Names()  # what one module may import from another
    pending = []
    for path in sorted((_PACKAGE / "weighting").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module = ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
        everywhere.read(tree)
        names = _Names(everywhere)
        names.read(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                source = classes[node.name] = ClassSource(module, node, names)
                pending.append(source)
                name = next(filter(None, map(_registered_name, node.decorator_list)), None)
                if name is not None:
                    methods[name] = source
            elif isinstance(node, ast.Expr) and (alias := _alias(node.value)):
                aliases.update([alias])
    for source in pending:
        source.bases = [classes[base] for base in map(ast.unparse, source.node.bases) if base in classes]
    return methods, aliases


def of_class(factory: type) -> ClassSource | None:
    """The source of a class that is there already; None where Python knows none."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(factory))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.ClassDef):
        return None
    names = {**_KNOWN, **vars(sys.modules[factory.__module__])}
    bases = [base for base in factory.__bases__ if base.__module__.partition(".")[0] != "torch"]
    found = [of_class(base) for base in bases if base.__name__ not in (_BASE, "object")]
    return ClassSource(factory.__module__, node, names, [source for source in found if source])


@cache
def base_class() -> ClassSource:
    """The base of all methods."""
    tree = ast.parse((_PACKAGE / "method" / "aggregator.py").read_text(encoding="utf-8"))
    (node,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == _BASE]
    names = _Names()
    names.read(tree)
    return ClassSource("mtlkit.method.aggregator", node, names)


class _Names(dict[str, Any]):
    """What names stand for: constants and types of modules, read when they are asked for."""

    def __init__(self, others: Mapping[str, Any] | None = None) -> None:
        super().__init__(_KNOWN)
        self._values: dict[str, ast.expr] = {}
        self._others = {} if others is None else others

    def read(self, tree: ast.Module) -> None:
        """Add the assignments of a module."""
        for targets, value in _assignments(tree.body):
            self._values |= dict.fromkeys(targets, value)

    def __missing__(self, name: str) -> Any:
        if name not in self._values:
            return self._others[name]
        self[name] = value = _evaluate(self._values[name], self, Any)
        return value


def _evaluate(node: ast.expr | None, names: Mapping[str, Any], default: Any) -> Any:
    """The value of an expression of plain values and known names; ``default`` for any other."""
    if node is None:
        return default
    try:
        return eval(compile(ast.Expression(node), "<source>", "eval"), {"__builtins__": {}}, names)
    except Exception:  # a name that only the module itself knows
        return default


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[list[str], ast.expr]]:
    """Names and value of each assignment."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield [target.id], node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for name, value in zip(target.elts, node.value.elts, strict=False):
                        if isinstance(name, ast.Name):
                            yield [name.id], value
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield [node.target.id], node.value


def _function(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _registered_name(decorator: ast.expr) -> str | None:
    """The name in ``@register_method("name")``."""
    match decorator:
        case ast.Call(func=ast.Name(id="register_method"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return None


def _alias(call: ast.expr) -> tuple[str, str] | None:
    """Name and config string in ``methods.alias("name", "spec")``."""
    match call:
        case ast.Call(
            func=ast.Attribute(attr="alias"),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(spec))],
        ):
            return name, spec
    return None
