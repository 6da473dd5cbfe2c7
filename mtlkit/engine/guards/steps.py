"""Checks of the calls that form a training step."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from mtlkit.config.launching import warn_first
from mtlkit.engine.graph import nodes_below
from mtlkit.engine.guards import replicas
from mtlkit.engine.guards.optimizers import awaits_optimizer
from mtlkit.engine.guards.parameters import refuse_compiled_autograd, refuse_partitioned
from mtlkit.engine.processes import ALONE, Processes, inside_wrapper, wrapper_waits
from mtlkit.errors import UsageError

_NO_FORK = (
    "for a loss that contains derivatives of the prediction, or a model without features to fork, "
    "leave method(features) out: create the method with wrt=parameters and call total(losses) alone"
)
_COMPARED_STEPS = (10, 100)
"""Steps at which processes are compared: late enough for their weights to have diverged."""
_STEPS_TO_SEE_A_TASK = 20
"""Steps per task until a task without any loss is warned of: tasks may take turns, or be rare."""
IN_PLACE = (
    "method(features), whose memory all tasks share: the first layer of a head must not work in place, "
    "so write nn.ReLU() for nn.ReLU(inplace=True)"
)


@dataclass
class Fork:
    """One fork of the features, from ``method(features)`` to its backward."""

    processes: Processes
    """The processes that share the step."""
    given: tuple[int, ...] | None = None
    """Tasks whose loss needs a gradient on this process; None before ``total`` was called."""
    merge: bool = True
    """Whether this backward merges, or only keeps its gradients for a later one."""
    wrapped: bool = False
    """Whether it was made in the forward of DDP."""
    strict: bool = False
    """Whether DDP waits for the gradient of every parameter, labels or not."""
    recomputed: bool = False
    """Whether a checkpoint made it while computing the forward again."""
    frozen: Sequence[tuple[Tensor, int]] = ()
    """Features that need no gradient and are given to every task as they are, and their versions."""


class Guards:
    """Watches the calls of one method."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tasks
        self._anchor: Tensor | None = None
        self._latest = Fork(ALONE)
        self._open: list[weakref.ref[Any]] = []  # nodes of forks that have not met their total
        self._closed: weakref.ref[Any] | None = None  # node of the last fork that met its total
        self._unrecorded = ""
        self._recomputed: Tensor | None = None
        self._steps = 0
        self._backwards = 0
        self._warned_of_evaluation = False
        self._untrained = set(range(len(tasks)))  # tasks that have had no loss with a gradient
        self._awaits_optimizer = True

    # At the edges of a step

    def before_fork(self, method: Any) -> None:
        """Check that nothing has taken hold of a method that trains."""
        sharded = type(method).__module__.startswith("torch.distributed.fsdp")
        if sharded or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            _refuse_module(sharded)
        if self._steps == 0:
            refuse_partitioned(method)
        if not method.is_sum:
            _refuse_transforms()
        if not torch.is_grad_enabled():
            if not torch.compiler.is_compiling():
                self._unrecorded = "no_grad"
        elif method.merging is not None and not method.merging.sync:
            _check_own_state([*method.merging.buffers()])

    def after_fork(self, fork: Fork, anchor: Tensor | None) -> None:
        """Note a fork. It counts as long as something still refers to its graph."""
        fork.recomputed = in_backward()
        self._recomputed = None
        if fork.recomputed:  # the fork of the first forward is the one, but total may come again too
            self._recomputed = None if self._unrecorded == "no_grad" else anchor
            return
        if not fork.processes.alone:
            fork.wrapped, fork.strict = wrapper_waits()
        self._anchor, self._latest = anchor, fork
        self._unrecorded = "frozen" if anchor is None else ""
        if anchor is not None and not torch.compiler.is_compiling():
            self._open = [node for node in self._open if node() is not None]
            self._open.append(weakref.ref(anchor.grad_fn))

    def forget(self) -> None:
        """Free the graph of a fork that met no total, as after an exception."""
        self._anchor, self._latest, self._open = None, Fork(ALONE), []

    def anchor_of(self, method: Any, losses: dict[int, Tensor], merge: bool) -> Tensor | None:
        """Check a step at its total, and return the anchor of its fork; None if there is none."""
        if in_backward():
            anchor, self._recomputed = self._recomputed, None
            return anchor
        anchor, self._anchor = self._anchor, None
        fork, self._latest = self._latest, Fork(ALONE)
        fork.given = tuple(task for task, loss in losses.items() if loss.requires_grad)
        fork.merge = merge
        if torch.compiler.is_compiling():
            return anchor
        self._steps += 1
        if self._untrained or self._awaits_optimizer:
            self._check_first_steps(method, losses, anchor is not None)
        older = self._open[:-1]
        if self._open:
            self._closed = self._open[-1]
        self._open = []
        if fork.frozen or fork.wrapped or older or self._steps == _COMPARED_STEPS[0]:
            self._check_fork(fork, losses, {node() for node in older} - {None})
        return anchor

    def _check_fork(self, fork: Fork, losses: dict[int, Tensor], older: set[Any]) -> None:
        """Check what became of a fork, and of the ``older`` nodes that have not met their total."""
        if any(leaf._version != version for leaf, version in fork.frozen):  # noqa: SLF001
            raise UsageError(f"a head changed, in place, its view of {IN_PLACE}")
        if self._steps == _COMPARED_STEPS[0]:
            replicas.warn_if_unsynced()
        if not older.isdisjoint(nodes_below(losses.values()) if older else ()):
            raise UsageError(
                "the features were forked twice before total(losses); call method(features) once per "
                "step (put several tensors into one list or dict), or run the extra pass under "
                "torch.no_grad()"
            )
        # DDP finds unused heads itself, but only if some output of its forward has a gradient
        if fork.strict or (fork.wrapped and not losses and inside_wrapper() is None):
            self._refuse_missing(losses)

    def before_unforked(
        self, method: Any, losses: dict[int, Tensor], processes: Processes, *, needs_fork: bool
    ) -> None:
        """Raise for a total without the fork that it needs, or one that DDP would wait for."""
        _refuse_transforms()
        self._check_missing(losses, processes)
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
        if reason == "frozen" or not needs_fork:
            return
        called = f"total(losses) before method(features): {method}"
        todo = "so give the heads what method(features) returns, once per step"
        if method.forking is not None:
            raise UsageError(
                f"{called} forks the features, {todo}; for a model without features to fork, leave "
                f"{method.forking.name} out and merge with wrt=parameters"
            )
        raise UsageError(f"{called} merges gradients at the features, {todo}; {_NO_FORK}")

    def check_plain_sum(self, losses: dict[int, Tensor], processes: Processes) -> None:
        """Check that DDP gets what it waits for from a plain sum of losses."""
        self._unrecorded = ""
        self._check_missing(losses, processes)

    def refuse_empty(self, others_wait: bool) -> NoReturn:
        """Raise for a total without any term; ``others_wait`` if other processes have some."""
        if others_wait:
            raise UsageError(
                "no task has a loss on this process, and the others wait for its gradients: call "
                "method(features) before total(losses), through which it takes part without a loss"
            )
        raise UsageError(
            "every loss is None and no features were forked: there is nothing to minimize; "
            "call method(features) first, or skip this batch"
        )

    # What would train nothing

    def _check_first_steps(self, method: Any, losses: dict[int, Tensor], forked: bool) -> None:
        """Warn of losses without a gradient in the first step, and of tasks that never have one."""
        if self._steps == 1:
            refuse_partitioned(method)
        self._awaits_optimizer = self._awaits_optimizer and awaits_optimizer(method, losses)
        self._untrained.difference_update(k for k, loss in losses.items() if loss.requires_grad)
        step = self._steps
        detached = self._untrained & losses.keys()
        # without a fork a total of detached losses has no backward, which torch says
        if step == 1 and detached and (forked or len(detached) < len(losses)):
            warn_first(
                f"the loss of task(s) {self._names(detached)} has no gradient, so it trains nothing: is "
                "it, or the prediction, detached or computed under torch.no_grad()? For a task without "
                "labels in this batch give None",
                stacklevel=4,
            )
        some = 0 < len(self._untrained) < len(self._tasks)
        if some and step == _STEPS_TO_SEE_A_TASK * len(self._tasks) and method.processes.alone:
            warn_first(
                f"task(s) {self._names(self._untrained)} had no loss with a gradient in {step} steps: "
                "are all their labels missing, or their losses detached? Nothing is learned for them. "
                "Leave out tasks without labels",
                stacklevel=4,
            )

    def _names(self, tasks: Collection[int]) -> str:
        return ", ".join(self._tasks[task] for task in sorted(tasks))

    def after_evaluation(self, method: Any, total: Tensor) -> None:
        """Warn, once, if a total that was made in evaluation mode is differentiated."""
        remembers = not method.is_sum or next(method.buffers(), None) is not None
        if torch.compiler.is_compiling() or not (total.requires_grad and remembers):
            return

        def warn(_: Tensor) -> None:
            if not self._warned_of_evaluation:
                self._warned_of_evaluation = True
                warn_first(
                    f"the method is in evaluation mode, in which {method} adds the tasks' gradients and "
                    "remembers nothing; call method.train() before a training step, and method.eval() "
                    "only to evaluate"
                )

        total.register_hook(warn)  # type: ignore[no-untyped-call]

    def _check_missing(self, losses: dict[int, Tensor], processes: Processes) -> None:
        if processes.alone or in_backward():
            return
        _, strict = wrapper_waits()
        if strict:
            self._refuse_missing(losses)
        missing = self._missing(losses)
        if not missing or inside_wrapper() is not None:
            return
        # a DDP that finds unused parameters leaves a node in the graph, any other DDP no trace
        if "_DDPSinkBackward" not in {type(node).__name__ for node in nodes_below(losses.values())}:
            warnings.warn(
                f"task(s) {', '.join(missing)} have no labels on this process; if the model is wrapped "
                "in DistributedDataParallel, that waits for the gradients of their heads until its "
                "timeout: wrap with find_unused_parameters=True",
                UserWarning,
                stacklevel=4,
            )

    def _missing(self, losses: Collection[int]) -> list[str]:
        return [name for task, name in enumerate(self._tasks) if task not in losses]

    def _refuse_missing(self, losses: dict[int, Tensor]) -> None:
        missing = self._missing(losses)
        if missing:
            raise UsageError(
                f"task(s) {', '.join(missing)} have no labels on this process, and DDP waits for the "
                "gradients of their heads: wrap with find_unused_parameters=True"
                + ("" if losses else " and call method.total(losses) inside the wrapped forward")
            )

    # In the backward

    def before_merge(
        self, node: Any, hooks: Any, fork: Fork, through_total: bool, arrived: Collection[int]
    ) -> None:
        """Check which tasks' gradients reached the node, and that the processes share their weights."""
        if hooks.over_parameters:
            refuse_compiled_autograd(node)
        if torch.compiler.is_compiling():
            return
        expected: Collection[int] = (fork.given or ()) if through_total else range(len(self._tasks))
        bypassed = [self._tasks[task] for task in expected if task not in arrived]
        if torch.is_grad_enabled() or bypassed or not through_total:
            _explain_arrivals(hooks.method, fork, through_total, bypassed, arrived)
        if not (fork.processes.alone or fork.wrapped):
            self._compare_replicas(node, hooks, fork.processes)

    def _compare_replicas(self, node: Any, hooks: Any, processes: Processes) -> None:
        """Warn if the processes' weights differ; every process must call this in every backward."""
        self._backwards += 1
        if self._backwards in _COMPARED_STEPS:
            owned = [] if hooks.forking is None else hooks.forking.owned()
            replicas.compare(node, processes, [*owned, *hooks.learned, *hooks.weighing])


