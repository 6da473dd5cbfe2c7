"""Learning-rate schedules: made from a config string, and stepped when they are due."""

from __future__ import annotations

import math
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from mtlkit.errors import ConfigError, unknown_name
from mtlkit.spec import parse_spec
from mtlkit.training.groups import METHOD_GROUP

__all__ = ["Schedulers", "make_schedule"]

_OPTIONS = {
    "constant": (),
    "cosine": ("period", "on"),
    "step": ("every", "epochs", "factor", "on"),
}


def make_schedule(spec: str, optimizer: Optimizer, steps: int, epoch_steps: int) -> LambdaLR | None:
    """The scheduler of a config string, stepped after every step; None for ``constant``.

    ``cosine`` goes down to zero at the end; ``cosine(period=200)`` goes down and up again within 400
    steps. ``step(every=100, factor=0.5)`` halves the rate every 100 steps, with ``epochs=100`` instead
    every 100 epochs. With ``on=network`` the method's own parameters are left alone.

    Args:
        spec: the string.
        optimizer: whose rates change.
        steps: of the whole run.
        epoch_steps: of an epoch.
    """
    parts = parse_spec(spec)
    name, options = parts[0].name, dict(parts[0].options)
    if len(parts) > 1 or name not in _OPTIONS:
        raise unknown_name("schedule", spec, _OPTIONS)
    for option in options:
        if option not in _OPTIONS[name]:
            raise unknown_name(f"option of {name}", option, _OPTIONS[name])
    reach = options.pop("on", "all")
    if reach not in ("all", "network"):
        raise unknown_name("value of on", str(reach), ("all", "network"))
    if name == "constant":
        return None
    factor: Any
    if name == "cosine":
        factor = _Cosine(_positive(options.get("period", max(steps, 1)), "period"))
    else:
        if ("every" in options) == ("epochs" in options):
            raise ConfigError(f"schedule {spec!r} needs either every=STEPS or epochs=N")
        epochs = options.get("epochs")
        every = options["every"] if epochs is None else _positive(epochs, "epochs") * epoch_steps
        factor = _Staircase(_positive(every, "every"), _positive(options.get("factor", 0.5), "factor"))
    constant = _Constant()
    names = [group.get("name") for group in optimizer.param_groups]
    return LambdaLR(
        optimizer, [constant if reach == "network" and n == METHOD_GROUP else factor for n in names]
    )


class Schedulers:
    """The schedulers of a run, each stepped when it is due.

    Args:
        given: one scheduler, several, or None.
        every: ``"step"`` or ``"epoch"``; ``ReduceLROnPlateau`` is stepped after validations instead.
    """

    def __init__(self, given: Any, every: Literal["step", "epoch"]) -> None:
        if every not in ("step", "epoch"):
            raise unknown_name("value of scheduler_every", str(every), ("step", "epoch"))
        several = given if isinstance(given, list | tuple) else [given]
        self.all = [scheduler for scheduler in several if scheduler is not None]
        self.every = every

    def after(self, what: Literal["step", "epoch"]) -> None:
        """Step the schedulers that are due after a step or an epoch."""
        for scheduler in self.all if what == self.every else ():
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()

    def after_validation(self, score: float) -> None:
        """Step the schedulers that depend on the score."""
        for scheduler in self.all:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(score)


# objects instead of closures, so that the scheduler's state can be saved


class _Constant:
    def __call__(self, step: int) -> float:
        return 1.0


class _Cosine:
    def __init__(self, period: float) -> None:
        self.period = period

    def __call__(self, step: int) -> float:
        return (1 + math.cos(math.pi * step / self.period)) / 2


class _Staircase:
    def __init__(self, every: float, factor: float) -> None:
        self.every = every
        self.factor = factor

    def __call__(self, step: int) -> float:
        return float(self.factor ** (step // self.every))


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} of a schedule must be above 0, not {value!r}")
    return value
