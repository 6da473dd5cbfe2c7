"""``mtlkit doctor``: installed and missing packages, devices, and how to install what is missing."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer

from mtlkit._version import __version__
from mtlkit.cli import app


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show versions, devices, distributed back ends and extras, and what is missing.

    Example: [bold]mtlkit doctor[/bold]

    The exit code is 1 if a required package is missing; extras are optional.
    """
    report = examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if report["missing"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return all facts as plain values."""
    needed, extras = _requirements()
    missing = [name for name in needed if _installed(name) is None]
    return {
        "mtlkit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed(name) for name in needed},
        "missing": missing,
        "extras": {extra: {name: _installed(name) for name in names} for extra, names in extras.items()},
        "devices": _devices() if "torch" not in missing else [],
        "backends": _backends() if "torch" not in missing else {},
        "data_dir": os.environ.get("MTLKIT_DATA"),
    }


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the required packages, and those of every extra."""
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        lines = requires("mtlkit") or []
    except PackageNotFoundError:  # run from source without installation
        lines = ["torch", "numpy", "scipy"]
    for line in lines:
        name, extra = re.match(r"([\w.-]+)(?:.*extra == .(\w+))?", line).groups()  # type: ignore[union-attr]
        (extras.setdefault(extra, []) if extra else needed).append(name)
    return needed, extras


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import torch

    found = [f"cpu, {torch.get_num_threads()} threads"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(f"cuda:{index}, {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _backends() -> dict[str, bool]:
    import torch.distributed as dist

    names = ("gloo", "nccl", "mpi") if dist.is_available() else ()
    return {name: dist.is_backend_available(name) for name in names}


def _print(report: dict[str, Any]) -> None:
    typer.echo(f"mtlkit {report['mtlkit']}, Python {report['python']} ({sys.executable})")
    typer.echo(report["platform"])
    for name, found in report["packages"].items():
        typer.echo(f"  {name:<16}{found or 'MISSING'}")
    typer.echo("devices: " + "; ".join(report["devices"]))
    known = [f"{name} {'yes' if there else 'no'}" for name, there in report["backends"].items()]
    typer.echo("distributed back ends: " + (", ".join(known) or "none"))
    typer.echo(f"MTLKIT_DATA: {report['data_dir'] or 'not set; embedded data sets need none'}")
    for extra, names in report["extras"].items():
        absent = [name for name, found in names.items() if found is None]
        if absent:
            typer.echo(f"extra {extra}: missing {', '.join(absent)}; pip install 'mtlkit[{extra}]'")
        else:
            typer.echo(f"extra {extra}: complete")
    if report["missing"]:
        typer.echo(f"missing: {', '.join(report['missing'])}; pip install --upgrade mtlkit", err=True)
