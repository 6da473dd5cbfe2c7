"""What would hang several processes is refused, or ends at the timeout that the user has set."""

from __future__ import annotations

import gc
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

import mtlkit
from mtlkit.engine import processes
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
    group = processes.processes_of().group
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


class Unforked(nn.Module):
    """A net whose gradients are merged at the losses; ``forward`` gives the losses, or their total."""

    def __init__(self, spec: str = "pcgrad(wrt=parameters)") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.heads = nn.Linear(4, 6), nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        self.method = mtlkit.create_method(spec, 2, shared=self.backbone)

    def forward(self, x: torch.Tensor, present: tuple[int, ...] = (0, 1), total: bool = True) -> Any:
        z = self.backbone(x)
        losses = [h(z).square().mean() if k in present else None for k, h in enumerate(self.heads)]
        return self.method.total(losses) if total else losses


def uneven_steps_unforked(rank: int, spec: str) -> None:
    module = DistributedDataParallel(Unforked(spec))
    with module.join():
        for _ in range(2 + rank):
            module(torch.randn(4, 4)).backward()


def unforked(rank: int, inside: bool, unused: bool) -> None:
    """Two steps in which the second process has no labels of the second task."""
    net = Unforked()
    module = DistributedDataParallel(net, find_unused_parameters=unused)
    present = ((0, 1), (0,))[rank]
    for _ in range(2):
        found = module(torch.randn(4, 4), present, inside)
        (found if inside else net.method.total(found)).backward()


def absent_labels_inside(rank: int, unused: bool = True) -> None:
    module = DistributedDataParallel(small_net("uw+pcgrad"), find_unused_parameters=unused)
    labels = torch.ones(4, 3)
    labels[:, 1:] = 1 - rank
    module(torch.randn(4, 4), labels).backward()


def train(rank: int, spec: str, how: str) -> torch.Tensor:
    """The first weights after twelve steps on data that differ between the processes."""
    net = small_net(spec)
    net.backbone = nn.Sequential(nn.Linear(4, 4), net.backbone)
    module = DistributedDataParallel(net) if how == "wrapped" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(rank + 1)
    for _ in range(12):
        optimizer.zero_grad()
        module(torch.randn(4, 4)).backward()
        if how in ("averaged", "experts"):  # by hand; an expert's weights belong to its process
            for number, parameter in enumerate(net.parameters()):
                if number or how == "averaged":
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= 2
        optimizer.step()
    return next(net.parameters()).detach()


