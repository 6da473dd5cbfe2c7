"""What each rule looks for: the sentence with the figures that show it, or None."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlkit.diagnosis.figures import Figures, Pair

NORM_RATIO = 10.0
NORM_DRIFT = 5.0
LASTING_SHARE, LASTING_COSINE = 0.6, -0.05
COST = -0.25
CHANCE_COSINE, CHANCE_SHARE = 0.05, (0.35, 0.65)
GROUP_GAP = 0.2
HELP = 0.25
FEW_LABELS = 0.1
LOSS_RISE, STANDARD_ERRORS = 0.02, 3.0
DEAD_SHARE = 0.1
ENOUGH_STEPS = 20
"""Fewer steps do not tell a trend from chance."""
_MOST_NAMED = 3


def not_finite(f: Figures) -> str | None:
    """Steps that were left out."""
    count = f.measured.not_finite
    return f"{count} of {f.steps} steps had a loss or gradient that is not finite" if count else None


def without_labels(f: Figures) -> str | None:
    """Tasks without any label."""
    tasks = [k for k, count in enumerate(f.labeled_samples) if count == 0]
    return f"no label in {f.steps} batches: {_names(f, tasks)}" if tasks else None


def unreached(f: Figures) -> str | None:
    """Tasks whose loss does not depend on what is shared."""
    if not f.unreached:
        return None
    return f"gradient 0 at the shared {f.wrt} in all {f.steps} steps: {_names(f, f.unreached)}"


def single_batches(f: Figures) -> str | None:
    """Batches of one task each."""
    if len(f.tasks) < 2 or f.measured.most_together > 1:
        return None
    return f"each of the {f.steps} batches has labels of one task at most, so no pair was measured"


def different_samples(f: Figures) -> str | None:
    """Pairs that share no sample, though they share batches."""
    if not f.apart or f.measured.most_together < 2:
        return None
    return f"0 samples are labeled for both of {_some(_pair(f, p) for p in f.apart)}"


def no_fork(f: Figures) -> str | None:
    """A model without a fork."""
    return None if f.measured.forked else f"the model forked no features in {f.steps} steps"


def few_labels(f: Figures) -> str | None:
    """Tasks with far fewer labels than the others."""
    counts = np.array(f.labeled_samples)
    few = [k for k, n in enumerate(counts) if 0 < n < FEW_LABELS * counts.max()]
    if not few:
        return None
    listed = _named(f, few, "{:.0f}", counts)
    return f"labeled samples: {listed}, against {counts.max()} of {f.tasks[int(counts.argmax())]}"


def different_norms(f: Figures) -> str | None:
    """Gradients of different size."""
    if f.norm_ratio < NORM_RATIO:
        return None
    norms = np.where(f.typical_norms > 0, f.typical_norms, np.nan)
    ends = [int(np.nanargmax(norms)), int(np.nanargmin(norms))]
    listed = _named(f, ends, "{:.3g}", norms)
    text = f"gradient norms differ {times(f.norm_ratio)} ({listed}), losses {times(f.loss_ratio)}"
    worst = ends[1]
    if f.effect[worst] < -1:
        text += f"; to first order the others raise the loss of {f.tasks[worst]}"
        text += f" {times(-f.effect[worst])} as fast as it lowers it"
    return text


def drifting_norms(f: Figures) -> str | None:
    """A ratio of norms that changes."""
    if f.norm_drift is None or f.steps < ENOUGH_STEPS:
        return None
    (i, j), first, last = f.norm_drift
    if max(first / last, last / first) < NORM_DRIFT:
        return None
    which = f"the gradient norm of {f.tasks[i]} is {times(first)} that of {f.tasks[j]} at first"
    return f"{which} and {times(last)} at last"


def rising_losses(f: Figures) -> str | None:
    """Losses that training does not lower."""
    first, last = f.loss_change.T
    rises = last - first > LOSS_RISE * np.abs(first)
    tasks = np.flatnonzero(rises & (f.loss_rise > STANDARD_ERRORS))
    if not len(tasks) or f.steps < ENOUGH_STEPS:
        return None
    return "losses rise: " + _some(f"{f.tasks[k]} from {first[k]:.3g} to {last[k]:.3g}" for k in tasks)


def lasting_conflicts(f: Figures) -> str | None:
    """Pairs that conflict in most steps."""
    pairs = [
        (i, j)
        for i, j in f.pairs
        if f.conflict_share[i, j] >= LASTING_SHARE and f.cosine[i, j] <= LASTING_COSINE
    ]
    if not pairs or f.steps < ENOUGH_STEPS:
        return None
    pairs.sort(key=lambda p: f.cosine[p])
    return "lasting conflicts: " + _some(
        f"{_pair(f, p)} in {f.conflict_share[p]:.0%} of the steps, mean cosine {f.cosine[p]:+.2f}, "
        f"{share(f.persistence[p])} followed by another"
        for p in pairs
    )


def costly_others(f: Figures) -> str | None:
    """Tasks that the others hinder, by direction and not by size alone."""
    cost = np.maximum(f.effect, f.effect_at_equal_norms)
    tasks = [k for k in np.argsort(cost) if cost[k] <= COST]
    if not tasks:
        return None
    return "the other tasks take back " + _some(
        f"{share(-f.effect[k])} of the decrease that {f.tasks[k]} brings its own loss "
        f"({share(-f.effect_at_equal_norms[k])} at equal norms)"
        for k in tasks
    )


def task_groups(f: Figures) -> str | None:
    """Groups of tasks that agree among themselves."""
    within, between = f.agreement_within_and_between
    if not 1 < len(f.groups) < len(f.tasks) or not within - between >= GROUP_GAP:
        return None
    groups = "; ".join(", ".join(f.tasks[k] for k in group) for group in f.groups)
    return f"groups of tasks: {groups} (mean agreement {within:+.2f} within, {between:+.2f} between)"


def dead_features(f: Figures) -> str | None:
    """Features that never change."""
    if f.dead_share < DEAD_SHARE:
        return None
    dead, count = f.measured.dead_features, f.measured.features
    return f"{dead} of {count} shared features ({f.dead_share:.0%}) are the same for every sample"


def chance_conflicts(f: Figures) -> str | None:
    """Conflicts that are chance."""
    pairs = [
        p
        for p in f.pairs
        if abs(f.cosine[p]) < CHANCE_COSINE and CHANCE_SHARE[0] <= f.conflict_share[p] <= CHANCE_SHARE[1]
    ]
    if not pairs:
        return None
    return "conflicts by chance: " + _some(
        f"{_pair(f, p)} in {f.conflict_share[p]:.0%} of the steps, mean cosine {f.cosine[p]:+.2f}"
        for p in pairs
    )


def helpful_pairs(f: Figures) -> str | None:
    """Pairs of which one brings the other much."""
    drawn = [(i, j) for p in f.pairs for i, j in (p, p[::-1]) if f.affinity[i, j] >= HELP]
    helped = [p for p in drawn if f.cosine[p] >= HELP]
    if not helped:
        return None
    helped.sort(key=lambda p: -f.affinity[p])
    return "tasks help each other: " + _some(
        f"{f.tasks[j]} brings {f.tasks[i]} {share(f.affinity[i, j])} of its own decrease"
        for i, j in helped
    )


def nothing(f: Figures) -> str:
    """The figures that call for nothing."""
    text = f"nothing to repair: gradient norms differ {times(f.norm_ratio)}"
    known = [p for p in f.pairs if math.isfinite(f.cosine[p])]
    if known:
        lowest = min(known, key=lambda p: f.cosine[p])
        text += f", the lowest mean cosine is {f.cosine[lowest]:+.2f} ({_pair(f, lowest)})"
    if f.measured.features:
        text += f", {f.dead_share:.0%} of the features are dead"
    if f.steps < ENOUGH_STEPS:
        text += f"; {f.steps} steps are too few to find lasting conflicts or trends"
    return text


def _names(f: Figures, tasks: Iterable[int]) -> str:
    return _some(f.tasks[k] for k in tasks)


def _pair(f: Figures, pair: Pair) -> str:
    return f"{f.tasks[pair[0]]} and {f.tasks[pair[1]]}"


def _named(f: Figures, tasks: Iterable[int], form: str, values: NDArray[Any]) -> str:
    return _some(f"{f.tasks[k]} {form.format(values[k])}" for k in tasks)


def _some(pieces: Iterable[str]) -> str:
    """The first few pieces, and how many there are besides."""
    listed = list(pieces)
    rest = len(listed) - _MOST_NAMED
    return "; ".join(listed[:_MOST_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def times(factor: float) -> str:
    """A factor with as many digits as matter."""
    return f"{factor:,.0f} x" if factor >= 100 else f"{factor:.2g} x"


def share(part: float, sign: str = "") -> str:
    """A share in percent, or as a factor where it is large; ``sign`` is ``+`` to show it always."""
    if not math.isfinite(part):
        return "-"
    if abs(part) >= 10:
        return f"{part:{sign},.0f} x"
    return f"{round(part, 2) + 0.0:{sign}.0%}"  # no minus zero
