"""What a reader of a comparison should know besides its statistics."""

from __future__ import annotations

from mtlkit.report.results import Comparison


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
