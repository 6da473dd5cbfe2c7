"""What a step with each method adds to a plain one: measured, and kept with the package."""

from __future__ import annotations

import json
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mtlkit.config.registry import methods
from mtlkit.config.spec import format_spec
from mtlkit.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

    from mtlkit.weighting import GradientAggregator

COSTS = Path(__file__).with_name("costs.json")
"""The figures of one machine; ``python -m benchmarks.speed.costs`` writes them."""

TASKS, BATCH, WIDTH = 10, 20, 512


@dataclass(frozen=True)
class Costs:
    """The costs measured in one run on one machine."""

    machine: str
    torch: str
    plain: float
    """Milliseconds of the plain step."""
    added: dict[str, float]
    """Milliseconds that a method adds to it."""

    @property
    def note(self) -> str:
        """What the figures are, in one sentence."""
        return (
            f"Milliseconds are what a step adds at K = {TASKS} with ({BATCH}, {WIDTH}) features, all of "
            f"them rotated where a method rotates, the optimizer's step of own parameters included: "
            f"medians on one thread of {self.machine} with torch {self.torch}, where the plain step "
            f"takes {self.plain:.1f} ms. `mtlkit speed` measures on your machine."
        )


@cache
def kept_costs() -> Costs:
    """The figures that came with the package."""
    return Costs(**json.loads(COSTS.read_text(encoding="utf-8")))


def built_in_methods() -> list[str]:
    """Names of the methods and aliases that are mtlkit's own, not a plugin's."""
    return [name for name in methods.names() if _is_built_in(name)]


def measure_cost(name: str, tasks: int = TASKS, repeats: int = 15) -> float:
    """Milliseconds that the method adds to a plain step, at (20, 512) features.

    A step is the fork, one product per task as its head, the total, the backward, and the optimizer's
    step where the method has parameters. Steps of the method and of the plain sum take turns; the
    figure is the median of their differences.
    """
    return _measure(name, tasks, repeats)[0]


def measure_costs(repeats: int = 25, passes: int = 5) -> Costs:
    """All built-in methods, on one thread; the median of some passes over all of them."""
    import torch

    names = {name: format_spec(methods.expand(name)) for name in built_in_methods()}
    distinct = sorted({*names.values()} - {"sum"})  # an alias costs what it stands for
    added: dict[str, list[float]] = {"sum": [0.0]}
    plain = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread, so that more cores do not hide the cost
    try:
        for _ in range(passes):
            for spec in distinct:
                own, base = _measure(spec, TASKS, repeats)
                added.setdefault(spec, []).append(own)
                plain.append(base)
    finally:
        torch.set_num_threads(threads)
    return Costs(
        machine=_machine(),
        torch=torch.__version__.split("+")[0],
        plain=round(statistics.median(plain), 2),
        added={name: round(statistics.median(added[spec]), 2) for name, spec in names.items()},
    )


def write_costs(costs: Costs, path: Path = COSTS) -> None:
    """Write the figures into the package."""
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n", encoding="utf-8")
    kept_costs.cache_clear()


def _is_built_in(name: str) -> bool:
    try:
        factories = [methods.get(part.name) for part in methods.expand(name)]
    except UnknownNameError:  # an alias of a plugin that is not there
        return False
    return all(factory.__module__.startswith("mtlkit.") for factory in factories)


def _measure(name: str, tasks: int, repeats: int) -> tuple[float, float]:
    """Milliseconds that the method adds, and those of the plain step."""
    import torch

    from mtlkit.weighting import create_method

    generator = torch.Generator().manual_seed(0)
    features = torch.randn(BATCH, WIDTH, generator=generator)
    heads = [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(tasks)]
    steps = [_stepper(create_method(spec, tasks, feature_dim=WIDTH), heads) for spec in (name, "sum")]
    for step in steps:
        step(features)
    times = [[step(features) for step in steps] for _ in range(repeats)]
    added = statistics.median(own - plain for own, plain in times)
    return max(0.0, 1000 * added), 1000 * statistics.median(plain for _, plain in times)


def _stepper(method: GradientAggregator, heads: list[Tensor]) -> Callable[[Tensor], float]:
    """A function that takes one training step and returns its seconds."""
    import torch

    parameters = list(method.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-4) if parameters else None

    def step(features: Tensor) -> float:
        leaf = features.clone().requires_grad_()
        start = time.perf_counter()
        views = method(leaf)
        losses = [(view * head).mean().square() + 1 for view, head in zip(views, heads, strict=True)]
        torch.autograd.backward(method.total(losses))
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def _machine() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()
