"""Check the law of compiled steps for methods, in a process of its own: a compiler may crash.

``python -m tests.engine.run_compiled inductor pcgrad gradvac`` prints one line of JSON per method. A method
with ``: all labels`` behind its name takes no step without labels of a task, which is one graph less.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

import mtlkit
from mtlkit.testing.cases import MethodCase
from mtlkit.testing.step_laws import compiled

ALL_LABELS = ": all labels"
SEVERAL_LOSSES = "pcgrad(wrt=parameters) with one forward for several losses"


def several_losses(backend: str) -> None:
    """Rows of the parameters are one backward pass each through one compiled graph.

    The network has had a plain step before, and in the method's first batch one task alone has labels. So
    the backward is compiled for a single pass, which may take the memory of saved tensors unless
    ``donated_buffer`` is off.
    """
    gradients = []
    for compile_it in (True, False):  # before any method with wrt=parameters
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Tanh())
        forward = torch.compile(network, backend=backend) if compile_it else network
        forward(torch.randn(8, 4)).square().mean().backward()
        method = mtlkit.create_method("pcgrad(wrt=parameters)", 3, shared=network)
        for step, x in enumerate(torch.randn(2, 8, 4)):
            network.zero_grad()
            losses = [(y - k).square().mean() for k, y in enumerate(forward(x).T)]
            method.total(losses if step else [losses[0], None, None]).backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    torch.testing.assert_close(*gradients)


def main(backend: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        error = ""
        try:
            if name == SEVERAL_LOSSES:
                several_losses(backend)
            else:
                place, dtype = torch.device("cpu"), torch.float32
                method = name.removesuffix(ALL_LABELS)
                case = MethodCase(method, {}, tasks=3, seed=0, examples=1, device=place, dtype=dtype)
                compiled(case, [backend], absent=ALL_LABELS not in name)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps([name, error]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
