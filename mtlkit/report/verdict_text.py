"""The verdict's sentences about methods and the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mtlkit.report.claims import LEVEL, Claim
from mtlkit.report.figures import Column
from mtlkit.report.significance import MOST_SEEDS, Difference, seeds_needed

MARGIN = 1.0
"""Percentage points within which two methods are called level."""
FEW_SEEDS = 5


@dataclass
class Case:
    """All that the sentences are made from.

    Attributes:
        reference: that methods are tested against.
        baseline: that improvements are relative to.
        columns: that they are tested on; ``overall`` is the mean over tasks.
        claims: the tests, by label and key of the column.
        seeds: of the comparison.
        missing: number of seeds on which a label, the reference too, lacks some figure.
    """

    reference: str
    baseline: str | None
    columns: list[Column]
    overall: Column | None
    claims: Mapping[tuple[str, str], Claim]
    seeds: int
    missing: Mapping[str, int]
    tests: int = field(init=False)

    def __post_init__(self) -> None:
        self.tests = sum(not math.isnan(claim.p_value) for claim in self.claims.values())

    def summary(self, label: str) -> Claim | None:
        """The method in the mean over tasks, where there is one."""
        return None if self.overall is None else self.claims[label, self.overall.key]

    def tasks(self, label: str, *, won: bool) -> list[str]:
        """Tasks that a method wins, or loses."""
        labels = {self.reference, *(label for label, _ in self.claims)}
        return [
            f"the task {column.group}" if column.group in labels else column.group
            for column in self.columns
            if column is not self.overall
            and (self.claims[label, column.key].wins if won else self.claims[label, column.key].loses)
        ]

    def loses(self, label: str) -> bool:
        """Whether a method is worse in the mean over tasks, or on any."""
        return any(self.claims[label, column.key].loses for column in self.columns)

    def loses_overall(self, label: str) -> bool:
        """Whether a method is worse in the mean over tasks."""
        claim = self.summary(label)
        return claim is not None and claim.loses

    def is_tested(self, label: str) -> bool:
        """Whether a method has two seeds in common with the reference, on some column."""
        return any(not math.isnan(self.claims[label, column.key].p_value) for column in self.columns)


def winners(case: Case, overall: Sequence[str], partly: Sequence[str], *, say_few: bool) -> str:
    """What beats the reference, and what that costs; ``say_few`` where no other sentence says it."""
    few = f" on only {case.seeds} seeds" if say_few and case.seeds < FEW_SEEDS else ""
    tests = f"Holm's correction over {_plural(case.tests, 'test')}{few}"
    if not overall and not partly:
        return f"Nothing is shown to beat {case.reference}: no gain is significant after {tests}."
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
    for tasks, labels in _by_tasks(case, partly, won=True).items():
        verb = "beats" if len(labels) == 1 else "beat"
        parts.append(f"{_join(labels)} {verb} {case.reference} on {some(tasks)}")
    for label in (*overall, *partly):
        places = [f"on {some(lost)}"] if (lost := case.tasks(label, won=False)) else []
        places += ["in the mean over tasks"] if case.loses_overall(label) else []
        if places:
            parts.append(f"but {label} is worse {' and '.join(places)}")
    return f"After {tests}, {'; '.join(parts)}."


def losers(case: Case, worse: Sequence[str]) -> list[str]:
    """What is worse than the reference: in the mean over tasks, or on some."""
    overall = [label for label in worse if case.loses_overall(label)]
    parts = []
    if overall:
        parts.append(f"{_join(overall)} {_are(overall)} worse than {case.reference}")
    partly = [label for label in worse if label not in overall]
    for tasks, labels in _by_tasks(case, partly, won=False).items():
        parts.append(f"{_join(labels)} {_are(labels)} worse than {case.reference} on {some(tasks)}")
    return parts


def remaining(
    case: Case,
    parts: list[str],
    level: Sequence[str],
    undecided: Sequence[str],
    untested: Sequence[str],
) -> str:
    """What does not beat the reference: ``parts`` about the losers, and the others."""
    if level:
        margin = f"(within {MARGIN:g} point)"
        parts.append(f"{_join(level)} {_are(level)} level with {case.reference} {margin}")
    if undecided:
        few = "only " if case.seeds < FEW_SEEDS else ""
        verb = "differs" if len(undecided) == 1 else "differ"
        text = f"{few}{_plural(case.seeds, 'seed')} cannot tell whether {some(undecided)} {verb}"
        parts.append(text + (f" from {case.reference}" if not parts else "") + _needed(case, undecided))
    if untested:
        parts.append(f"{some(untested)} {_are(untested)} not tested")
    parts += _gaps(case)
    text = "; ".join(parts)
    if text.startswith(("only ", "no ")):  # else it starts with a method's name
        text = text[0].upper() + text[1:]
    return f"{text}." if text else ""


def _gaps(case: Case) -> list[str]:
    """Seeds that the tests leave out, which may be those on which a method does worst."""
    found: dict[int, list[str]] = {}
    for label, number in case.missing.items():
        if number and label != case.baseline:
            found.setdefault(number, []).append(label)
    gaps = [
        f"no finite result of {some(labels)} on {number} of {case.seeds} seeds"
        for number, labels in found.items()
    ]
    unpaired = case.missing.get(case.baseline or "", 0)
    if unpaired:
        gaps.append(f"no finite improvement over {case.baseline} on {unpaired} of {case.seeds} seeds")
    return gaps


def _by_tasks(case: Case, labels: Sequence[str], *, won: bool) -> dict[tuple[str, ...], list[str]]:
    """Methods by the tasks that they win, or lose."""
    found: dict[tuple[str, ...], list[str]] = {}
    for label in labels:
        found.setdefault(tuple(case.tasks(label, won=won)), []).append(label)
    return found


def _needed(case: Case, undecided: Sequence[str]) -> str:
    """What it would take to confirm the largest of these methods' leads."""
    means = {label: _mean(case, label) for label in undecided if _mean(case, label) > 0}
    if not means or case.overall is None:
        return ""
    label = max(means, key=means.__getitem__)
    found = case.claims[label, case.overall.key].difference
    if not found.std > 0:
        return ""
    seeds = seeds_needed(found.mean / found.std, LEVEL / 2 / case.tests)
    number = f"more than {MOST_SEEDS}" if seeds is None else f"about {max(seeds, found.pairs + 1)}"
    lead = f"{_points(found.mean)}{_unit(case)} of {label}"
    return f" (to confirm the largest mean lead among these, {lead}, take {number} seeds)"


def _mean(case: Case, label: str) -> float:
    claim = case.summary(label)
    return math.nan if claim is None else claim.difference.mean


def _unit(case: Case) -> str:
    return " points" if case.overall is not None and case.overall.kind == "gain" else ""


def _gain(case: Case, label: str) -> str:
    claim = case.summary(label)
    assert claim is not None
    return interval(claim.difference, _unit(case), case.seeds)


def interval(found: Difference, unit: str, seeds: int) -> str:
    """A mean with its limits, and on how many of all seeds where some are missing."""
    limits = f"{_points(found.low)} to {_points(found.high)}"
    more = f", on {found.pairs} of {seeds} seeds" if found.pairs < seeds else ""
    return f"{_points(found.mean)}{unit} (95 % interval {limits}{more})"


def some(names: Sequence[str], most: int = 6) -> str:
    """Names, the first of them where they are many."""
    return (
        _join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"
    )


def _points(value: float) -> str:
    """Three digits with a sign."""
    return "unknown" if math.isnan(value) else f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
