"""Optional packages: the extra that brings each, and names that are imported when first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from mtlkit.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": (
        "accelerate",
        "torchmetrics",
        "typer",
        "rich",
        "yaml",
        "pydantic",
        "jinja2",
        "plotly",
        "huggingface_hub",
        "safetensors",
        "filelock",
    ),
    "vision": ("torchvision", "timm", "segmentation_models_pytorch"),
    "table": ("pandas", "pyarrow", "sklearn"),
    "tune": ("optuna",),
    "export": ("onnx", "onnxscript"),
    "geotorch": ("geotorch",),
    "graphs": ("torch_geometric",),
    "qm9": ("qm9pack",),
}
"""Modules that each extra of pyproject.toml brings."""


def missing_extra(error: ImportError, purpose: str) -> MissingExtraError | None:
    """The error that names the extra of a module that is not installed; None for any other module.

    >>> print(missing_extra(ModuleNotFoundError("", name="optuna.trial"), "mtlkit tune"))
    mtlkit tune needs the package 'optuna', which is not installed; pip install 'mtlkit[tune]'
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
    return None if extra is None else MissingExtraError(package, extra, purpose)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package whose names are imported when they are first used.

    Args:
        package: its name, for errors.
        modules: the module of each name.

    >>> lazy_names("shapes", {"Fraction": "fractions"})("Fraction")
    <class 'fractions.Fraction'>
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"{package}.{name}") or error from None

    return get
