"""What would hang several processes is refused, or ends at the timeout that the user has set."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mtlkit.distributed import processes_of
from tests.distributed.launch import run_processes
from tests.networks import SmallNet

TIMEOUT = timedelta(seconds=3)


class Predictions(nn.Module):
    """The predictions of a net, for a total that is taken outside of the wrapped forward."""

    def __init__(self, net: SmallNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        views = self.net.method(self.net.backbone(x))
        return [head(view) for head, view in zip(self.net.heads, views, strict=True)]


def small_net(spec: str = "pcgrad", **options) -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(spec, **options)


def timeout_of_the_reductions(rank: int) -> float:
    group = processes_of().group
    assert group is not dist.group.WORLD
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def a_process_that_stops(rank: int) -> None:
    net = small_net()
    net(torch.randn(4, 4)).backward()
    if rank == 1:
        time.sleep(TIMEOUT.total_seconds() + 1)
    else:
        net(torch.randn(4, 4)).backward()


def uneven_steps(rank: int) -> None:
    module = DistributedDataParallel(small_net())
    with module.join():
        for _ in range(2 + rank):
            module(torch.randn(4, 4)).backward()


def outside(rank: int, present: list[tuple[int, ...]], unused: bool) -> list[torch.Tensor | None]:
    """Gradients of the last step where the processes have labels of the ``present`` tasks."""
    net = small_net("mgda")
    module = DistributedDataParallel(Predictions(net), find_unused_parameters=unused)
    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1))[rank]
    for _ in range(2):
        net.zero_grad()
        losses = [p.square().mean() if k in present[rank] else None for k, p in enumerate(module(x))]
        net.method.total(losses).backward()
    return [p.grad for p in net.parameters()]


def absent_labels_inside(rank: int) -> None:
    module = DistributedDataParallel(small_net("uw+pcgrad"), find_unused_parameters=True)
    labels = torch.ones(4, 3)
    labels[:, 1:] = 1 - rank
    module(torch.randn(4, 4), labels).backward()


SITUATIONS = {
    "timeout": (timeout_of_the_reductions, ()),
    "stops": (a_process_that_stops, ()),
    "join": (uneven_steps, ()),
    "strict": (outside, ([(0, 1, 2), (0, 1)], False)),
    "unlabelled": (outside, ([(0, 1, 2), ()], True)),
    "unused": (outside, ([(0, 1, 2), (0, 1)], True)),
    "inside": (absent_labels_inside, ()),
}


@dataclass
class Outcome:
    """How a situation ended on one process."""

    result: Any
    error: str
    seconds: float
    warned: list[str]


def on_rank(rank: int, world: int, folder: str) -> dict[str, Outcome]:
    outcomes = {}
    dist.barrier()
    meeting = dist.FileStore(f"{folder}/meeting", world)
    for name, (situation, args) in SITUATIONS.items():
        # an error leaves a group in an unknown state, so every situation gets a new one
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", f"file://{folder}/{name}", timeout=TIMEOUT, rank=rank, world_size=world
        )
        result, error, start = None, "", time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = situation(rank, *args)
            except RuntimeError as raised:
                error = f"{type(raised).__name__}: {raised}"
        warned = [str(warning.message) for warning in caught]
        outcomes[name] = Outcome(result, error, time.monotonic() - start, warned)
        meeting.set(f"{name}{rank}", "done")
        meeting.wait([f"{name}{other}" for other in range(world)], timedelta(seconds=60))
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[dict[str, Outcome]]:
    return run_processes(on_rank, str(tmp_path_factory.mktemp("stores")))


def test_the_group_of_the_reductions_has_the_timeout_that_was_given(outcomes):
    assert [outcome["timeout"].result for outcome in outcomes] == [3.0, 3.0]


def test_a_process_that_stops_ends_the_others_after_the_timeout(outcomes):
    waiting = outcomes[0]["stops"]
    assert waiting.error
    assert 2.5 < waiting.seconds < 10


def test_uneven_steps_under_join_are_refused_at_once(outcomes):
    for outcome in outcomes:
        assert "DDP.join() is not supported" in outcome["join"].error
        assert outcome["join"].seconds < 2.5


@pytest.mark.parametrize(
    ("situation", "advice"),
    [
        ("strict", "task(s) 2 have no labels on this process.*find_unused_parameters=True"),
        ("unlabelled", "task(s) 0, 1, 2 have no labels.*inside the wrapped forward"),
    ],
)
def test_a_total_outside_of_ddp_that_lacks_labels_is_refused_at_once(outcomes, situation, advice):
    waiting, lacking = (outcome[situation] for outcome in outcomes)
    assert re.search(advice.replace("(s)", r"\(s\)"), lacking.error)
    assert lacking.seconds < 2.5
    assert waiting.error
    assert waiting.seconds < 10


def test_a_total_outside_of_ddp_may_lack_labels_if_unused_parameters_are_found(outcomes):
    first, second = (outcome["unused"] for outcome in outcomes)
    assert first.error == second.error == ""
    for mine, other in zip(first.result, second.result, strict=True):
        assert torch.equal(mine, other)
        assert mine.abs().sum() > 0


def test_labels_that_one_process_lacks_cause_no_warning(outcomes):
    for outcome in outcomes:
        assert outcome["inside"].error == ""
        for situation in ("inside", "unused"):
            assert not [text for text in outcome[situation].warned if "junction" in text]