def _explain_arrivals(
    method: Any,
    fork: Fork,
    through_total: bool,
    bypassed: Sequence[str],
    arrived: Collection[int],
) -> None:
    """Raise or warn where a backward is not that of a total, or tasks have brought no gradient."""
    if torch.is_grad_enabled():
        todo = "leave method(features) out" if method.is_sum else _NO_FORK
        raise UsageError(f"create_graph=True: a merge of gradients has no derivative; {todo}")
    if not through_total:
        if not (fork.recomputed and method.is_sum):  # total raised for others
            _check_without_total(method, bypassed)
        return
    if not arrived:
        raise UsageError(
            "no task's gradient reached the junction: the heads were not given what method(features) "
            "returned"
        )
    warn_first(
        f"the gradient of task(s) {', '.join(bypassed)} did not pass the junction, so it is not merged: "
        "give every head its own view of method(features), in task order"
    )


def _check_without_total(method: Any, missing: Sequence[str]) -> None:
    """Raise for a backward that did not start from ``total``, unless that makes no difference."""
    if missing:
        raise UsageError(
            f"a backward reached the junction without task(s) {', '.join(missing)} and not through "
            f"total(losses); call backward() once, on method.total(losses); {_NO_FORK}"
        )
    if method.weighs_losses:
        raise UsageError(
            f"{method} weighs the losses of {', '.join(method.tasks)}, but backward() was called on "
            "losses that did not pass it; call backward() on method.total(losses)"
        )


