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
    answer_known,
    class_known,
    masked_loss,
    number_known,
)
from mtlkit.tasks.registry import register_task
from mtlkit.tasks.task import Classes, Task, class_names, make_metric


@register_task("classification")
class Classification(Task):
    """One of several classes: cross-entropy and accuracy; (B, C), target (B,), negative if unknown.

    Args:
        classes: number of classes, or their names.
        loss: replaces the cross-entropy; it receives the labeled samples.

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
            ClassLoss(name, functional.cross_entropy if loss is None else loss, class_known),
            {"accuracy": partial(make_metric, "MulticlassAccuracy", number, average="micro")},
            {"accuracy": True},
            outputs=number,
            labels=class_known,
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
    """Yes or no: cross-entropy of logits; F1, area under the ROC curve and accuracy.

    Prediction and target are (B, 1) or (B,); an unknown target is NaN or negative.

    Args:
        classes: names of 0 and 1.
        loss: replaces the cross-entropy; it receives the logits and targets of the labeled samples.

    >>> import torch
    >>> from mtlkit.tasks import Binary
    >>> task = Binary("rain", classes=["dry", "wet"])
    >>> task.decode(torch.tensor([[2.0], [-1.0]]))["rain"]
    ['wet', 'dry']
    """

    def __init__(
        self, name: str, *, classes: Sequence[Any] = ("no", "yes"), loss: Loss | None = None
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
    """Several yes-or-no labels: cross-entropy of logits, F1 and accuracy; (B, L).

    An unknown label is NaN or negative.

    Args:
        labels: number of labels, or their names.
        loss: replaces the cross-entropy; it receives the samples whose labels are all known.

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
            classes=names,
        )

    def text(self, target: Tensor) -> str:
        """Return the positive labels."""
        chosen = [index for index, value in enumerate(target.tolist()) if value > 0.5]
        return ", ".join(self.classes[i] if self.classes else str(i) for i in chosen) or "none"

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return the positive labels, and the probability of every label."""
        probabilities = torch.sigmoid(prediction)
        names = self.classes or [str(index) for index in range(probabilities.shape[1])]
        chosen = [self.text(row) for row in probabilities]
        return {self.name: chosen, **_columns(self.name, names, probabilities)}


@register_task("regression")
class Regression(Task):
    """Numbers: mean squared error; (B, D), or (B,) for one number; an unknown number is NaN.

    If the data set standardizes its targets, ``mse`` and ``mae`` are those of standardized targets, and
    ``rmse`` is in the unit of the data.

    Args:
        outputs: numbers per sample.
        loss: replaces the squared error; it receives the samples whose numbers are all known.

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
            masked_loss(name, functional.mse_loss, loss, KnownSamples, number_known),
            {"errors": self.make_errors},
            {"mse": False, "mae": False, "rmse": False, "r2": True},
            outputs=outputs,
            labels=number_known,
        )


def _answer_loss(name: str, loss: Loss | None) -> Loss:
    default = functional.binary_cross_entropy_with_logits
    return masked_loss(name, default, loss, KnownSamples, answer_known)


def _columns(task: str, names: Sequence[str], probabilities: Tensor) -> dict[str, Any]:
    pairs = zip(names, probabilities.T.numpy(), strict=True)
    return {f"{task}_probability_{name}": column for name, column in pairs}
