"""``mtlkit doctor``: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer

from mtlkit._version import __version__
from mtlkit.cli import app


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, devices, distributed back ends and extras; say what is missing.

    Example: [bold]mtlkit doctor[/bold]

    Ends with code 1 if something that mtlkit needs is missing; extras may be absent.
    """
    report = examine()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if report["missing"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """The facts, as plain values."""
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
        "data_dir": _data_dir(),
    }


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Distributions that mtlkit needs, and those of every extra."""
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        lines = requires("mtlkit") or []
    except PackageNotFoundError:  # run from a source folder without installation
        lines = ["torch", "numpy", "scipy"]
    for line in lines:
        requirement, _, condition = line.partition(";")
        name = requirement.split("[")[0]
        for sign in "<>=!~ (":
            name = name.split(sign)[0]
        if "extra" in condition:
            extra = condition.split("==")[-1].strip().strip("\"'")
            extras.setdefault(extra, [])
            if name != "mtlkit":
                extras[extra].append(name)
        else:
            needed.append(name)
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

    if not dist.is_available():
        return {}
    return {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }


def _data_dir() -> str | None:
    import os

    return os.environ.get("MTLKIT_DATA")


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
