"""Detect target leakage: input columns that determine a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtlkit.data.notes import listed
from mtlkit.data.table.columns import CategoryColumn, NumberColumn
from mtlkit.data.table.reading import Frame
from mtlkit.data.table.targets import Target

_LEAST_ROWS = 20
_ROWS_PER_VALUE = 5
_FIRST_LOOK = 2000
_CORRELATION = 1 - 1e-9


def find_leaks(
    frame: Frame,
    targets: Sequence[Target],
    numbers: Sequence[NumberColumn],
    categories: Sequence[CategoryColumn],
) -> list[str]:
    """Return a warning for every input column that determines targets in the training rows.

    A category does if each of its values has one label, and occurs five times on average; a number does
    if thresholds separate the classes, or if it is a linear function of the target.
    """
    found: dict[str, list[str]] = {}
    if len(frame) < _LEAST_ROWS:
        return []
    codes = {column.name: column.encode(frame[column.name]) for column in categories}
    values = {column.name: column.values(frame[column.name]) for column in numbers}
    for target in targets:
        labels = target.labels(frame).numpy().reshape(len(frame), -1)
        known = np.isfinite(labels).all(axis=1)
        if target.classes:
            known &= (labels >= 0).all(axis=1)
        answers = target.classes or target.yes
        answer = np.unique(labels[known], axis=0, return_inverse=True)[1].reshape(-1)
        for name in [*codes, *values]:
            if name in codes:
                leaks = bool(answers) and _determines(codes[name][known], answer)
            else:
                number = values[name]
                missing = np.isnan(number)
                leaks = bool(answers) and _determines(missing[known].astype(np.int64), answer)
                here = known & ~missing
                if answers:
                    leaks = leaks or _separates(number[here], answer[here[known]])
                else:
                    leaks = leaks or _is_multiple(number[here], labels[here])
            if leaks:
                found.setdefault(name, []).append(target.task)
    return [
        f"column {name!r} determines target{'s' if len(tasks) > 1 else ''} {listed(tasks)} in the "
        f"training rows; if it is unknown at prediction time, leave it out: ignore=[{name!r}]"
        for name, tasks in found.items()
    ]


def _determines(codes: Any, answer: Any) -> bool:
    """Return whether each code has one label."""
    if len(codes) < _LEAST_ROWS or answer.max() == 0:
        return False
    classes = int(answer.max()) + 1
    for rows in (slice(_FIRST_LOOK), slice(None)):  # most columns are ruled out by the first rows
        pairs = np.unique(codes[rows] * classes + answer[rows]).size
        values = np.unique(codes[rows]).size
        if pairs != values:
            return False
    return values > 1 and len(codes) >= _ROWS_PER_VALUE * values


def _separates(number: Any, answer: Any) -> bool:
    """Return whether thresholds on the number separate the classes."""
    if len(number) < _LEAST_ROWS or len(np.unique(answer)) < 2:
        return False
    classes = int(answer.max()) + 1
    for rows in (slice(_FIRST_LOOK), slice(None)):
        order = np.lexsort((answer[rows], number[rows]))
        ordered, sizes = answer[rows][order], number[rows][order]
        changes = np.flatnonzero(np.diff(ordered))
        if len(changes) >= classes or (sizes[changes] == sizes[changes + 1]).any():
            return False
    return True


def _is_multiple(number: Any, labels: Any) -> bool:
    """Return whether a target is a linear function of this number."""
    if len(number) < _LEAST_ROWS or number.min() == number.max():
        return False
    scaled = number / np.abs(number).max()  # squares of large numbers overflow
    return any(
        label.std() > 0 and abs(np.corrcoef(scaled, label)[0, 1]) > _CORRELATION for label in labels.T
    )
