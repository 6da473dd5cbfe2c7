"""Types of settings of a comparison: its methods, seeds and extra matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema, create_model, field_validator

from mtlkit.config.annotations import read_number
from mtlkit.config.settings import Settings, Spec, TypeLabel, display, setting
from mtlkit.training.config import TrainingSettings

SINGLE_TASK = "single-task"
WITH_ROTATIONS = "with R_k"


@dataclass(frozen=True)
class Entry:
    """One method of a comparison.

    Attributes:
        label: name in the table.
        method: config string.
        extra_capacity: options ``size`` and ``dim`` of a matrix before each head, like RotoGrad's but
            learned with the head; None for no matrix.
        settings: training settings of this method only.
        kind: ``front`` for a weighting that only spans the front; empty for a method.
    """

    label: str
    method: str
    extra_capacity: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    kind: str = ""

    @property
    def own(self) -> dict[str, Any]:
        """The settings of this method only, as in a file."""
        if self.extra_capacity is None:
            return self.settings
        return {**self.settings, "extra_capacity": self.extra_capacity or True}


def _read_capacity(given: Any) -> dict[str, Any] | None:
    if given is None or isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping) or not set(given) <= {"size", "dim"}:
        raise ValueError(f"extra_capacity must be true or {{size: 512, dim: flat}}, not {given!r}")
    return dict(given)


_OPTIONS = {"size": {"type": "integer"}, "dim": {"type": "string"}}
_CAPACITY = {"type": "object", "properties": _OPTIONS, "additionalProperties": False}
Capacity = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_read_capacity),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, _CAPACITY]}),
    TypeLabel("true, false or {size: 512, dim: flat}"),
]
"""Options of the matrices before the heads, or None."""


def _read_seeds(given: Any) -> tuple[int, ...]:
    # from the command line: a number, or a list with commas
    seeds: Any = given.split(",") if isinstance(given, str) else given
    if isinstance(seeds, Sequence):
        seeds = [read_number(seed.strip()) if isinstance(seed, str) else seed for seed in seeds]
    if isinstance(given, str) and len(seeds) == 1:
        (seeds,) = seeds
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = range(seeds)
    valid = isinstance(seeds, Sequence) and len(seeds) > 0
    if not valid or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ValueError(f"'seeds' must be a number from 1, or a list of seeds, not {given!r}")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"'seeds' contains a seed twice: {given!r}")
    return tuple(seeds)


_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Seeds = Annotated[
    tuple[int, ...],
    BeforeValidator(_read_seeds),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _LIST]}),
    TypeLabel("a number from 1, or a list"),
]
"""A list of seeds, or their number."""


class _MethodSettings(Settings):
    method: Spec = setting(..., "Config string of the method.")
    label: str | None = setting(None, "Name in the table; by default, the config string.")
    extra_capacity: Capacity = setting(
        None, "Add a matrix before each head, like RotoGrad's rotation but learned with the head."
    )

    @field_validator("label")
    @classmethod
    def _check_label(cls, label: str | None) -> str | None:
        if label is not None and (not label.strip() or label == SINGLE_TASK):
            raise ValueError(f"{label!r} cannot be a label")
        return label

    def entry(self) -> Entry:
        """Return the method with its label and settings."""
        settings = self.model_dump(include=self.model_fields_set - set(_MethodSettings.model_fields))
        capacity: Any = self.extra_capacity
        label = self.method if capacity is None else f"{self.method} {WITH_ROTATIONS}"
        return Entry(self.label or label, self.method, capacity, settings)


_OWN: dict[str, Any] = {
    name: (found.annotation, found)
    for name, found in TrainingSettings.model_fields.items()
    if display(found).per_method
}
MethodSettings = create_model(
    "MethodSettings",
    __base__=_MethodSettings,
    __doc__="One method of a comparison, with its own training settings.",
    **_OWN,
)


def one_by_one(given: Any) -> list[Any]:
    """Return a flat list of methods; config strings are split at commas."""
    items = [given] if isinstance(given, str) else given
    pieces = [split_specs(item) if isinstance(item, str) else [item] for item in items]
    return [item for piece in pieces for item in piece]


def split_specs(text: str) -> list[str]:
    """Split config strings at commas outside of brackets and quotes."""
    pieces, depth, quote, start = [], 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]
