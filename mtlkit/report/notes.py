"""What a reader of a comparison should know besides its statistics."""

from __future__ import annotations

from dataclasses import replace

from mtlkit.report.results import Comparison
from mtlkit.report.verdict import Verdict

_MANY = 1 / 3
"""Fraction of runs that were best at their last validation from which on it is worth a sentence."""


def with_length_note(verdict: Verdict, comparison: Comparison) -> Verdict:
    """Add a sentence to a verdict if many runs were still getting better when they ended."""
    judged = [run for run in comparison.runs if run.best_last is not None and not run.kind]
    late = sum(bool(run.best_last) for run in judged)
    if not late or late < _MANY * len(judged):
        return verdict
    text = f"{late} of {len(judged)} runs were best at their last validation: train longer."
    return replace(verdict, sentences=(*verdict.sentences, text))


def cost_notes(comparison: Comparison) -> tuple[str, ...]:
    """Say what the single-task row costs, how the test set was used, and what the simple models are."""
    notes = []
    number = len(comparison.tasks)
    if comparison.baseline in comparison.labels and number > 1:
        cost = f"{comparison.baseline}: {number} networks, {number} times the parameters"
        same = comparison.config.get("single_task") == "same_budget"
        notes.append(f"{cost}, {'the same number of' if same else f'{number} times the'} steps.")
    epochs = comparison.config.get("test_last")
    if epochs:
        notes.append(
            f"Warning: test metrics are means over the last {epochs} epochs, as published comparisons "
            "have them, and no validation set chooses anything. Settings that were chosen by such "
            "results were chosen on the test set, and look better than they are."
        )
    if comparison.simple_labels:
        notes.append(f"{', '.join(comparison.simple_labels)}: no networks; not tested.")
    return tuple(notes)
