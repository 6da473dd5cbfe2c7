"""Target columns: their kind of task, and their values as labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.config.spec import Part, parse_call, refuse_arguments
from mtlkit.data.base import DataError
from mtlkit.data.notes import Notices, listed
from mtlkit.data.table.cells import (
    NOTHING,
    as_words,
    is_date,
    is_number,
    look_up,
    mean_and_deviation,
    numbers,
)
from mtlkit.data.table.reading import Frame
from mtlkit.errors import SpecError, unknown_name
from mtlkit.tasks import NO_LABEL, Task, create_task
from mtlkit.tasks.registry import kinds, task_options

_MOST_CLASSES = 100
_MOST_INTEGERS = 10
_RARE = 0.1
FindColumn = Callable[[Any], str]


@dataclass(frozen=True)
class Target:
    """A task and the columns with its labels.

    Attributes:
        task: name of the task.
        kind: kind of the task with all options, for :func:`mtlkit.tasks.create_task`.
        columns: columns of the table.
        classes: the words of a classification, in the order of the classes.
        yes: for each binary column, the words that mean yes.
        means: means of standardized numbers; else empty.
        deviations: standard deviations of the same numbers.
        decimal: decimal sign of numbers written as text.
        scale: whether numbers are standardized by the training rows.
    """

    task: str
    kind: str
    columns: Sequence[str]
    classes: Sequence[str] = ()
    yes: Sequence[Sequence[str]] = ()
    means: Sequence[float] = ()
    deviations: Sequence[float] = ()
    decimal: str = "."
    scale: bool = False

    def make_task(self) -> Task:
        """Return the task, with the unit of its predictions."""
        task = create_task(self.kind, self.task)
        task.columns, task.means, task.deviations = self.columns, self.means, self.deviations
        return task

    def labels(self, frame: Frame) -> Tensor:
        """Return the targets of all rows; those of empty cells are missing."""
        if self.classes:
            places = {word: index for index, word in enumerate(self.classes)}
            return torch.from_numpy(look_up(frame[self.columns[0]], places, NO_LABEL, NO_LABEL))
        if self.yes:
            pairs = zip(self.columns, self.yes, strict=True)
            answers = [look_up(frame[c], dict.fromkeys(yes, 1), 0, -1) for c, yes in pairs]
            columns = [np.where(answer < 0, np.nan, answer) for answer in answers]
        else:
            columns = [numbers(frame[c], self.decimal) for c in self.columns]
        values = np.stack(columns, axis=1)
        if self.means:
            values = (values - np.array(self.means)) / np.array(self.deviations)
        return torch.from_numpy(values.astype(np.float32))

    def fit(self, frame: Frame) -> Target:
        """Return the target, in standard deviations of these rows if it is to be scaled."""
        if not self.scale:
            return self
        fitted = [mean_and_deviation(numbers(frame[c], self.decimal)) for c in self.columns]
        means, deviations = zip(*fitted, strict=True)
        return replace(self, means=means, deviations=deviations)

    def check(self, frame: Frame, source: str) -> None:
        """Raise an error for a target that cannot be learned from the training rows ``frame``."""
        for column in self.columns:
            known = frame[column].dropna()
            if known.empty:
                raise DataError(
                    f"target {self.task!r} of {source}: column {column!r} holds no value in the "
                    "training rows"
                )
            if known.nunique() < 2:
                raise DataError(
                    f"target {self.task!r} of {source} is constant: column {column!r} is "
                    f"{known.tolist()[0]!r} in all {len(known)} training rows that have a value; "
                    "leave this target out"
                )
            if not self.classes and not self.yes:
                _check_numbers(self.task, column, known)
        if self.yes and self.kind.startswith("binary"):
            answers = self.labels(frame)
            if not bool((answers == 1).any()) or not bool((answers == 0).any()):
                raise DataError(
                    f"target {self.task!r} of {source} is constant: yes means {listed(self.yes[0])}, "
                    f"which is {'all' if bool((answers == 1).any()) else 'none'} of the training rows"
                )


def find_targets(
    targets: Any, frame: Frame, find: FindColumn, notices: Notices, test: Frame | None = None
) -> list[Target]:
    """Return the targets of the option ``targets``; rows of a test file are checked for new values."""
    wanted = expand_targets(targets, list(frame.columns))
    found = [_find_target(key, kind, frame, find, notices) for key, kind in wanted.items()]
    names = [target.task for target in found]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"targets: two tasks are called {name!r}")
    if test is not None:
        for target in found:
            _check_test(target, frame, test, notices)
    return found


def expand_targets(targets: Any, columns: Sequence[str]) -> dict[Any, Any]:
    """Return the kind of every task, None for one to be guessed; wildcards match columns.

    >>> expand_targets({"school_*": "regression", "age": None}, ["age", "school_1", "school_2"])
    {'school_1': 'regression', 'school_2': 'regression', 'age': None}
    """
    given = [targets] if isinstance(targets, str | int) else targets
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(given)
    if not wanted:
        raise SpecError("targets is empty; give a column, for example targets={income: binary}")
    for key, kind in wanted.items():
        if not isinstance(kind, str | Mapping | Part | None):
            raise SpecError(f"target {key!r}: its kind must be a string such as binary, not {kind!r}")
    expanded: dict[Any, Any] = {}
    for key, kind in wanted.items():
        is_pattern = isinstance(key, str) and set(key) & set("*?[") and key not in columns
        if not is_pattern or (kind is not None and {"column", "columns"} & {*parse_call(kind).options}):
            expanded[key] = kind
            continue
        fitting = [name for name in columns if fnmatchcase(name, key)]
        if not fitting:
            raise unknown_name("column", key, columns)
        expanded |= {name: kind for name in fitting if name not in wanted}
    return expanded


def fit_targets(
    targets: Sequence[Target], learned: Frame, source: str, notices: Notices
) -> tuple[Target, ...]:
    """Check the targets against the training rows, and standardize those to be scaled."""
    for target in targets:
        target.check(learned, source)
    fitted = tuple(target.fit(learned) for target in targets)
    scaled = [target for target in fitted if target.means]
    units = [unit for t in scaled for unit in zip(t.columns, t.means, t.deviations, strict=True)]
    if units:
        shown = [f"{name!r} has mean {mean:.6g}, deviation {size:.6g}" for name, mean, size in units[:3]]
        more = f" and {len(units) - 3} more" if len(units) > 3 else ""
        which = f"target {scaled[0].task!r} is" if len(scaled) == 1 else f"{len(scaled)} targets are"
        notices.note(f"{which} in standard deviations: {'; '.join(shown)}{more}")
    for target in fitted:
        if not target.means and target.make_task().main_metric == "f1" and "binary" in target.kind[:6]:
            answers = target.labels(learned)
            share = float((answers == 1).sum() / (answers >= 0).sum())
            if share < _RARE:
                notices.add(
                    "target",
                    target.task,
                    f"is yes in fewer than {_RARE:.0%} of the training rows, so F1 may stay 0 for "
                    "a long time; binary(metric=auc) compares by the area under the ROC curve",
                )
    return fitted


def _check_test(target: Target, frame: Frame, test: Frame, notices: Notices) -> None:
    """Check for values that only the test file has: a class without an output is an error."""
    for index, column in enumerate(target.columns):
        if not target.classes and not target.yes:
            _check_numbers(target.task, column, test[column].dropna(), " of the test file")
            continue
        known = list(target.classes) or _ordered(frame[column])
        invalid = [word for word in _ordered(test[column]) if word not in known]
        if not invalid:
            continue
        message = (
            f"target {target.task!r}: column {column!r} of the test file also holds {listed(invalid)}, "
            f"which the training file does not; it has {listed(known)}"
        )
        if target.classes:
            raise DataError(
                f"{message}. Correct the test file, or name all classes: "
                f"{target.task}: classification(classes=[...])"
            )
        if len(known) > 2:  # several words mean no
            notices.note(f"{message}. These mean no")
        else:
            no = next((word for word in known if word not in target.yes[index]), "no")
            raise DataError(
                f"{message}. Correct the test file, or name those that mean yes: "
                f"yes=[{', '.join(map(repr, target.yes[index]))}, ...]; all others are {no!r}"
            )


def _find_target(key: Any, kind: Any, frame: Frame, find: FindColumn, notices: Notices) -> Target:
    name = f"column_{key}" if isinstance(key, int) else str(key)
    part = Part("auto") if kind is None else kinds.resolve(parse_call(kind))
    options = dict(part.options)
    refuse_arguments(part, of=f"kind {part.name} of target {name!r}")
    _check_options(part)
    if "column" in options and "columns" in options:
        raise SpecError(f"target {name!r}: give column or columns, not both")
    given = options.pop("columns", None) or [options.pop("column", key)]
    columns = tuple(find(column) for column in ([given] if isinstance(given, str | int) else given))
    scaled = options.pop("scale", part.name in ("auto", "regression"))
    if not isinstance(scaled, bool):
        raise SpecError(f"target {name!r}: scale must be True or False, not {scaled!r}")
    guessed = part.name == "auto"
    if guessed:
        part = Part(_guess(name, columns, frame), part.options)
    taken = frame.attrs.get("taken", {})
    signs = {taken[column].decimal for column in columns if column in taken}
    target = Target(name, part.name, columns, decimal="," if signs == {","} else ".")
    for column in columns:
        # notes about words do not matter for classes
        if column in taken and (taken[column].kind == "number" or NOTHING in taken[column].note):
            notices.add("target", name, taken[column].note)
    if part.name in ("binary", "multilabel"):
        target, meaning = _yes_or_no(target, frame, options)
    elif part.name == "classification":
        target, meaning = _classes(target, frame, options)
    else:
        sizes = {"outputs": len(columns)} if part.name == "regression" else {}
        target, meaning = replace(target, kind=str(Part(part.name, {**options, **sizes}))), ""
    if len(columns) > 1 and part.name not in ("multilabel", "regression"):
        raise SpecError(f"target {name!r}: kind {part.name} takes one column, not {len(columns)}")
    note = f"{part.name}, guessed from the column{meaning and '; ' + meaning}" if guessed else meaning
    notices.add("target", name, note)
    task = target.make_task()  # raises for wrong options before training
    if task.dense:
        raise SpecError(f"target {name!r}: kind {part.name} is for images; a column cannot hold a map")
    return replace(target, scale=scaled and not target.classes and not target.yes)


def _check_options(part: Part) -> None:
    """Raise an error for an option that neither the kind of task nor a column of a table has."""
    if part.name == "auto":  # the guessed kind checks its options
        return
    known = {"column", "columns", "scale", *task_options(part.name)}
    if part.name in ("binary", "multilabel"):
        known.add("yes")
    for key in part.options:
        if key not in known:
            raise unknown_name(f"option of {part.name}", key, known)


def _guess(name: str, columns: Sequence[str], frame: Frame) -> str:
    if len(columns) > 1:
        raise SpecError(f"target {name!r} has several columns; set its kind to regression or multilabel")
    column = frame[columns[0]]
    values = column.dropna().unique()
    if len(values) <= 2:
        return "binary"
    if is_date(column):
        _check_numbers(name, columns[0], column)
    if is_number(column):
        whole = bool((numbers(column.dropna()) % 1 == 0).all())
        return "classification" if whole and len(values) <= _MOST_INTEGERS else "regression"
    if len(values) <= min(_MOST_CLASSES, len(column) / 2):
        return "classification"
    raise DataError(
        f"target {name!r}: column {columns[0]!r} holds {len(values)} different words, such as "
        f"{listed(values[:3])}; its kind cannot be guessed. Name it: targets={{{name}: classification}}"
    )


def _yes_or_no(target: Target, frame: Frame, options: dict[str, Any]) -> tuple[Target, str]:
    given = options.pop("yes", None)
    chosen = [given] if isinstance(given, str | int | float) else given
    found, meaning = [], []
    for column in target.columns:
        values = _ordered(frame[column])
        if chosen is not None:
            yes = tuple(as_words(chosen))
            for word in yes:
                if word not in values:
                    raise DataError(
                        f"target {target.task!r}: yes={word!r} is not in column {column!r}; it holds "
                        f"{listed(values)}"
                    )
        elif len(values) > 2:
            raise DataError(
                f"target {target.task!r} is yes or no, but column {column!r} holds {len(values)} "
                f"values: {listed(values)}. Name those that mean yes, {target.kind}(yes={values[0]!r}), "
                "or use another kind"
            )
        else:
            yes = tuple(values[-1:])
            if len(values) == 2 and values not in (["0", "1"], ["no", "yes"], ["False", "True"]):
                meaning.append(f"{yes[0]!r} is yes, {values[0]!r} is no")
        found.append(yes)
    if target.kind == "binary" and "classes" not in options:
        others = [word for word in _ordered(frame[target.columns[0]]) if word not in found[0]]
        options["classes"] = [
            answers[0] if len(answers) == 1 else name
            for answers, name in ((others, "no"), (found[0], "yes"))
        ]
    if target.kind == "multilabel":
        options["labels"] = list(target.columns)
    return replace(target, kind=str(Part(target.kind, options)), yes=tuple(found)), "; ".join(meaning)


def _classes(target: Target, frame: Frame, options: dict[str, Any]) -> tuple[Target, str]:
    column = target.columns[0]
    values = _ordered(frame[column])
    given = options.get("classes")
    meaning = ""
    if given is None:
        classes = values
        meaning = f"{len(values)} classes: {listed(values)}"
    elif isinstance(given, int):
        classes = [str(number) for number in range(given)]
    else:
        classes = as_words(given)
    invalid = [word for word in values if word not in classes]
    if invalid:
        raise DataError(
            f"target {target.task!r}: column {column!r} holds {listed(invalid)}, which are not among "
            f"the classes {listed(classes)}"
        )
    if not classes:
        raise DataError(f"target {target.task!r}: column {column!r} holds no value")
    kind = str(Part("classification", {**options, "classes": classes}))
    return replace(target, kind=kind, classes=tuple(classes)), meaning


def _ordered(column: Any) -> list[str]:
    """Return the distinct values as words, sorted; numbers by size."""
    values = column.dropna().unique().tolist()
    return list(dict.fromkeys(as_words(sorted(values))))


def _check_numbers(task: str, column: str, known: Any, where: str = "") -> None:
    if is_date(known):
        raise DataError(
            f"target {task!r} is a number, but column {column!r}{where} holds dates; convert them to "
            "numbers, for example to the days since a fixed date"
        )
    invalid = known[np.isnan(numbers(known))]
    if len(invalid):
        found = listed(_ordered(invalid))
        raise DataError(
            f"target {task!r} is a number, but column {column!r}{where} holds {found}; "
            "use kind classification or binary, or add these words to missing=[...]"
        )
