"""Each task's loss, gradient norm and weight in the Trainer's own logs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from mtlkit.errors import UsageError
from mtlkit.method.method import Method
from mtlkit.method.stats import Stats


class MultiTaskCallback(TrainerCallback):  # type: ignore[misc]
    """Log what the tasks' gradients do, to whatever ``report_to`` names.

    It adds to each entry of the Trainer's log the means over the steps since the last one:
    ``<task>_loss``, ``<task>_grad_norm``, ``<task>_weight``, ``conflict`` (the fraction of the pairs of
    tasks whose gradients have a negative cosine) and ``lowest_cosine`` (of the pair of tasks that
    conflict most). The merge computes these statistics anyway. A method that only weighs the losses has
    no task gradients, and logs losses and weights.

    :class:`MultiTaskTrainer` has this callback. For another Trainer, whose model calls
    ``method.total(losses)`` itself, attach it:

    Args:
        method: method of the model.

    >>> import mtlkit
    >>> method = mtlkit.create_method("pcgrad", tasks=("kind", "size"))
    >>> callback = MultiTaskCallback(method)
    >>> callback.attach(trainer)  # doctest: +SKIP
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._attached = False
        self._reset()

    def _reset(self) -> None:
        self._steps: list[Stats] = []
        self._losses: Tensor | None = None

    def attach(self, trainer: Any) -> None:
        """Add the callback to a Trainer, before those that report."""
        trainer.callback_handler.callbacks.insert(0, self)
        self._attached = True

    def add_losses(self, losses: Tensor, present: Tensor, fraction: float) -> None:
        """Add the losses of a batch, for a method that has no statistics.

        Args:
            losses: (K,) losses of this process, zero for absent tasks.
            present: (K,) ones for tasks that count, zeros for others.
            fraction: how much of an optimizer step the batch is.
        """
        added = torch.stack([losses, present]).double() * fraction
        self._losses = added if self._losses is None else self._losses + added

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start without statistics."""
        if not self._attached:
            raise UsageError(
                "MultiTaskCallback must come before the callbacks that report: leave it out of "
                "`callbacks`, and call MultiTaskCallback(method).attach(trainer)"
            )
        self._reset()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the statistics of the step; they are computed when a log is due."""
        stats = self.method.stats
        if stats is not None and (not self._steps or stats is not self._steps[-1]):
            self._steps.append(stats)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the means since the last log."""
        if logs is None or "loss" not in logs:  # an evaluation, or the end of training
            return
        added = self._means()
        self._reset()
        logs.update(added)
        state.log_history[-1].update(added)

    @torch.no_grad()
    def _means(self) -> dict[str, float]:
        values: dict[str, Tensor] = {}
        if self._steps:
            for key, name in (("losses", "loss"), ("norms", "grad_norm"), ("weights", "weight")):
                values[name] = torch.stack([getattr(s, key) for s in self._steps]).nanmean(dim=0)
        if self._losses is not None:
            sums, counts = self._over_processes(self._losses)
            values["loss"] = sums / counts  # NaN where a task was absent
            if not self._steps and self.method.weighs_losses and values["loss"].isfinite().all():
                values["weight"] = self.method.loss_factors(values["loss"].float())
        named = {
            f"{task}_{name}": float(value)
            for name, of_tasks in values.items()
            for task, value in zip(self.method.tasks, of_tasks.tolist(), strict=True)
            if value == value
        }
        return named | self._conflicts()

    def _conflicts(self) -> dict[str, float]:
        if not self._steps:
            return {}
        first, second = torch.triu_indices(len(self.method.tasks), len(self.method.tasks), offset=1)
        cosines = torch.stack([stats.cosines for stats in self._steps])[:, first, second]
        means = cosines.nanmean(dim=0)
        means, known = means[~means.isnan()], cosines[~cosines.isnan()]
        if not len(known):
            return {}
        return {"conflict": float((known < 0).float().mean()), "lowest_cosine": float(means.min())}

    def _over_processes(self, values: Tensor) -> Tensor:
        processes = self.method.processes
        return values if processes.alone else processes.mean(values.to(processes.device))
