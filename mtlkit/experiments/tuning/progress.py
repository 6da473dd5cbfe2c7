"""What a search shows while it runs: a live table on a terminal, else a line per finished trial."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mtlkit.experiments.jobs import Job
from mtlkit.experiments.live_display import LiveDisplay
from mtlkit.experiments.live_table import clock, progress_of
from mtlkit.experiments.tuning.ledger import Ledger, Trial
from mtlkit.experiments.tuning.spaces import MethodSpace


class TuneProgress(LiveDisplay):
    """Shows how far a search is.

    Args:
        ledger: with the trials of all processes.
        labels: of the methods, in order.
        shown: None shows a live table on a terminal and lines elsewhere; False shows nothing.
    """

    def __init__(self, ledger: Ledger, labels: Sequence[str], shown: bool | None = None) -> None:
        self.ledger = ledger
        self.labels = list(labels)
        self._trials = {label: ledger.of(label) for label in labels}
        self._running: dict[tuple[str, int], tuple[Trial, Job, float]] = {}
        self._begun = time.monotonic()
        self._worked = 0
        super().__init__(shown)

    def note(self, text: str) -> None:
        """Show a line about what is going on."""
        if text and text != self.current_note:
            self.print_line(text)
        super().note(text)

    def started(self, trial: Trial, job: Job) -> None:
        """A trial begins."""
        self._running[trial.label, trial.index] = (trial, job, time.monotonic())

    def ended(self, trial: Trial, value: float, seconds: float, error: str) -> None:
        """A trial ended."""
        self._running.pop((trial.label, trial.index), None)
        self._trials = {label: self.ledger.of(label) for label in self.labels}
        self._worked += 1
        state = f"FAILED: {error}" if error else f"{value:+.2f} % ({seconds:.1f} s)"
        self.print_line(
            f"[{self._done()}/{self._total()}] {trial.label}, trial {trial.index + 1}: {state}  "
            f"{_described(trial, self.ledger.spaces[trial.label])}"
        )

    def _done(self) -> int:
        return sum(trial.state != "running" for known in self._trials.values() for trial in known)

    def _total(self) -> int:
        return self.ledger.trials * len(self.labels)

    def render(self) -> Any:
        """The best so far, and what runs now."""
        from rich.console import Group
        from rich.text import Text

        done, total = self._done(), self._total()
        passed = time.monotonic() - self._begun
        head = f"{done} of {total} trials, {clock(passed)}"
        if self._worked and done < total:
            head += f", about {clock(passed / self._worked * (total - done))} to go"
        table = winners_table(self._trials, self.ledger.spaces, self.ledger.trials)
        lines: list[Any] = [Text(head, style="bold"), table]
        if self.current_note:
            lines.append(Text(self.current_note, style="dim"))
        for trial, job, begun in list(self._running.values()):
            text = f"  {trial.label}, trial {trial.index + 1}: {progress_of(job)}"
            lines.append(Text(text + clock(time.monotonic() - begun), style="dim"))
        return Group(*lines)


def winners_table(
    trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, MethodSpace], count: int
) -> Any:
    """Trials, best value and best setting of every method, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "trials", "improvement", "seconds", "best"):
        right = name in ("trials", "improvement", "seconds")
        table.add_column(name, justify="right" if right else "left", no_wrap=right or name == "method")
    for label, known in trials.items():
        ended = [trial for trial in known if trial.state != "running"]
        done = [trial for trial in ended if trial.state == "done" and trial.value is not None]
        failed = sum(trial.state == "failed" for trial in ended)
        best = max(done, key=lambda trial: (trial.value or 0.0, -trial.index), default=None)
        table.add_row(
            label,
            Text(f"{len(ended)}/{count}" + (f", {failed} failed" if failed else "")),
            "" if best is None else f"{best.value:+.2f} %",
            f"{sum(trial.facts.get('seconds', 0.0) for trial in ended):.0f}",
            "" if best is None else _described(best, spaces[label]),
        )
    return table


def _described(trial: Trial, space: MethodSpace) -> str:
    """The method's string and the settings of the training, with three digits."""
    settings = [
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.point.items()
        if "." not in name
    ]
    return " ".join([space.method(trial.point), *settings])
