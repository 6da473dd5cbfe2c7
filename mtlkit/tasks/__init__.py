"""Tasks: one description for data sets, architectures, the Trainer and reports.

A kind of task defines the size of its head, its loss and metrics, which labels are missing, and how
targets are shown. ``per_sample.py`` and ``per_pixel.py`` have the built-in kinds.
"""

from mtlkit.config.names import task_names
from mtlkit.tasks.labels import NO_LABEL, LabelCount
from mtlkit.tasks.per_pixel import DenseRegression, Depth, Normals, Segmentation
from mtlkit.tasks.per_sample import Binary, Classification, Multilabel, Regression
from mtlkit.tasks.registry import list_tasks, register_task
from mtlkit.tasks.task import Task, create_task

__all__ = [
    "NO_LABEL",
    "Binary",
    "Classification",
    "DenseRegression",
    "Depth",
    "LabelCount",
    "Multilabel",
    "Normals",
    "Regression",
    "Segmentation",
    "Task",
    "create_task",
    "list_tasks",
    "register_task",
    "task_names",
]
