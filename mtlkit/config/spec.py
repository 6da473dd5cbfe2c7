"""Config strings: ``"normalize(burn_in=20)+rotate(size=512)+scale"``.

The grammar is a small part of Python's, read with :mod:`ast` and never evaluated::

    spec    = part ("+" part)*
    part    = name | name "(" [key "=" value ("," key "=" value)*] ")"
    value   = number | string | True | False | None | bare.word | [value, ...] | (value, ...)
            | {value: value, ...} | call ("+" call)*
    call    = part | name "(" value ("," value)* ["," key "=" value ...] ")"
    name    = bare.word ("-" word or integer)*

A hyphen in a name is read as ``_``: ``Nash-MTL`` is ``Nash_MTL``, which the registries match to
``nash_mtl``. A bare word is a string, so ``pcgrad(wrt=parameters)`` needs no quotes. A value may be a
call itself, as in ``cr_mogm(inner=cagrad(c=0.4))``. It is kept as a string; the option's owner reads it
with :func:`parse_spec`, or with :func:`parse_call` if it accepts positional values, as in
``hard_sharing(heads=mlp(50))``. The mapping ``{"name": "cagrad", "c": 0.4}``, a list of parts, and
equivalent YAML nodes are accepted too.
"""

import ast
import keyword
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeAlias

from mtlkit.errors import SpecError, shorten

_MAX_LENGTH = 10_000
_MAX_DEPTH = 50
_MAX_CALLS = 8
"""Deepest nesting of calls: each is kept as a string, and its escaped quotes double at every level."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
# words that Python does not read as a name
_RESERVED = frozenset(
    {"True", "False", "true", "false", "None", "inf", "nan", "and", "or", "not", "is", "in", "if"}
)


@dataclass(frozen=True)
class Part:
    """One part of a method: its name and its options.

    >>> str(Part("cagrad", {"c": 0.4}))
    'cagrad(c=0.4)'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    """Positional values; only in a call that is itself a value."""

    def __str__(self) -> str:
        return format_spec([self])


def refuse_arguments(part: Part, of: str) -> None:
    """Raise an error for positional values of a call that takes none.

    >>> refuse_arguments(Part("linear", {}, (3,)), of="head linear")
    Traceback (most recent call last):
    mtlkit.errors.SpecError: head linear takes options by name only (key=value), not 3
    """
    if part.arguments:
        given = part.arguments[0]
        raise SpecError(f"{of} takes options by name only (key=value), not {given!r}")


SpecLike: TypeAlias = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | Part


def parse_spec(spec: SpecLike) -> list[Part]:
    """Read a config string, mapping or list of these into parts.

    >>> rotate, imtl_g = parse_spec("rotate(size=512)+imtl_g")
    >>> rotate.name, rotate.options
    ('rotate', {'size': 512})
    """
    if isinstance(spec, Part):
        return [spec]
    if isinstance(spec, str):
        return _parse_string(spec)
    if isinstance(spec, Mapping):
        return [_parse_mapping(spec)]
    if isinstance(spec, Sequence) and not isinstance(spec, bytes | bytearray):
        parts = [part for item in spec for part in parse_spec(item)]
        if not parts:
            raise SpecError("empty list of parts; name at least one, for example 'sum'")
        return parts
    raise SpecError(
        f"cannot read a spec from {type(spec).__name__}; give a string such as 'cagrad(c=0.4)', "
        "a mapping such as {'name': 'cagrad', 'c': 0.4}, or a list of these"
    )


def parse_call(value: SpecLike) -> Part:
    """Read a call that is the value of an option.

    >>> parse_call("mlp(50, norm=batch)")
    Part(name='mlp', options={'norm': 'batch'}, arguments=(50,))
    """
    parts = _parse_string(value, nested=True) if isinstance(value, str) else parse_spec(value)
    if len(parts) != 1:
        raise SpecError(f"expected one name or call, not a sum of {len(parts)}: {format_spec(parts)!r}")
    return parts[0]


