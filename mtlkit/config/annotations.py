"""Types and ranges of options, declared once: ``c: Annotated[float, Ge(0)] = 0.4``.

Checks, error messages, the page of a method and the JSON schema are derived from the annotation.

>>> from typing import Annotated
>>> fits(0.4, Annotated[float, Ge(0)]), fits(-1, Annotated[float, Ge(0)])
(True, False)
>>> describe(Annotated[float, Ge(0), Lt(1)])
'a number, 0 or more and below 1'
"""

import math
import operator
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, TypeAlias

Number: TypeAlias = int | float


@dataclass(frozen=True)
class Ge:
    """The range of numbers that are ``ge`` or more.

    >>> fits(1, Annotated[int, Ge(1)])
    True
    """

    ge: Number


@dataclass(frozen=True)
class Gt:
    """The range of numbers above ``gt``.

    >>> fits(0, Annotated[float, Gt(0)])
    False
    """

    gt: Number


@dataclass(frozen=True)
class Le:
    """The range of numbers that are ``le`` or less; ``Le(math.inf)`` also admits infinity.

    >>> fits(math.inf, float), fits(math.inf, Annotated[float, Le(math.inf)])
    (False, True)
    """

    le: Number


@dataclass(frozen=True)
class Lt:
    """The range of numbers below ``lt``.

    >>> fits(1.0, Annotated[float, Lt(1)])
    False
    """

    lt: Number


Count: TypeAlias = Annotated[int, Ge(1)]
"""An integer, 1 or more."""

# Keyed by attribute, so that annotated_types, which pydantic uses, works too:
# comparison, description, key of the JSON schema.
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str, str]] = {
    "ge": (operator.ge, "{} or more", "minimum"),
    "gt": (operator.gt, "above {}", "exclusiveMinimum"),
    "le": (operator.le, "at most {}", "maximum"),
    "lt": (operator.lt, "below {}", "exclusiveMaximum"),
}
# description, type of the JSON schema
_KINDS: dict[Any, tuple[str, str]] = {
    bool: ("a bool", "boolean"),
    float: ("a number", "number"),
    int: ("an integer", "integer"),
    str: ("a string", "string"),
    type(None): ("None", "null"),
    list: ("a list", "array"),
    dict: ("a mapping", "object"),
}
_CONTAINERS: dict[Any, type] = {abc.Sequence: list, tuple: list, abc.Mapping: dict}


def fits(value: Any, annotation: Any) -> bool:
    """Return whether ``value`` has the annotated type and is in its range.

    Numbers must be finite, also inside lists and mappings, unless a bound of the range is infinite.
    Any value fits a type that is not listed here.

    >>> fits(3, int | None), fits("3", int | None), fits([1.0, math.nan], list[float])
    (True, False, False)
    >>> fits([1, "a"], list[int])
    False
    """
    base, metadata = _unpack(annotation)
    origin = typing.get_origin(base)
    if origin is typing.Literal:
        return value in typing.get_args(base)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in typing.get_args(base))
    limits = list(_bounds(metadata))
    if base in (int, float):
        allowed = (Integral,) if base is int else (Integral, float)  # NumPy's too
        if not isinstance(value, allowed) or isinstance(value, bool):
            return False
        if isinstance(value, Integral) and abs(int(value)) >= 2**63:
            return False
        in_range = all(_BOUNDS[key][0](value, bound) for key, bound in limits)
        return in_range and (is_finite(value) or _admits_infinity(limits))
    if not is_finite(value):
        return False
    if base in (bool, str, type(None)):
        return isinstance(value, base)
    kind = _kind(base)
    if kind is dict:
        return isinstance(value, abc.Mapping)
    if kind is not list:
        return True
    is_list = isinstance(value, abc.Sequence) and not isinstance(value, str)
    return is_list and all(fits(item, element) for element in _element(base) for item in value)


