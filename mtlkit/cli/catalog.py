"""Facts about every registered method: what ``mtlkit methods`` and the docs' pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mtlkit.cli.costs import kept_costs
from mtlkit.cli.papers import paper_link
from mtlkit.config.registry import methods, option_defaults
from mtlkit.config.spec import Part, format_spec
from mtlkit.errors import MtlkitError, SpecError, UnknownNameError

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

# PyTorch's eigenvalue decomposition waits for a CUDA device, as a solver on the host does
_DECOMPOSING = frozenset({"aligned_mtl", "config", "imtl_g"})
_ROLES = {"loss": "weigh losses", "fork": "fork features", "merge": "merge gradients"}


@dataclass(frozen=True)
class Option:
    """One option of a method's config string."""

    name: str
    default: Any
    description: str

    @property
    def default_text(self) -> str:
        """The default as it is written in a config string."""
        if self.default is inspect.Parameter.empty:
            return "(required)"
        return format_spec([Part("_", {"_": self.default})])[len("_(_=") : -1]


@dataclass(frozen=True)
class MethodFacts:
    """What the registry knows about a method, or about an alias."""

    name: str
    stands_for: str
    """The config string that an alias means; empty for a method of its own."""
    roles: tuple[str, ...]
    """``weigh losses``, ``fork features`` and ``merge gradients``, in this order."""
    paper: str
    year: int | None
    needs: tuple[str, ...]
    """Among ``features``, ``losses``, ``Gram matrix``, ``whole gradients``, ``own parameters``."""
    distributed: str
    """``exact``, or why several processes do not take the step that one takes."""
    cost: str
    """What a step adds to a plain one, apart from a constant."""
    added_ms: float | None
    """How many milliseconds that is at K = 10 (:mod:`mtlkit.cli.costs`); None for a plugin."""
    options: tuple[Option, ...]
    summary: str
    """First sentence of the docstring, as plain text."""
    docstring: str
    """The docstring, in reStructuredText."""
    factory: str
    """Import path of the class; empty for an alias."""

    @property
    def figure(self) -> str:
        """The milliseconds, as a table shows them; empty where they are not known."""
        return "" if self.added_ms is None else f"+{self.added_ms:.1f} ms"


def method_facts(name: str) -> MethodFacts:
    """What is known about the method or alias ``name``.

    Raises:
        SpecError: for a name that is not registered; for one of :data:`OMITTED`, it says why.
    """
    name = methods.canonical(name)
    if name in OMITTED and name not in methods.names():
        raise SpecError(f"method {name!r} is left out of mtlkit. {OMITTED[name]}")
    stands_for = methods.aliases().get(name, "")
    parts = methods.expand(name) if stands_for else [Part(name)]
    factories = [methods.get(part.name) for part in parts]
    played = [role for role in _ROLES if any(role in getattr(f, "roles", ()) for f in factories)]
    cited = next((f for f in factories if getattr(f, "paper", "")), factories[0])
    docstrings = [_docstring(factory) for factory in factories]
    parts_made = _made(name) or factories
    reasons = [getattr(f, "waived_laws", {}).get("distributed", "") for f in factories]
    conditions = [getattr(f, "exact_if", "") for f in factories]
    options: dict[str, Option] = {}
    for factory, part in zip(factories, parts, strict=True):
        for option in find_options(factory):
            default = part.options.get(option.name, option.default)
            options.setdefault(option.name, Option(option.name, default, option.description))
    if stands_for:
        summary = f"Stands for {stands_for}."
        docstring = "\n\n".join(
            [f"Stands for ``{stands_for}``."]
            + [f"``{part.name}``: {text}" for part, text in zip(parts, docstrings, strict=True)]
        )
    else:
        summary, docstring = _plain(docstrings[0].split("\n\n")[0]), docstrings[0]
    return MethodFacts(
        name=name,
        stands_for=stands_for,
        roles=tuple(_ROLES[role] for role in played),
        paper=getattr(cited, "paper", ""),
        year=getattr(cited, "year", None),
        needs=_needs(parts_made),
        distributed="; ".join(filter(None, reasons)) or " ".join(["exact", *filter(None, conditions)]),
        cost=_cost(parts_made),
        added_ms=kept_costs().added.get(name),
        options=tuple(options.values()),
        summary=summary,
        docstring=docstring,
        factory="" if stands_for else f"{factories[0].__module__}.{factories[0].__qualname__}",
    )