def format_spec(parts: Sequence[Part]) -> str:
    """Return the config string of parts; :func:`parse_spec` is the inverse.

    >>> format_spec([Part("uw"), Part("cagrad", {"c": 0.4})])
    'uw+cagrad(c=0.4)'
    """
    texts = []
    for part in parts:
        values = [_format_value(value) for value in part.arguments]
        values += [f"{key}={_format_value(value)}" for key, value in part.options.items()]
        texts.append(f"{part.name}({', '.join(values)})" if values else part.name)
    return "+".join(texts)


def _parse_string(text: str, nested: bool = False) -> list[Part]:
    if not text.strip():
        raise SpecError("empty spec; name at least one part, for example 'sum' or 'rotate+scale'")
    if len(text) > _MAX_LENGTH:
        raise SpecError(f"spec of {len(text)} characters is too long; at most {_MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about Python's syntax, as for '1a'
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        hint = "; put paths and names of several words in quotes, as in file='data/people.csv'"
        raise SpecError(
            f"cannot read spec {shorten(text)}: {reason}; "
            "expected parts joined by '+', such as 'rotate(size=512)+imtl_g'" + hint * ("(" in text)
        ) from None
    return [_parse_part(node, text, nested) for node in _summands(tree, text)]


def _summands(tree: ast.expr, text: str) -> list[ast.expr]:
    """Return the operands of ``a + b + c``, left to right; hyphens join names to one name."""
    pending: list[tuple[ast.operator, ast.expr]] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        if isinstance(tree.right, ast.BinOp):
            raise _not_a_part(tree.right, text)
        pending.append((tree.op, tree.right))
        tree = tree.left
    parts = [tree]
    for operator, operand in reversed(pending):
        if isinstance(operator, ast.Add):
            parts.append(operand)
        else:
            parts[-1] = _hyphenated(parts[-1], operand, text)
    return parts


def _hyphenated(left: ast.expr, right: ast.expr, text: str) -> ast.expr:
    """Read ``Nash-MTL(max_norm=1)`` as ``Nash_MTL(max_norm=1)``; only the last piece has options."""
    name = right.func if isinstance(right, ast.Call) else right
    if isinstance(name, ast.Constant) and type(name.value) is int:  # CIFAR-10
        last: str | None = str(name.value)
    else:
        last = name.id if isinstance(name, ast.Name) else None
    first = _dotted_name(left)
    if first is None or last is None:
        raise _not_a_part(right if last is None else left, text)
    whole = ast.Name(f"{first}_{last}", ast.Load())
    return ast.Call(whole, right.args, right.keywords) if isinstance(right, ast.Call) else whole


def _parse_part(node: ast.expr, text: str, nested: bool = False, calls: int = 0) -> Part:
    if calls > _MAX_CALLS:
        raise SpecError(f"in spec {shorten(text)}: parts are nested more than {_MAX_CALLS} times")
    if isinstance(node, ast.Call):
        name = _dotted_name(node.func)
        if name is None:
            raise _not_a_part(node.func, text)
        if node.args and not nested:
            given = _source(node.args[0], text)
            raise SpecError(
                f"in spec {shorten(text)}: {name} was given {given!r} without a name; "
                f"options are key=value, for example '{name}(key={given})'"
            )
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise SpecError(f"in spec {shorten(text)}: '**' is not allowed; name each option")
            if keyword.arg in options:
                raise SpecError(f"in spec {shorten(text)}: option {keyword.arg!r} is given twice")
            options[keyword.arg] = _parse_value(keyword.value, text, calls=calls)
        arguments = tuple(_parse_value(item, text, calls=calls) for item in node.args)
        return Part(name, options, arguments)
    name = _dotted_name(node)
    if name is None:
        raise _not_a_part(node, text)
    return Part(name)


def _parse_value(node: ast.expr, text: str, depth: int = 0, calls: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise SpecError(f"in spec {shorten(text)}: values are nested too deeply")
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | type(None)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _parse_value(node.operand, text, depth + 1, calls)
        if isinstance(operand, int | float) and not isinstance(operand, bool):
            return -operand if isinstance(node.op, ast.USub) else operand
    elif isinstance(node, ast.Name | ast.Attribute):
        name = _dotted_name(node)
        if name in ("inf", "nan"):
            return float(name)
        if name in ("true", "false"):  # as YAML writes them
            return name == "true"
        if name is not None:
            return name
    elif isinstance(node, ast.List):
        return [_parse_value(item, text, depth + 1, calls) for item in node.elts]
    elif isinstance(node, ast.Tuple):
        return tuple(_parse_value(item, text, depth + 1, calls) for item in node.elts)
    elif isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return _parse_dict(node, text, depth, calls)
    elif isinstance(node, ast.Call) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        parts = [_parse_part(part, text, True, calls + 1) for part in _summands(node, text)]
        return format_spec(parts)
    raise SpecError(
        f"in spec {shorten(text)}: cannot read the value {_source(node, text)!r}; "
        "expected a number, string, True, False, None, word, list, tuple, mapping or part; "
        "put a path or several words in quotes"
    )


def _parse_dict(node: ast.Dict, text: str, depth: int, calls: int) -> dict[Any, Any]:
    result = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        assert key_node is not None
        key = _parse_value(key_node, text, depth + 1, calls)
        if isinstance(key, list | dict):
            raise SpecError(
                f"in spec {shorten(text)}: a mapping's key must be a word, string or number, "
                f"not {_source(key_node, text)!r}"
            )
        result[key] = _parse_value(value_node, text, depth + 1, calls)
    return result


def _parse_mapping(spec: Mapping[str, Any]) -> Part:
    """Read ``{"name": "cagrad", "c": 0.4}`` or ``{"cagrad": {"c": 0.4}}``."""
    if "name" in spec:
        name, options = spec["name"], {key: value for key, value in spec.items() if key != "name"}
    elif len(spec) == 1:
        name, options = next(iter(spec.items()))
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise SpecError(
                f"options of part {name!r} must be a mapping, not {type(options).__name__}; "
                f"for example {{{name!r}: {{'option': 1}}}}"
            )
    else:
        raise SpecError(
            f"a part needs the key 'name'; got keys {sorted(map(str, spec))}. "
            "Write {'name': 'cagrad', 'c': 0.4}"
        )
    name = name.replace("-", "_") if isinstance(name, str) else name
    if not isinstance(name, str) or not _WORD.fullmatch(name):
        raise SpecError(f"a part's name must be a word such as 'cagrad', not {name!r}")
    for key in options:
        if not isinstance(key, str) or not key.isidentifier():
            raise SpecError(f"option names of part {name!r} must be words, not {key!r}")
    return Part(name, dict(options))


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value if is_word(value) else repr(value)
    if isinstance(value, bool | None):
        return repr(value)
    if isinstance(value, Integral):
        return repr(int(value))  # also NumPy's
    if isinstance(value, float):
        return repr(float(value))  # also NumPy's; inf, -inf and nan are words of the grammar
    if isinstance(value, Mapping):
        items = (f"{_format_value(k)}: {_format_value(v)}" for k, v in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, tuple):
        inner = ", ".join(map(_format_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    if isinstance(value, Part):
        return format_spec([value])
    # a module or callable given in Python: shown, but it cannot be parsed again
    return f"<{getattr(value, '__name__', type(value).__name__)}>"


def is_word(text: str) -> bool:
    """Return whether this needs no quotes in a spec: a name, dotted or not, that is not reserved.

    >>> is_word("parameters"), is_word("data/people.csv"), is_word("None")
    (True, False, False)
    """
    reserved = any(piece in _RESERVED or keyword.iskeyword(piece) for piece in text.split("."))
    return _WORD.fullmatch(text) is not None and not reserved


def _dotted_name(node: ast.expr) -> str | None:
    pieces: list[str] = []
    while isinstance(node, ast.Attribute):
        pieces.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(pieces)])


def _not_a_part(node: ast.expr, text: str) -> SpecError:
    return SpecError(
        f"in spec {shorten(text)}: {_source(node, text)!r} is not a part; "
        "a part is a name such as 'pcgrad' or a call such as 'cagrad(c=0.4)'; join parts by '+'"
    )


def _source(node: ast.expr, text: str) -> str:
    return (ast.get_source_segment(text.strip(), node) or ast.dump(node))[:80]
