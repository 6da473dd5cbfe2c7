"""Optimizers and learning-rate schedules from config strings, and the parameter group of the method.

The rotations are the slow learner of the RotoGrad paper's appendix B: a group with half the rate.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiplicativeLR, ReduceLROnPlateau

from mtlkit.config.annotations import Ge, Gt, explain, fits
from mtlkit.config.launching import warn_first
from mtlkit.config.spec import parse_spec
from mtlkit.errors import ConfigError, SpecError, unknown_name
from mtlkit.method.method import Method

METHOD_GROUP = "method"

PAPER_DECAY, PAPER_STEPS = 0.9999, 17_600
"""The paper's decay on multi-MNIST, and the steps of that run: 300 epochs with batches of 1024."""

Curve: TypeAlias = Callable[[int], float]

_OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type)
    and issubclass(kind, Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")  # LBFGS needs a closure
}
_Positive: TypeAlias = Annotated[float, Gt(0)]
_Reach: TypeAlias = Literal["all", "network"]
_SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "cosine": {"period": _Positive, "on": _Reach},
    "linear": {"on": _Reach},
    "plateau": {
        "factor": _Positive,
        "patience": Annotated[int, Ge(0)],
        "min_lr": Annotated[float, Ge(0)],
    },
    "step": {"every": _Positive, "epochs": _Positive, "factor": _Positive, "on": _Reach},
}
"""Types and ranges of the options of each schedule."""


class ParamGroups(list[dict[str, Any]]):
    """Parameter groups for any torch optimizer; ``repr`` shows sizes and learning rates."""

    def __repr__(self) -> str:
        return f"ParamGroups({describe_groups(self)})"


def describe_groups(groups: Iterable[dict[str, Any]]) -> str:
    """Describe the number of parameters and the learning rate of every group."""
    groups = list(groups)
    first = float(groups[0]["lr"]) if groups else 0.0
    texts = []
    for index, group in enumerate(groups):
        rate = float(group["lr"])
        size = sum(parameter.numel() for parameter in group["params"])
        text = f"{group.get('name', index)}: {size:,} parameters, lr {rate:g}"
        if index and first and rate != first:
            ratio = rate / first
            text += f", {'half' if ratio == 0.5 else f'{ratio:g} times'} the network's"
        texts.append(text)
    return "; ".join(texts)


