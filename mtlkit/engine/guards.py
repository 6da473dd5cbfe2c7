"""Detects calls that do not form a training step, and says what to do."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtlkit.config.launching import warn_first
from mtlkit.engine.graph import nodes_below
from mtlkit.engine.merger import Merger
from mtlkit.engine.processes import ALONE, Processes, inside_wrapper, wrapper_waits
from mtlkit.errors import UsageError

_NO_FORK = (
    "for a loss that contains derivatives of the prediction, or a model without features to fork, "
    "leave method(features) out: create the method with wrt=parameters and call total(losses) alone"
)


@dataclass
class Fork:
    """One fork of the features, from ``method(features)`` to its backward."""

    processes: Processes
    """The processes that share the step."""
    given: tuple[int, ...] = ()
    """Tasks whose loss needs a gradient on this process, once ``total`` has been called."""
    wrapped: bool = False
    """Whether it was made in the forward of DDP."""
    strict: bool = False
    """Whether DDP waits for the gradient of every parameter, labels or not."""
    recomputed: bool = False
    """Whether a checkpoint made it while computing the forward again."""


def in_backward() -> bool:
    """Whether a backward pass is running, as when a checkpoint recomputes its forward."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001  there is no public name


class Forks:
    """The forks that have not met their ``total`` yet. They are not copied or saved with a method."""

    def __init__(self) -> None:
        self.anchor: Tensor | None = None
        self.latest = Fork(ALONE)
        self._nodes: list[weakref.ref[Any]] = []
        self._closed: weakref.ref[Any] | None = None  # junction of the last fork that met its total
        self._unrecorded = ""
        self._recomputed: Tensor | None = None

    def open(self, fork: Fork, anchor: Tensor | None) -> None:
        """Note a fork. It counts as long as something still refers to its graph."""
        fork.recomputed = in_backward()
        self._recomputed = None
        if fork.recomputed:  # the fork of the first forward is the one, but total may come again too
            self._recomputed = None if self._unrecorded == "no_grad" else anchor
            return
        if not fork.processes.alone:
            fork.wrapped, fork.strict = wrapper_waits()
        self.anchor, self.latest = anchor, fork
        self._unrecorded = "frozen" if anchor is None else ""
        if anchor is not None and not torch.compiler.is_compiling():
            self._nodes = [node for node in self._nodes if node() is not None]
            self._nodes.append(weakref.ref(anchor.grad_fn))

    def skip(self) -> None:
        """Note a fork without gradients while training."""
        if not torch.compiler.is_compiling():
            self._unrecorded = "no_grad"

    def close(self, losses: dict[int, Tensor], tasks: tuple[str, ...]) -> Tensor | None:
        """The anchor of the fork that these losses belong to; None if there is none."""
        if in_backward():
            anchor, self._recomputed = self._recomputed, None
            return anchor
        anchor, self.anchor = self.anchor, None
        if torch.compiler.is_compiling():
            return anchor
        self._closed = self._nodes[-1] if self._nodes else self._closed
        older = [node() for node in self._nodes[:-1]]
        self._nodes = []
        alive = {node for node in older if node is not None}
        if alive and not alive.isdisjoint(nodes_below(losses.values())):
            raise UsageError(
                "the features were forked twice before total(losses); call method(features) once "
                "per step (put several tensors into one list or dict), or run the extra pass under "
                "torch.no_grad()"
            )
        fork, self.latest = self.latest, Fork(ALONE)
        fork.given = tuple(k for k, loss in losses.items() if loss.requires_grad)
        # DDP finds unused heads by itself, but only if some output of its forward has a gradient
        if fork.strict or (fork.wrapped and not losses and inside_wrapper() is None):
            _refuse_missing(losses, tasks)
        return anchor

    def refuse_without_fork(self, method: Any, losses: dict[int, Tensor]) -> None:
        """Raise for a total without the fork that it needs, or with one that merges nothing."""
        closed = None if self._closed is None else self._closed()
        if closed is not None and closed in set(nodes_below(losses.values())):
            raise UsageError(
                "total(losses) was called twice for one method(features); call it once per step, and "
                "log what it returned"
            )
        reason, self._unrecorded = self._unrecorded, ""
        if reason == "no_grad":
            raise UsageError(
                "method(features) ran without gradients, so nothing can be merged; with activation "
                "checkpointing around it, pass use_reentrant=False"
            )
        if reason == "frozen" or not method.needs_fork:
            return
        called = f"total(losses) before method(features): {method}"
        todo = "so give the heads what method(features) returns, once per step"
        part = method.fork_part
        if part is not None:
            raise UsageError(
                f"{called} forks the features, {todo}; for a model without features to fork, leave "
                f"{part.name} out and merge with wrt=parameters"
            )
        raise UsageError(f"{called} merges gradients at the features, {todo}; {_NO_FORK}")

    def __deepcopy__(self, memo: Any) -> Forks:
        return Forks()

    def __reduce__(self) -> Any:
        return Forks, ()


