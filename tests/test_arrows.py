"""Imports inside mtlkit point one way: the arrows of the design, and no cycle between modules.

Every import counts: those inside functions, and those for type checkers. Only the package ``mtlkit`` itself
and a package's ``__init__`` may name what lies below them for others.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import mtlkit

ROOMS = (
    ("__main__",),
    ("cli", "integrations", "testing"),
    ("experiments", "diagnosis", "deployment"),
    ("report",),
    ("training",),
    ("data", "architectures"),
    ("tasks",),
    ("weighting",),
    ("method", "rotations"),
    ("engine",),
    ("config",),
    ("errors", "_version"),
)
"""Top to bottom: a room may import from the rows below its own, and from itself."""

Edge = tuple[str, str]


@functools.cache
def imports() -> frozenset[Edge]:
    """Every import of one module of mtlkit by another."""
    root = Path(mtlkit.__file__).parent
    names = {_name(path, root): path for path in root.rglob("*.py")}
    return frozenset(
        (module, target)
        for module, path in names.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for target in _targets(node, names)
        if target != module
    )


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(node: ast.AST, names: Iterable[str]) -> list[str]:
    """Modules of mtlkit that an import names; ``from package import module`` names the module."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: write imports with the package's full name"
        full = [f"{node.module}.{alias.name}" for alias in node.names]
        found = [name if name in names else str(node.module) for name in full]
    else:
        return []
    return [name for name in found if name.partition(".")[0] == "mtlkit"]


def _room(module: str) -> str:
    return [*module.split("."), "mtlkit"][1]


def _row(module: str) -> int:
    return next((row for row, rooms in enumerate(ROOMS) if _room(module) in rooms), -1)


def _points_upward(edge: Edge) -> bool:
    """Whether an import goes to another room that does not lie below; the package itself is on top.

    The command line and the integrations may use the package as any user does.
    """
    importer, imported = edge
    if importer == "mtlkit" or _room(importer) == _room(imported):
        return False
    return _row(importer) > 1 if imported == "mtlkit" else _row(imported) <= _row(importer)


def _cycle(edges: Iterable[Edge]) -> list[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for importer, imported in sorted(edges):
        sorter.add(importer, imported)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_has_a_place_in_the_arrows() -> None:
    unplaced = {module for edge in imports() for module in edge if _row(module) < 0} - {"mtlkit"}
    assert not unplaced


def test_at_most_four_modules_lie_beside_the_packages() -> None:
    root = Path(mtlkit.__file__).parent
    assert len({path.stem for path in root.glob("*.py")} - {"__init__"}) <= 4


def test_every_package_has_its_tests_under_its_own_name() -> None:
    root = Path(mtlkit.__file__).parent
    packages = {path.parent.relative_to(root) for path in root.glob("*/**/__init__.py")}
    here = Path(__file__).parent
    tests = {path.parent.relative_to(here) for path in here.glob("*/**/test_*.py")}
    # private packages are tested with the one that they belong to
    assert {path for path in packages if not path.name.startswith("_")} <= tests


def test_imports_point_downward() -> None:
    assert not {edge for edge in imports() if _points_upward(edge)}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not _cycle(imports())


def test_an_import_against_the_arrows_or_in_a_circle_is_found() -> None:
    assert _points_upward(("mtlkit.engine.step", "mtlkit.method.create"))
    assert _points_upward(("mtlkit.data.base", "mtlkit.architectures.base"))
    assert not _points_upward(("mtlkit.weighting.pcgrad", "mtlkit.engine.step"))
    assert _cycle({("a", "b"), ("b", "c"), ("c", "a")})
