"""Train the small problem with torch's ``fully_shard`` on CPU processes; see ``test_sharded.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mtlkit
from tests.training.small_problem import TASKS, SmallData, SmallNet, make_loader


def in_a_loop(method: str, save: Path) -> None:
    torch.manual_seed(0)
    model = SmallNet(method)
    several = dist.is_initialized()
    world, rank = (dist.get_world_size(), dist.get_rank()) if several else (1, 0)
    if several:
        mesh = init_device_mesh("cpu", (world,))
        # the method's own parameters stay whole: they are small, and every rank has their gradient
        fully_shard(model.backbone, mesh=mesh)
        for head in model.heads.values():
            fully_shard(head, mesh=mesh)
    optimizer = torch.optim.Adam(mtlkit.param_groups(model, lr=0.02))
    data = SmallData(40)
    for start in range(0, 40, 8):
        index = torch.arange(start, start + 8).chunk(world)[rank]
        predictions = model(data.x[index])
        losses = {
            "label": TASKS[0].loss(predictions["label"], data.labels[index]),
            "value": TASKS[1].loss(predictions["value"], data.values[index]),
        }
        optimizer.zero_grad()
        model.method.total(losses).backward()
        if world > 1:
            for parameter in model.method.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
    state = model.state_dict()
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in state.values()]
    if rank == 0:
        torch.save(torch.cat([t.detach().double().reshape(-1) for t in whole]), save)
    if world > 1:
        kinds = {type(p).__name__ for p in model.backbone.parameters()}
        assert kinds == {"DTensor"}, kinds
        dist.barrier()


class ShardedAccelerator(Accelerator):
    """Leaves the model as ``fully_shard`` made it: on CPU Accelerate would wrap it in DDP."""

    def prepare_model(self, model: nn.Module, *args: Any, **options: Any) -> nn.Module:
        return model


def with_a_trainer(method: str, save: Path) -> None:
    """Train with a Trainer: accumulation, clipping, and a task that lacks labels."""
    accelerator = ShardedAccelerator(cpu=True)
    torch.manual_seed(0)
    model = SmallNet(method)
    world = accelerator.num_processes
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for module in (model.backbone, *model.heads.values(), model):
            fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(mtlkit.param_groups(model, lr=0.1, method_lr=0.1))
    trainer = mtlkit.Trainer(
        model, TASKS, optimizer, accelerator, gradient_accumulation_steps=2, max_grad_norm=1.0
    )
    trainer.fit(make_loader(32, 8, missing=0.6, shuffle=False), epochs=2)
    state = model.state_dict()
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in state.values()]
    if accelerator.is_main_process:
        torch.save(torch.cat([t.detach().double().reshape(-1) for t in whole]), save)
    accelerator.wait_for_everyone()
