"""The kind ``classification``: one of several classes."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import NO_LABEL, ClassLoss, Loss, class_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names


@register_task("classification")
class Classification(Task):
    """Cross-entropy and accuracy; prediction (B, C), target (B,), negative where unlabeled.

    Args:
        name: name of the task.
        classes: number of classes, or their names.
        loss: replaces the cross-entropy; it is given the samples that have a label.

    >>> import torch
    >>> from mtlkit.tasks import Classification
    >>> task = Classification("animal", classes=["cat", "dog"])
    >>> task.text(torch.tensor(1)), task.text(torch.tensor(-1))
    ('dog', '?')
    """

    size_option = "classes"
    missing = NO_LABEL

    def __init__(self, name: str, *, classes: Classes, loss: Loss | None = None) -> None:
        number, names = class_names(name, "classes", classes)
        super().__init__(
            name,
            cross_entropy if loss is None else ClassLoss(name, loss, class_known),
            {"accuracy": partial(_accuracy, number)},
            {"accuracy": True},
            outputs=number,
            labels=class_known,
            kind="classification",
            classes=names,
        )

    def text(self, target: Tensor) -> str:
        """Return the class by its name."""
        index = int(target) if target >= 0 else -1
        return "?" if index < 0 else self.classes[index] if self.classes else str(index)

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return the classes by name, and the probability of every class."""
        probabilities = prediction.softmax(dim=1)
        names = self.classes or [str(index) for index in range(probabilities.shape[1])]
        chosen = [names[index] for index in probabilities.argmax(dim=1).tolist()]
        pairs = zip(names, probabilities.T.numpy(), strict=True)
        columns = {f"{self.name}_probability_{name}": column for name, column in pairs}
        return {self.name: chosen, **columns}


def cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the samples; targets may be floats that hold integers."""
    return functional.cross_entropy(prediction, target.reshape(-1).long())


def _accuracy(classes: int) -> Any:
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(classes, average="micro")