def param_groups(
    model: nn.Module | Iterable[nn.Module],
    *,
    lr: float,
    method_lr: float | None = None,
    method_options: dict[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return optimizer groups, with the method's parameters in a group at half the learning rate.

    Args:
        model: the network with its method, or several modules (backbone, heads, method).
        lr: learning rate of the network.
        method_lr: learning rate of rotations or learned weights; by default half of ``lr``, which the
            RotoGrad paper found best.
        method_options: further options of the method's group, such as ``betas``.
        options: further options of the network's group, such as ``weight_decay``.

    Returns:
        A list for any torch optimizer; the method's group is named ``"method"``, and is omitted if the
        method has no parameters.

    >>> import torch, mtlkit
    >>> network = torch.nn.Linear(3, 4)
    >>> method = mtlkit.create_method("rotograd", tasks=2, feature_dim=4)
    >>> groups = mtlkit.param_groups([network, method], lr=0.1)
    >>> [(group["name"], group["lr"]) for group in groups]
    [('network', 0.1), ('method', 0.05)]
    >>> "lr 0.05, half the network's" in repr(groups)
    True
    >>> optimizer = torch.optim.Adam(groups)
    """
    if isinstance(model, nn.Module) or not isinstance(model, Iterable):
        model = [model]
    modules: list[Any] = list(model)
    for module in modules:
        if not isinstance(module, nn.Module):
            raise SpecError(f"param_groups takes a module or a list of modules, not {module!r}")
    for name, rate in (("lr", lr), ("method_lr", method_lr)):
        if rate is not None and not isinstance(rate, float | int | Tensor):
            raise SpecError(f"{name} must be a number, not {rate!r}")
    methods = [m for root in modules for m in root.modules() if isinstance(m, Method)]
    owned = list({id(p): p for method in methods for p in method.parameters()}.values())
    apart = {id(parameter) for parameter in owned}
    network = {id(p): p for root in modules for p in root.parameters() if id(p) not in apart}
    method_lr = lr / 2 if method_lr is None else method_lr
    groups = ParamGroups()
    if network:
        groups.append({"params": list(network.values()), "lr": lr, "name": "network", **options})
    if owned:
        groups.append(
            {"params": owned, "lr": method_lr, "name": METHOD_GROUP, "weight_decay": 0.0}
            | (method_options or {})
        )
        _warn_if_fast(method_lr, lr, methods)
    return groups


def rotation_schedule(optimizer: Optimizer, decay: float = 0.9999) -> MultiplicativeLR:
    """Return a scheduler that multiplies the method's learning rate by ``decay`` at every ``step()``.

    The network's rate is unchanged, so the rotations decay faster than the network, which is the
    condition for convergence (proposition B.1). It can be combined with schedulers that multiply the
    current rate (``StepLR``, ``ExponentialLR``, ``CosineAnnealingLR``). ``LambdaLR`` and ``OneCycleLR``
    overwrite the rate: give them the factor ``decay**step`` for the method's group instead.

    >>> import torch, mtlkit
    >>> method = mtlkit.create_method("rotograd", tasks=2, feature_dim=4)
    >>> groups = mtlkit.param_groups([torch.nn.Linear(3, 4), method], lr=0.2)
    >>> optimizer = torch.optim.SGD(groups)
    >>> schedule = mtlkit.rotation_schedule(optimizer, decay=0.9)
    >>> optimizer.step()
    >>> schedule.step()
    >>> [round(rate, 3) for rate in schedule.get_last_lr()]
    [0.2, 0.09]
    """
    if not 0 < decay <= 1:
        raise SpecError(f"decay must be above 0 and at most 1, not {decay}")
    names = [group.get("name") for group in optimizer.param_groups]
    if METHOD_GROUP not in names:
        raise SpecError(
            "the optimizer has no group named 'method'; make it with mtlkit.param_groups(model, lr=...)"
        )
    rates = {name: group["lr"] for name, group in zip(names, optimizer.param_groups, strict=True)}
    others = [rate for name, rate in rates.items() if name != METHOD_GROUP]
    if others:
        _warn_if_fast(rates[METHOD_GROUP], max(others), [])
    # PyTorch saves the state of schedulers without functions
    factors: dict[bool, Curve] = {True: lambda epoch: decay, False: lambda epoch: 1.0}
    return MultiplicativeLR(optimizer, lr_lambda=[factors[name == METHOD_GROUP] for name in names])


def paper_decay(steps: int) -> float:
    """Return the decay per step that ends at 17% of the initial rate, as in the paper."""
    return float(PAPER_DECAY ** (PAPER_STEPS / max(steps, 1)))


_warned = False


def _warn_if_fast(method_lr: float, lr: float, methods: list[Method]) -> None:
    """Warn once if the rotations are the fast learner."""
    global _warned
    rotates = not methods or any(method.forking is not None for method in methods)
    if rotates and method_lr > lr and not _warned:
        _warned = True
        warn_first(
            f"the rotations' learning rate ({method_lr:g}) is above the network's ({lr:g}); RotoGrad "
            "converges if the rotations are the slow learner (appendix B of the paper): use about half "
            "of the network's rate, and decay it with mtlkit.rotation_schedule",
            stacklevel=3,
        )


def build_optimizer(
    spec: str, groups: Sequence[dict[str, Any]], method_spec: str | None = None
) -> Optimizer:
    """Create a torch optimizer by name, such as ``"sgd(momentum=0.9)"``.

    ``method_spec`` is the optimizer of the method's group, if it is different.
    """
    own = [group for group in groups if group.get("name") == METHOD_GROUP]
    if method_spec is not None:
        _read_spec("optimizer", method_spec, _options)  # check it even if there are no parameters
    if method_spec is None or method_spec == spec or not own:
        return _make(spec, groups)
    others = [group for group in groups if group.get("name") != METHOD_GROUP]
    return CombinedOptimizer([_make(spec, others), _make(method_spec, own)])


def _options(name: str) -> tuple[str, ...] | None:
    """Return the options of an optimizer, without those that are separate settings."""
    if name not in _OPTIMIZERS:
        return None
    known = inspect.signature(_OPTIMIZERS[name]).parameters
    return tuple(option for option in known if option not in ("params", "lr", "weight_decay"))


def _read_spec(
    kind: str, spec: str, options_of: Callable[[str], Collection[str] | None]
) -> tuple[str, dict[str, Any]]:
    """Return name and options of a config string with one part."""
    parts = parse_spec(spec)
    name, options = parts[0].name, dict(parts[0].options)
    known = options_of(name)
    if len(parts) > 1 or known is None:
        raise unknown_name(kind, spec, _OPTIMIZERS if kind == "optimizer" else _SCHEDULES)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    return name, options


def _make(spec: str, groups: Sequence[dict[str, Any]]) -> Optimizer:
    name, options = _read_spec("optimizer", spec, _options)
    try:
        return _OPTIMIZERS[name](list(groups), **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {spec!r}: {error}") from None


class CombinedOptimizer(Optimizer):
    """Combines several optimizers, with all their parameter groups."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._gather()

    def _gather(self) -> None:
        # the same objects, so that schedulers change the parts
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of each."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its state."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._gather()


def make_schedule(
    spec: str, optimizer: Optimizer, steps: int, epoch_steps: int, rotation_decay: float = 1.0
) -> LRScheduler | None:
    """Return the scheduler of a config string, to be called after every step; None for constant rates.

    ``cosine`` and ``linear`` decay to zero at the end; ``cosine(period=200)`` falls and rises again
    within 400 steps. ``step(every=100, factor=0.5)`` halves the rate every 100 steps,
    ``step(epochs=100)`` every 100 epochs. ``plateau(factor=0.7, patience=5, min_lr=1e-5)`` multiplies
    the rates by the factor after more than five validations without a better score. With
    ``on=network``, the method's rate is unchanged.

    ``rotation_decay`` is an additional factor of the method's rate at every step. It is part of this
    scheduler because PyTorch's ``LambdaLR`` overwrites the changes of others.
    """
    name, options = _read_spec("schedule", spec, _SCHEDULES.get)
    for option, value in options.items():
        kind = _SCHEDULES[name][option]
        if not fits(value, kind):
            raise ConfigError(
                f"{option} of schedule {name} must be {explain(value, kind)}, not {value!r}"
            )
    if name == "plateau":
        if rotation_decay != 1:
            raise ConfigError(
                "schedule plateau cannot be combined with rotation_decay: it changes all rates equally"
            )
        try:
            return ReduceLROnPlateau(optimizer, mode="max", threshold=0.0, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"schedule {spec!r}: {error}") from None
    reach = options.pop("on", "all")
    curve = _curve(spec, name, options, max(steps, 1), epoch_steps)
    if name == "constant" and rotation_decay == 1:
        return None

    # PyTorch does not save functions, so a run resumed with more steps follows the longer curve
    def own(step: int) -> float:
        return (curve(step) if reach == "all" else 1.0) * rotation_decay**step

    names = [group.get("name") for group in optimizer.param_groups]
    return LambdaLR(optimizer, [own if name == METHOD_GROUP else curve for name in names])


def _curve(spec: str, name: str, options: dict[str, Any], steps: int, epoch_steps: int) -> Curve:
    """Return the factor of a rate as a function of the step."""
    if name == "constant":
        return lambda step: 1.0
    if name == "cosine":
        period = options.get("period", steps)
        return lambda step: (1 + math.cos(math.pi * step / period)) / 2
    if name == "linear":
        return lambda step: max(0.0, 1 - step / steps)
    if ("every" in options) == ("epochs" in options):
        raise ConfigError(f"schedule {spec!r} needs either every=STEPS or epochs=N")
    every = options["every"] if "every" in options else options["epochs"] * epoch_steps
    factor = options.get("factor", 0.5)
    return lambda step: float(factor ** (step // every))


class Schedulers:
    """The schedulers of a run, stepped after every ``"step"`` or ``"epoch"``.

    ``ReduceLROnPlateau`` is stepped after every validation instead.
    """

    def __init__(self, given: Any, every: Literal["step", "epoch"]) -> None:
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
