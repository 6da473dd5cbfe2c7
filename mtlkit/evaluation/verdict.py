"""What a comparison found, in one to three sentences that are never stronger than its statistics.

Every method is tested against the reference on each task's main metric and on the mean over tasks.
"Beats" and "worse" mean significant at 0.05, two-sided, after Holm's correction over all of these tests;
"level" means that the 95 % interval of the difference lies within one percentage point. Of all else the
sentence says that the runs do not tell, and how many seeds would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mtlkit.evaluation.claims import LEVEL, Claim, compare_methods, family
from mtlkit.evaluation.figures import Column, Figures, collect_figures
from mtlkit.evaluation.results import Comparison
from mtlkit.evaluation.significance import MOST_SEEDS, Difference, seeds_needed

__all__ = ["Verdict", "judge"]

MARGIN = 1.0
"""Percentage points within which two methods are called level."""
FEW_SEEDS = 5


@dataclass(frozen=True)
class Verdict:
    """The sentences, and the labels behind them.

    Attributes:
        sentences: at most three; none where there is nothing to compare.
        winners: methods that beat the reference in the mean over tasks, or on a task.
        worse: methods that are significantly worse in the mean over tasks.
        level: methods whose difference is within the margin.
        undecided: methods of which the runs do not tell.
        pays: methods that are better than single-task networks.
    """

    sentences: tuple[str, ...] = ()
    winners: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    pays: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


@dataclass
class _Case:
    """All that the sentences are made from."""

    reference: str
    labels: list[str]
    columns: list[Column]
    overall: Column | None
    claims: Mapping[tuple[str, str], Claim]
    seeds: int
    tests: int = field(init=False)

    def __post_init__(self) -> None:
        self.tests = sum(not math.isnan(claim.p_value) for claim in self.claims.values())

    def summary(self, label: str) -> Claim | None:
        return None if self.overall is None else self.claims[label, self.overall.key]

    def tasks(self, label: str, *, won: bool) -> list[str]:
        """Tasks that a method wins, or loses."""
        return [
            column.group
            for column in self.columns
            if column is not self.overall
            and (self.claims[label, column.key].wins if won else self.claims[label, column.key].loses)
        ]


def judge(comparison: Comparison, figures: Figures | None = None) -> Verdict:
    """The verdict on a comparison, from the runs that are finished."""
    figures = collect_figures(comparison) if figures is None else figures
    reference, baseline = comparison.reference, comparison.baseline
    known = [label for label in comparison.labels if label != baseline]
    if len(comparison.labels) < 2:
        return Verdict()
    if len(comparison.seeds) < 2:
        return Verdict(
            ("One seed says nothing about chance, so there is no verdict: take five seeds or more.",)
        )
    pays = _against_single_task(figures, known, baseline)
    sentences = [pays.sentence] if pays.sentence else []
    others = [label for label in known if label != reference]
    if reference is None or reference not in known or not others:
        return Verdict(tuple(sentences), pays=tuple(pays.better))
    columns = family(figures)
    claims = compare_methods(figures, others, reference, columns)
    case = _Case(reference, others, columns, figures.overall, claims, len(comparison.seeds))
    if case.tests == 0:
        sentences.insert(
            0, f"No method has two seeds in common with {reference}: nothing is tested yet."
        )
        return Verdict(tuple(sentences), pays=tuple(pays.better))
    overall = [label for label in others if (c := case.summary(label)) is not None and c.wins]
    partly = [label for label in others if label not in overall and case.tasks(label, won=True)]
    rest = [label for label in others if label not in (*overall, *partly)]
    worse = [label for label in rest if (c := case.summary(label)) is not None and c.loses]
    level = [label for label in rest if label not in worse and _is_level(case, label)]
    undecided = [label for label in rest if label not in (*worse, *level)]
    second = _others(case, worse, level, undecided)
    return Verdict(
        tuple(filter(None, [_winners(case, overall, partly), second, *sentences])),
        (*overall, *partly),
        tuple(worse),
        tuple(level),
        tuple(undecided),
        tuple(pays.better),
    )


def _is_level(case: _Case, label: str) -> bool:
    claim = case.summary(label)
    if claim is None or case.overall is None or not case.overall.key.startswith("delta/"):
        return False
    return max(abs(claim.difference.low), abs(claim.difference.high)) <= MARGIN


def _winners(case: _Case, overall: Sequence[str], partly: Sequence[str]) -> str:
    tests = f"Holm's correction over {_plural(case.tests, 'test')}"
    if not overall and not partly:
        return f"Nothing is shown to beat {case.reference}: nothing is significant after {tests}."
    parts = []
    if overall:
        gains = [f"{_gain(case, name)} for {name}" for name in overall]
        if len(overall) == 1:
            gains = [_gain(case, overall[0])]
        elif len(overall) > 3:
            means = [_mean(case, name) for name in overall]
            gains = [f"{_points(min(means))} to {_points(max(means))}{_unit(case)}"]
        verb = "beats" if len(overall) == 1 else "beat"
        parts.append(
            f"{_join(overall)} {verb} {case.reference} in the mean over tasks by {_join(gains)}"
        )
    by_tasks: dict[tuple[str, ...], list[str]] = {}
    for label in partly:
        by_tasks.setdefault(tuple(case.tasks(label, won=True)), []).append(label)
    for tasks, labels in by_tasks.items():
        verb = "beats" if len(labels) == 1 else "beat"
        parts.append(f"{_join(labels)} {verb} {case.reference} on {_some(tasks)}")
    for label in (*overall, *partly):
        lost = case.tasks(label, won=False)
        if lost:
            parts.append(f"but {label} is worse on {_some(lost)}")
    return f"After {tests}, {'; '.join(parts)}."


def _others(case: _Case, worse: Sequence[str], level: Sequence[str], undecided: Sequence[str]) -> str:
    parts = []
    if worse:
        parts.append(f"{_join(worse)} {'is' if len(worse) == 1 else 'are'} worse than {case.reference}")
    if level:
        verb = "is" if len(level) == 1 else "are"
        parts.append(f"{_join(level)} {verb} level with {case.reference} (within {MARGIN:g} point)")
    if undecided:
        few = "only " if case.seeds < FEW_SEEDS else ""
        verb = "differs" if len(undecided) == 1 else "differ"
        text = f"{few}{_plural(case.seeds, 'seed')} cannot tell whether {_some(undecided)} {verb}"
        parts.append(text + (f" from {case.reference}" if not parts else "") + _needed(case, undecided))
    text = "; ".join(parts)
    return f"O{text[1:]}." if text.startswith("only ") else f"{text}." if text else ""


def _needed(case: _Case, undecided: Sequence[str]) -> str:
    """What it would take to confirm the largest difference that the runs show."""
    means = {label: _mean(case, label) for label in undecided if _mean(case, label) > 0}
    if not means or case.overall is None:
        return ""
    label = max(means, key=means.__getitem__)
    found = case.claims[label, case.overall.key].difference
    effect = found.mean / found.std if found.std > 0 else math.nan
    seeds = seeds_needed(effect, LEVEL / 2 / case.tests)
    number = f"more than {MOST_SEEDS}" if seeds is None else f"about {max(seeds, found.pairs + 1)}"
    lead = f"{_points(found.mean)}{_unit(case)} of {label}"
    return f" (to confirm the largest lead, {lead}, take {number} seeds)"


@dataclass
class _Pays:
    sentence: str = ""
    better: list[str] = field(default_factory=list)


def _against_single_task(figures: Figures, labels: Sequence[str], baseline: str | None) -> _Pays:
    """Whether multi-task training pays at all."""
    column = figures.overall
    if baseline is None or column is None or not column.key.startswith("delta/") or not labels:
        return _Pays()
    claims = compare_methods(figures, labels, baseline, [column])
    tested = {key[0]: claim for key, claim in claims.items() if not math.isnan(claim.p_value)}
    if not tested:
        return _Pays()
    better = [label for label, claim in tested.items() if claim.wins]
    worse = [label for label, claim in tested.items() if claim.loses]
    start = "Against single-task networks, multi-task training"
    if better:
        top = max(better, key=lambda label: tested[label].difference.mean)
        found = tested[top].difference
        names = "every method" if len(better) == len(tested) else _some(better)
        most = "" if len(better) == 1 else f"; most with {top}"
        text = f"{start} pays with {names}{most}, {_interval(found, ' %')}"
        return _Pays(text + (f" and costs with {_some(worse)}." if worse else "."), better)
    if len(worse) == len(tested):
        return _Pays(f"{start} does not pay here: every method is worse.")
    if worse:
        return _Pays(f"{start} costs with {_some(worse)}, and is not shown to pay with any method.")
    return _Pays(f"{start} is not shown to pay, nor to cost anything.")


def _mean(case: _Case, label: str) -> float:
    claim = case.summary(label)
    return math.nan if claim is None else claim.difference.mean


def _unit(case: _Case) -> str:
    return " points" if case.overall is not None and case.overall.key.startswith("delta/") else ""


def _gain(case: _Case, label: str) -> str:
    claim = case.summary(label)
    assert claim is not None
    fewer = claim.difference.pairs < case.seeds
    seeds = f", on {claim.difference.pairs} of {case.seeds} seeds" if fewer else ""
    return _interval(claim.difference, _unit(case), seeds)


def _interval(found: Difference, unit: str, more: str = "") -> str:
    limits = f"{_points(found.low)} to {_points(found.high)}"
    return f"{_points(found.mean)}{unit} (95 % interval {limits}{more})"


def _points(value: float) -> str:
    """Three digits with a sign."""
    return "unknown" if math.isnan(value) else f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _some(names: Sequence[str], most: int = 6) -> str:
    return (
        _join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
    )


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