class Labeled(nn.Module):
    """A mean over labels that differ in number between the processes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, counts: dict[str, int]) -> torch.Tensor:
        columns = zip(counts.items(), self.layer(x).T, strict=True)
        losses = {name: column[:n].square().mean() if n else None for (name, n), column in columns}
        weighed = mtlkit.weigh_by_labels(losses, counts)
        return sum((loss for loss in weighed.values() if loss is not None), self.layer.bias.sum() * 0)


def labeled_gradient(rank: int) -> torch.Tensor:
    module = DistributedDataParallel(Labeled())
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    share, counts = ((x[:5], {"a": 5, "b": 0}), (x[5:], {"a": 1, "b": 3}))[rank]
    module(share, counts).backward()
    return module.module.layer.weight.grad


SITUATIONS = {
    "timeout": (timeout_of_the_reductions, ()),
    "stops": (a_process_that_stops, ()),
    "join": (uneven_steps, ()),
    "strict": (outside, ([(0, 1, 2), (0, 1)], False)),
    "unlabeled": (outside, ([(0, 1, 2), ()], True)),
    "unused": (outside, ([(0, 1, 2), (0, 1)], True)),
    "inside": (absent_labels_inside, ()),
    "strict inside": (absent_labels_inside, (False,)),
    "join unforked": (uneven_steps_unforked, ("pcgrad(wrt=parameters)",)),
    "join loss weights": (uneven_steps_unforked, ("uw",)),
    "unforked inside": (unforked, (True, False)),
    "unforked outside": (unforked, (False, False)),
    "unforked inside, unused": (unforked, (True, True)),
    "unforked outside, unused": (unforked, (False, True)),
    "alone": (train, ("pcgrad", "alone")),
    "rotations": (train, ("rotograd", "alone")),
    "averaged": (train, ("pcgrad", "averaged")),
    "experts": (train, ("pcgrad", "experts")),
    "wrapped": (train, ("pcgrad", "wrapped")),
    "labels": (labeled_gradient, ()),
}


@dataclass
class Outcome:
    """How a situation ended on one process."""

    result: Any
    error: str
    seconds: float
    warned: list[str]


def disconnect() -> None:
    """Close all connections, as the end of a process does, so that the other one need not wait for the timeout."""
    gc.collect()
    processes._groups.clear()
    dist.destroy_process_group()


def on_rank(rank: int, world: int, folder: str) -> dict[str, Outcome]:
    outcomes = {}
    first = DistributedDataParallel(nn.Linear(1, 1))  # what DDP imports takes a second, once
    first(torch.ones(1)).backward()
    dist.barrier()
    meeting = dist.FileStore(f"{folder}/meeting", world)
    for name, (situation, args) in SITUATIONS.items():
        # an error leaves a group in an unknown state, so every situation gets a new one
        if dist.is_initialized():
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
        if error:
            disconnect()
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


@pytest.mark.parametrize("situation", ["join", "join unforked", "join loss weights"])
def test_uneven_steps_under_join_are_refused_at_once(outcomes, situation):
    for outcome in outcomes:
        assert "DDP.join() is not supported" in outcome[situation].error
        assert outcome[situation].seconds < 2.5


@pytest.mark.parametrize(
    ("situation", "advice"),
    [
        ("strict", "task(s) 2 have no labels on this process.*find_unused_parameters=True"),
        ("unlabeled", "task(s) 0, 1, 2 have no labels.*inside the wrapped forward"),
    ],
)
def test_a_total_outside_of_ddp_that_lacks_labels_is_refused_at_once(outcomes, situation, advice):
    waiting, lacking = (outcome[situation] for outcome in outcomes)
    assert re.search(advice.replace("(s)", r"\(s\)"), lacking.error)
    assert lacking.seconds < 2.5
    assert waiting.error
    assert waiting.seconds < 10


@pytest.mark.parametrize(("situation", "tasks"), [("strict inside", "1, 2"), ("unforked inside", "1")])
def test_a_total_inside_of_ddp_that_lacks_labels_is_refused_at_once(outcomes, situation, tasks):
    lacking = outcomes[1][situation]
    assert f"task(s) {tasks} have no labels on this process" in lacking.error
    assert "find_unused_parameters=True" in lacking.error
    assert lacking.seconds < 2.5


def test_a_total_without_a_fork_outside_of_ddp_that_lacks_labels_is_warned(outcomes):
    """There it is unknown whether and how the model is wrapped."""
    warned = outcomes[1]["unforked outside"].warned
    assert "task(s) 1 have no labels on this process" in warned[0]
    assert "find_unused_parameters=True" in warned[0]
    assert not outcomes[0]["unforked outside"].warned


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_total_without_a_fork_may_lack_labels_if_unused_parameters_are_found(outcomes, where):
    for outcome in outcomes:
        assert outcome[f"unforked {where}, unused"].error == ""
        assert outcome[f"unforked {where}, unused"].warned == []


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


@pytest.mark.parametrize("name", ["alone", "rotations"])
def test_processes_whose_gradients_nobody_averages_are_warned_once(outcomes, name):
    first, second = (outcome[name] for outcome in outcomes)
    assert not first.error
    assert not torch.equal(first.result, second.result)
    (warning,) = first.warned
    assert "all weights differ between the 2 processes" in warning
    assert "DistributedDataParallel" in warning
    assert second.warned == []


@pytest.mark.parametrize("name", ["averaged", "experts", "wrapped"])
def test_processes_that_train_together_in_whatever_way_are_not_warned(outcomes, name):
    first, second = (outcome[name] for outcome in outcomes)
    assert not first.error
    assert torch.equal(first.result, second.result) == (name != "experts")
    assert first.warned == second.warned == []


def test_losses_weighed_by_labels_have_the_gradient_of_all_labels(outcomes):
    whole = Labeled()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    scores = whole.layer(x)
    (scores[:6, 0].square().mean() + scores[5:, 1].square().mean()).backward()
    for outcome in outcomes:
        assert not outcome["labels"].error
        torch.testing.assert_close(outcome["labels"].result, whole.layer.weight.grad)
