"""mtlkit: multi-task learning for PyTorch, the published remedies behind one string."""

from typing import TYPE_CHECKING, Any

from mtlkit._version import __version__
from mtlkit.config.registry import (
    list_architectures,
    list_methods,
    register_architecture,
    register_method,
)
from mtlkit.errors import MtlkitError

if TYPE_CHECKING:
    from mtlkit.architectures.base import Architecture
    from mtlkit.architectures.create import create_architecture
    from mtlkit.data import load_dataset
    from mtlkit.deployment.exporting import export
    from mtlkit.deployment.fusion import fuse
    from mtlkit.deployment.loading import load
    from mtlkit.diagnosis import diagnose
    from mtlkit.engine.step import Step
    from mtlkit.experiments.compare import compare
    from mtlkit.experiments.tuning.study import tune
    from mtlkit.method.aggregator import GradientAggregator
    from mtlkit.method.create import create_method
    from mtlkit.method.dropins import backward, mtl_backward
    from mtlkit.method.losses import weigh_by_labels
    from mtlkit.tasks import Task, register_task
    from mtlkit.training.experiment import train
    from mtlkit.training.optimizers import param_groups, rotation_schedule
    from mtlkit.training.trainer import Trainer

__all__ = [
    "Architecture",
    "GradientAggregator",
    "MtlkitError",
    "Step",
    "Task",
    "Trainer",
    "__version__",
    "backward",
    "compare",
    "create_architecture",
    "create_method",
    "diagnose",
    "export",
    "fuse",
    "list_architectures",
    "list_methods",
    "load",
    "load_dataset",
    "mtl_backward",
    "param_groups",
    "register_architecture",
    "register_method",
    "register_task",
    "rotation_schedule",
    "train",
    "tune",
    "weigh_by_labels",
]

# imported when first used: torch takes seconds, and not every command of the command line needs it
_LAZY: dict[str, str] = {
    "Architecture": "mtlkit.architectures.base",
    "GradientAggregator": "mtlkit.method.aggregator",
    "Step": "mtlkit.engine.step",
    "Task": "mtlkit.tasks",
    "Trainer": "mtlkit.training.trainer",
    "backward": "mtlkit.method.dropins",
    "compare": "mtlkit.experiments.compare",
    "create_architecture": "mtlkit.architectures.create",
    "create_method": "mtlkit.method.create",
    "diagnose": "mtlkit.diagnosis",
    "export": "mtlkit.deployment.exporting",
    "fuse": "mtlkit.deployment.fusion",
    "load": "mtlkit.deployment.loading",
    "load_dataset": "mtlkit.data",
    "mtl_backward": "mtlkit.method.dropins",
    "param_groups": "mtlkit.training.optimizers",
    "register_task": "mtlkit.tasks",
    "rotation_schedule": "mtlkit.training.optimizers",
    "train": "mtlkit.training.experiment",
    "tune": "mtlkit.experiments.tuning.study",
    "weigh_by_labels": "mtlkit.method.losses",
}
_MODULES = (
    "architectures",
    "data",
    "report",
    "integrations",
    "tasks",
    "testing",
    "training",
    "weighting",
)


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'mtlkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY, *_MODULES})
