"""What the tasks' gradients do to each other in a short plain run, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from mtlkit.diagnosis.figures import Figures
from mtlkit.diagnosis.measure import Measurement, Wrt, measure
from mtlkit.diagnosis.result import Diagnosis
from mtlkit.diagnosis.rules import RULES, Finding, Rule

if TYPE_CHECKING:
    from mtlkit.tasks import Task

__all__ = ["RULES", "Diagnosis", "Figures", "Finding", "Measurement", "Rule", "diagnose"]


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
    """Train for some steps by the plain sum of the losses, and say what the tasks' gradients did.

    A copy of the model is trained: ``model``, its method and torch's random numbers stay as they are.
    Whatever its method is, the copy merges by the plain sum, without rotations or loss weights. All
    figures are read off the Gram matrices of the steps, so a step costs what it always costs.

    Args:
        model: as for :class:`mtlkit.Trainer`; it need not have a method nor fork its features.
        tasks: what to learn.
        loader: gives batches of ``(inputs, {task: target})``.
        steps: how many to take.
        wrt: look at the gradients of the shared ``"features"``, or of the shared ``"parameters"``, which
            costs a backward per task. None takes the features where the model forks them and the tasks
            have labels on the same samples.
        optimizer: a string such as ``"sgd(momentum=0.9)"``, or a function of the parameters.
        lr: learning rate, for an optimizer that is a string.
        seed: of the order of the batches, and of dropout.
        progress: show a progress bar; None shows it on a terminal.

    Returns:
        The findings and figures; ``print`` it, or write a page with ``to_html(path)``.
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
