"""Facts about every method, read from its class, for ``mtlkit methods`` and the docs."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

from mtlkit.cli.pages import plain_text
from mtlkit.config.annotations import describe
from mtlkit.config.registry import methods, option_defaults, option_types
from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.errors import SpecError, unknown_name

_BILEVEL = (
    "a bilevel method; it needs a validation batch and a second backward pass in every step, but a step "
    "of mtlkit has a single backward pass"
)
OMITTED = {
    "auto_lambda": f"Liu et al., Auto-Lambda, TMLR 2022: {_BILEVEL}",
    "forum": f"Ye et al., FORUM, ECAI 2024: {_BILEVEL}",
    "moml": f"Ye et al., Multi-Objective Meta Learning, NeurIPS 2021: {_BILEVEL}",
}
"""Published methods that mtlkit leaves out on purpose, with the reason."""

REQUIRED: Any = inspect.Parameter.empty
"""Default of a required option."""
_ROLES = {"loss": "weigh losses", "fork": "fork features", "merge": "merge gradients"}
_NEEDS = ("features", "losses", "Gram matrix", "whole gradients", "own parameters")


@dataclass(frozen=True)
class Option:
    """One option of a config string."""

    name: str
    default: Any
    annotation: Any
    description: str = ""

    @property
    def default_text(self) -> str:
        """The default, as in a config string."""
        if self.default is REQUIRED:
            return "(required)"
        return format_spec([Part("_", {"_": self.default})])[len("_(_=") : -1]

    @property
    def accepted(self) -> str:
        """A description of type and range."""
        return describe(self.annotation)


@dataclass(frozen=True)
class MethodFacts:
    """The facts about a method or an alias."""

    name: str
    stands_for: str = ""
    """The config string of an alias; empty for any other method."""
    roles: tuple[str, ...] = ()
    """``weigh losses``, ``fork features`` and ``merge gradients``, in this order."""
    paper: str = ""
    year: int | None = None
    url: str = ""
    idea: str = ""
    """The group under which the method is listed."""
    needs: tuple[str, ...] = ()
    """Some of ``features``, ``losses``, ``Gram matrix``, ``whole gradients``, ``own parameters``."""
    distributed: str = "exact"
    """``exact``, or why the step of several processes differs from that of one."""
    cost: str = ""
    """Work in addition to a plain step."""
    options: tuple[Option, ...] = ()
    summary: str = ""
    """First paragraph of the docstring, as plain text."""
    docstring: str = ""
    factory: str = ""
    """Import path of the class; empty for an alias."""


def method_facts(name: str) -> MethodFacts:
    """Return the facts about a method or alias, in any spelling.

    Raises:
        SpecError: for a name that is not registered; for one of :data:`OMITTED`, with the reason.
    """
    name, aliases = methods.canonical(name), methods.aliases()
    if name in aliases:
        return _alias_facts(name, aliases[name])
    if name in methods.names():
        return _facts(name, methods.get(name))
    if name in OMITTED:
        raise SpecError(f"the method {name!r} is left out of mtlkit. {OMITTED[name]}")
    raise unknown_name("method", name, methods.names())


def all_facts() -> list[MethodFacts]:
    """Return the facts of all methods, sorted by name; aliases of missing plugins are left out."""
    names, aliases = methods.names(), methods.aliases()
    return [
        method_facts(name)
        for name in names
        if all(part.name in names for part in parse_spec(aliases.get(name, name)))
    ]


def find_options(factory: Any) -> tuple[Option, ...]:
    """Return the options of a class or function, with the descriptions of its docstrings' ``Args``."""
    meanings: dict[str, str] = {}
    for current in reversed(inspect.getmro(factory)) if inspect.isclass(factory) else [factory]:
        meanings |= _arguments(inspect.getdoc(current) or "")
    types = option_types(factory)
    return tuple(
        Option(name, default, types.get(name, Any), meanings.get(name, ""))
        for name, default in option_defaults(factory).items()
    )


def _alias_facts(name: str, spec: str) -> MethodFacts:
    parts = parse_spec(spec)
    found = [method_facts(part.name) for part in parts]
    cited = next((facts for facts in found if facts.paper), found[0])
    options: dict[str, Option] = {}
    for facts, part in zip(found, parts, strict=True):
        for option in facts.options:
            default = part.options.get(option.name, option.default)
            options.setdefault(option.name, replace(option, default=default))
    needs = {need for facts in found for need in facts.needs}
    roles = {role for facts in found for role in facts.roles}
    inexact = [facts.distributed for facts in found if facts.distributed != "exact"]
    docstrings = [f"``{facts.name}``: {facts.docstring}" for facts in found]
    return MethodFacts(
        name=name,
        stands_for=spec,
        roles=tuple(role for role in _ROLES.values() if role in roles),
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


def _facts(name: str, factory: Any) -> MethodFacts:
    if not hasattr(factory, "overrides"):  # a function that creates a method
        return MethodFacts(name, docstring=inspect.getdoc(factory) or "")
    options = find_options(factory)
    docstring = inspect.cleandoc(factory.__doc__ or "")
    inner = [option.default for option in options if option.name == "inner"]
    needs = method_facts(inner[0]).needs if inner else _needs(factory)
    return MethodFacts(
        name=name,
        roles=tuple(role for key, role in _ROLES.items() if key in factory.roles),
        paper=factory.paper,
        year=factory.year,
        url=factory.url,
        idea=factory.idea,
        needs=needs,
        distributed=factory.waived_laws.get("distributed") or f"exact {factory.exact_if}".strip(),
        cost=method_facts(inner[0]).cost if inner else _cost(factory, needs),
        options=options,
        summary=plain_text(docstring.split("\n\n")[0]),
        docstring=docstring,
        factory=f"{factory.__module__}.{factory.__qualname__}",
    )


def _needs(factory: Any) -> tuple[str, ...]:
    merges = "merge" in factory.roles and not factory.is_plain_sum
    whole = merges and not factory.overrides("weigh")
    needed = (
        "fork" in factory.roles or merges,
        "loss" in factory.roles or factory.uses_losses,
        merges and not whole and factory.reads_gram,
        whole,
        factory.overrides("owned") or _calls(factory, "add_learned"),
    )
    return tuple(name for name, needs in zip(_NEEDS, needed, strict=True) if needs)


def _cost(factory: Any, needs: tuple[str, ...]) -> str:
    costs = []
    if "loss" in factory.roles:
        costs.append("K numbers")
    if "fork" in factory.roles:
        costs.append("K views of the features")
    if "whole gradients" in needs:
        costs.append("all gradients, element by element")
    elif "merge" in factory.roles and not factory.is_plain_sum:
        # both wait for a CUDA device: PyTorch's eigenvalues, and a solver on the host
        waits = " + eigenvalues" if _calls(factory, "eigh") else ""
        costs.append(f"Gram matrix{waits}{' + solver' if _calls(factory, 'on_host') else ''}")
    return " + ".join(costs) or "nothing"


def _calls(factory: type, name: str) -> bool:
    """Return whether a function of the class uses this name; the base of all methods is ignored."""
    classes = [each for each in inspect.getmro(factory) if each.__module__ not in _COMMON]
    functions = [f for each in classes for f in vars(each).values() if inspect.isfunction(f)]
    return any(name in function.__code__.co_names for function in functions)


_COMMON = ("mtlkit.method.aggregator", "mtlkit.method.state", "torch.nn.modules.module")


def _arguments(docstring: str) -> dict[str, str]:
    """Return names and descriptions of a Google-style ``Args`` section."""
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
