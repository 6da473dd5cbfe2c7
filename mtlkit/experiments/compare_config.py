"""The settings of a comparison, from a YAML file or the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import PrivateAttr, ValidationInfo, WithJsonSchema, field_validator, model_validator

from mtlkit.config.settings import Names, setting
from mtlkit.config.spec import format_spec, parse_spec
from mtlkit.config.yaml_files import read_yaml
from mtlkit.errors import ConfigError, SpecError
from mtlkit.experiments.entries import WITH_ROTATIONS, Capacity, Entry, MethodSettings, Seeds, one_by_one
from mtlkit.report.results import PublishedRows, read_as
from mtlkit.training.config import DATA, SPEED, TrainingSettings

if TYPE_CHECKING:
    from mtlkit.experiments.tuning.winners import Winners

COMPARISON = "Comparison"
CONFIG = "compare.yaml"
"""File with the settings in the folder of a comparison."""


class MethodsConfig(TrainingSettings):
    """The settings of several methods on one data set, and of the machines that train them."""

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
        "Config strings, separated by commas; in a file, a list that may also contain mappings with "
        "`method`, `label`, `extra_capacity` and training settings of this method.",
        panel=DATA,
        missing="name one or more methods, such as sum,rotograd",
    )
    normalize: bool = setting(
        False, "Divide each loss by its initial value, as in the RotoGrad paper.", panel=COMPARISON
    )
    improvement_over: Names | None = setting(
        None, "Tasks that the improvement is averaged over; by default, all.", panel=COMPARISON
    )
    jobs: int | None = setting(
        None,
        "Number of parallel runs; by default, one per GPU or core, at most 8.",
        panel=SPEED,
        flags=("--jobs", "-j"),
        ge=1,
    )
    device: str = setting("auto", "`auto`, `cpu`, `mps`, `cuda` or `cuda:1`.", panel=SPEED)
    launcher: Literal["local", "submitit"] = setting(
        "local", "`local` for this machine, or `submitit` for Slurm.", panel=SPEED
    )
    launcher_options: dict[str, Any] = setting(
        {}, "Parameters of submitit's executor, such as `slurm_partition`.", panel=SPEED
    )

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, given: Self | Mapping[str, Any] | str | PathLike[str] | None, **changes: Any) -> Self:
        """Read settings from a YAML file, a mapping or an object, with some changed."""
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
        """The settings as they were given."""
        return self._settings

    @property
    def train(self) -> dict[str, Any]:
        """The training settings that all runs share."""
        return {key: getattr(self, key) for key in TrainingSettings.model_fields}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The methods to train."""
        entries = self.complete([item.entry() for item in self.methods])
        if self.normalize:
            entries = [replace(entry, method=f"normalize+{entry.method}") for entry in entries]
        return tuple(entries)

    def complete(self, entries: list[Entry]) -> list[Entry]:
        """Add methods that are trained in any case; a hook for subclasses."""
        return entries

    @field_validator("methods", mode="before")
    @classmethod
    def _read_methods(cls, given: Any, info: ValidationInfo) -> list[Any]:
        source = (info.context or {}).get("source", "the settings")
        items = one_by_one(given) if isinstance(given, Sequence) else []
        if not items:
            raise ConfigError(f"{source}: 'methods' must name one or more methods, such as sum,rotograd")
        made: list[Any] = []
        for item in items:
            own = item if isinstance(item, Mapping) and "method" in item else {"method": item}
            known = isinstance(item, MethodSettings)
            made.append(item if known else MethodSettings.make(own, f"{source}, method {item!r}"))
        return made

    @field_validator("improvement_over")
    @classmethod
    def _some_tasks(cls, given: list[str] | None) -> list[str] | None:
        if given is not None and not given:
            raise ValueError("name one or more tasks, or omit the key")
        return given

    @model_validator(mode="after")
    def _check_methods(self) -> Self:
        from mtlkit.config.registry import methods

        labels = [item.entry().label for item in self.methods]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(
                    f"two methods have the label {label!r}; give one of them another 'label'"
                )
        for entry in self.entries:
            try:
                for part in methods.expand(entry.method):
                    methods.check(part)
            except SpecError as error:
                raise ValueError(f"method {entry.label!r}: {error}") from None
        return self


