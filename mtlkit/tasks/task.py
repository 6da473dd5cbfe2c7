"""A task: its name, loss and metrics, which labels are missing, and how targets are shown.

Each kind of task is a subclass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from mtlkit.config.registry import missing_options, option_names
from mtlkit.config.spec import Part, SpecLike, parse_call, refuse_arguments
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.tasks.labels import (
    NO_LABEL,
    LabelCount,
    Labels,
    Loss,
    Masked,
    all_known,
    labeled_rows,
    not_a_loss,
)
from mtlkit.tasks.registry import kinds

Classes: TypeAlias = int | Sequence[Any]
"""Classes by their number, or by their names."""


class Task:
    """A task, as data sets, architectures, the Trainer and reports use it.

    >>> import torch, mtlkit
    >>> task = mtlkit.Task.classification("kind", ["cat", "dog", "owl"])
    >>> task.outputs, task.main_metric
    (3, 'accuracy')
    >>> logits, target = torch.zeros(2, 3), torch.tensor([1, -1])  # the second sample has no label
    >>> loss, labels = task.measure(logits, target)
    >>> round(float(loss), 3), labels
    (1.099, 1)

    Args:
        name: name of the task, the key of its prediction and its target.
        loss: a module or function of (prediction, target) that returns the mean over the given labels.
        metrics: by name, a ``torchmetrics`` metric, or a function that makes one. ``compute`` may return
            a mapping of several metrics.
        higher_is_better: by name of the metric, or one bool for all; None asks the metrics. The first
            name is the main metric; without metrics, the loss is.
        outputs: size of the head's output, for :func:`mtlkit.create_architecture`.
        labels: a function from a target to a mask of the known labels: (B,) selects samples before the
            loss is called; with more dimensions, ``loss`` and ``metrics`` must ignore unknown labels.
            None: a sample is unlabeled if its target has a NaN, or is entirely :data:`NO_LABEL`.
        link: function of the prediction for the metrics, such as a sigmoid.
        kind: the kind of task; None for the name under which the class is registered.
        classes: names of the classes, if they have names.
        compared: the metrics whose mean is the relative improvement of the task; empty means the main
            metric. The paper's values for NYUv2 are means over all metrics of a task.
    """

    size_option: ClassVar[str | None] = None
    """The option of a kind that sets the number of outputs."""
    missing: ClassVar[float] = math.nan
    """Value of an unknown target."""
    dense: ClassVar[bool] = False
    """Whether a target is a map, shown by :meth:`draw`; others are shown by :meth:`text`."""

    spec: str = ""
    """The kind with its options, if :func:`create_task` made the task."""
    columns: Sequence[str] = ()
    """Names of the outputs, if they have names."""
    means: Sequence[float] = ()
    """Means of the targets before they were standardized; empty if they were not."""
    deviations: Sequence[float] = ()
    """Standard deviations of the same targets."""

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
        kind: str | None = None,
        classes: Sequence[str] = (),
        compared: Sequence[str] = (),
    ) -> None:
        if not isinstance(name, str) or not name:
            raise SpecError(f"the name of a task must be a non-empty string, not {name!r}")
        if not callable(loss):
            raise not_a_loss(name, loss)
        if outputs is not None and outputs < 1:
            raise SpecError(f"outputs of task {name!r} must be 1 or more, not {outputs!r}")
        self.name = name
        self.loss = loss
        self.metrics = dict(metrics or {})
        self.higher_is_better = _directions(name, self.metrics, higher_is_better)
        self.outputs = outputs
        self.labels = labels
        self.link = link
        registered = str(getattr(type(self), "name", "custom"))
        self.kind = registered if kind is None else kind
        self.classes = tuple(classes)
        self.compared = tuple(compared)

    @property
    def main_metric(self) -> str:
        """The name of the first metric, or ``"loss"``."""
        return next(iter(self.higher_is_better), "loss")

    def prefer(self, metric: str) -> None:
        """Make ``metric`` the main one, by which tables, tests and checkpoints compare the task."""
        if metric not in self.higher_is_better:
            raise unknown_name(f"metric of task {self.name!r}", metric, self.higher_is_better)
        self.higher_is_better = {metric: self.higher_is_better[metric], **self.higher_is_better}
        self.compared = ()

    def count_labels(self, target: Tensor | None) -> LabelCount:
        """Count the labels of a batch; do this before the target is moved to a GPU."""
        if target is None:
            return LabelCount(0)
        self._refuse_one_hot(target)
        if all_known(self.labels, target):
            return LabelCount(len(target) if self.labels is None else target.numel())
        mask = labeled_rows(target) if self.labels is None else self.labels(target)
        count = int(mask.sum())
        some = mask.dim() == 1 and 0 < count < len(mask)
        return LabelCount(count, mask.nonzero().flatten() if some else None)

    def _refuse_one_hot(self, target: Tensor) -> None:
        axes = {"classification": 2, "segmentation": 4}.get(self.kind)
        if target.dim() == axes and target.shape[1] > 1:
            axis = -1 if target.shape[-1] == self.outputs != target.shape[1] else 1
            raise UsageError(
                f"the target of task {self.name!r} has shape {tuple(target.shape)}, like one-hot "
                f"vectors; class indices are expected: use labels.argmax({axis})"
            )

    def measure(
        self, prediction: Tensor, target: Tensor | None, labels: LabelCount | None = None
    ) -> tuple[Tensor | None, int]:
        """Return the mean loss over the labels and their number; (None, 0) without labels.

        Args:
            prediction: predictions of a batch.
            target: targets of the same batch.
            labels: the result of :meth:`count_labels` for the target, if known.
        """
        labels = self.count_labels(target) if labels is None else labels
        if target is None or labels.number == 0:
            return None, 0
        prediction, target = _labeled(prediction, target, labels)
        if isinstance(self.loss, Masked):
            loss = self.loss(prediction, target, complete=labels.number == target.numel())
        else:
            try:
                loss = self.loss(prediction, _column(prediction, target))
            except IndexError as error:  # raised by PyTorch for a class that does not exist
                raise SpecError(
                    f"the loss of task {self.name!r}: {error} Its targets must be integers from 0, "
                    f"below the {self.outputs} outputs, or negative for missing labels"
                ) from error
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise SpecError(
                f"the loss of task {self.name!r} must be a scalar, a mean over labels; got {found}"
            )
        return loss, labels.number

    def make_metrics(self, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return new metrics by name."""
        made = {}
        for name, metric in self.metrics.items():
            is_made = hasattr(metric, "update") and not isinstance(metric, type)
            fresh = copy.deepcopy(metric) if is_made else metric()
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
        """Update ``metrics`` with the labeled part of a batch; ``labels`` as for :meth:`measure`."""
        if not metrics:
            return
        labels = self.count_labels(target) if labels is None else labels
        if target is None or labels.number == 0:
            return
        prediction, target = _labeled(prediction, target, labels)
        if self.link is not None:
            prediction = self.link(prediction)
        for metric in metrics.values():
            metric.update(prediction, target)

    def compute(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of the metrics, the main one first."""
        values: dict[str, float] = {}
        for name, metric in metrics.items():
            result = metric.compute()
            found = result if isinstance(result, Mapping) else {name: result}
            values |= {key: float(value) for key, value in found.items()}
        return {name: values[name] for name in self.higher_is_better if name in values} | values

    def text(self, target: Tensor) -> str:
        """Return the target of a sample as text, for a preview."""
        values = target.reshape(-1).tolist()
        known = [f"{value:.3g}" if value == value and value != NO_LABEL else "?" for value in values]
        return ", ".join(known)

    def draw(self, axis: Any, target: Tensor) -> None:
        """Draw the target of a sample on an axis of matplotlib, for a preview of dense tasks."""
        raise NotImplementedError(f"kind {self.kind!r} does not define how its targets are drawn")

    def decode(self, prediction: Tensor) -> dict[str, Any]:
        """Return the predictions of a batch as columns of a table, with a cell per sample.

        A cell is a string, a number, or an array (a map). Kinds override this if their predictions are
        not numbers in the unit of the targets.
        """
        values = prediction if self.link is None else self.link(prediction)
        flat = values.reshape(len(values), -1)
        if self.means:
            flat = flat.double()  # float32 loses digits if the mean is large
            flat = flat * flat.new_tensor(self.deviations) + flat.new_tensor(self.means)
        if flat.shape[1] == 1:
            return {self.name: flat[:, 0].numpy()}
        names = self.columns or range(flat.shape[1])
        return {f"{self.name}_{name}": flat[:, i].numpy() for i, name in enumerate(names)}

    def make_errors(self) -> Any:
        """Return the metrics of numbers, in the unit of the data."""
        return make_metric("RegressionErrors", self.outputs or 1, self.deviations)

    @property
    def loss_name(self) -> str:
        """The name of the loss function."""
        return getattr(self.loss, "__name__", type(self.loss).__name__)

    def __repr__(self) -> str:
        metrics = ", ".join(self.higher_is_better) or "none"
        return f"<Task {self.name!r}: {self.kind}, metrics: {metrics}>"

    # the built-in kinds, by name because their modules import this one

    @staticmethod
    def classification(name: str, classes: Classes, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Classification`; (B, C), target (B,), negative if unknown."""
        return _made("classification", name, classes=classes, loss=loss)

    @staticmethod
    def binary(name: str, classes: Sequence[str] = ("no", "yes"), *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Binary` task; (B, 1) or (B,), NaN or negative if unknown."""
        return _made("binary", name, classes=classes, loss=loss)

    @staticmethod
    def multilabel(name: str, labels: Classes, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Multilabel` task; (B, L), NaN or negative if unknown."""
        return _made("multilabel", name, labels=labels, loss=loss)

    @staticmethod
    def regression(name: str, outputs: int = 1, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Regression`; (B, D), NaN if unknown."""
        return _made("regression", name, outputs=outputs, loss=loss)

    @staticmethod
    def segmentation(name: str, classes: Classes, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Segmentation`; (B, C, H, W), target (B, H, W)."""
        return _made("segmentation", name, classes=classes, loss=loss)

    @staticmethod
    def depth(name: str, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Depth` task; (B, 1, H, W), NaN or not above zero if unknown."""
        return _made("depth", name, loss=loss)

    @staticmethod
    def normals(name: str, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.Normals` task; (B, 3, H, W), NaN or zero if unknown."""
        return _made("normals", name, loss=loss)

    @staticmethod
    def dense_regression(name: str, outputs: int = 1, *, loss: Loss | None = None) -> Task:
        """Return a :class:`~mtlkit.tasks.DenseRegression`; (B, D, H, W), NaN if unknown."""
        return _made("dense_regression", name, outputs=outputs, loss=loss)

    @staticmethod
    def of(description: Any) -> Task:
        """Return a task unchanged, or make one for an object with ``name``, ``kind`` and ``outputs``."""
        if isinstance(description, Task):
            return description
        kind = str(getattr(description, "kind", None))
        option = getattr(kinds.get(kind), "size_option", None)
        size = {option: description.outputs} if option else {}
        return create_task(kind, description.name, **size)


def create_task(kind: SpecLike, name: str, **overrides: Any) -> Task:
    """Create a task from its kind, such as ``"binary(metric=auc)"`` or ``"classification(classes=5)"``.

    Args:
        kind: name and options of the kind; ``metric`` names the main metric, for every kind.
        name: name of the task.
        overrides: options that replace those of the string.

    >>> from mtlkit.tasks import create_task
    >>> create_task("binary(metric=auc)", "rain")
    <Task 'rain': binary, metrics: auc, f1, accuracy>
    """
    part = kinds.resolve(parse_call(kind))
    refuse_arguments(part, of=f"kind {part.name}")
    part = Part(part.name, {**part.options, **overrides})
    options = dict(part.options)
    kind_class = kinds.get(part.name)
    if lacking := missing_options(kind_class, options):
        needed = ", ".join(map(repr, lacking))
        raise SpecError(f"task {name!r} of kind {part.name}: it needs the options {needed}")
    own = option_names(kind_class)
    metric = None if "metric" in own else options.pop("metric", None)
    made = kinds.check(Part(part.name, options))(name, **options)
    if not isinstance(made, Task):
        raise SpecError(f"kind of task {part.name!r} made {type(made).__name__}; it must be a Task")
    if made.kind == "custom":
        made.kind = part.name
    made.spec = str(part)
    if metric is not None:
        made.prefer(str(metric))
    return made


def make_metric(name: str, *arguments: Any, **options: Any) -> Any:
    """Make a metric of :mod:`mtlkit.tasks.metrics`, which is imported late, because it is slow."""
    from mtlkit.tasks import metrics

    return getattr(metrics, name)(*arguments, **options)


def _made(kind: str, name: str, **options: Any) -> Task:
    task: Task = kinds.get(kind)(name, **options)
    return task


def class_names(task: str, option: str, classes: Classes) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes and their names; no names if only a number is given."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        number, names = classes, tuple[str, ...]()
    elif isinstance(classes, Sequence) and not isinstance(classes, str):
        names = tuple(map(str, classes))
        number = len(names)
        if len(set(names)) < number:
            raise SpecError(f"{option} of task {task!r} must differ: {', '.join(names)}")
    else:
        raise SpecError(f"{option} of task {task!r} must be an integer or a list, not {classes!r}")
    if number < 1:
        raise SpecError(f"{option} of task {task!r} must be 1 or more, not {classes!r}")
    return number, names


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


def _labeled(prediction: Tensor, target: Tensor, labels: LabelCount) -> tuple[Tensor, Tensor]:
    rows = labels.rows
    return (prediction, target) if rows is None else (prediction[rows], target[rows])


def _column(prediction: Tensor, target: Tensor) -> Tensor:
    """Return numbers (B,) as (B, 1) if the prediction is (B, 1): a loss would broadcast to (B, B)."""
    if not target.is_floating_point():
        return target
    single = target.dim() == 1 and prediction.shape == (len(target), 1)
    return (target[:, None] if single else target).to(prediction.dtype)
