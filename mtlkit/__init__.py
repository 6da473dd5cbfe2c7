"""mtlkit: multi-task learning for PyTorch, the published remedies behind one string."""

from typing import TYPE_CHECKING, Any

from mtlkit._version import __version__
from mtlkit.errors import MtlkitError
from mtlkit.registry import (
    list_architectures,
    list_methods,
    register_architecture,
    register_method,
)

if TYPE_CHECKING:
    from mtlkit.architectures.base import Architecture
    from mtlkit.architectures.create import create_architecture
    from mtlkit.data import load_dataset
    from mtlkit.deployment.exporting import export
    from mtlkit.deployment.loading import load
    from mtlkit.diagnosis import diagnose
    from mtlkit.dropins import backward, mtl_backward
    from mtlkit.fusion import fuse
    from mtlkit.losses import weigh_by_labels
    from mtlkit.step import Step
    from mtlkit.tasks import Task, register_task
    from mtlkit.training.groups import param_groups, rotation_schedule
    from mtlkit.training.trainer import Trainer
    from mtlkit.tuning.study import tune
    from mtlkit.weighting.base import GradientAggregator
    from mtlkit.weighting.chain import create_method

__all__ = [
    "Architecture",
    "GradientAggregator",
    "MtlkitError",
    "Step",
    "Task",
    "Trainer",
    "__version__",
    "backward",
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
    "tune",
    "weigh_by_labels",
]

# imported when first used: torch takes seconds, and not every command of the command line needs it
_LAZY: dict[str, str] = {
    "Architecture": "mtlkit.architectures.base",
    "GradientAggregator": "mtlkit.weighting.base",
    "Step": "mtlkit.step",
    "Task": "mtlkit.tasks",
    "Trainer": "mtlkit.training.trainer",
    "backward": "mtlkit.dropins",
    "create_architecture": "mtlkit.architectures.create",
    "create_method": "mtlkit.weighting.chain",
    "diagnose": "mtlkit.diagnosis",
    "export": "mtlkit.deployment.exporting",
    "fuse": "mtlkit.fusion",
    "load": "mtlkit.deployment.loading",
    "load_dataset": "mtlkit.data",
    "mtl_backward": "mtlkit.dropins",
    "param_groups": "mtlkit.training.groups",
    "register_task": "mtlkit.tasks",
    "rotation_schedule": "mtlkit.training.groups",
    "tune": "mtlkit.tuning.study",
    "weigh_by_labels": "mtlkit.losses",
}
_MODULES = (
    "architectures",
    "data",
    "evaluation",
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
