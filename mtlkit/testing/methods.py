"""Check the laws on any method."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from mtlkit.config.spec import SpecLike
from mtlkit.errors import SpecError, unknown_name
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.method import Method
from mtlkit.testing import merge_laws, step_laws
from mtlkit.testing.cases import MethodCase
from mtlkit.testing.processes import distributed as distributed_law

_CHECKS: dict[str, Callable[[MethodCase], None]] = {
    name: check
    for module in (merge_laws, step_laws)
    for name, check in vars(module).items()
    if getattr(check, "__module__", "") == module.__name__ and not name.startswith("_")
} | {"distributed": distributed_law}

LAWS: Mapping[str, str] = {name: check.__doc__ or "" for name, check in _CHECKS.items()}
"""The laws by name, with one sentence each."""


def check_method(
    method: SpecLike | type[GradientAggregator],
    *,
    laws: Iterable[str] | None = None,
    tasks: int = 3,
    seed: int = 0,
    examples: int = 20,
    distributed: bool = False,
    compiled: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> None:
    """Check the laws of a method, except those in its ``waived_laws``.

    Args:
        method: a registered name, a config string, or a class, registered or not.
        laws: names from :data:`LAWS`; by default all but the slow ``distributed`` and ``compiled``.
        tasks: number of tasks, two or more.
        seed: seed of gradients, networks and batches.
        examples: number of random gradient matrices per law.
        distributed: also check two processes, which takes seconds; a class must then be importable.
        compiled: also check ``torch.compile`` with its default back end and with ``aot_eager``.
        device: device of gradients and networks.
        dtype: data type of gradients and networks, ``float64`` or ``float32``.
        options: options of the method; put one that is named like an argument above into the config
            string.

    Raises:
        AssertionError: if a law does not hold; the message begins with the law's name.
        SpecError: for an unknown method, option or law, in ``waived_laws`` too.

    >>> from mtlkit.testing import check_method
    >>> check_method("cagrad", c=0.5, laws=["permutation", "zero_rows"], examples=4)
    """
    if isinstance(method, Method | GradientAggregator):
        raise SpecError(f"pass the name or the class of the method, not an instance: {str(method)!r}")
    if isinstance(method, type) and not issubclass(method, GradientAggregator):
        raise SpecError(f"{method.__name__} is not a method: a method is a GradientAggregator")
    if tasks < 2 or examples < 1:
        raise SpecError(f"pass at least two tasks and one example, not {tasks} and {examples}")
    if dtype not in (torch.float32, torch.float64):
        raise SpecError(f"dtype must be torch.float32 or torch.float64, not {dtype}")
    place = torch.device(device)
    case = MethodCase(method, options, tasks, seed, examples, place, dtype)
    waived = _waived(case.create())
    slow = {"distributed": distributed, "compiled": compiled}
    chosen = [law for law in LAWS if slow.get(law, True)] if laws is None else list(laws)
    shown = method.__name__ if isinstance(method, type) else method
    for law in chosen:
        _require_known(law)
    with torch.random.fork_rng(devices=[] if place.type == "cpu" else [place]):
        for law in chosen:
            if law in waived:
                continue
            torch.manual_seed(seed)
            try:
                _CHECKS[law](case)
            except Exception as error:
                kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
                raise AssertionError(
                    f"{law}: {shown} with {tasks} tasks, seed {seed}: {kind}{error} [law: {LAWS[law]}]"
                ) from error


def _waived(method: Method) -> set[str]:
    """Return the laws that some part waives, each with a reason."""
    waived: set[str] = set()
    parts: list[Any] = [*method.parts]
    for part in parts:
        for law, reason in part.waived_laws.items():
            _require_known(law)
            if not reason.strip():
                raise SpecError(f"{part.name} waives the law {law!r} without a reason; add one")
            waived.add(law)
    return waived


def _require_known(law: str) -> None:
    if law not in LAWS:
        raise unknown_name("law", law, LAWS)
