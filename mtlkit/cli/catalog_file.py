"""The facts about mtlkit's own methods, kept with the package: listing them takes no torch.

``python -m mtlkit.cli.catalog_file`` renews the file. One that is older than the methods is not used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mtlkit.cli.catalog import MethodFacts, Option, all_facts, method_facts
from mtlkit.cli.costs import COSTS, built_in_methods
from mtlkit.config.files import write_text
from mtlkit.config.registry import methods
from mtlkit.config.spec import parse_spec

CATALOG = Path(__file__).with_name("catalog.json")
_WEIGHTING = Path(__file__).parent.parent / "weighting"


def list_facts() -> list[MethodFacts]:
    """Facts of all methods, sorted by name: from the file where it knows them all."""
    kept = _current()
    return all_facts() if kept is None else kept


def find_facts(name: str) -> MethodFacts:
    """Facts of one method: from the file where it knows it."""
    return next((facts for facts in _current() or () if facts.name == name), None) or method_facts(name)


def _current() -> list[MethodFacts] | None:
    is_loaded = "mtlkit.weighting" in sys.modules  # then asking costs nothing
    if is_loaded or entry_points(group=methods.group):
        return None
    return read_catalog()


def read_catalog(path: Path = CATALOG) -> list[MethodFacts] | None:
    """What the file says; None where it is absent or older than the methods."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if content["fingerprint"] != _fingerprint():
        return None
    return [_from_plain(entry) for entry in content["methods"]]


def write_catalog(path: Path = CATALOG) -> None:
    """Write the facts of the built-in methods."""
    entries = [_to_plain(method_facts(name)) for name in built_in_methods()]
    content = {"fingerprint": _fingerprint(), "methods": entries}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _fingerprint() -> str:
    """Changes with every file that the facts come from."""
    sources = [*sorted(_WEIGHTING.rglob("*.py")), Path(__file__).with_name("catalog.py"), COSTS]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + source.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def _to_plain(facts: MethodFacts) -> dict[str, Any]:
    entry = asdict(facts)
    entry["options"] = [
        {"name": option.name, "description": option.description}
        | ({} if option.default is inspect.Parameter.empty else {"default": option.default_text})
        for option in facts.options
    ]
    return entry


def _from_plain(entry: dict[str, Any]) -> MethodFacts:
    lists = {key: tuple(entry[key]) for key in ("roles", "needs")}
    options = tuple(
        Option(option["name"], _default(option), option["description"]) for option in entry["options"]
    )
    return MethodFacts(**{**entry, **lists, "options": options})


def _default(option: dict[str, Any]) -> Any:
    """The default from its text in a config string."""
    if "default" not in option:
        return inspect.Parameter.empty
    (part,) = parse_spec(f"_(_={option['default']})")
    return part.options["_"]


if __name__ == "__main__":
    write_catalog()
