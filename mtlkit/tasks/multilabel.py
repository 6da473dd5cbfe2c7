"""The kind ``multilabel``: several labels that are each yes or no."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.tasks.labels import NO_LABEL, KnownSamples, Loss, Masked, answer_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names


@register_task("multilabel")
class Multilabel(Task):
    """Cross-entropy of logits, F1 and accuracy; (B, L), single labels NaN or negative if unknown.

    Args:
        name: name of the task.
        labels: number of labels, or their names.
        loss: replaces the cross-entropy; it is given the samples whose labels are all known.

    >>> import torch
    >>> from mtlkit.tasks import Multilabel
    >>> Multilabel("likes", labels=["tea", "jazz"]).decode(torch.tensor([[3.0, -1.0]]))["likes"]
    ['tea']
    """

    size_option = "labels"

    def __init__(self, name: str, *, labels: Classes, loss: Loss | None = None) -> None:
        number, names = class_names(name, "labels", labels)
        super().__init__(
            name,
            Masked(name, functional.binary_cross_entropy_with_logits, answer_known)
            if loss is None
            else KnownSamples(name, loss, answer_known),
            {"f1": partial(_f1, number), "accuracy": _accuracy},
            {"f1": True, "accuracy": True},
            outputs=number,
            labels=answer_known,
            link=torch.sigmoid,
            kind="multilabel",
            classes=names,
        )

    def text(self, target: Tensor) -> str:
        """Return the labels that are yes."""
        chosen = [index for index, value in enumerate(target.tolist()) if value > 0.5]
        return ", ".join(self.classes[i] if self.classes else str(i) for i in chosen) or "none"

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return the labels that are yes, and the probability of every label."""
        probabilities = torch.sigmoid(prediction)
        names = self.classes or range(probabilities.shape[1])
        pairs = zip(names, probabilities.T.numpy(), strict=True)
        columns = {f"{self.name}_probability_{name}": column for name, column in pairs}
        return {self.name: [self.text(row) for row in probabilities], **columns}


def _f1(labels: int) -> Any:
    from torchmetrics.classification import MultilabelF1Score

    from mtlkit.tasks.metrics import Flat

    return Flat(MultilabelF1Score(labels, ignore_index=NO_LABEL), flatten=False)


def _accuracy() -> Any:
    from torchmetrics.classification import BinaryAccuracy

    from mtlkit.tasks.metrics import Flat

    return Flat(BinaryAccuracy(ignore_index=NO_LABEL))
