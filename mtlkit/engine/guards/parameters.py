"""Errors of ``wrt=parameters``: graphs and models that allow no backward pass per task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.graph import nodes_below
from mtlkit.errors import UsageError


def check_indirect(hooks: Any, merges: bool, groups: int) -> None:
    """Check what goes with ``shared`` that is only a part of what lies below the features."""
    needed = (
        "so with wrt=parameters every parameter below the features must be in `shared`; pass the whole "
        "backbone as shared, or use wrt=features"
    )
    if hooks.merge is not None:
        raise UsageError(f"{hooks.method} merges whole gradients, {needed}")
    if not merges:
        raise UsageError(f"total(losses, merge=False) keeps gradients of parameters, {needed}")
    if groups > 1:
        raise UsageError(f"{hooks.method} merges every group of parameters separately, {needed}")


def check_kept(kept: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Check that the parameters of earlier micro-batches are among those of this one."""
    if not {id(tensor) for tensor in kept} <= {id(tensor) for tensor in parameters}:
        raise UsageError(
            "earlier micro-batches (merge=False) reached parameters that this one does not; leave "
            "method(features) out and call total(losses) alone, or use wrt=features"
        )


def check_graphs(losses: Any) -> None:
    """Check that the graphs of the losses, None once they are freed, can be differentiated."""
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


def refuse_single_pass_graphs(tensors: Iterable[Tensor], shared: Iterable[Tensor] | None) -> None:
    """Raise for graphs that allow one backward pass only."""
    names = {type(node).__name__ for node in nodes_below(tensors)}
    if "CheckpointFunctionBackward" in names:
        raise UsageError(
            "wrt=parameters takes one backward pass per task, which reentrant activation checkpointing "
            "does not allow; pass use_reentrant=False to checkpoint, or use wrt=features"
        )
    sharded = any(type(tensor).__name__ == "DTensor" for tensor in shared or ())
    if sharded or names & {"RegisterPostBackwardFunctionBackward", "_PostBackwardBackward"}:
        raise UsageError(
            "the model is sharded by FSDP, whose hooks do not allow one gradient per task inside a "
            "backward; call mtlkit.backward(losses, method, parameters=model) instead of "
            "method.total(losses).backward() and leave method(features) out, or use wrt=features"
        )
    refuse_deepspeed(shared)


def refuse_compiled_autograd(ctx: Any) -> None:
    """Raise for rows of the parameters in a backward that compiled autograd runs.

    It frees the graph below the features before the node can take one more backward pass per task.
    """
    if type(ctx).__name__ == "FakeBackwardCFunction":
        raise UsageError(
            "compiled autograd frees the graph that wrt=parameters takes one backward pass per task "
            "through; leave method(features) out and call total(losses) alone, use wrt=features, or set "
            "torch._dynamo.config.compiled_autograd = False"
        )


def refuse_deepspeed(parameters: Any) -> None:
    """Raise for a DeepSpeed engine, or for parameters that ZeRO-3 has partitioned."""
    engine = any(kind.__module__.startswith("deepspeed.") for kind in type(parameters).__mro__)
    listed: Any = () if engine or parameters is None else parameters
    if isinstance(listed, torch.nn.Module):
        listed = listed.parameters()
    if engine:
        raise UsageError(
            "a DeepSpeed engine runs the backward pass, so mtlkit.backward cannot; call "
            "engine.backward(method.total(losses)), and name the shared parameters in create_method"
        )
    if not isinstance(listed, dict) and any(hasattr(tensor, "ds_id") for tensor in listed):
        raise UsageError(
            "DeepSpeed's ZeRO stage 3 has partitioned the shared parameters, so their gradients cannot "
            "be merged; use stage 0, 1 or 2, wrt=features with method(features), or FSDP2 (fully_shard)"
        )


def refuse_partitioned(method: Any) -> None:
    """Raise for a method whose own parameters ZeRO-3 has partitioned."""
    if any(hasattr(parameter, "ds_id") for parameter in method.parameters()):
        raise UsageError(
            f"DeepSpeed's ZeRO stage 3 has partitioned the parameters of {method} (rotations, weights), "
            "which every process needs whole; use stage 0, 1 or 2, or a method without parameters"
        )


def check_shards_mergeable(method: Any) -> None:
    """Check that a method can merge gradients of which every process holds a shard."""
    if method.forking is not None:
        raise UsageError(
            f"{method} forks the features before the heads see them, which mtlkit.backward cannot do "
            f"afterward; leave {method.forking.name} out, or use wrt=features with method(features)"
        )
    if method.merging.needs_whole_gradients:
        raise UsageError(
            f"{method} merges whole gradients, and every process holds a shard of them; use a method "
            "that weighs the tasks, such as upgrad or pcgrad, or wrt=features with method(features)"
        )


def check_sharded(tensors: Sequence[Any], listed: set[int]) -> Any:
    """Check trained parameters, of which FSDP2 has sharded some, and return their device mesh."""
    shards = [tensor for tensor in tensors if hasattr(tensor, "device_mesh")]
    if not shards:
        raise UsageError("wrt=parameters: all sharded parameters are frozen; there is nothing to merge")
    mesh = shards[0].device_mesh
    one = mesh.ndim == 1 and all(tensor.device_mesh == mesh for tensor in shards)
    if not one or not all(place.is_shard() for tensor in shards for place in tensor.placements):
        raise UsageError(
            f"gradients are merged over one mesh of one dimension that shards the parameters; these are "
            f"on {mesh}, as with HSDP or tensor parallelism: call fully_shard with a mesh of one "
            "dimension, or use wrt=features"
        )
    unsharded = [t for t in tensors if id(t) in listed and not hasattr(t, "device_mesh")]
    if unsharded:
        raise UsageError(
            f"{len(unsharded)} of the {len(tensors)} parameters are not sharded, or were "
            "listed while FSDP had gathered them; pass the module, as in parameters=model"
        )
    if any(tensor._post_accumulate_grad_hooks for tensor in tensors):  # noqa: SLF001  no public name
        raise UsageError(
            "hooks of register_post_accumulate_grad_hook would run on every task's gradient instead of "
            "the merged one; remove them, and step the optimizer after mtlkit.backward"
        )
    return mesh
