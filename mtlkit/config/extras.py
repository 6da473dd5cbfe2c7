"""Optional packages: which extra installs each, and names that are imported when first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from mtlkit.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": (
        *("accelerate", "torchmetrics", "typer", "rich", "yaml", "pydantic", "jinja2", "plotly"),
        *("huggingface_hub", "safetensors", "filelock"),
    ),
    "vision": ("torchvision", "timm", "segmentation_models_pytorch"),
    "table": ("pandas", "pyarrow", "sklearn"),
    "tune": ("optuna",),
    "export": ("onnx", "onnxscript"),
    "geotorch": ("geotorch",),
    "huggingface": ("transformers", "peft"),
    "graphs": ("torch_geometric",),
    "qm9": ("qm9pack",),
}
"""Modules that each extra of pyproject.toml installs."""


def missing_extra(error: ImportError, purpose: str) -> MissingExtraError | None:
    """Return the error that names the extra of a missing module; None for a module of no extra.

    >>> print(missing_extra(ModuleNotFoundError("", name="optuna.trial"), "mtlkit tune"))
    mtlkit tune needs the package 'optuna', which is not installed; pip install 'mtlkit[tune]'
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
    return None if extra is None else MissingExtraError(package, extra, purpose)


def import_extra(module: str, purpose: str) -> Any:
    """Import an optional package, or raise the error that names its extra.

    >>> import_extra("json", "reading a log").loads("[1]")
    [1]
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error, purpose) or error from None


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package that imports each name when it is first used.

    >>> lazy_names("shapes", {"Fraction": "fractions"})("Fraction")
    <class 'fractions.Fraction'>
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_extra(modules[name], f"{package}.{name}"), name)

    return get
