"""What a comparison found, in one to three sentences that are never stronger than its statistics.

Every method is tested against the reference on each task's main metric and on the mean over tasks.
"Beats" and "worse" mean significant at 0.05, two-sided, after Holm's correction over all of these tests;
"level" means that the 95 % interval of the difference lies within one percentage point. Of all else the
sentence says that the runs do not tell, and how many seeds would. Runs without a result are named, since
the tests leave them out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mtlkit.report.claims import compare_methods, family
from mtlkit.report.figures import Column, Figures, collect_figures
from mtlkit.report.results import Comparison
from mtlkit.report.verdict_text import MARGIN, Case, interval, losers, remaining, some, winners


@dataclass(frozen=True)
class Verdict:
    """The sentences, and the labels behind them.

    Attributes:
        sentences: at most three; none where there is nothing to compare.
        winners: methods that beat the reference in the mean over tasks, or on a task.
        worse: methods that beat it nowhere and are worse in the mean over tasks, or on a task.
        level: methods whose difference is within the margin.
        undecided: methods of which the runs do not tell.
        untested: methods without two seeds in common with the reference.
        pays: methods that are better than single-task networks.
    """

    sentences: tuple[str, ...] = ()
    winners: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    pays: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


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
    pays = _against_single_task(figures, known, baseline, len(comparison.seeds))
    sentences = [pays.sentence] if pays.sentence else []
    others = [label for label in known if label != reference]
    if reference is None or reference not in known or not others:
        return Verdict(tuple(sentences), pays=tuple(pays.better))
    columns = family(figures)
    claims = compare_methods(figures, others, reference, columns)
    missing = _missing(figures, known, baseline, comparison.seeds)
    case = Case(reference, baseline, columns, figures.overall, claims, len(comparison.seeds), missing)
    if case.tests == 0:
        sentences.insert(
            0, f"No method has two seeds in common with {reference}: nothing is tested yet."
        )
        return Verdict(tuple(sentences), untested=tuple(others), pays=tuple(pays.better))
    overall = [label for label in others if (c := case.summary(label)) is not None and c.wins]
    partly = [label for label in others if label not in overall and case.tasks(label, won=True)]
    rest = [label for label in others if label not in (*overall, *partly)]
    untested = [label for label in rest if not case.is_tested(label)]
    worse = [label for label in rest if case.loses(label)]
    level = [label for label in rest if label not in worse and _is_level(case, label)]
    undecided = [label for label in rest if label not in (*untested, *worse, *level)]
    first = winners(case, overall, partly, say_few=not undecided)
    second = remaining(case, losers(case, worse), level, undecided, untested)
    return Verdict(
        tuple(filter(None, [first, second, *sentences])),
        (*overall, *partly),
        tuple(worse),
        tuple(level),
        tuple(undecided),
        tuple(untested),
        tuple(pays.better),
    )


def _missing(
    figures: Figures, labels: Sequence[str], baseline: str | None, seeds: Sequence[int]
) -> dict[str, int]:
    """Number of seeds on which a label lacks some figure.

    Where no method has an improvement, though some have results, it is the baseline that lacks one.
    """
    mean = [] if figures.overall is None else [figures.overall]
    tasks = [column for column in family(figures) if column not in mean]

    def lost(label: str, columns: Sequence[Column]) -> set[int]:
        values = [figures.seeds(label, column.key) for column in columns]
        return {s for s in seeds if not all(math.isfinite(v.get(s, math.nan)) for v in values)}

    untested = {label: lost(label, tasks) for label in labels}
    unpaired = set(seeds).intersection(*(lost(label, mean) for label in labels))
    missing = {k: len(gone | (lost(k, mean) - unpaired)) for k, gone in untested.items()}
    if baseline is not None:
        missing[baseline] = len(unpaired - set(seeds).intersection(*untested.values()))
    return missing


def _is_level(case: Case, label: str) -> bool:
    claim = case.summary(label)
    if claim is None or case.overall is None or case.overall.kind != "gain":
        return False
    return max(abs(claim.difference.low), abs(claim.difference.high)) <= MARGIN


@dataclass
class _Pays:
    sentence: str = ""
    better: list[str] = field(default_factory=list)


def _against_single_task(
    figures: Figures, labels: Sequence[str], baseline: str | None, seeds: int
) -> _Pays:
    """Whether multi-task training pays at all."""
    column = figures.overall
    if baseline is None or column is None or column.kind != "gain" or not labels:
        return _Pays()
    claims = compare_methods(figures, labels, baseline, [column])
    tested = {key[0]: claim for key, claim in claims.items() if not math.isnan(claim.p_value)}
    if not tested:
        return _Pays()
    better = [label for label, claim in tested.items() if claim.wins]
    worse = [label for label, claim in tested.items() if claim.loses]
    start = "Against single-task networks, multi-task training"
    rest = "" if len(tested) == len(labels) else "; the other methods have no finite result to test"
    if better:
        top = max(better, key=lambda label: tested[label].difference.mean)
        found = tested[top].difference
        names = "every method" if len(better) == len(labels) else some(better)
        most = "" if len(better) == 1 else f"; most with {top}"
        text = f"{start} pays with {names}{most}, {interval(found, ' %', seeds)}"
        return _Pays(f"{text}{f' and costs with {some(worse)}' if worse else ''}{rest}.", better)
    if len(worse) == len(labels):
        return _Pays(f"{start} does not pay here: every method is worse.")
    if worse:
        return _Pays(f"{start} costs with {some(worse)}, and is not shown to pay with any method{rest}.")
    return _Pays(f"{start} is not shown to pay, nor to cost anything{rest}.")
