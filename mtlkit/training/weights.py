"""Weights and optimizer state as whole tensors, also where FSDP shards them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mtlkit.training.accelerators import is_sharded


def read_weights(model: nn.Module, optimizer: Any, accelerator: Any) -> dict[str, Any]:
    """States of model and optimizer; every process must call this."""
    if not is_sharded(accelerator):
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sharded": False}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer.optimizer, options=options)
    return {"model": dict(weights), "optimizer": moments, "sharded": True}


def write_weights(model: nn.Module, state: Mapping[str, Any], accelerator: Any) -> None:
    """Give the model its weights."""
    if not is_sharded(accelerator):
        model.load_state_dict(state["model"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, dict(state["model"]), options=options)


def write_optimizer(
    model: nn.Module, optimizer: Any, state: Mapping[str, Any], accelerator: Any
) -> None:
    """Give the optimizer its state; the run must be sharded if the one that saved it was."""
    if bool(state["sharded"]) != is_sharded(accelerator):
        raise ValueError(
            "the optimizer's state was saved with FSDP" if state["sharded"] else "without FSDP"
        )
    if not state["sharded"]:
        optimizer.load_state_dict(state["optimizer"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer.optimizer, state["optimizer"], options=options)
