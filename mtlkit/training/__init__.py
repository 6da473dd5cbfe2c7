"""Trainer, checkpoints, monitor and logs; each is imported when it is first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtlkit.config.logs import Log, read_log
    from mtlkit.data.collate import collate
    from mtlkit.training.accelerators import Interrupted
    from mtlkit.training.checkpoints import (
        CheckpointError,
        Checkpoints,
        load_checkpoint,
        save_checkpoint,
    )
    from mtlkit.training.optimizers import param_groups, rotation_schedule
    from mtlkit.training.run_log import Monitor
    from mtlkit.training.state import FitResult
    from mtlkit.training.trainer import Trainer

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "FitResult",
    "Interrupted",
    "Log",
    "Monitor",
    "Trainer",
    "collate",
    "load_checkpoint",
    "param_groups",
    "read_log",
    "rotation_schedule",
    "save_checkpoint",
]

# Accelerate takes long to import; optimizer groups do without it
_MODULES = {
    "mtlkit.config.logs": ("Log", "read_log"),
    "mtlkit.data.collate": ("collate",),
    "mtlkit.training.accelerators": ("Interrupted",),
    "mtlkit.training.checkpoints": (
        "CheckpointError",
        "Checkpoints",
        "load_checkpoint",
        "save_checkpoint",
    ),
    "mtlkit.training.optimizers": ("param_groups", "rotation_schedule"),
    "mtlkit.training.run_log": ("Monitor",),
    "mtlkit.training.state": ("FitResult",),
    "mtlkit.training.trainer": ("Trainer",),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
