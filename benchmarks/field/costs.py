"""The time of a training in each setup: a step is measured here, and a GPU's time is estimated.

    python -m benchmarks.field.costs

A step is one forward and backward pass of the plain sum with noise of the real shape. Its floating-point
operations are counted by torch. The estimate divides them by a rate that a GPU sustains in float32.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import mtlkit
from mtlkit.config.plugins import load_plugin

GPU_RATE = 5e12
"""Operations per second that a GPU is assumed to sustain: a quarter of the float32 peak of an A100."""
DENSE = {"segmentation": 13, "depth": 1, "normals": 3}
# network, tasks, batch, shape of a sample, training samples, epochs
SETUPS = {
    "nash_nyuv2": ("segnet_mtan", DENSE, 2, (3, 288, 384), 795, 200),
    "nash_cityscapes": ("segnet_mtan", {"segmentation": 7, "depth": 1}, 8, (3, 128, 256), 2975, 200),
    "nash_qm9": ("message_passing", 11, 120, (29, 38), 110_831, 300),
    "nash_celeba": ("celeba_net", 40, 256, (3, 64, 64), 162_770, 15),
}


def main() -> None:
    load_plugin(str(Path(__file__).with_name("networks.py")))
    torch.set_num_threads(1)
    for name, (network, tasks, batch, shape, samples, epochs) in SETUPS.items():
        net = mtlkit.create_architecture(network, tasks)
        inputs = torch.randn(batch, *shape)
        if name == "nash_qm9":  # molecules of 18 atoms, the mean; absent atoms cost as much as others
            inputs[..., 0] = 6 * (torch.arange(29) < 18)
        with FlopCounterMode(display=False) as counter:
            take_step(net, inputs)
        start = time.process_time()
        take_step(net, inputs)
        seconds = time.process_time() - start
        operations, steps = counter.get_total_flops(), epochs * (samples // batch)
        hours = steps * operations / GPU_RATE / 3600
        print(
            f"{name}: {steps:,} steps; {operations / 1e9:,.0f} GFLOP and {seconds:.2f} s of one thread "
            f"each ({operations / seconds / 1e9:.0f} GFLOP/s); about {hours:.1f} h on a GPU, an estimate"
        )


def take_step(net: mtlkit.Architecture, inputs: torch.Tensor) -> None:
    losses = {task: prediction.square().mean() for task, prediction in net(inputs).items()}
    net.method.total(losses).backward()


if __name__ == "__main__":
    main()