class CompareConfig(MethodsConfig):
    """The settings of a comparison: those of every training, of :class:`MethodsConfig`, and more."""

    seeds: Seeds = setting(
        (0, 1, 2),
        "Number of runs per method, from seed 0; or a list of seeds.",
        panel=COMPARISON,
        cli=str,
    )
    reference: str | None = setting(
        "sum",
        "Label of the method that the others are tested against; added if it is missing.",
        panel=COMPARISON,
    )
    primary: str | None = setting(
        None,
        "Primary endpoint, chosen before the runs: `mean` (default), `median` or `minimum` over tasks "
        "of the log-ratio to single-task networks, or a task; optionally with `/` and a metric; or "
        "`delta_m`, as in published comparisons.",
        panel=COMPARISON,
    )
    single_task_row: dict[str, float] | None = setting(
        None,
        "Single-task values by `task/metric` that Delta m is relative to, such as a published row; by "
        "default, those of the same seed.",
        panel=COMPARISON,
    )
    reference_with_rotations: Capacity = setting(
        None,
        "Add a plain sum whose heads have matrices of the size of RotoGrad's rotations.",
        panel=COMPARISON,
        cli=bool,
    )
    single_task: bool | Literal["same_budget"] = setting(
        True,
        "Also train one network per task, the baseline of relative improvements; with `same_budget` "
        "(flag `--same-budget`), each of the K networks for 1/K of the steps.",
        panel=COMPARISON,
        cli=bool,
    )
    baselines: bool = setting(
        True,
        "Add rows of simple models (constant, ridge, forest, boosting) where the data set has them.",
        panel=COMPARISON,
    )
    minutes: float | None = setting(
        None,
        "Time budget: after the given seeds, add as many as fit into this time, up to 50 seeds.",
        panel=COMPARISON,
        gt=0,
    )
    tuned: str | None = setting(
        None, "Folder of `mtlkit tune`: compare its best settings on new seeds.", panel=COMPARISON
    )
    front: int = setting(
        0,
        "Also train the plain sum with this many random loss weights, drawn on a logarithmic scale.",
        panel=COMPARISON,
        ge=0,
    )
    timing: int = setting(20, "Timed steps per method; 0 for no timing.", panel=COMPARISON, ge=0)
    keep_weights: bool = setting(False, "Keep the best weights of every run.", panel=COMPARISON)
    protocol: Literal["honest", "field"] = setting(
        "honest",
        "`honest` uses the settings as they are; `field` follows published comparisons, with the keys "
        "under `field`.",
        panel=COMPARISON,
        cli=str,
    )
    field: dict[str, Any] | None = setting(
        None, "Keys that `protocol: field` changes.", panel=COMPARISON
    )
    published: str | dict[str, Any] | None = setting(
        None,
        "Published rows to show in the report: `FILE:NAME`, a data set in a YAML file.",
        panel=COMPARISON,
        cli=str,
    )
    small: dict[str, Any] | None = setting(None, "Keys that `--budget small` changes.", panel=COMPARISON)

    @classmethod
    def make(
        cls, settings: Mapping[str, Any], source: str = "the settings", budget: str = "full"
    ) -> Self:
        """Check settings by name, type and range; see :meth:`Settings.make`.

        The budget is ``full``, or ``small`` to apply the key ``small``.
        """
        if budget not in ("small", "full"):
            raise ConfigError(f"{source}: the budget must be 'small' or 'full', not {budget!r}")
        given = dict(settings)
        small = given.pop("small", None)
        if small is not None and not isinstance(small, Mapping):
            raise ConfigError(f"{source}: 'small' must be a mapping of settings, not {small!r}")
        cls.check_keys(small or {}, f"{source}, small")
        if given.get("protocol") == "field":
            if not isinstance(given.get("field"), Mapping):
                raise ConfigError(
                    f"{source}: protocol: field needs a key 'field' with the settings to change"
                )
            cls.check_keys(given["field"], f"{source}, field")
            given |= given["field"]
        if isinstance(given.get("published"), str):
            given["published"] = read_published(given["published"], source)
            if given.get("protocol") == "field":  # stored without the file
                given["field"] = {**given["field"], "published": given["published"]}
        elif isinstance(given.get("published"), Mapping):
            read_as(PublishedRows, given["published"], source, "published")
        if budget == "small":
            if small is None:
                raise ConfigError(
                    f"{source}: budget small needs a key 'small' with the settings to change"
                )
            given |= small
        if given.get("tuned") is None:
            return super().make(given, source)
        from mtlkit.experiments.tuning.winners import Winners

        winners = Winners.load(given["tuned"])
        made = super().make(_with_winners(winners, given, source), source)
        used = sorted(set(winners.seeds) & set(made.seeds))
        if used:
            raise ConfigError(
                f"{source}: the search in {given['tuned']} used seed {used[0]}; compare its winners on "
                "other seeds"
            )
        return made

    @cached_property
    def tuning(self) -> dict[str, dict[str, float]]:
        """The cost of the search before the comparison, by label."""
        if self.tuned is None:
            return {}
        from mtlkit.experiments.tuning.winners import Winners

        labels = {entry.label for entry in self.entries}
        return {label: cost for label, cost in Winners.load(self.tuned).cost.items() if label in labels}

    def complete(self, entries: list[Entry]) -> list[Entry]:
        """Add the reference if it is missing, and the sum with extra matrices."""
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


@dataclass(frozen=True)
class _PublishedFile:
    data_sets: dict[str, PublishedRows] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def read_published(place: str, source: str) -> dict[str, Any]:
    """Read the published rows of ``FILE:NAME``, with their sources in full."""
    file, _, name = place.rpartition(":")
    found: _PublishedFile = read_as(_PublishedFile, read_yaml(file) if file else {}, file)
    if name not in found.data_sets:
        known = ", ".join(found.data_sets) or "none"
        raise ConfigError(
            f"{source}: published must be FILE:NAME, not {place!r}; names in the file: {known}"
        )
    rows = found.data_sets[name].rows
    return asdict(
        PublishedRows([replace(row, source=found.sources.get(row.source, row.source)) for row in rows])
    )


def _with_winners(winners: Winners, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings with those of a search; methods are looked up by their labels."""
    found = winners.comparison()
    data = given.get("data")
    if data is not None and winners.hold_out(format_spec(parse_spec(data))) != found["data"]:
        raise ConfigError(
            f"{source}: the winners in {given['tuned']} were tuned on {winners.shared['data']!r}, not "
            f"on {data!r}; omit 'data'"
        )
    best = {item["label"]: item for item in found["methods"]}
    methods = found["methods"] if given.get("methods") is None else one_by_one(given["methods"])
    named = [best.get(item, item) if isinstance(item, str) else item for item in methods]
    own = {key: value for key, value in given.items() if key not in ("data", "methods")}
    return {**found, **own, "methods": named}
