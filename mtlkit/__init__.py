"""Multi-task learning for PyTorch: the published methods by name, in your own training loop.

>>> import torch, mtlkit
>>> method = mtlkit.create_method("pcgrad", tasks=("seg", "depth"))
>>> features = torch.ones(1, 2, requires_grad=True)
>>> seg, depth = method(features)  # fork the features
>>> method.total({"seg": seg.sum(), "depth": -depth[:, 0].sum()}).backward()  # one ordinary backward
>>> features.grad  # the conflict is removed
tensor([[-0.5000,  1.5000]])
"""

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from mtlkit._version import __version__
from mtlkit.config.extras import lazy_names as _lazy_names
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
    from mtlkit.method.method import Method
    from mtlkit.tasks import Task, register_task
    from mtlkit.training.experiment import train
    from mtlkit.training.optimizers import param_groups, rotation_schedule
    from mtlkit.training.trainer import Trainer

__all__ = [
    "Architecture",
    "GradientAggregator",
    "Method",
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
_LAZY = {
    "Architecture": "mtlkit.architectures.base",
    "GradientAggregator": "mtlkit.method.aggregator",
    "Method": "mtlkit.method.method",
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
_PACKAGES = (
    "architectures",
    "data",
    "integrations",
    "report",
    "tasks",
    "testing",
    "training",
    "weighting",
)
_get_lazy = _lazy_names(__name__, _LAZY)


def __getattr__(name: str) -> _Any:
    if name in _PACKAGES:
        return _importlib.import_module(f"{__name__}.{name}")
    return _get_lazy(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