def _check_own_state(state: Collection[Tensor]) -> None:
    """Warn if DDP overwrites the state of a method that keeps one on each process."""
    wrapper = inside_wrapper()
    if state and wrapper is not None and wrapper.broadcast_buffers and dist.get_world_size() > 1:
        warn_first(
            "sync=False keeps state on each process, and DistributedDataParallel overwrites it with "
            "that of the first one before every forward pass: wrap with broadcast_buffers=False",
            stacklevel=3,
        )


def in_backward() -> bool:
    """Return whether a backward pass is running, as when a checkpoint recomputes its forward."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001  there is no public name


def _refuse_module(sharded: bool) -> NoReturn:
    if not sharded:
        raise UsageError("torch.jit.trace keeps no merge of gradients: call model.eval() before it")
    raise UsageError(
        "fully_shard(method): what a method owns is small and the same on every process; shard the "
        "layers of the model, and the model with ignored_params=set(method.parameters())"
    )


def _refuse_transforms() -> None:
    """Raise within transforms of torch.func: tensors there do not tell whether they need a gradient."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return
    raise UsageError(
        "gradients are merged in an ordinary backward(), not within torch.func.grad, vmap or jacrev: "
        "use these inside the backbone, the heads or the losses, and call method(features) and "
        "method.total(losses) outside of them; or merge a (K, N) matrix of gradients by method.combine"
    )


def refuse_features(leaves: Sequence[Tensor]) -> NoReturn:
    """Raise for features without a tensor, or with one tensor twice."""
    if not leaves:
        raise UsageError("the features hold no tensor; give the backbone's output")
    raise UsageError(
        "the features hold the same tensor twice, so its gradient would count twice; give it once, "
        "and let the heads that need it share its view"
    )
