"""Search spaces of ``mtlkit tune``: the ranges and choices that a method declares for its options.

A method lists the options that are worth tuning::

    class CAGrad(GradientAggregator):
        search_space: ClassVar = {"c": Uniform(0.1, 1.0)}

A configuration writes the same as ``uniform(0.1, 1)``, ``log(1e-4, 1e-2)`` or ``[0, 1e-4]``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mtlkit.config.annotations import read_number
from mtlkit.config.spec import parse_call
from mtlkit.errors import ConfigError, SpecError

LR_RATIO = "lr_ratio"
"""Key in ``search_space``: the learning rate of the method's parameters divided by the network's."""


@dataclass(frozen=True)
class Uniform:
    """A range with a uniform distribution.

    >>> Uniform(0, 1).grid(3)
    [0.0, 0.5, 1.0]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise SpecError(f"a range needs two finite numbers, the smaller one first, not {self}")

    def grid(self, points: int) -> list[Any]:
        """Return evenly spaced values, including both ends."""
        return [_short(value) for value in np.linspace(self.low, self.high, points)]

    def __str__(self) -> str:
        return f"uniform({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A range with a uniform distribution of the logarithm.

    >>> LogUniform(0.001, 0.1).grid(3)
    [0.001, 0.01, 0.1]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise SpecError(f"a logarithmic range needs numbers above 0, not {self}")

    def grid(self, points: int) -> list[Any]:
        """Return values with evenly spaced logarithms, including both ends."""
        return [_short(value) for value in np.geomspace(self.low, self.high, points)]

    def __str__(self) -> str:
        return f"log({self.low:g}, {self.high:g})"


@dataclass(frozen=True, init=False)
class Choice:
    """One of a few values: numbers, strings, True, False or None.

    >>> str(Choice("min", "median"))
    '[min, median]'
    """

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        if not values or not all(isinstance(v, str | int | float | type(None)) for v in values):
            raise SpecError(f"a choice needs one or more numbers or strings, not {list(values)!r}")
        object.__setattr__(self, "values", values)

    def grid(self, points: int) -> list[Any]:
        """Return all values, whatever the number of points."""
        return list(self.values)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.values))}]"


@dataclass(frozen=True, init=False)
class FeatureShare:
    """A size that is a fraction of the number of shared features, such as how many are rotated.

    Args:
        shares: fractions from 0 to 1.
        most: fractions that give a larger size are left out.

    >>> FeatureShare(0.5, 1.0).sizes(512)  # None is all of them
    Choice(values=(256, None))
    """

    shares: tuple[float, ...]
    most: int

    def __init__(self, *shares: float, most: int = 1500) -> None:
        if not shares or not all(0 < share <= 1 for share in shares):
            raise SpecError(
                f"fractions of the features must be above 0 and at most 1, not {list(shares)}"
            )
        object.__setattr__(self, "shares", shares)
        object.__setattr__(self, "most", most)

    def sizes(self, features: int) -> Choice:
        """Return the sizes for a network with this many features; None stands for all of them."""
        found = [max(1, round(share * features)) for share in self.shares]
        allowed = [size for size in dict.fromkeys(found) if size <= self.most] or [self.most]
        return Choice(*(None if size == features else size for size in allowed))

    def __str__(self) -> str:
        return f"share({', '.join(f'{share:g}' for share in self.shares)})"


@dataclass(frozen=True)
class Simplex:
    """Positive task weights that sum to the number of tasks.

    The numbers behind them are drawn on a logarithmic scale, so that losses whose scales differ by a
    factor of 10^4 can be balanced. Equal weights are 1 each, which is the plain sum.

    >>> Simplex().weights([1.0, 1.0]), Simplex().weights([0.01, 100.0])
    ([1.0, 1.0], [0.0002, 2.0])
    """

    axis = LogUniform(0.01, 100.0)
    """Range of the numbers, one per task, that the weights are computed from."""

    def weights(self, numbers: Sequence[float]) -> list[float]:
        """Divide the numbers by their mean."""
        mean = sum(numbers) / len(numbers)
        return [_short(number / mean) for number in numbers]

    def __str__(self) -> str:
        return "simplex"


Search: TypeAlias = Uniform | Choice | FeatureShare | Simplex


def parse_search(given: Any, source: str) -> Search:
    """Read ``log(1e-4, 1e-2)``, ``uniform(0, 1)``, ``share(0.25, 0.5, 1)`` or a list of values.

    >>> parse_search("log(1e-4, 1e-2)", "lr")
    LogUniform(low=0.0001, high=0.01)

    Raises:
        ConfigError: for anything else; ``source`` is part of the message.
    """
    if isinstance(given, Uniform | Choice | FeatureShare | Simplex):
        return given
    try:
        if isinstance(given, list | tuple):
            return Choice(*map(read_number, given))
        if isinstance(given, str):
            call = parse_call(given)
            kind: Any = {"log": LogUniform, "uniform": Uniform, "share": FeatureShare}.get(call.name)
            if kind is not None and not call.options:
                return kind(*map(read_number, call.arguments))  # type: ignore[no-any-return]
    except (SpecError, TypeError) as error:
        reason = f": {error}" if isinstance(error, SpecError) else ""
        raise ConfigError(f"{source}: cannot search in {given!r}{reason}; {_ACCEPTED}") from None
    raise ConfigError(f"{source}: cannot search in {given!r}; {_ACCEPTED}")


_ACCEPTED = "give log(1e-4, 1e-2), uniform(0, 1), or a list of values such as [0, 1e-4]"


def _short(value: float) -> float:
    """Round to four digits: enough for a setting, and readable."""
    return float(f"{value:.4g}")