def check_unforked(losses: dict[int, Tensor], tasks: tuple[str, ...], processes: Processes) -> None:
    """Check that DDP gets what it waits for from a total without a fork."""
    if processes.alone or in_backward():
        return
    _, strict = wrapper_waits()
    if strict:
        _refuse_missing(losses, tasks)
    missing = _missing(losses, tasks)
    if not missing or inside_wrapper() is not None:
        return
    # a DDP that finds unused parameters leaves a node in the graph, any other DDP no trace
    if "_DDPSinkBackward" not in {type(node).__name__ for node in nodes_below(losses.values())}:
        warnings.warn(
            f"task(s) {', '.join(missing)} have no labels on this process; if the model is wrapped in "
            "DistributedDataParallel, that waits for the gradients of their heads until its timeout: "
            "wrap with find_unused_parameters=True",
            UserWarning,
            stacklevel=3,
        )


def _missing(losses: dict[int, Tensor], tasks: tuple[str, ...]) -> list[str]:
    return [name for k, name in enumerate(tasks) if k not in losses]


def _refuse_missing(losses: dict[int, Tensor], tasks: tuple[str, ...]) -> None:
    missing = _missing(losses, tasks)
    if missing:
        raise UsageError(
            f"task(s) {', '.join(missing)} have no labels on this process, and DDP waits for the "
            "gradients of their heads: wrap with find_unused_parameters=True"
            + ("" if losses else " and call method.total(losses) inside the wrapped forward")
        )


def check_arrivals(method: Merger, fork: Fork, through_total: bool, arrived: Iterable[int]) -> None:
    """Check which tasks' gradients reached the junction of ``fork``."""
    if torch.compiler.is_compiling():
        return
    if torch.is_grad_enabled():
        todo = "leave method(features) out" if method.is_sum else _NO_FORK
        raise UsageError(f"create_graph=True: a merge of gradients has no derivative; {todo}")
    arrived = set(arrived)
    if fork.recomputed and method.is_sum:  # total raised for all others
        return
    if not through_total:
        missing = [name for k, name in enumerate(method.tasks) if k not in arrived]
        if missing:
            raise UsageError(
                f"a backward reached the junction without task(s) {', '.join(missing)} and not "
                f"through total(losses); call backward() once, on method.total(losses); {_NO_FORK}"
            )
        if "loss" in method.roles:
            raise UsageError(
                f"{method} weighs the losses of {', '.join(method.tasks)}, but backward() was called "
                "on losses that did not pass it; call backward() on method.total(losses)"
            )
        return
    bypassed = [method.tasks[k] for k in fork.given if k not in arrived]
    # without labels on any process, an anchor brings no gradient: that is fine
    if bypassed and not arrived:
        raise UsageError(
            "no task's gradient reached the junction: the heads were not given what "
            "method(features) returned"
        )
    if bypassed:
        warn_first(
            f"the gradient of task(s) {', '.join(bypassed)} did not pass the junction, so it is not "
            "merged: give every head its own view of method(features), in task order"
        )


def check_walk(losses: Any) -> None:
    """Check that the backward of a junction at ``losses``, None once they are walked, can run."""
    if losses is None:
        raise UsageError(
            "this total has been differentiated before, which freed the graphs of its losses; compute "
            "them again, or pass retain_graph=True to the first backward"
        )
    if torch.is_grad_enabled():
        raise UsageError(
            "create_graph=True on total(losses): a merge of gradients has no derivative; derivatives "
            "of the prediction belong inside the losses"
        )
