"""The kind ``binary``: yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.errors import SpecError
from mtlkit.tasks.labels import KnownSamples, Loss, Masked, answer_known
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Task


@register_task("binary")
class Binary(Task):
    """Cross-entropy of logits; F1, area under the ROC curve and accuracy.

    Prediction and target are (B, 1) or (B,); a target is NaN or negative where unlabeled.

    Args:
        name: name of the task.
        classes: names of 0 and 1.
        loss: replaces the cross-entropy; it is given logits and the samples that have a label.

    >>> import torch
    >>> from mtlkit.tasks import Binary
    >>> task = Binary("rain", classes=["dry", "wet"])
    >>> task.decode(torch.tensor([[2.0], [-1.0]]))["rain"]
    ['wet', 'dry']
    """

    def __init__(
        self, name: str, *, classes: Sequence[str] = ("no", "yes"), loss: Loss | None = None
    ) -> None:
        if len(classes) != 2:
            raise SpecError(f"task {name!r} is binary; name two classes, not {len(classes)}")
        super().__init__(
            name,
            Masked(name, functional.binary_cross_entropy_with_logits, answer_known)
            if loss is None
            else KnownSamples(name, loss, answer_known),
            {"f1": _f1, "auc": _auc, "accuracy": _accuracy},
            {"f1": True, "auc": True, "accuracy": True},
            outputs=1,
            labels=answer_known,
            kind="binary",
            classes=tuple(map(str, classes)),
        )

    def text(self, target: Tensor) -> str:
        """Return the answer by its name."""
        value = float(target)
        return self.classes[value > 0.5] if value >= 0 else "?"

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return the answers by name, and the probability of the second one."""
        probability = torch.sigmoid(prediction.reshape(len(prediction))).numpy()
        no, yes = self.classes
        answers = [yes if value > 0.5 else no for value in probability]
        return {self.name: answers, f"{self.name}_probability_{yes}": probability}


def _f1() -> Any:
    from torchmetrics.classification import BinaryF1Score

    from mtlkit.tasks.metrics import Flat

    return Flat(BinaryF1Score(), link=torch.sigmoid)


def _auc() -> Any:
    from mtlkit.tasks.metrics import RankingScore

    return RankingScore()


def _accuracy() -> Any:
    from torchmetrics.classification import BinaryAccuracy

    from mtlkit.tasks.metrics import Flat

    return Flat(BinaryAccuracy(), link=torch.sigmoid)
