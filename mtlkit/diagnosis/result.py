"""What a diagnosis found, as text, as a page, and as figures to go on with."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from mtlkit.diagnosis.figures import Figures
from mtlkit.diagnosis.measure import Measurement
from mtlkit.diagnosis.rules import Finding, apply_rules
from mtlkit.diagnosis.sentences import share


@dataclass(frozen=True)
class Diagnosis:
    """What a short plain run showed. ``str()`` of it is the text to print."""

    figures: Figures
    """Arrays: losses, norms, cosines, affinity, groups and so on."""
    findings: list[Finding]
    """What was found, each with its figure, what to try and why."""

    @classmethod
    def of(cls, measured: Measurement) -> Diagnosis:
        """The diagnosis of a measurement."""
        figures = Figures(measured)
        return cls(figures, apply_rules(figures))

    def __str__(self) -> str:
        numbered = [_wrap(f"{n}. {finding}") for n, finding in enumerate(self.findings, start=1)]
        return "\n\n".join(["; ".join(self.facts()), self._table(), *numbered]).replace("`", "")

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page with the findings and drawings; gives its path."""
        from mtlkit.diagnosis.page import write_page

        return write_page(self, path)

    def facts(self) -> list[str]:
        """What was measured, in a few words."""
        measured = self.figures.measured
        facts = [
            f"{self.figures.steps} plain steps of a copy in {measured.seconds:.1f} s",
            f"gradients of the shared {measured.wrt}",
        ]
        if measured.features:
            facts.append(f"{measured.dead_features} of {measured.features} features dead")
        return facts

    def _table(self) -> str:
        f = self.figures
        width = max(4, *(len(task) for task in f.tasks))
        head = f"{'labels':>7}  {'loss at first':>13}  {'at last':>9}  {'norm':>8}  others bring"
        lines = [f"{'task':<{width}}  {head}"]
        for k, task in enumerate(f.tasks):
            first, last = f.loss_change[k]
            lines.append(
                f"{task:<{width}}  {f.labeled_samples[k]:>7}  {first:>13.4g}  {last:>9.4g}  "
                f"{f.typical_norms[k]:>8.2g}  {share(f.effect[k], '+')}"
            )
        return "\n".join(lines)


def _wrap(text: str) -> str:
    lines = [textwrap.fill(line, 100, subsequent_indent=" " * 7) for line in text.splitlines()]
    return "\n".join(lines)
