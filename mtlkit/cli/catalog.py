"""Facts about every method, read from its class: what ``mtlkit methods`` and the docs' pages show."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtlkit.cli.sources import REQUIRED, ClassSource, base_class, built_in, of_class
from mtlkit.config.annotations import describe
from mtlkit.config.registry import match_name, methods, option_defaults, option_types
from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.errors import SpecError, unknown_name

_BILEVEL = (
    "a bilevel method: it needs a validation batch and a second backward inside the step, which the "
    "one ordinary backward of mtlkit has no place for"
)
OMITTED = {
    "auto_lambda": f"Liu et al., Auto-Lambda, TMLR 2022: {_BILEVEL}",
    "forum": f"Ye et al., FORUM, ECAI 2024: {_BILEVEL}",
    "moml": f"Ye et al., Multi-Objective Meta Learning, NeurIPS 2021: {_BILEVEL}",
}
"""Published methods that are left out on purpose, with the reason."""

_HOOKS = {
    "weigh losses": {"weigh_losses"},
    "fork features": {"fork"},
    "merge gradients": {"weigh", "merge"},
}
_OF_MERGES = ("wrt", "groups", "sync")
"""Options that only a part which merges gradients has."""


@dataclass(frozen=True)
class Option:
    """One option of a config string."""

    name: str
    default: Any
    annotation: Any
    description: str = ""

    @property
    def default_text(self) -> str:
        """The default as it is written in a config string."""
        if self.default is REQUIRED:
            return "(required)"
        return format_spec([Part("_", {"_": self.default})])[len("_(_=") : -1]

    @property
    def accepted(self) -> str:
        """The type and range in words."""
        return describe(self.annotation)


@dataclass(frozen=True)
class MethodFacts:
    """What a class, or an alias, says about a method."""

    name: str
    stands_for: str = ""
    """The config string that an alias means; empty for a method of its own."""
    roles: tuple[str, ...] = ()
    """``weigh losses``, ``fork features`` and ``merge gradients``, in this order."""
    paper: str = ""
    year: int | None = None
    url: str = ""
    """Address of the paper."""
    idea: str = ""
    """The group that the method is listed under."""
    needs: tuple[str, ...] = ()
    """Among ``features``, ``losses``, ``Gram matrix``, ``whole gradients``, ``own parameters``."""
    distributed: str = "exact"
    """``exact``, or why several processes do not take the step that one takes."""
    cost: str = ""
    """What a step adds to a plain one."""
    options: tuple[Option, ...] = ()
    summary: str = ""
    """First sentence of the docstring, as plain text."""
    docstring: str = ""
    """The docstring, in reStructuredText."""
    factory: str = ""
    """Import path of the class; empty for an alias."""


def method_names() -> list[str]:
    """Sorted names of all methods and aliases; torch is imported only where there are plugins."""
    known, aliases = built_in()
    return methods.names() if methods.has_plugins() else sorted({*known, *aliases})


def method_facts(name: str) -> MethodFacts:
    """What is known about the method or alias ``name``, whatever its spelling.

    Raises:
        SpecError: for a name that is not registered; for one of :data:`OMITTED`, it says why.
    """
    names = method_names()
    name = match_name(name, names, methods.spellings)
    if name not in names:
        if name in OMITTED:
            raise SpecError(f"method {name!r} is left out of mtlkit. {OMITTED[name]}")
        raise unknown_name("method", name, names)
    aliases = methods.aliases() if methods.has_plugins() else built_in()[1]
    return _alias_facts(name, aliases[name]) if name in aliases else _facts(name)


def all_facts() -> list[MethodFacts]:
    """Facts of all methods, sorted by name; an alias of a plugin that is not there is left out."""
    found = []
    names = method_names()
    aliases = methods.aliases() if methods.has_plugins() else built_in()[1]
    for name in names:
        parts = parse_spec(aliases[name]) if name in aliases else []
        if all(part.name in names for part in parts):
            found.append(method_facts(name))
    return found


def _alias_facts(name: str, spec: str) -> MethodFacts:
    parts = parse_spec(spec)
    found = [method_facts(part.name) for part in parts]
    cited = next((facts for facts in found if facts.paper), found[0])
    options: dict[str, Option] = {}
    for facts, part in zip(found, parts, strict=True):
        for option in facts.options:
            default = part.options.get(option.name, option.default)
            own = Option(option.name, default, option.annotation, option.description)
            options.setdefault(option.name, own)
    needs = {need for facts in found for need in facts.needs}
    inexact = [facts.distributed for facts in found if facts.distributed != "exact"]
    docstrings = [f"``{facts.name}``: {facts.docstring}" for facts in found]
    return MethodFacts(
        name=name,
        stands_for=spec,
        roles=tuple(role for role in _HOOKS if any(role in facts.roles for facts in found)),
        paper=cited.paper,
        year=cited.year,
        url=cited.url,
        idea=found[0].idea,
        needs=tuple(need for need in _NEEDS if need in needs),
        distributed="; ".join(inexact) or "exact",
        cost=" + ".join(facts.cost for facts in found if facts.cost != "nothing") or "nothing",
        options=tuple(options.values()),
        summary=f"Stands for {spec}.",
        docstring="\n\n".join([f"Stands for ``{spec}``.", *docstrings]),
    )


def _facts(name: str) -> MethodFacts:
    source = built_in()[0].get(name)
    if methods.has_plugins():
        factory = methods.get(name)
        if source is None or not factory.__module__.startswith("mtlkit."):
            source = of_class(factory)
            if source is None:
                return MethodFacts(name, docstring=inspect.getdoc(factory) or "")
    assert source is not None
    roles = tuple(role for role, hooks in _HOOKS.items() if hooks & source.functions.keys())
    options = _options(source, merges="merge gradients" in roles)
    inner = [option.default for option in options if option.name == "inner"]
    needs = method_facts(inner[0]).needs if inner else _needs(source, roles)
    waived = source.attribute("waived_laws", {})
    condition = source.attribute("exact_if", "")
    return MethodFacts(
        name=name,
        roles=roles,
        paper=source.attribute("paper", ""),
        year=source.attribute("year", None),
        url=source.attribute("url", ""),
        idea=source.attribute("idea", ""),
        needs=needs,
        distributed=waived.get("distributed") or " ".join(filter(None, ["exact", condition])),
        cost=method_facts(inner[0]).cost if inner else _cost(source, roles, needs),
        options=options,
        summary=_plain(source.docstring.split("\n\n")[0]),
        docstring=source.docstring,
        factory=source.path,
    )


_NEEDS = ("features", "losses", "Gram matrix", "whole gradients", "own parameters")


def _needs(source: ClassSource, roles: tuple[str, ...]) -> tuple[str, ...]:
    hooks = source.functions.keys()
    merges = "merge gradients" in roles and not source.attribute("is_plain_sum", False)
    whole = merges and "weigh" not in hooks
    needs = (
        "fork features" in roles or merges,
        "weigh losses" in roles or source.attribute("uses_losses", False),
        merges and not whole and source.attribute("reads_gram", True),
        whole,
        "owned" in hooks or source.mentions("add_learned"),
    )
    return tuple(name for name, needed in zip(_NEEDS, needs, strict=True) if needed)


def _cost(source: ClassSource, roles: tuple[str, ...], needs: tuple[str, ...]) -> str:
    costs = []
    if "weigh losses" in roles:
        costs.append("K numbers")
    if "fork features" in roles:
        costs.append("K views of the features")
    if "whole gradients" in needs:
        costs.append("all gradients, element by element")
    elif "merge gradients" in roles and not source.attribute("is_plain_sum", False):
        costs.append(f"Gram matrix{_waits(source)}")
    return " + ".join(costs) or "nothing"


def _waits(source: ClassSource) -> str:
    """What a CUDA device is waited for: a solver on the host, or PyTorch's eigenvalues."""
    if source.mentions("eigh"):
        return " + eigenvalues"
    return " + solver" if source.mentions("on_host") else ""