def all_facts() -> list[MethodFacts]:
    """Facts of all methods, sorted by name; an alias of a plugin that is not there is left out."""
    found = []
    for name in methods.names():
        try:
            found.append(method_facts(name))
        except UnknownNameError:
            continue
    return found


def method_page(name: str) -> str:
    """The method's page for the docs, in MyST Markdown; its docstring is included by autodoc."""
    facts = method_facts(name)
    lines = [f"# {facts.name}", ""]
    if facts.stands_for:
        links = ", ".join(f"[{part.name}]({part.name}.md)" for part in methods.expand(name))
        lines += [f"`{facts.name}` stands for `{facts.stands_for}`: see {links}.", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in _described(facts)]
    if facts.factory:
        directive = f".. autoclass:: {facts.factory}\n   :no-index:"
        lines += ["", "```{eval-rst}", directive, "```"]
    if facts.options:
        lines += ["", "## Options", "", "| option | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{option.name}` | `{option.default_text}` | {_cell(_myst(option.description))} |"
            for option in facts.options
        ]
    return "\n".join(lines) + "\n"


def _described(facts: MethodFacts) -> list[tuple[str, str]]:
    rows = [
        ("role", ", ".join(facts.roles)),
        ("paper", facts.paper),
        ("year", str(facts.year or "")),
        ("link", paper_link(facts.name)),
        ("needs", ", ".join(facts.needs)),
        ("several processes", facts.distributed),
        ("work per step", facts.cost),
        ("cost at K = 10", facts.figure),
    ]
    return [(key, value) for key, value in rows if value]


def _made(name: str) -> Sequence[Any]:
    """The parts of the method with its default options; empty if an option has no default."""
    from mtlkit.weighting import create_method

    try:
        return create_method(name, 2, feature_dim=4).parts
    except (MtlkitError, TypeError):
        return ()


def _needs(parts: Sequence[Any]) -> tuple[str, ...]:
    def any_of(attribute: str) -> bool:
        return any(getattr(part, attribute, False) for part in parts)

    roles: set[str] = {role for part in parts for role in getattr(part, "roles", ())}
    merges = [part for part in parts if "merge" in getattr(part, "roles", ())]
    plain = all(f.is_plain_sum for f in merges)
    whole = any_of("needs_whole_gradients")
    needs = {
        "features": "fork" in roles or not plain,
        "losses": "loss" in roles or any_of("uses_losses"),
        "Gram matrix": any(f.reads_gram for f in merges)
        and not plain
        and not any_of("needs_whole_gradients"),
        "whole gradients": whole,
        "own parameters": _own_parameters(parts),
    }
    return tuple(need for need, wanted in needs.items() if wanted)


def _own_parameters(parts: Iterable[Any]) -> bool:
    from mtlkit.weighting import GradientAggregator

    return any(list(part.parameters()) for part in parts if isinstance(part, GradientAggregator))


def _cost(parts: Iterable[Any]) -> str:
    costs = []
    for part in parts:
        roles: frozenset[str] = getattr(part, "roles", frozenset())
        if "loss" in roles:
            costs.append("K numbers")
        if "fork" in roles:
            costs.append("K views of the features")
        if "merge" in roles and not part.is_plain_sum:
            if part.needs_whole_gradients:
                costs.append("all gradients, element by element")
            elif not part.solves_on_host:
                decomposes = getattr(part, "name", "") in _DECOMPOSING
                costs.append("Gram matrix + eigenvalues" if decomposes else "Gram matrix")
            else:
                costs.append("Gram matrix + solver")
    return " + ".join(costs) or "nothing"


def _docstring(factory: Any) -> str:
    from mtlkit.weighting import GradientAggregator

    own = inspect.getdoc(factory) or ""
    return "" if own == inspect.getdoc(GradientAggregator) else own


def find_options(factory: Any) -> list[Option]:
    """Options and their meaning, as the ``Args`` of the docstrings say."""
    meanings: dict[str, str] = {}
    for current in reversed(inspect.getmro(factory)) if inspect.isclass(factory) else [factory]:
        meanings |= _arguments(inspect.getdoc(current) or "")
    return [
        Option(name, default, meanings.get(name, ""))
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


def _myst(text: str) -> str:
    """A line of reStructuredText as MyST Markdown."""
    text = re.sub(r":([\w:]+):`([^`]*)`", r"{\1}`\2`", text)
    return text.replace("``", "`")


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")
