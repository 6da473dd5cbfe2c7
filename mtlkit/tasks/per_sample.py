"""Kinds of tasks with a target per sample: classes, yes or no, several labels, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.errors import SpecError
from mtlkit.tasks.labels import (
    NO_LABEL,
    ClassLoss,
    KnownSamples,
    Loss,
    Masked,
    answer_known,
    class_known,
    number_known,
)
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names, make_metric


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
            {"accuracy": partial(make_metric, "MulticlassAccuracy", number, average="micro")},
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
        return {self.name: chosen, **_columns(self.name, names, probabilities)}


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
        score = partial(make_metric, "AnswerScore", link=torch.sigmoid)
        super().__init__(
            name,
            _answer_loss(name, loss),
            {
                "f1": partial(score, "BinaryF1Score"),
                "auc": partial(make_metric, "RankingScore"),
                "accuracy": partial(score, "BinaryAccuracy"),
            },
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
            _answer_loss(name, loss),
            {
                "f1": partial(make_metric, "AnswerScore", "MultilabelF1Score", number),
                "accuracy": partial(make_metric, "AnswerScore", "BinaryAccuracy"),
            },
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
        names = self.classes or [str(index) for index in range(probabilities.shape[1])]
        chosen = [self.text(row) for row in probabilities]
        return {self.name: chosen, **_columns(self.name, names, probabilities)}


@register_task("regression")
class Regression(Task):
    """Mean squared error; (B, D), or (B,) for one number; single numbers are NaN where unknown.

    The metrics ``mse`` and ``mae`` are those of the targets as the network sees them, ``rmse`` is in the
    unit of the data, also if the data set standardizes its targets, and ``r2`` has no unit.

    Args:
        name: name of the task.
        outputs: how many numbers a sample has.
        loss: replaces the squared error; it is given the samples whose numbers are all known.

    >>> import torch
    >>> from mtlkit.tasks import Regression
    >>> task = Regression("price")
    >>> task.means, task.deviations = [300.0], [100.0]  # of the targets, in euros
    >>> metrics = task.make_metrics()
    >>> task.update(metrics, torch.tensor([[0.5], [-1.0]]), torch.tensor([[1.0], [-1.0]]))
    >>> {name: round(value, 3) for name, value in task.compute(metrics).items()}
    {'mse': 0.125, 'mae': 0.25, 'rmse': 35.355, 'r2': 0.875}
    """

    size_option = "outputs"

    def __init__(self, name: str, *, outputs: int = 1, loss: Loss | None = None) -> None:
        super().__init__(
            name,
            Masked(name, functional.mse_loss, number_known)
            if loss is None
            else KnownSamples(name, loss, number_known),
            {"errors": self.make_errors},
            {"mse": False, "mae": False, "rmse": False, "r2": True},
            outputs=outputs,
            labels=number_known,
            kind="regression",
        )


def cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the samples; targets may be floats that hold integers."""
    return functional.cross_entropy(prediction, target.reshape(-1).long())


def _answer_loss(name: str, loss: Loss | None) -> Loss:
    if loss is not None:
        return KnownSamples(name, loss, answer_known)
    return Masked(name, functional.binary_cross_entropy_with_logits, answer_known)


def _columns(task: str, names: Sequence[str], probabilities: Tensor) -> dict[str, Any]:
    pairs = zip(names, probabilities.T.numpy(), strict=True)
    return {f"{task}_probability_{name}": column for name, column in pairs}
