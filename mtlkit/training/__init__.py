"""The Trainer, checkpoints, monitor and logs, each imported when it is first used."""

from typing import TYPE_CHECKING

from mtlkit.config.extras import lazy_names

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

# Accelerate is slow to import, and optimizer groups do not need it
__getattr__ = lazy_names(
    __name__,
    {
        "CheckpointError": "mtlkit.training.checkpoints",
        "Checkpoints": "mtlkit.training.checkpoints",
        "FitResult": "mtlkit.training.state",
        "Interrupted": "mtlkit.training.accelerators",
        "Log": "mtlkit.config.logs",
        "Monitor": "mtlkit.training.run_log",
        "Trainer": "mtlkit.training.trainer",
        "collate": "mtlkit.data.collate",
        "load_checkpoint": "mtlkit.training.checkpoints",
        "param_groups": "mtlkit.training.optimizers",
        "read_log": "mtlkit.config.logs",
        "rotation_schedule": "mtlkit.training.optimizers",
        "save_checkpoint": "mtlkit.training.checkpoints",
    },
)
