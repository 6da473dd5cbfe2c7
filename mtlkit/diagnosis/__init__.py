"""How the tasks' gradients interact in a short run of the plain sum, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from mtlkit.diagnosis.measure import Measurement, Wrt, measure
from mtlkit.diagnosis.result import Diagnosis
from mtlkit.diagnosis.rules import RULES, Finding, Rule
from mtlkit.diagnosis.summary import Summary

if TYPE_CHECKING:
    from mtlkit.tasks import Task

__all__ = ["RULES", "Diagnosis", "Finding", "Measurement", "Rule", "Summary", "diagnose"]


def diagnose(
    model: nn.Module,
    tasks: Sequence[Task],
    loader: Any,
    steps: int = 200,
    *,
    wrt: Wrt | None = None,
    optimizer: str | Callable[[list[nn.Parameter]], Optimizer] = "adam",
    lr: float = 1e-3,
    seed: int = 0,
    progress: bool | None = None,
) -> Diagnosis:
    """Train a copy with the plain sum of the losses, and say how the tasks' gradients interact.

    ``model``, its method and torch's random state do not change. Whatever the model's method is, the
    copy uses the plain sum, without rotations or loss weights. All numbers come from the gradients that
    a step computes anyway, so a step costs about as much as in training.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.regression("a"), mtlkit.Task.regression("b")]
    >>> model = mtlkit.create_architecture("hard_sharing(backbone=mlp(8, 4, inputs=3))", tasks)
    >>> x = torch.randn(32, 3)
    >>> batches = [(x, {"a": x[:, :1], "b": x[:, 1:2]})]
    >>> found = mtlkit.diagnose(model, tasks, batches, steps=5, progress=False)
    >>> found.summary.cosine.shape
    (2, 2)

    Args:
        model: as for :class:`mtlkit.Trainer`; it needs neither a method nor shared features.
        tasks: the tasks to learn.
        loader: yields batches of ``(inputs, {task: target})``.
        steps: how many optimizer steps to take.
        wrt: measure the gradients of the shared ``"features"``, or of the shared ``"parameters"``, which
            costs one backward pass per task. None uses the features if the model passes them to a method
            and some samples are labeled for several tasks.
        optimizer: a string such as ``"sgd(momentum=0.9)"``, or a function of the parameters.
        lr: learning rate, for an optimizer that is a string.
        seed: of the order of the batches, and of dropout.
        progress: show a progress bar; None shows it on a terminal.

    Returns:
        The findings and arrays; ``print`` it, or write a page with ``to_html(path)``.
    """
    measured = measure(
        model,
        tasks,
        loader,
        steps=steps,
        wrt=wrt,
        optimizer=optimizer,
        lr=lr,
        seed=seed,
        progress=progress,
    )
    return Diagnosis.of(measured)
