"""Train the small problem with torch's ``fully_shard`` on CPU processes; see ``test_sharded.py``.

Usage: python -m tests.training.run_sharded METHOD FILE, with the variables of ``torch.distributed``.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import mtlkit
from tests.training.small_problem import TASKS, SmallData, SmallNet


def main(method: str, save: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallNet(method)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
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
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
