"""Train on two processes where a loss is not finite on the second one; see ``test_nonfinite.py``."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

import mtlkit
from mtlkit.errors import NonFiniteError
from tests.training.small_problem import TASKS, Poisoned, SmallNet, flat, make_loader


def main(policy: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    net = Poisoned(SmallNet("pcgrad"), {2}, gradient=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = mtlkit.Trainer(net, TASKS, optimizer, on_nonfinite=policy, progress=False)
    assert trainer.accelerator.num_processes == 2
    if trainer.accelerator.process_index == 0:
        net.batches = set()
    try:
        trainer.fit(make_loader(), epochs=1)
        message = ""
    except NonFiniteError as error:
        message = str(error)
    if policy == "raise":
        assert "the loss of 'label' is not finite at step 3, batch 3" in message, message
    else:
        assert message == ""
        assert trainer.step == 5
        own = flat(trainer.model)
        assert torch.isfinite(own).all()
        both = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(both, own)
        assert torch.equal(*both)
