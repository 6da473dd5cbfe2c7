"""The rules: what each one detects, the numbers that show it, what to try, and why.

A rule is a function that returns a sentence with the numbers if the condition ``when`` holds, and None
otherwise, so there is no advice without numbers. :data:`RULES` is in the order of the findings: those
that invalidate others come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mtlkit.diagnosis.summary import ENOUGH_STEPS, Pair, Summary

Kind = Literal["repair", "note"]
Find = Callable[[Summary], str | None]

NORM_RATIO, NORM_DRIFT = 10.0, 5.0
CONFLICT_SHARE, CONFLICT_COSINE, _LEAST_COSINE = 0.6, -0.1, -0.01
CANCELED = -0.25
HELP = 0.25
FEW_LABELS = 0.1
LOSS_RISE = 0.02
STANDARD_ERRORS = 3.0
DEAD_SHARE = 0.1


@dataclass(frozen=True)
class Rule:
    """One row of the table of rules.

    Attributes:
        name: name of the rule.
        when: its condition, in words.
        find: returns the sentence with the numbers, or None if the condition does not hold.
        advice: what to try.
        why: the reason.
        kind: ``"repair"`` if something should be changed, else ``"note"``.
        at_parameters: what to try instead if only gradients of the parameters can be merged.

    >>> from mtlkit.diagnosis import RULES
    >>> {rule.name: rule.when for rule in RULES}["few labels"]
    'a task has fewer than 10% of the labels of another'
    """

    name: str
    when: str
    find: Find
    advice: str
    why: str
    kind: Kind = "repair"
    at_parameters: str = ""


@dataclass(frozen=True)
class Finding:
    """A rule whose condition holds; ``text`` is the sentence with the numbers that show it.

    >>> print(Finding("help", "note", "a and b agree", "one network", "a step for one helps both"))
    a and b agree
      try  one network
      why  a step for one helps both
    """

    rule: str
    kind: Kind
    text: str
    advice: str
    why: str

    def __str__(self) -> str:
        return f"{self.text}\n  try  {self.advice}\n  why  {self.why}"


RULES: list[Rule] = []


def _rule(name: str, **facts: Any) -> Callable[[Find], Find]:
    """Add a function to the rules."""

    def add(find: Find) -> Find:
        RULES.append(Rule(name, find=find, **facts))
        return find

    return add


def _conflicts(s: Summary, *, large: bool) -> str | None:
    """List pairs with significant conflicts in most steps, with large or with small cosines."""
    found = [
        p
        for p in s.judged
        if s.conflict_share[p] >= CONFLICT_SHARE
        and s.cosine[p] < -s.beyond_chance * np.nan_to_num(s.cosine_error[p])
        and (s.cosine[p] <= CONFLICT_COSINE) == large
        and s.cosine[p] <= _LEAST_COSINE
    ]
    pieces = (
        f"{name_pair(s, p)} in {s.conflict_share[p]:.0%} of the steps, mean cosine {s.cosine[p]:+.2f}"
        for p in sorted(found, key=lambda p: s.cosine[p])
    )
    return _some(f"{'lasting' if large else 'small'} conflicts: ", pieces, most=20)


def name_pair(s: Summary, pair: Pair) -> str:
    """Return the names of the tasks of a pair."""
    return f"{s.tasks[pair[0]]} and {s.tasks[pair[1]]}"


def _some(start: str, pieces: Iterable[str], most: int = 3) -> str | None:
    """Return ``start`` with the first pieces and the number of others; None without any."""
    listed = list(pieces)
    more = [f"and {len(listed) - most} more"] if len(listed) > most else []
    return start + "; ".join([*listed[:most], *more]) if listed else None


def _times(factor: float) -> str:
    return f"{factor:,.0f} x" if factor >= 100 else f"{factor:.2g} x"


@_rule(
    "not finite",
    when="a loss or gradient is infinite or NaN",
    advice="a lower learning rate, `max_grad_norm` or float32; check the data of those batches",
    why="these steps were skipped, so the numbers below may not be those of your run",
)
def _not_finite(s: Summary) -> str | None:
    count = s.measured.not_finite
    return f"{count} of {s.steps} steps had a loss or gradient that is not finite" if count else None


@_rule(
    "no labels",
    when="a task has no label in the whole run",
    advice="check the names of the targets and how missing labels are encoded, or remove the task",
    why="a task without labels has no loss, and its head is never trained",
)
def _no_labels(s: Summary) -> str | None:
    tasks = [task for task, count in zip(s.tasks, s.labeled_samples, strict=True) if count == 0]
    return _some(f"no label in {s.steps} batches: ", tasks)


@_rule(
    "unreached",
    when="a task with labels has no gradient where tasks share",
    advice="look for a detach() or frozen layers between the shared part and the loss, and compute its "
    "predictions from the features that method(features) returned for it",
    why="the shared layers learn nothing from it, and no method can change that",
)
def _unreached(s: Summary) -> str | None:
    tasks = (s.tasks[k] for k in s.unreached)
    return _some(f"gradient 0 at the shared {s.wrt} in all {s.steps} steps: ", tasks)


@_rule(
    "one task per batch",
    when="no batch has labels of two tasks",
    advice="batches of all tasks; for sources, `batches=all`",
    why="a method receives one gradient at a time, and has nothing to merge",
)
def _one_task_per_batch(s: Summary) -> str | None:
    if len(s.tasks) < 2 or s.measured.most_together > 1:
        return None
    return f"each of the {s.steps} batches has labels of at most one task, so no pair was measured"


@_rule(
    "different samples",
    when="no sample is labeled for both of two tasks",
    advice="methods with `wrt=parameters`, such as `cagrad(wrt=parameters)`",
    why="if no sample is labeled for both tasks, their feature gradients never overlap; gradients of "
    "the parameters do",
)
def _different_samples(s: Summary) -> str | None:
    if not s.apart or s.measured.most_together < 2:
        return None
    if len(s.apart) == len(s.pairs) > 1:
        return f"0 samples are labeled for two tasks ({len(s.tasks)} tasks, {len(s.pairs)} pairs)"
    return _some("0 samples are labeled for both of ", (name_pair(s, pair) for pair in s.apart))


@_rule(
    "no fork",
    when="the model does not call method(features)",
    advice="`wrt=parameters` with every method named here, as in `cagrad(wrt=parameters)`; `rotograd` "
    "needs method(features)",
    why="without shared features, gradients of the parameters are merged, at one backward pass per task",
    kind="note",
)
def _no_fork(s: Summary) -> str | None:
    return None if s.measured.forked else f"no call of method(features) in {s.steps} steps"


@_rule(
    "few labels",
    when=f"a task has fewer than {FEW_LABELS:.0%} of the labels of another",
    advice="sample its data more often, or use larger batches; then diagnose again",
    why="the gradient of a few labels is mostly noise, and no method can tell it from a signal",
)
def _few_labels(s: Summary) -> str | None:
    counts = np.array(s.labeled_samples)
    few = [k for k, n in enumerate(counts) if 0 < n < FEW_LABELS * counts.max()]
    listed = _some("labeled samples: ", (f"{s.tasks[k]} {counts[k]}" for k in few))
    return listed and f"{listed}, against {counts.max()} of {s.tasks[int(counts.argmax())]}"


@_rule(
    "different norms",
    when=f"gradient norms differ {NORM_RATIO:.0f} x or more",
    advice="`imtl_g`, `scale` or `normalize` before anything else; or rescale the losses",
    why="the sum follows the largest gradient: the other tasks hardly change the shared layers",
    at_parameters="`imtl_g(wrt=parameters)` or `normalize` before anything else; or rescale the losses",
)
def _different_norms(s: Summary) -> str | None:
    if s.norm_ratio < NORM_RATIO:
        return None
    norms = np.where(s.typical_norms > 0, s.typical_norms, np.nan)
    ends = [int(np.nanargmax(norms)), int(np.nanargmin(norms))]
    listed = "; ".join(f"{s.tasks[k]} {norms[k]:.3g}" for k in ends)
    return f"gradient norms differ {_times(s.norm_ratio)} ({listed}), losses {_times(s.loss_ratio)}"


@_rule(
    "drifting norms",
    when=f"the ratio of two gradient norms changes {NORM_DRIFT:.0f} x during the run",
    advice="a method that balances the gradients in every step, `imtl_g` or `scale`, not fixed weights",
    why="weights that fit the beginning do not fit the end",
    at_parameters="a method that balances the gradients in every step, `imtl_g(wrt=parameters)`, "
    "not fixed weights",
)
def _drifting_norms(s: Summary) -> str | None:
    if s.norm_drift is None or s.steps < ENOUGH_STEPS:
        return None
    (i, j), first, last = s.norm_drift
    if max(first / last, last / first) < NORM_DRIFT:
        return None
    ratio = f"the gradient norm of {s.tasks[i]} changes from {_times(first)} to {_times(last)}"
    return f"{ratio} that of {s.tasks[j]}"


@_rule(
    "rising losses",
    when=f"a loss ends more than {LOSS_RISE:.0%} above its start, beyond chance",
    advice="first a lower learning rate; then the task alone, to see whether it can be learned",
    why="every task must be able to improve on its own before a method can be judged",
)
def _rising_losses(s: Summary) -> str | None:
    first, last = s.loss_change.T
    rises = last - first > LOSS_RISE * np.abs(first)
    tasks = np.flatnonzero(rises & (s.loss_rise > STANDARD_ERRORS))
    if s.steps < ENOUGH_STEPS:
        return None
    return _some("losses rise: ", (f"{s.tasks[k]} from {first[k]:.3g} to {last[k]:.3g}" for k in tasks))


@_rule(
    "lasting conflicts",
    when=f"a pair conflicts in {CONFLICT_SHARE:.0%} of the steps or more, with a mean cosine of "
    f"{CONFLICT_COSINE} or less",
    advice="`cagrad`, `upgrad` or `rotograd`; or more task-specific layers: `mmoe`, `ple`, `mtan`",
    why="the tasks pull the shared layers in opposite directions, step after step",
    at_parameters="`cagrad(wrt=parameters)` or `upgrad(wrt=parameters)`; or more task-specific "
    "layers: `mmoe`, `ple`",
)
def _lasting_conflicts(s: Summary) -> str | None:
    return _conflicts(s, large=True)


@_rule(
    "canceled progress",
    when=f"at equal gradient norms, the other tasks cancel {-CANCELED:.0%} or more of a task's progress",
    advice="`nash_mtl`, `cagrad` or `upgrad`; or a larger weight for this task",
    why="to first order, a step along the sum lowers its loss that much less than its own gradient does",
    at_parameters="`nash_mtl(wrt=parameters)`, `cagrad(wrt=parameters)` or "
    "`upgrad(wrt=parameters)`; or a larger weight for this task",
)
def _canceled(s: Summary) -> str | None:
    judged = {task for pair in s.judged for task in pair}
    line = np.minimum(CANCELED, -s.beyond_chance * s.help_error)
    tasks = [k for k in np.argsort(s.help) if s.help[k] <= line[k] and k in judged]
    pieces = (f"{-s.help[k]:.0%} of the progress of {s.tasks[k]}" for k in tasks)
    return _some("at equal gradient norms, the other tasks cancel ", pieces)


@_rule(
    "groups",
    when="tasks are similar within groups, and at most half as similar between them",
    advice="compare one network per group, or branches (`ltb`, `mmoe`, `ple`), with one network for all",
    why="the tasks of a group need similar changes of the features, those of different groups do not",
)
def _groups(s: Summary) -> str | None:
    found = s.grouping
    if len(found.groups) < 2:
        return None
    groups = "; ".join(", ".join(s.tasks[k] for k in group) for group in found.groups)
    means = f"mean similarity {found.within:.2f} within, {found.between:.2f} between"
    return f"groups of tasks: {groups} ({means})"


@_rule(
    "dead features",
    when=f"{DEAD_SHARE:.0%} of the shared features or more never change",
    advice="a lower learning rate, normalization before the activation, a leaky one, a narrower layer",
    why="no task can read anything from them, and behind a ReLU no gradient revives them",
)
def _dead_features(s: Summary) -> str | None:
    if s.dead_share < DEAD_SHARE:
        return None
    dead, count = s.measured.dead_features, s.measured.features
    return f"{dead} of {count} shared features ({s.dead_share:.0%}) are the same for every sample"


@_rule(
    "small conflicts",
    when=f"a pair conflicts in {CONFLICT_SHARE:.0%} of the steps or more, with a mean cosine between "
    f"{CONFLICT_COSINE} and 0",
    advice="no method for these pairs yet: nearly orthogonal gradients hardly affect each other",
    why="a method that removes conflicts changes such gradients by a few percent",
    kind="note",
)
def _small_conflicts(s: Summary) -> str | None:
    return _conflicts(s, large=False)


@_rule(
    "conflicts by layer",
    when=f"at the parameters, a pair has a mean cosine of {CONFLICT_COSINE} or less in some layers only",
    advice="one merge per layer, as in `gradvac(wrt=parameters, groups=layer)`, or these layers once "
    "per task",
    why="one merge of all parameters mixes layers that conflict with layers that agree",
    kind="note",
)
def _layer_conflicts(s: Summary) -> str | None:
    judged = [k for k, pair in enumerate(s.pairs) if pair in s.judged]
    lowest = {name: float(np.nanmin(row[judged], initial=1.0)) for name, row in s.layers.items()}
    layers = [name for name in sorted(lowest, key=lowest.__getitem__) if lowest[name] <= CONFLICT_COSINE]
    if len(layers) == len(lowest):
        return None
    pieces = (f"{name}, lowest mean cosine {lowest[name]:+.2f}" for name in layers)
    return _some(f"conflicts in {len(layers)} of {len(lowest)} layers: ", pieces)


@_rule(
    "help",
    when=f"two tasks have a mean cosine of {HELP} or more",
    advice="keep them in one network",
    why="to first order, a step for one is a step for the other",
    kind="note",
)
def _helpful_pairs(s: Summary) -> str | None:
    pairs = sorted((p for p in s.judged if s.cosine[p] >= HELP), key=lambda p: -s.cosine[p])
    pieces = (f"{name_pair(s, p)}, mean cosine {s.cosine[p]:+.2f}" for p in pairs)
    return _some("tasks that help each other: ", pieces)


def _nothing(s: Summary) -> str:
    text = f"nothing to repair: gradient norms differ {_times(s.norm_ratio)}"
    if s.judged:
        lowest = min(s.judged, key=lambda p: s.cosine[p])
        text += f", the lowest mean cosine is {s.cosine[lowest]:+.2f} ({name_pair(s, lowest)})"
    if s.measured.features:
        text += f", {s.dead_share:.0%} of the features are dead"
    if s.steps < ENOUGH_STEPS:
        text += f"; {s.steps} steps are too few to find conflicts or trends"
    return text


NOTHING = Rule(
    "nothing",
    "none of the rules above asks for a change",
    _nothing,
    "the plain sum with tuned weights (`mtlkit tune`)",
    "none of the numbers shows a problem that a method would solve, and a tuned sum is hard to beat",
    kind="note",
)


def apply_rules(summary: Summary) -> list[Finding]:
    """Return the findings of all rules; if nothing needs a change, that is the first finding."""
    shared = len(summary.apart) < max(len(summary.pairs), 1)
    at_features = summary.measured.forked and shared
    findings = []
    for rule in RULES:
        if (text := rule.find(summary)) is not None:
            advice = rule.advice if at_features else rule.at_parameters or rule.advice
            findings.append(Finding(rule.name, rule.kind, text, advice, rule.why))
    if not any(finding.kind == "repair" for finding in findings):
        text = NOTHING.find(summary) or ""
        findings.insert(0, Finding(NOTHING.name, NOTHING.kind, text, NOTHING.advice, NOTHING.why))
    return findings


def percent(part: float) -> str:
    """Return a fraction as a signed percentage; a dash if it is unknown."""
    return f"{round(part, 2) + 0.0:+.0%}" if math.isfinite(part) else "-"