def is_finite(value: Any) -> bool:
    """Return whether no number in ``value`` is infinite or NaN.

    >>> is_finite({"a": [1.0, 2]}), is_finite([math.inf]), is_finite("inf")
    (True, False, True)
    """
    if isinstance(value, abc.Mapping):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def read_number(value: Any) -> Any:
    """Read a number that YAML 1.1 takes for a string, such as ``1e-4``; return anything else unchanged.

    >>> read_number("1e-4"), read_number("12"), read_number("adam")
    (0.0001, 12, 'adam')
    """
    if not isinstance(value, str):
        return value
    try:
        return int(value) if re.fullmatch(r"[-+]?\d{1,19}", value) else float(value)
    except ValueError:
        return value


def explain(value: Any, annotation: Any) -> str:
    """Describe what was expected of a wrong value: the range if its type is right, or the type.

    >>> explain(-1, Annotated[float, Ge(0)]), explain("a", Annotated[float, Ge(0)])
    ('0 or more', 'a number')
    """
    base, metadata = _unpack(annotation)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (base is float or (base is int and isinstance(value, int))):
        finite = "" if is_finite(value) or _admits_infinity(_bounds(metadata)) else "finite"
        return " and ".join(filter(None, [describe_range(metadata), finite])) or describe(base)
    if is_finite(value):
        return describe(base)
    return "finite" if base is Any else f"{describe(annotation)}, and finite"


def describe(annotation: Any) -> str:
    """Describe what an annotated type accepts.

    >>> from typing import Literal
    >>> describe(Literal["min", "median"] | None)
    "one of 'min', 'median' or None"
    >>> describe(Annotated[int, Ge(1)]), describe(list[Annotated[int, Ge(1)]])
    ('an integer, 1 or more', 'a list (each an integer, 1 or more)')
    """
    base, metadata = _unpack(annotation)
    origin = typing.get_origin(base)
    if origin is typing.Literal:
        values = typing.get_args(base)
        return "one of " * (len(values) > 1) + ", ".join(map(repr, values))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, typing.get_args(base))))
    kind = _kind(base)
    text = _KINDS.get(kind, ("any value",))[0]
    if kind is list and _element(base) not in ((), (Any,)):
        text += f" (each {describe(_element(base)[0])})"
    return ", ".join(filter(None, [text, describe_range(metadata)]))


def describe_range(metadata: Iterable[Any]) -> str:
    """Describe the range that ``Ge``, ``Gt``, ``Le`` and ``Lt`` make; empty without any.

    >>> describe_range([Gt(0), Le(1)])
    'above 0 and at most 1'
    """
    bounds = _bounds(metadata)
    return " and ".join(_BOUNDS[key][1].format(b) for key, b in bounds if math.isfinite(b))


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotated type.

    >>> json_schema(Annotated[float, Ge(0)])
    {'type': 'number', 'minimum': 0}
    """
    base, metadata = _unpack(annotation)
    origin = typing.get_origin(base)
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(base))}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [json_schema(choice) for choice in typing.get_args(base)]}
    kind = _kind(base)
    schema: dict[str, Any] = {"type": _KINDS[kind][1]} if kind in _KINDS else {}
    for element in _element(base) if kind is list else ():
        schema["items"] = json_schema(element)
    return schema | {_BOUNDS[key][2]: b for key, b in _bounds(metadata) if math.isfinite(b)}


def _unpack(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type and its metadata."""
    if typing.get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _kind(base: Any) -> Any:
    """Return list or dict for a container, and any other type unchanged."""
    origin = typing.get_origin(base) or base
    return _CONTAINERS.get(origin, origin)


def _element(base: Any) -> tuple[Any, ...]:
    """Return the type of a list's elements, if it is declared."""
    return typing.get_args(base)[:1]


def _bounds(metadata: Iterable[Any]) -> Iterator[tuple[str, Number]]:
    for entry in metadata:
        for key in _BOUNDS:
            if hasattr(entry, key):
                yield key, getattr(entry, key)


def _admits_infinity(bounds: Iterable[tuple[str, Number]]) -> bool:
    return any(math.isinf(bound) for _, bound in bounds)
