"""What a task is: a name, a loss, metrics, and which of its labels are missing.

A label is missing where its target is None, NaN, or a negative class; each ready-made task says what it
takes for "no label". What is missing counts neither in the loss nor in the metrics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from mtlkit.errors import SpecError, unknown_name

__all__ = ["NO_LABEL", "LabelCount", "Task", "task_names"]

NO_LABEL = -100
"""Integer target of a sample without a label; torch's own ``ignore_index``."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Labels: TypeAlias = Callable[[Tensor], Tensor]


class LabelCount(NamedTuple):
    """Which labels of one task a batch has."""

    number: int
    rows: Tensor | None = None
    """Indices of the labelled samples, if the loss and the metrics see only those; None for all."""


def task_names(tasks: int | Sequence[Any] | Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the tasks: ``3`` gives ``("0", "1", "2")``; names and objects with a name pass."""
    if isinstance(tasks, bool | str | bytes):
        raise SpecError(
            f"tasks must be a number or a sequence of names, not {tasks!r}; "
            "for example tasks=3 or tasks=('seg', 'depth')"
        )
    if isinstance(tasks, int):
        if tasks < 1:
            raise SpecError(f"tasks must be at least 1, not {tasks}")
        return tuple(str(index) for index in range(tasks))
    try:
        names = tuple(item if isinstance(item, str) else item.name for item in tasks)
    except (TypeError, AttributeError):
        raise SpecError(
            f"tasks must be a number or a sequence of names, not {tasks!r}; "
            "for example tasks=3 or tasks=('seg', 'depth')"
        ) from None
    if not names:
        raise SpecError("tasks is empty; name at least one task")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SpecError(f"task names must differ; given more than once: {', '.join(repeated)}")
    return names


class Task:
    """A task of a :class:`~mtlkit.Trainer`.

    Args:
        name: key of its prediction and its target.
        loss: a module or function of (prediction, target) that returns the mean over the labels it
            is given.
        metrics: by name, a ``torchmetrics`` metric, or a function that makes one. A metric whose
            ``compute`` returns a mapping stands for all names of that mapping.
        higher_is_better: by name of the metric, or one truth for all; None asks the metrics. The
            first name is the main metric; without metrics, the loss is.
        outputs: size of the head's output, for :func:`mtlkit.create_architecture`.
        labels: function from a target to a mask of what is labelled: (B,) picks whole samples before
            the loss is called; more dimensions mean that ``loss`` and ``metrics`` leave out what is
            unlabelled themselves, and are averaged by the number of labels. Without it, a sample is
            unlabelled where its target has a NaN, or is :data:`NO_LABEL` throughout.
        link: function of the prediction that the metrics see, such as a sigmoid.
        kind: what sort of task this is, for people and for architectures.
    """

    def __init__(
        self,
        name: str,
        loss: Loss,
        metrics: Mapping[str, Any] | None = None,
        higher_is_better: Mapping[str, bool] | bool | None = None,
        *,
        outputs: int | None = None,
        labels: Labels | None = None,
        link: Callable[[Tensor], Tensor] | None = None,
        kind: str = "custom",
    ) -> None:
        if not isinstance(name, str) or not name:
            raise SpecError(f"a task's name must be a word, not {name!r}")
        if not callable(loss):
            raise SpecError(
                f"the loss of task {name!r} must be a module or function of (prediction, target), "
                f"not {loss!r}"
            )
        self.name = name
        self.loss = loss
        self.metrics = dict(metrics or {})
        self.higher_is_better = _directions(name, self.metrics, higher_is_better)
        self.outputs = outputs
        self.labels = labels
        self.link = link
        self.kind = kind

    @property
    def main_metric(self) -> str:
        """Name of the first metric, or ``"loss"``."""
        return next(iter(self.higher_is_better), "loss")

    def count_labels(self, target: Tensor | None) -> LabelCount:
        """Count the labels of a batch. This reads the target: do it before the target goes to a GPU."""
        if target is None:
            return LabelCount(0)
        if self.labels is None:
            if _is_complete(target):
                return LabelCount(len(target))
            mask = _labelled_rows(target)
        else:
            complete = (self.labels is _not_nan and _is_complete(target)) or (
                self.labels is _not_negative and _all_classes_known(target)
            )
            if complete:
                return LabelCount(target.numel())
            mask = self.labels(target)
        count = int(mask.sum())
        some = mask.dim() == 1 and 0 < count < len(mask)
        return LabelCount(count, mask.nonzero().flatten() if some else None)

    def measure(
        self, prediction: Tensor, target: Tensor | None, labels: LabelCount | None = None
    ) -> tuple[Tensor | None, int]:
        """Mean loss over the labels, and how many there are; (None, 0) where there is none.

        Args:
            prediction: of a batch.
            target: of the same batch.
            labels: what :meth:`count_labels` said of the target; None counts here.
        """
        labels = self.count_labels(target) if labels is None else labels
        if target is None or labels.number == 0:
            return None, 0
        prediction, target = _labelled(prediction, target, labels)
        if isinstance(self.loss, _Masked):
            loss = self.loss(prediction, target, complete=labels.number == target.numel())
        else:
            loss = self.loss(prediction, target)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise SpecError(
                f"the loss of task {self.name!r} must be a scalar, the mean over the labels; got {found}"
            )
        return loss, labels.number

    def make_metrics(self, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Fresh metrics, by the name they were given under."""
        made = {}
        for name, metric in self.metrics.items():
            fresh = (
                copy.deepcopy(metric)
                if hasattr(metric, "update") and not _is_class(metric)
                else metric()
            )
            fresh.reset()
            made[name] = fresh.to(device)
        return made

    def update(
        self,
        metrics: Mapping[str, Any],
        prediction: Tensor,
        target: Tensor | None,
        labels: LabelCount | None = None,
    ) -> None:
        """Show the labelled part of a batch to ``metrics``; ``labels`` as for :meth:`measure`."""
        if not metrics:
            return
        labels = self.count_labels(target) if labels is None else labels
        if target is None or labels.number == 0:
            return
        prediction, target = _labelled(prediction, target, labels)
        if self.link is not None:
            prediction = self.link(prediction)
        for metric in metrics.values():
            metric.update(prediction, target)

    def compute(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Values of the metrics, the main one first."""
        values: dict[str, float] = {}
        for name, metric in metrics.items():
            result = metric.compute()
            found = result if isinstance(result, Mapping) else {name: result}
            values |= {key: float(value) for key, value in found.items()}
        return {name: values[name] for name in self.higher_is_better if name in values} | values

    def __repr__(self) -> str:
        return (
            f"<Task {self.name!r}: {self.kind}, metrics: {', '.join(self.higher_is_better) or 'none'}>"
        )

    # Ready-made tasks

    @classmethod
    def classification(cls, name: str, classes: int) -> Task:
        """One of several classes; prediction (B, C), target (B,), negative where unlabelled."""

        def accuracy() -> Any:
            from torchmetrics.classification import MulticlassAccuracy

            return MulticlassAccuracy(classes, average="micro")

        return cls(
            name,
            functional.cross_entropy,
            {"accuracy": accuracy},
            {"accuracy": True},
            outputs=classes,
            labels=_not_negative,
            kind="classification",
        )

    @classmethod
    def binary(cls, name: str) -> Task:
        """Yes or no, by logits; prediction and target (B, 1) or (B,), NaN or negative if unlabelled."""

        def f1() -> Any:
            from torchmetrics.classification import BinaryF1Score

            return _Flat(BinaryF1Score())

        def accuracy() -> Any:
            from torchmetrics.classification import BinaryAccuracy

            return _Flat(BinaryAccuracy())

        return cls(
            name,
            _Masked(name, _bce, _known),
            {"f1": f1, "accuracy": accuracy},
            {"f1": True, "accuracy": True},
            outputs=1,
            labels=_known,
            link=torch.sigmoid,  # torchmetrics would take logits of [0, 1] for probabilities
            kind="binary",
        )

    @classmethod
    def multilabel(cls, name: str, labels: int) -> Task:
        """Several labels that are each yes or no; (B, L), single labels NaN or negative if unknown."""

        def f1() -> Any:
            from torchmetrics.classification import MultilabelF1Score

            return _Flat(MultilabelF1Score(labels, ignore_index=NO_LABEL), flatten=False)

        def accuracy() -> Any:
            from torchmetrics.classification import BinaryAccuracy

            return _Flat(BinaryAccuracy(ignore_index=NO_LABEL))

        return cls(
            name,
            _Masked(name, _bce, _known),
            {"f1": f1, "accuracy": accuracy},
            {"f1": True, "accuracy": True},
            outputs=labels,
            labels=_known,
            link=torch.sigmoid,
            kind="multilabel",
        )

    @classmethod
    def regression(cls, name: str, outputs: int = 1) -> Task:
        """Numbers; (B, D), single ones NaN where unknown: mean squared error."""

        def errors() -> Any:
            from mtlkit.training.metrics import RegressionErrors

            return RegressionErrors()

        return cls(
            name,
            _Masked(name, functional.mse_loss, _not_nan),
            {"errors": errors},
            {"mse": False, "mae": False},
            outputs=outputs,
            labels=_not_nan,
            kind="regression",
        )

    @classmethod
    def segmentation(cls, name: str, classes: int) -> Task:
        """A class per pixel; prediction (B, C, H, W), target (B, H, W), negative where unlabelled."""

        def confusion() -> Any:
            from mtlkit.training.metrics import SegmentationScores

            return SegmentationScores(classes)

        return cls(
            name,
            _pixel_cross_entropy,
            {"confusion": confusion},
            {"miou": True, "pixel_accuracy": True},
            outputs=classes,
            labels=_classes_known,
            kind="segmentation",
        )

    @classmethod
    def depth(cls, name: str) -> Task:
        """Distance per pixel; (B, 1, H, W), NaN or not above zero where unknown: absolute error."""

        def errors() -> Any:
            from mtlkit.training.metrics import DepthErrors

            return DepthErrors()

        return cls(
            name,
            _Masked(name, functional.l1_loss, _positive),
            {"errors": errors},
            {"abs_error": False, "rel_error": False},
            outputs=1,
            labels=_positive,
            kind="depth",
        )

    @classmethod
    def normals(cls, name: str) -> Task:
        """Surface normal per pixel; (B, 3, H, W), NaN or zero where unknown: one minus the cosine."""

        def angles() -> Any:
            from mtlkit.training.metrics import NormalAngles

            return NormalAngles()

        return cls(
            name,
            _cosine_loss,
            {"angles": angles},
            {
                "mean_angle": False,
                "median_angle": False,
                "within_11.25": True,
                "within_22.5": True,
                "within_30": True,
            },
            outputs=3,
            labels=_has_direction,
            kind="normals",
        )

    @classmethod
    def of(cls, info: Any) -> Task:
        """The ready-made task of a data set's description: its ``name``, ``kind`` and ``outputs``."""
        if isinstance(info, Task):
            return info
        makers: dict[str, Callable[[], Task]] = {
            "classification": lambda: cls.classification(info.name, info.outputs),
            "binary": lambda: cls.binary(info.name),
            "multilabel": lambda: cls.multilabel(info.name, info.outputs),
            "regression": lambda: cls.regression(info.name, info.outputs),
            "segmentation": lambda: cls.segmentation(info.name, info.outputs),
            "depth": lambda: cls.depth(info.name),
            "normals": lambda: cls.normals(info.name),
        }
        kind = getattr(info, "kind", None)
        if kind not in makers:
            raise unknown_name("kind of task", str(kind), makers)
        return makers[kind]()


def _directions(
    task: str, metrics: Mapping[str, Any], given: Mapping[str, bool] | bool | None
) -> dict[str, bool]:
    if isinstance(given, Mapping):
        return {str(name): bool(up) for name, up in given.items()}
    if given is not None:
        return dict.fromkeys(metrics, bool(given))
    directions = {}
    for name, metric in metrics.items():
        known = getattr(metric, "higher_is_better", None)
        if not isinstance(known, bool):
            raise SpecError(
                f"metric {name!r} of task {task!r} does not say whether higher is better; "
                f"pass higher_is_better={{{name!r}: True}} or False"
            )
        directions[name] = known
    return directions


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type)


def _labelled(prediction: Tensor, target: Tensor, labels: LabelCount) -> tuple[Tensor, Tensor]:
    rows = labels.rows
    return (prediction, target) if rows is None else (prediction[rows], target[rows])


def _is_complete(target: Tensor) -> bool:
    """Whether no label can be missing: one pass over the target."""
    if target.is_floating_point():
        return math.isfinite(target.sum().item())
    if target.dtype in (torch.bool, torch.uint8) or target.numel() == 0:
        return True
    return target.min().item() != NO_LABEL


def _all_classes_known(target: Tensor) -> bool:
    return not target.is_floating_point() and target.numel() > 0 and target.min().item() >= 0


def _labelled_rows(target: Tensor) -> Tensor:
    """(B,) mask of the samples that have a label."""
    flat = target.reshape(len(target), -1)
    if target.is_floating_point():
        return ~torch.isnan(flat).any(dim=1)
    return (flat != NO_LABEL).any(dim=1)


def _not_negative(target: Tensor) -> Tensor:
    return target >= 0


def _not_nan(target: Tensor) -> Tensor:
    return (
        ~torch.isnan(target) if target.is_floating_point() else torch.ones_like(target, dtype=torch.bool)
    )


def _known(target: Tensor) -> Tensor:
    """0 and 1, not NaN or negative; with two dimensions at least, so that the loss masks it."""
    return (target >= 0).reshape(len(target), -1)


def _classes_known(target: Tensor) -> Tensor:
    return target >= 0


def _positive(target: Tensor) -> Tensor:
    return target > 0  # false for NaN


def _has_direction(target: Tensor) -> Tensor:
    return torch.nan_to_num(target).abs().amax(dim=1) > 0


class _Masked:
    """Mean of an element-wise loss over the elements that are labelled."""

    def __init__(self, task: str, loss: Callable[..., Tensor], labels: Labels) -> None:
        self.task = task
        self.loss = loss
        self.labels = labels

    def __call__(self, prediction: Tensor, target: Tensor, complete: bool | None = None) -> Tensor:
        """The mean; ``complete`` says whether all labels are known, None reads the target for it."""
        # equal numbers of elements only: broadcasting (B, 1) with (B,) would give (B, B)
        if prediction.shape != target.shape:
            if prediction.numel() != target.numel() or len(prediction) != len(target):
                raise SpecError(
                    f"task {self.task!r}: the prediction has shape {tuple(prediction.shape)}, "
                    f"the target {tuple(target.shape)}; they must agree"
                )
            target = target.reshape(prediction.shape)
        target = target.to(prediction.dtype)
        if complete:
            return self.loss(prediction, target)
        mask = self.labels(target).reshape(prediction.shape)
        count = mask.sum()
        if complete is None and int(count) == mask.numel():
            return self.loss(prediction, target)
        zero = torch.zeros((), dtype=target.dtype, device=target.device)
        each = self.loss(prediction, torch.where(mask, target, zero), reduction="none")
        return torch.where(mask, each, zero).sum() / count


def _bce(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return functional.binary_cross_entropy_with_logits(prediction, target, reduction=reduction)


def _pixel_cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    target = torch.where(target < 0, NO_LABEL, target).long()
    return functional.cross_entropy(prediction, target, ignore_index=NO_LABEL)


def _cosine_loss(prediction: Tensor, target: Tensor) -> Tensor:
    mask = _has_direction(target)
    target = functional.normalize(torch.nan_to_num(target), dim=1)
    cosines = (functional.normalize(prediction, dim=1) * target).sum(dim=1)
    return 1 - torch.where(mask, cosines, 0.0).sum() / mask.sum()


class _Flat:
    """A torchmetrics metric of 0 and 1 that is shown flat tensors, NaN as :data:`NO_LABEL`."""

    def __init__(self, metric: Any, *, flatten: bool = True) -> None:
        self.metric = metric
        self.flatten = flatten
        self.ignores = metric.ignore_index is not None

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if not self.flatten:
            target = torch.where(target >= 0, target, NO_LABEL).long()
            self.metric.update(prediction.reshape(target.shape), target)
            return
        prediction, target = prediction.reshape(-1), target.reshape(-1)
        mask = target >= 0
        self.metric.update(prediction[mask], target[mask].long())

    def compute(self) -> Any:
        return self.metric.compute()

    def reset(self) -> None:
        self.metric.reset()

    def to(self, device: Any) -> _Flat:
        self.metric.to(device)
        return self
