"""Methods of mtlkit inside ``transformers.Trainer``, and several data sets in one run."""

from typing import TYPE_CHECKING

from mtlkit.config.extras import lazy_names as _lazy_names
from mtlkit.integrations.huggingface.data import TaskCollator, TaskDataset, TaskSampler

if TYPE_CHECKING:
    from mtlkit.integrations.huggingface.logs import MultiTaskCallback
    from mtlkit.integrations.huggingface.trainer import MultiTaskTrainer

__all__ = ["MultiTaskCallback", "MultiTaskTrainer", "TaskCollator", "TaskDataset", "TaskSampler"]

__getattr__ = _lazy_names(
    __name__,
    {
        "MultiTaskCallback": f"{__name__}.logs",
        "MultiTaskTrainer": f"{__name__}.trainer",
    },
)
