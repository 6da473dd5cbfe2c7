"""How the next trial is drawn: Optuna's samplers, seeded anew for every trial.

The seed depends on the trial's index alone, not on the process that draws it. So a search that was
killed resumes as if it had not been, and the methods' first trials have the same learning rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np

from mtlkit.config.search import Choice, LogUniform
from mtlkit.errors import MissingExtraError
from mtlkit.experiments.tuning.spaces import Axis, MethodSpace

try:
    import optuna
except ImportError:
    raise MissingExtraError("optuna", "tune", "mtlkit tune") from None
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

SAMPLERS = ("tpe", "random", "grid")
GRID_POINTS = 5
"""Points of a range in a grid."""


def distributions(space: MethodSpace) -> dict[str, BaseDistribution]:
    """Return the space as Optuna wants it."""
    return {name: _distribution(axis) for name, axis in space.axes.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    if isinstance(axis, Choice):
        return CategoricalDistribution(axis.values)
    return FloatDistribution(axis.low, axis.high, log=isinstance(axis, LogUniform))


def grid_of(space: MethodSpace) -> list[dict[str, Any]]:
    """Return all points of the grid, the first axis slowest.

    Loss weights have none, and are drawn: a few points for each task make thousands together.
    """
    gridded = {name: axis for name, axis in space.axes.items() if not space.is_weight(name)}
    values = [axis.grid(GRID_POINTS) for axis in gridded.values()]
    return [dict(zip(gridded, row, strict=True)) for row in itertools.product(*values)]


def sampler_for(kind: str, space: MethodSpace, index: int, seed: int, trials: int) -> BaseSampler:
    """Return the sampler of one trial.

    The first trial of ``tpe`` and ``random`` is the point that the configuration and the methods'
    defaults give. A grid is visited in an order that is drawn once.
    """
    drawn = crc32(f"{seed}/{index}".encode())
    if kind == "grid":
        points = grid_of(space)
        order = np.random.default_rng(seed).permutation(
            len(points)
        )  # a part of the grid is spread over it
        return _Point(points[order[index % len(points)]], drawn)
    if index == 0:
        return _Point(space.defaults, drawn)
    if kind == "random":
        return RandomSampler(seed=drawn)
    return TPESampler(seed=drawn, n_startup_trials=max(3, min(10, trials // 3)))


class _Point(BaseSampler):
    """A given point; values that are missing or outside of the space are drawn at random."""

    def __init__(self, values: Mapping[str, Any], seed: int) -> None:
        self.values = values
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        value = self.values.get(param_name)
        if _contains(param_distribution, value):
            return value
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution)
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high


optuna.logging.set_verbosity(optuna.logging.WARNING)
