"""Compilers, processes and places of the merge: which combinations take the step of eager mode.

``python -m tests.distributed.combinations`` writes the table of docs/distributed.md from what
``test_combinations.py`` asserts. ``python -m tests.distributed.combinations BACKEND SETUP PLACE ...`` runs
some of them and prints what it found as JSON, in a process of its own: a compiler may crash.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import mtlkit
from mtlkit.testing.processes import run_processes
from tests.networks import SmallNet

BACKENDS = ("eager", "aot_eager", "inductor")
SETUPS = ("1 process", "DDP", "FSDP2")
PLACES = {
    "features": ("rotograd", True),
    "parameters": ("pcgrad(wrt=parameters)", True),
    "parameters without a fork": ("pcgrad(wrt=parameters)", False),
    "losses": ("uw", True),
}
"""The method of each place, and whether the network calls ``method(features)``."""
CELLS = list(itertools.product(BACKENDS, SETUPS, PLACES))
REFUSED = {("FSDP2", "parameters"): "leave method(features) out"}
"""Combinations that are refused, with a part of the error."""

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
BEGIN, END = "<!-- combinations: begin -->\n", "<!-- combinations: end -->\n"
STEPS, BATCH, TASKS = 4, 8, 3


class Net(SmallNet):
    """A small network; the forward returns the total, or the losses where FSDP merges the parameters."""

    def __init__(self, place: str, *, inside: bool) -> None:
        spec, self.forks = PLACES[place]
        super().__init__(spec, TASKS)
        self.backbone.extend([nn.Linear(6, 6), nn.Tanh()])
        self.inside = inside

    def forward(self, x: Tensor, present: int) -> Tensor | list[Tensor | None]:
        """Of the first ``present`` tasks; the others have no labels."""
        features = self.backbone(x)
        views = self.method(features) if self.forks else [features] * TASKS
        losses = [*self.losses_of(views, x)[:present], *[None] * (TASKS - present)]
        return self.method.total(losses) if self.inside else losses


def train(backend: str, setup: str, place: str, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """State of the network after a few steps; in the third one a task has no labels."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    merges_shards = setup == "FSDP2" and place == "parameters without a fork"
    net = Net(place, inside=not merges_shards)
    module: nn.Module = net
    if setup == "DDP":
        module = DistributedDataParallel(net, find_unused_parameters=True)
    elif setup == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        for layer in (net.backbone[0], net.backbone[2], *net.heads):
            fully_shard(layer)
        fully_shard(net, ignored_params=set(net.method.parameters()))
    if not net.forks and not merges_shards:
        net.method.set_shared(net.backbone)
    if backend != "eager":
        module.compile(backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, 4, generator=generator).chunk(world)[rank]
        optimizer.zero_grad()
        found = module(x, TASKS - (step == 2))
        if merges_shards:
            mtlkit.backward(found, net.method, parameters=net)
        else:
            found.backward()
        optimizer.step()
    state = net.state_dict()
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}


def on_rank(rank: int, world: int, backend: str, setup: str, places: Sequence[str]) -> dict[str, Any]:
    """For every place the state after training, or the error."""
    found: dict[str, Any] = {}
    for place in places:
        torch.compiler.reset()
        try:
            found[place] = train(backend, setup, place, rank, world)
        except Exception as error:
            found[place] = f"{type(error).__name__}: {error}"
    return found


def run(backend: str, setup: str, *places: str) -> dict[str, str | float]:
    """For every place the largest difference from eager mode in one process, or the error."""
    given = (backend, setup, places)
    ranks = [on_rank(0, 1, *given)] if setup == "1 process" else run_processes(on_rank, *given)
    found: dict[str, str | float] = {}
    for place in places:
        expected = train("eager", "1 process", place)
        errors = [rank[place] for rank in ranks if isinstance(rank[place], str)]
        found[place] = errors[0] if errors else max(_distance(rank[place], expected) for rank in ranks)
    return found


def _distance(state: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    compared = [name for name in expected if not name.endswith("_extra_state")]
    return max(float((state[k].double() - expected[k].double()).abs().max()) for k in compared)


def table() -> str:
    """The Markdown table of all combinations."""
    lines = ["| merge of | " + " | ".join(SETUPS) + " |", "|---" * (1 + len(SETUPS)) + "|"]
    for place, (spec, _) in PLACES.items():
        cells = []
        for setup in SETUPS:
            said = REFUSED.get((setup, place))
            cells.append(f"refused: {said}" if said else ", ".join(BACKENDS))
        lines.append(f"| {place}, `{spec}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:]:
        print(json.dumps(run(*sys.argv[1:])))
        return
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n" + table() + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
