"""Learning-rate schedules: made from a config string, and stepped when they are due."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from mtlkit.config.spec import parse_spec
from mtlkit.errors import ConfigError, unknown_name
from mtlkit.training.groups import METHOD_GROUP

Curve: TypeAlias = Callable[[int], float]

_OPTIONS = {
    "constant": (),
    "cosine": ("period", "on"),
    "step": ("every", "epochs", "factor", "on"),
}


def make_schedule(
    spec: str, optimizer: Optimizer, steps: int, epoch_steps: int, rotation_decay: float = 1.0
) -> LambdaLR | None:
    """The scheduler of a config string, stepped after every step; None if no rate ever changes.

    ``cosine`` goes down to zero at the end; ``cosine(period=200)`` goes down and up again within 400
    steps. ``step(every=100, factor=0.5)`` halves the rate every 100 steps, with ``epochs=100`` instead
    every 100 epochs. With ``on=network`` the method's own parameters are left alone.

    Args:
        spec: the string.
        optimizer: whose rates change.
        steps: of the whole run.
        epoch_steps: of an epoch.
        rotation_decay: factor of the method's own rate at every step, besides the schedule. It is part
            of this scheduler because PyTorch's ``LambdaLR`` overwrites what others did to a rate.
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
    curve = _curve(spec, name, options, steps, epoch_steps)
    if name == "constant" and rotation_decay == 1:
        return None

    # PyTorch does not save functions, so a run that is resumed with more steps follows the longer curve
    def own(step: int) -> float:
        return (curve(step) if reach == "all" else 1.0) * rotation_decay**step

    names = [group.get("name") for group in optimizer.param_groups]
    return LambdaLR(optimizer, [own if name == METHOD_GROUP else curve for name in names])


def _curve(spec: str, name: str, options: dict[str, Any], steps: int, epoch_steps: int) -> Curve:
    """The factor of a rate by the number of steps taken."""
    if name == "constant":
        return lambda step: 1.0
    if name == "cosine":
        period = _positive(options.get("period", max(steps, 1)), "period")
        return lambda step: (1 + math.cos(math.pi * step / period)) / 2
    if ("every" in options) == ("epochs" in options):
        raise ConfigError(f"schedule {spec!r} needs either every=STEPS or epochs=N")
    every = (
        _positive(options["every"], "every")
        if "every" in options
        else _positive(options["epochs"], "epochs") * epoch_steps
    )
    factor = _positive(options.get("factor", 0.5), "factor")
    return lambda step: float(factor ** (step // every))


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


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} of a schedule must be above 0, not {value!r}")
    return value