def _options(source: ClassSource, merges: bool) -> tuple[Option, ...]:
    meanings: dict[str, str] = {}
    hidden = {"feature_dim", *source.attribute("hidden_options", ())}
    hidden |= set() if merges else {*_OF_MERGES}
    for each in reversed([*source.chain, base_class()]):
        meanings |= _arguments(each.docstring)
    return tuple(
        Option(name, default, annotation, meanings.get(name, ""))
        for name, (default, annotation) in source.options().items()
        if name not in hidden
    )


def find_options(factory: Any) -> list[Option]:
    """Options of a class or function, with their meaning as the ``Args`` of the docstrings say."""
    meanings: dict[str, str] = {}
    for current in reversed(inspect.getmro(factory)) if inspect.isclass(factory) else [factory]:
        meanings |= _arguments(inspect.getdoc(current) or "")
    types: Mapping[str, Any] = option_types(factory)
    return [
        Option(name, default, types.get(name, Any), meanings.get(name, ""))
        for name, default in option_defaults(factory).items()
    ]


def _arguments(docstring: str) -> dict[str, str]:
    """Names and descriptions of a Google-style ``Args`` section."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", docstring, re.MULTILINE)
    if section is None:
        return {}
    found: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc("\n" + section.group(1)).splitlines():
        start = re.match(r"(\w+): (.*)", line)
        if start:
            current = start.group(1)
            found[current] = start.group(2)
        elif current and line.strip():
            found[current] += " " + line.strip()
    return found


def _plain(text: str) -> str:
    """reStructuredText without its marks, on one line."""
    text = re.sub(r":[\w:]+:`~?([^`]*)`", r"\1", " ".join(text.split()))
    return text.replace("``", "")
