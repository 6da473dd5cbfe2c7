"""Optimizer groups and the rotations' own schedule: the slow learner of the paper's appendix B."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiplicativeLR

from mtlkit.config.launching import warn_first
from mtlkit.errors import SpecError
from mtlkit.method.aggregator import GradientAggregator

METHOD_GROUP = "method"

PAPER_DECAY, PAPER_STEPS = 0.9999, 17_600
"""The rotations' decay on multi-MNIST, and the steps of that run: 300 epochs of batches of 1024."""


def param_groups(
    model: nn.Module | Iterable[nn.Module],
    *,
    lr: float,
    method_lr: float | None = None,
    method_options: dict[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Optimizer groups with the method's own parameters apart.

    Args:
        model: the network with its method, or several modules (backbone, heads, method).
        lr: the network's learning rate.
        method_lr: learning rate of rotations or learned weights; default half of ``lr``, which the
            RotoGrad paper found best.
        method_options: further options of the method's group, such as ``betas``.
        options: further options of the network's group, such as ``weight_decay``.

    Returns:
        A list for any torch optimizer; the method's group is named ``"method"``, and is left out if
        the method owns no parameters.
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
    methods = [m for root in modules for m in root.modules() if isinstance(m, GradientAggregator)]
    owned = list({id(p): p for method in methods for p in method.parameters()}.values())
    apart = {id(parameter) for parameter in owned}
    network = {id(p): p for root in modules for p in root.parameters() if id(p) not in apart}
    method_lr = lr / 2 if method_lr is None else method_lr
    groups: list[dict[str, Any]] = []
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
    """A scheduler that multiplies the method's learning rate by ``decay`` at every ``step()``.

    The network's rate is not changed. The rotations then decay faster than the network, which is the
    condition for convergence (proposition B.1). It chains with schedulers that multiply the rate they
    find (``StepLR``, ``ExponentialLR``, ``CosineAnnealingLR``). ``LambdaLR`` and ``OneCycleLR``
    overwrite it: give these the factor ``decay**step`` for the method's group instead.
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
    factors: list[Callable[[int], float]] = [
        _Factor(decay if name == METHOD_GROUP else 1.0) for name in names
    ]
    return MultiplicativeLR(optimizer, lr_lambda=factors)


def paper_decay(steps: int) -> float:
    """The decay per step that ends where the paper's run ended, at 17 % of the first rate."""
    return float(PAPER_DECAY ** (PAPER_STEPS / max(steps, 1)))


class _Factor:
    """A constant factor; an object, so that the scheduler's state can be saved."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, epoch: int) -> float:
        return self.value


_warned = False


def _warn_if_fast(method_lr: float, lr: float, methods: list[GradientAggregator]) -> None:
    """Warn once if the rotations are the fast learner."""
    global _warned
    rotates = not methods or any(method.forking is not None for method in methods)
    if rotates and method_lr > lr and not _warned:
        _warned = True
        warn_first(
            f"the rotations' learning rate ({method_lr:g}) is above the network's ({lr:g}); RotoGrad "
            "converges when the rotations are the slow learner (appendix B of the paper): take about "
            "half of the network's rate and decay it with mtlkit.rotation_schedule",
            stacklevel=3,
        )
