"""A finding about a method, and the sentences of a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mtlkit.report.endpoint import Endpoint
from mtlkit.report.significance import Interval

Status: TypeAlias = Literal["better", "worse", "level", "not decided", "not tested"]
_MOST = 4


@dataclass(frozen=True)
class Finding:
    """A method against the reference, or against the single-task networks.

    Attributes:
        method: label of the method.
        against: label that it is compared with.
        status: result of the tests.
        interval: difference in the primary endpoint, in points (hundredths of a log-ratio).
        better_on, worse_on: tasks with a significant difference.
        uncounted: mean log-ratio to ``against`` of each task that the endpoint leaves out, in points.
        missing: number of seeds without a finite result.

    >>> Finding("pcgrad", "sum", "better", Interval(2.0, 0.5, 3.5, 0.01, 5)).sentence
    'pcgrad: better than sum, +2 points (0.5 to 3.5).'
    """

    method: str
    against: str
    status: Status
    interval: Interval
    better_on: tuple[str, ...] = ()
    worse_on: tuple[str, ...] = ()
    uncounted: Mapping[str, float] = field(default_factory=dict)
    missing: int = 0

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        words = {"better": "better than", "worse": "worse than", "level": "level with"}
        found = f"{words[self.status]} {self.against}" if self.status in words else self.status
        separator = ":" if self.status == "not tested" else ","
        return f"{self.method}: {found}{separator} {self.details}."

    @property
    def details(self) -> str:
        """The difference, and the tasks on which the method is better or worse."""
        if self.status == "not tested":
            return f"fewer than two seeds in common with {self.against}"
        parts = [format_interval(self.interval)]
        if self.better_on:
            parts.append(f"better on {join(self.better_on)}")
        if self.worse_on:
            parts.append(f"worse on {join(self.worse_on)}")
        parts += [f"{task}, not counted, is {change}" for task, change in _changes(self.uncounted)]
        if self.missing:
            parts.append(f"no finite endpoint on {plural(self.missing, 'seed')}")
        return "; ".join(parts)


def summarize(
    findings: Sequence[Finding],
    single_task: Sequence[Finding],
    endpoint: Endpoint,
    seeds: int,
    detectable: float,
) -> list[str]:
    """Summarize all findings, one sentence per status."""
    sentences = []
    if findings:
        against = findings[0].against
        tested = [each for each in findings if each.status != "not tested"]
        if not tested:
            sentences.append(f"Nothing is tested yet: no method shares two seeds with {against}.")
        else:
            sentences.append(_better(tested, against, endpoint))
        sentences += _listed(tested, "worse", f"Worse than {against}")
        sentences += _listed(tested, "level", f"Level with {against} (within 1 point)")
        sentences += _undecided(tested, seeds, detectable)
        untested = [each.method for each in findings if each.status == "not tested"]
        if tested and untested:
            sentences.append(f"Not tested: {join(untested)}.")
        gaps = [f"{each.method} on {each.missing}" for each in tested if each.missing]
        if gaps:
            sentences.append(f"No finite endpoint for {join(gaps)} of {seeds} seeds.")
    return sentences + _alone(single_task)


def _better(findings: Sequence[Finding], against: str, endpoint: Endpoint) -> str:
    better = [each for each in findings if each.status == "better"]
    if not better:
        return f"No method is shown to be better than {against}."
    total = len(endpoint.directions) + len(endpoint.left_out)
    over = f" over {len(endpoint.directions)} of {total} tasks" if endpoint.left_out else ""
    text = f"Better than {against}{over}: {_methods(better)}"
    for task in endpoint.left_out:
        known = [each for each in better if task in each.uncounted]
        if known:
            worst = min(known, key=lambda each: each.uncounted[task])
            change = dict(_changes(worst.uncounted))[task]
            text += f"; {task}, not counted, is {change}"
            text += f" with {worst.method}, the worst of them" if len(better) > 1 else ""
    on_tasks = [f"{each.method} on {join(each.worse_on)}" for each in better if each.worse_on]
    return text + (f". Worse on single tasks: {'; '.join(on_tasks)}." if on_tasks else ".")


def _listed(findings: Sequence[Finding], status: str, title: str) -> list[str]:
    found = [each for each in findings if each.status == status]
    return [f"{title}: {_methods(found)}."] if found else []


def _undecided(findings: Sequence[Finding], seeds: int, detectable: float) -> list[str]:
    found = [each.method for each in findings if each.status == "not decided"]
    if not found:
        return []
    text = f"Inconclusive with {plural(seeds, 'seed')}: {join(found)}"
    if math.isfinite(detectable):
        text += f"; {_two_digits(detectable)} points or more would have been found (80% power)"
    return [f"{text}."]


def _alone(findings: Sequence[Finding]) -> list[str]:
    """Summarize the comparison with the single-task networks."""
    tested = [each for each in findings if each.status != "not tested"]
    parts = []
    for status in ("better", "worse", "level", "not decided"):
        found = [each for each in tested if each.status == status]
        if found and status == "not decided" and len(found) == len(tested):
            parts.append("nothing is decided")
        elif found and len(found) == len(tested):
            name = tested[0].method if len(tested) == 1 else "every method"
            parts.append(f"{name} is {status}{_range(found) if status in ('better', 'worse') else ''}")
        elif found:
            names = join([each.method for each in found])
            parts.append(f"{status}: {names}{_range(found) if status in ('better', 'worse') else ''}")
    return [f"Against single-task networks, {'; '.join(parts)}."] if parts else []


def _methods(findings: Sequence[Finding]) -> str:
    """List methods with their intervals; many methods with the range of their means."""
    if len(findings) > _MOST:
        return f"{join([each.method for each in findings])}{_range(findings)}"
    return join([f"{each.method} {format_interval(each.interval)}" for each in findings])


def _range(findings: Sequence[Finding]) -> str:
    if len(findings) == 1:
        return f", {format_interval(findings[0].interval)}"
    means = [each.interval.mean for each in findings]
    return f" ({_points(min(means))} to {_points(max(means))} points)"


def _changes(uncounted: Mapping[str, float]) -> list[tuple[str, str]]:
    """Describe how much better or worse each task is: a large change as a factor, others in percent.

    >>> _changes({"seg": -9.5, "depth": 0.42})
    [('seg', '10% worse'), ('depth', '0.4% better')]
    """
    found = []
    for task, gain in uncounted.items():
        word = "better" if gain > 0 else "worse"
        size = math.exp(abs(gain) / 100)
        percent = 100 * (size - 1)
        shown = f"{percent:.0f}" if percent >= 9.5 else f"{percent:.1g}"
        found.append((task, f"{size:.1f} times {word}" if size >= 1.995 else f"{shown}% {word}"))
    return found


def format_interval(interval: Interval) -> str:
    """Format a mean with its corrected limits.

    >>> format_interval(Interval(2.04, 0.513, 3.57, 0.01, 5))
    '+2.04 points (0.513 to 3.57)'
    >>> format_interval(Interval(50.1, -924.0, 1024.0, 0.6, 2))
    '+50.1 points (-924 to 1024)'
    """
    if math.isnan(interval.low):
        return f"{_points(interval.mean)} points"
    low, high = (_points(limit).removeprefix("+") for limit in (interval.low, interval.high))
    return f"{_points(interval.mean)} points ({low} to {high})"


def join(names: Sequence[str]) -> str:
    """Join names to a list in a sentence.

    >>> join(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _two_digits(value: float) -> str:
    """Format a number with two digits, without an exponent.

    >>> _two_digits(152.4), _two_digits(2.34)
    ('150', '2.3')
    """
    return f"{float(f'{value:.2g}'):g}"


def _points(value: float) -> str:
    return f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"


def plural(number: int, word: str) -> str:
    """Format a number of things.

    >>> plural(1, "seed"), plural(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"
