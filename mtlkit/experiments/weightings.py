"""Weighted sums that span the front of what fixed loss weights can reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mtlkit.config.search import Simplex
from mtlkit.config.spec import Part, format_spec
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.entries import Entry
from mtlkit.report.results import FRONT

_SEED = 20_221


def front_entries(config: CompareConfig, tasks: Sequence[str]) -> list[Entry]:
    """Return the weightings that ``front`` asks for, drawn on a logarithmic scale; alike for every seed.

    More of them begin with the same ones, so a comparison can be extended. They train as the tuned sum
    does where there is one, else as the sum.
    """
    alike = {entry.label: entry.settings for entry in config.entries}
    settings = alike.get("tuned sum", alike.get("sum", {}))
    random = np.random.default_rng(_SEED)
    simplex = Simplex()
    entries = []
    for index in range(config.front):
        low, high = np.log([simplex.axis.low, simplex.axis.high])
        numbers = np.exp(random.uniform(low, high, len(tasks))).tolist()
        weights = dict(zip(tasks, simplex.weights(numbers), strict=True))
        method = format_spec([Part("constant", {"weights": weights})])
        if config.normalize:
            method = f"normalize+{method}"
        entries.append(Entry(f"front {index + 1}", method, None, settings, FRONT))
    return entries
