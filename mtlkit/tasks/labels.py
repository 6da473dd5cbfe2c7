"""Missing labels, and losses that ignore them.

An integer target is missing if it is :data:`NO_LABEL`, a floating one if it is NaN. Kinds of tasks add
to this: classes are missing if they are negative, depths if they are not above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from mtlkit.errors import SpecError

NO_LABEL = -100
"""Integer target of a sample without a label, the default ``ignore_index`` of torch."""

Labels: TypeAlias = Callable[[Tensor], Tensor]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class LabelCount(NamedTuple):
    """The labels of one task in a batch.

    >>> import torch, mtlkit
    >>> count = mtlkit.Task.classification("c", 3).count_labels(torch.tensor([2, -1, 0]))
    >>> count.number, count.rows.tolist()
    (2, [0, 2])
    """

    number: int
    rows: Tensor | None = None
    """Indices of the labeled samples, if loss and metrics are computed for those only; None for all."""


def _is_complete(target: Tensor) -> bool:
    """Return whether no label is missing, in one pass over the target."""
    if target.is_floating_point():
        return math.isfinite(target.sum().item())
    if target.dtype in (torch.bool, torch.uint8) or target.numel() == 0:
        return True
    return target.min().item() != NO_LABEL


def labeled_rows(target: Tensor) -> Tensor:
    """Return a (B,) mask of the samples that have a label."""
    flat = target.reshape(len(target), -1)
    if target.is_floating_point():
        return ~torch.isnan(flat).any(dim=1)
    return (flat != NO_LABEL).any(dim=1)


def class_known(target: Tensor) -> Tensor:
    """Return a mask of the classes that are not negative; for floating targets also not NaN."""
    return target >= 0


def number_known(target: Tensor) -> Tensor:
    """Return a mask of the numbers that are not NaN, or among integers not :data:`NO_LABEL`."""
    return ~torch.isnan(target) if target.is_floating_point() else target != NO_LABEL


def answer_known(target: Tensor) -> Tensor:
    """Return a mask of the answers 0 and 1, of at least two dimensions, so that the loss applies it."""
    return (target >= 0).reshape(len(target), -1)


def all_known(labels: Labels | None, target: Tensor) -> bool:
    """Return whether a cheap test shows that no label is missing in the sense of ``labels``."""
    if labels is None or labels is number_known:
        return _is_complete(target)
    if labels is class_known:
        return not target.is_floating_point() and target.numel() > 0 and target.min().item() >= 0
    return False


class Masked:
    """The mean of an element-wise loss over the labeled elements.

    Args:
        task: name of the task, for error messages.
        loss: a loss of torch, with the argument ``reduction``.
        labels: mask of the labels that are known.
    """

    def __init__(self, task: str, loss: Callable[..., Tensor], labels: Labels) -> None:
        self.task = task
        self.loss = loss
        self.labels = labels
        self.__name__ = getattr(loss, "__name__", "loss")

    def __call__(self, prediction: Tensor, target: Tensor, complete: bool | None = None) -> Tensor:
        """Return the mean; ``complete`` is whether all labels are known, None checks the target."""
        # before the conversion, after which NO_LABEL would be a valid number
        mask = None if complete else self.labels(target)
        # the sizes must agree, because (B, 1) and (B,) would broadcast to (B, B)
        if prediction.shape != target.shape:
            if prediction.numel() != target.numel() or len(prediction) != len(target):
                raise SpecError(
                    f"task {self.task!r}: the prediction has shape {tuple(prediction.shape)}, "
                    f"the target {tuple(target.shape)}; they must agree"
                )
            target = target.reshape(prediction.shape)
        target = target.to(prediction.dtype)
        if mask is None:
            return self.loss(prediction, target)
        mask = mask.reshape(prediction.shape)
        count = mask.sum()
        if complete is None and int(count) == mask.numel():
            return self.loss(prediction, target)
        zero = torch.zeros((), dtype=target.dtype, device=target.device)
        each = self.loss(prediction, torch.where(mask, target, zero), reduction="none")
        return torch.where(mask, each, zero).sum() / count


class _OwnLoss:
    """A loss as a function of (prediction, target) that returns a mean, for targets with gaps."""

    def __init__(self, task: str, loss: Loss, labels: Labels) -> None:
        if not callable(loss):
            raise not_a_loss(task, loss)
        self.loss = loss
        self.labels = labels
        self.__name__ = getattr(loss, "__name__", type(loss).__name__)


class ClassLoss(_OwnLoss):
    """The loss of integer classes; unknown ones are :data:`NO_LABEL`, as torch's losses expect."""

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        classes = torch.where(self.labels(target), target.long(), NO_LABEL)
        return self.loss(prediction, classes.reshape(-1) if prediction.dim() == 2 else classes)


class KnownSamples(_OwnLoss):
    """The loss of the samples whose labels are all known."""

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean over these samples; zero if there are none."""
        known = self.labels(target).reshape(len(target), -1).all(dim=1)
        if bool(known.all()):
            return self.loss(prediction, target)
        return self.loss(prediction[known], target[known]) if bool(known.any()) else prediction.sum() * 0


class KnownPixels(_OwnLoss):
    """The loss of the known pixels, flattened to (P,), or (P, C) with C channels."""

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean over these pixels."""
        mask = self.labels(target)
        if mask.dim() == target.dim():  # one channel
            return self.loss(prediction[mask], target[mask])
        return self.loss(prediction.movedim(1, -1)[mask], target.movedim(1, -1)[mask])


def masked_loss(
    task: str, default: Callable[..., Tensor], own: Loss | None, wrapper: Any, labels: Labels
) -> Loss:
    """Return the default loss over the known labels, or a user's own loss in its wrapper."""
    made: Loss = Masked(task, default, labels) if own is None else wrapper(task, own, labels)
    return made


def not_a_loss(task: str, loss: object) -> SpecError:
    """Return the error for a loss that cannot be called."""
    return SpecError(
        f"the loss of {task!r} must be a module or function of (prediction, target), not {loss!r}"
    )
