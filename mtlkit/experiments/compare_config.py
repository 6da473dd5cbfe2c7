"""The settings of a comparison, from a YAML file or the command line, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import PrivateAttr, ValidationInfo, WithJsonSchema, field_validator, model_validator

from mtlkit.config.settings import Names, setting
from mtlkit.config.spec import format_spec, parse_spec
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import ConfigError, SpecError
from mtlkit.experiments.entries import (
    WITH_ROTATIONS,
    Capacity,
    Entry,
    MethodSettings,
    Seeds,
    one_by_one,
)
from mtlkit.training.config import DATA, SPEED, TrainingSettings

if TYPE_CHECKING:
    from mtlkit.experiments.tuning.winners import Winners

COMPARISON = "Comparison"
PUBLISHED = ("method", "spec", "delta_m", "spread", "source")
"""What is kept of a published row."""
CONFIG = "compare.yaml"
"""File in the folder of a comparison with its settings."""


class MethodsConfig(TrainingSettings):
    """Several methods on one data set, and where their trainings run.

    :attr:`entries`, :attr:`train` and :attr:`settings` are what the trainings are made of.
    """

    title: str = setting("", "Title of the report.", panel=COMPARISON)
    methods: Annotated[
        list[Any],
        WithJsonSchema(
            {
                "type": "array",
                "minItems": 1,
                "items": {"anyOf": [{"type": "string"}, MethodSettings.json_schema()]},
            }
        ),
    ] = setting(
        ...,
        "Config strings, separated by commas; in a file a list, also of mappings with `method`, "
        "`label`, `extra_capacity` and settings of their own.",
        panel=DATA,
        missing="name one method or more, such as sum,rotograd",
    )
    normalize: bool = setting(
        False,
        "Divide each loss by its first values, as the RotoGrad paper does.",
        panel=COMPARISON,
    )
    improvement_over: Names | None = setting(
        None,
        "Tasks that statistics of the improvement are taken over; without any, all.",
        panel=COMPARISON,
    )
    jobs: int | None = setting(
        None,
        "Runs at a time; without it, one per GPU or core, at most 8.",
        panel=SPEED,
        flags=("--jobs", "-j"),
        ge=1,
    )
    device: str = setting("auto", "`auto`, `cpu`, `mps`, `cuda` or `cuda:1`.", panel=SPEED)
    launcher: Literal["local", "submitit"] = setting(
        "local", "This machine, or submitit for Slurm.", panel=SPEED
    )
    launcher_options: dict[str, Any] = setting(
        {}, "Parameters of submitit's executor, such as `slurm_partition`.", panel=SPEED
    )

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, given: Self | Mapping[str, Any] | str | PathLike[str] | None, **changes: Any) -> Self:
        """Return the settings of a YAML file or a mapping, or those given, with some changed."""
        if isinstance(given, cls):
            return cls.make({**given.settings, **changes}) if changes else given
        if isinstance(given, str | PathLike):
            return cls.make({**read_yaml(given), **changes}, fspath(given))
        return cls.make({**(given or {}), **changes})  # type: ignore[dict-item]

    def model_post_init(self, context: Any) -> None:
        """Keep the settings as they were given."""
        given = (context or {}).get("settings")
        self._settings = self.model_dump(exclude_unset=True) if given is None else given

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as they were given, to be written down."""
        return self._settings

    @property
    def train(self) -> dict[str, Any]:
        """Settings of :class:`~mtlkit.training.config.TrainConfig` that all runs share."""
        return {key: getattr(self, key) for key in TrainingSettings.model_fields}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The methods as they are trained."""
        entries = self.complete([item.entry() for item in self.methods])
        if self.normalize:
            entries = [replace(entry, method=f"normalize+{entry.method}") for entry in entries]
        return tuple(entries)

    def complete(self, entries: list[Entry]) -> list[Entry]:
        """Add the methods that are not named and belong to it nevertheless."""
        return entries

    @field_validator("methods", mode="before")
    @classmethod
    def _read_methods(cls, given: Any, info: ValidationInfo) -> list[Any]:
        source = (info.context or {}).get("source", "the settings")
        if not isinstance(given, Sequence) or not given:
            raise ConfigError(f"{source}: 'methods' must name one method or more, such as sum,rotograd")
        made: list[Any] = []
        for item in one_by_one(given):
            own = item if isinstance(item, Mapping) and "method" in item else {"method": item}
            known = isinstance(item, MethodSettings)
            made.append(item if known else MethodSettings.make(own, f"{source}, method {item!r}"))
        return made

    @field_validator("improvement_over")
    @classmethod
    def _some_tasks(cls, given: list[str] | None) -> list[str] | None:
        if given is not None and not given:
            raise ValueError("name one task or more, or leave the key out")
        return given

    @model_validator(mode="after")
    def _check_methods(self) -> Self:
        from mtlkit.config.registry import methods

        labels = [item.entry().label for item in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two methods are called {label!r}; give one another 'label'")
        for entry in self.entries:
            try:
                for part in methods.expand(entry.method):
                    methods.check(part)
            except SpecError as error:
                raise ValueError(f"method {entry.label!r}: {error}") from None
        return self


class CompareConfig(MethodsConfig):
    """What to compare, and how.

    The keys are those of every training, those of :class:`MethodsConfig` and those below.
    """

    seeds: Seeds = setting(
        (0, 1, 2),
        "How many runs per method, from seed 0; or the list of seeds.",
        panel=COMPARISON,
        cli=str,
    )
    reference: str | None = setting(
        "sum",
        "Label that the t-test compares with; added where it is missing.",
        panel=COMPARISON,
    )
    primary: str | None = setting(
        None,
        "The endpoint that decides, set before the runs: `mean` (default), `median` or `minimum` over "
        "tasks of the log-ratio to single-task networks, or a task; `/` and a metric may follow; or "
        "`delta_m`, the field's.",
        panel=COMPARISON,
    )
    single_task_row: dict[str, float] | None = setting(
        None,
        "Single-task values by `task/metric` that Delta m is relative to, such as a published row; "
        "without it, those of the same seed.",
        panel=COMPARISON,
    )
    reference_with_rotations: Capacity = setting(
        None,
        "Add the plain sum with RotoGrad's matrices as ordinary task parameters.",
        panel=COMPARISON,
        cli=bool,
    )
    single_task: bool | Literal["same_budget"] = setting(
        True,
        "Train one network per task too, as the baseline of relative improvements; with `same_budget` "
        "(flag `--same-budget`) each of the K networks for 1/K of the steps.",
        panel=COMPARISON,
        cli=bool,
    )
    baselines: bool = setting(
        True,
        "Add rows of simple models (constant, ridge, forest) where the data set has them.",
        panel=COMPARISON,
    )
    minutes: float | None = setting(
        None,
        "Time budget: after the given seeds, add as many as fit into these minutes, at most 50.",
        panel=COMPARISON,
        gt=0,
    )
    tuned: str | None = setting(
        None,
        "Folder of `mtlkit tune`: take its settings, and train its winners on new seeds.",
        panel=COMPARISON,
    )
    front: int = setting(
        0,
        "Train the plain sum with this many weightings of the losses, drawn on a logarithmic scale.",
        panel=COMPARISON,
        ge=0,
    )
    timing: int = setting(20, "Timed steps per method; 0 for none.", panel=COMPARISON, ge=0)
    keep_weights: bool = setting(False, "Keep the best weights of every run.", panel=COMPARISON)
    protocol: Literal["honest", "field"] = setting(
        "honest",
        "How results are taken: `honest`, as the other keys say, or `field`, as published comparisons "
        "do, with the keys under `field`.",
        panel=COMPARISON,
        cli=str,
    )
    field: dict[str, Any] | None = setting(
        None, "Keys that `protocol: field` changes.", panel=COMPARISON
    )
    published: str | dict[str, Any] | None = setting(
        None,
        "Rows to show beside ours: `FILE:NAME`, a data set in a YAML file of published rows.",
        panel=COMPARISON,
        cli=str,
    )
    small: dict[str, Any] | None = setting(None, "Keys that `--budget small` changes.", panel=COMPARISON)

    @classmethod
    def make(
        cls, settings: Mapping[str, Any], source: str = "the settings", budget: str = "full"
    ) -> Self:
        """Check settings by name, type and range.

        Args:
            settings: values by key.
            source: where they are from, for error messages.
            budget: ``full``, or ``small`` for what the key ``small`` changes.

        Raises:
            ConfigError: for an unknown key, with the nearest one, or a value that does not fit.
        """
        if budget not in ("small", "full"):
            raise ConfigError(f"{source}: the budget is 'small' or 'full', not {budget!r}")
        given = dict(settings)
        small = given.pop("small", None)
        if small is not None and not isinstance(small, Mapping):
            raise ConfigError(f"{source}: 'small' must hold keys and values, not {small!r}")
        cls.check_keys(small or {}, f"{source}, small")
        if given.get("protocol") == "field":
            if not isinstance(given.get("field"), Mapping):
                raise ConfigError(f"{source} has no key 'field' that says what protocol: field changes")
            cls.check_keys(given["field"], f"{source}, field")
            given |= given["field"]
        if isinstance(given.get("published"), str):
            given["published"] = read_published(given["published"], source)
            if given.get("protocol") == "field":  # the settings are kept without the file
                given["field"] = {**given["field"], "published": given["published"]}
        if budget == "small":
            if small is None:
                raise ConfigError(f"{source} has no key 'small' that says what a small budget changes")
            given |= small
        if given.get("tuned") is None:
            return super().make(given, source)
        from mtlkit.experiments.tuning.winners import Winners

        winners = Winners.load(given["tuned"])
        made = super().make(_with_winners(winners, given, source), source)
        used = sorted(set(winners.seeds) & set(made.seeds))
        if used:
            raise ConfigError(
                f"{source}: seed {used[0]} is that of the search in {given['tuned']}; its winners "
                "must be compared on others"
            )
        return made

    @cached_property
    def tuning(self) -> dict[str, dict[str, float]]:
        """What the search before the comparison cost, by label."""
        if self.tuned is None:
            return {}
        from mtlkit.experiments.tuning.winners import Winners

        labels = {entry.label for entry in self.entries}
        return {label: cost for label, cost in Winners.load(self.tuned).cost.items() if label in labels}

    def complete(self, entries: list[Entry]) -> list[Entry]:
        """Add the reference where it is missing."""
        labels = [entry.label for entry in entries]
        if self.reference is not None and self.reference not in labels:
            try:
                entries = [Entry(self.reference, format_spec(parse_spec(self.reference))), *entries]
            except SpecError:
                known = ", ".join(labels)
                raise ValueError(
                    f"the reference {self.reference!r} is not a label; labels: {known}"
                ) from None
        label = f"sum {WITH_ROTATIONS}"
        capacity: Any = self.reference_with_rotations
        if capacity is not None and label not in labels:
            entries.insert(1, Entry(label, "sum", capacity))
        return entries


def read_published(place: str, source: str) -> dict[str, Any]:
    """Return the rows of ``FILE:NAME``, with the sources that they name written out."""
    file, _, name = place.rpartition(":")
    content = read_yaml(file) if file else {}
    found = content.get("data_sets", {}).get(name)
    if found is None:
        known = ", ".join(content.get("data_sets", {})) or "none"
        raise ConfigError(f"{source}: published is FILE:NAME, not {place!r}; the file has {known}")
    sources = content.get("sources", {})
    rows = [{**row, "source": sources.get(row["source"], row["source"])} for row in found["rows"]]
    return {"rows": [{key: row[key] for key in PUBLISHED if key in row} for row in rows]}


def _with_winners(winners: Winners, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings with those of a search; methods that are named are taken by their labels."""
    found = winners.comparison()
    data = given.get("data")
    if data is not None and winners.hold_out(format_spec(parse_spec(data))) != found["data"]:
        raise ConfigError(
            f"{source}: the winners in {given['tuned']} were found on {winners.shared['data']!r}, "
            f"not on {data!r}; leave 'data' out"
        )
    best = {item["label"]: item for item in found["methods"]}
    methods = found["methods"] if given.get("methods") is None else one_by_one(given["methods"])
    named = [best.get(item, item) if isinstance(item, str) else item for item in methods]
    own = {key: value for key, value in given.items() if key not in ("data", "methods")}
    return {**found, **own, "methods": named}
