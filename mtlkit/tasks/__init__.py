"""Tasks: one description for data sets, architectures, the Trainer and reports.

Every kind of task is one module of this package: the size of its head, its loss, metrics, missing labels
and preview.
"""

from mtlkit.config.names import task_names
from mtlkit.tasks.binary import Binary
from mtlkit.tasks.classification import Classification
from mtlkit.tasks.dense_regression import DenseRegression
from mtlkit.tasks.depth import Depth
from mtlkit.tasks.labels import NO_LABEL, LabelCount
from mtlkit.tasks.multilabel import Multilabel
from mtlkit.tasks.normals import Normals
from mtlkit.tasks.registry import list_tasks, register_task
from mtlkit.tasks.regression import Regression
from mtlkit.tasks.segmentation import Segmentation
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
