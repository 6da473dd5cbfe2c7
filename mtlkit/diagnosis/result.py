"""The result of a diagnosis, as text, as a page, and as arrays."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtlkit._version import __version__
from mtlkit.diagnosis.rules import Finding, apply_rules, name_pair, percent
from mtlkit.diagnosis.summary import Measurement, Summary

_MOST_LAYERS = 12
_READABLE = 100


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`mtlkit.diagnose`; ``str()`` returns the text to print.

    >>> import torch, mtlkit
    >>> tasks = [mtlkit.Task.regression("small"), mtlkit.Task.regression("large")]
    >>> model = mtlkit.create_architecture("hard_sharing(backbone=mlp(8, 4, inputs=3))", tasks)
    >>> x = torch.randn(32, 3)
    >>> batch = (x, {"small": x[:, :1], "large": 1000 * x[:, 1:2]})
    >>> found = mtlkit.diagnose(model, tasks, [batch], steps=20, progress=False)
    >>> found.findings[0].rule
    'different norms'
    >>> found.summary.norm_ratio > 100
    True
    """

    summary: Summary
    """Arrays: losses, norms, cosines, similarity, groups and so on."""
    findings: list[Finding]
    """The findings, each with its numbers, what to try and why."""
    setup: tuple[str, ...] = ()
    """Short descriptions of data, model, optimizer and seed."""

    @classmethod
    def of(cls, measured: Measurement, setup: tuple[str, ...] = ()) -> Diagnosis:
        """Return the diagnosis of a measurement."""
        summary = Summary(measured)
        return cls(summary, apply_rules(summary), setup)

    def __str__(self) -> str:
        numbered = [_wrap(f"{n}. {finding}") for n, finding in enumerate(self.findings, start=1)]
        start = [textwrap.fill("; ".join(each), _width()) for each in (self.origin(), self.facts())]
        tables = [table for table in (self._table(), self._layers()) if table]
        return "\n\n".join(["\n".join(start), *tables, *numbered]).replace("`", "")

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the findings and charts, and return its path."""
        from mtlkit.diagnosis.page import write_page  # plotly and jinja2 are not needed for the text

        return write_page(self.summary, self.findings, [*self.origin(), *self.facts()], path)

    def facts(self) -> list[str]:
        """Return short descriptions of how the run was measured."""
        measured, steps = self.summary.measured, self.summary.steps
        facts = [
            f"trained a copy for {steps} steps with the plain sum ({measured.seconds:.1f} s)",
            f"gradients of the shared {measured.wrt}",
        ]
        if measured.features:
            facts.append(f"{measured.dead_features} of {measured.features} features dead")
        grouping = self.summary.grouping
        if len(grouping.groups) == 1 and np.isfinite(grouping.within):
            facts.append("no groups of tasks found")
        return facts

    def origin(self) -> list[str]:
        """Return data, model, optimizer, seed and version."""
        return [*self.setup, f"mtlkit {__version__}"]

    def _table(self) -> str:
        s = self.summary
        width = max(4, *(len(task) for task in s.tasks))
        head = f"{'labels':>7}  {'first loss':>10}  {'last loss':>9}  {'norm':>8}  help from others"
        lines = [f"{'task':<{width}}  {head}"]
        for k, task in enumerate(s.tasks):
            first, last = s.loss_change[k]
            lines.append(
                f"{task:<{width}}  {s.labeled_samples[k]:>7}  {first:>10.4g}  {last:>9.4g}  "
                f"{s.typical_norms[k]:>8.2g}  {percent(s.help[k])}"
            )
        return "\n".join(lines)

    def _layers(self) -> str:
        """List the layers with the strongest conflicts, in the order of the network."""
        s = self.summary
        lowest = {name: int(np.nanargmin(row)) for name, row in s.layers.items()}
        worst = sorted(lowest, key=lambda name: s.layers[name][lowest[name]])[:_MOST_LAYERS]
        if not worst:
            return ""
        width = max(5, *(len(name) for name in worst))
        lines = [f"{'layer':<{width}}  lowest mean cosine"]
        for name in lowest:
            if name in worst:
                place = lowest[name]
                pair = name_pair(s, s.pairs[place])
                lines.append(f"{name:<{width}}  {s.layers[name][place]:+.2f}  {pair}")
        if len(worst) < len(lowest):
            lines.append(f"and {len(lowest) - len(worst)} more layers, with higher cosines")
        return "\n".join(lines)


def _width() -> int:
    """Return the width of the terminal, at most 100; elsewhere ``COLUMNS``, or 100."""
    return min(shutil.get_terminal_size((_READABLE, 24)).columns, _READABLE)


def _wrap(text: str) -> str:
    lines = [textwrap.fill(line, _width(), subsequent_indent=" " * 7) for line in text.splitlines()]
    return "\n".join(lines)
