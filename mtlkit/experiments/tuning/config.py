"""The settings of a search, from a YAML file or the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ValidationInfo, field_validator

from mtlkit.config.registry import methods as known_methods
from mtlkit.config.search import LR_RATIO, LogUniform, Search, parse_search
from mtlkit.config.settings import setting
from mtlkit.errors import ConfigError, unknown_key, unknown_name
from mtlkit.experiments.compare_config import MethodsConfig
from mtlkit.experiments.entries import Entry
from mtlkit.experiments.tuning.spaces import PRESETS, SETTINGS

TUNED_SUM = "tuned sum"
TUNING = "Search"
_FIRST_SEED = 100_000
_TRIALS = 20


class TuneConfig(MethodsConfig):
    """The settings of a search: those of every training, of :class:`MethodsConfig`, and more.

    >>> config = TuneConfig.make({"data": "multidigits", "methods": "sum,cagrad", "trials": 30})
    >>> [entry.label for entry in config.entries], str(config.searched["lr"])
    (['sum', 'tuned sum', 'cagrad'], 'log(0.0001, 0.01)')
    """

    trials: int | None = setting(
        None,
        f"Trials per method; by default {_TRIALS}, or with `grid` the size of the largest grid.",
        panel=TUNING,
        ge=1,
    )
    sampler: Literal["tpe", "random", "grid"] = setting(
        "tpe", "Sampler of the trials: `tpe`, `random` or `grid`.", panel=TUNING
    )
    preset: str | None = setting(
        None, f"Published grids: {', '.join(f'`{name}`' for name in PRESETS)}.", panel=TUNING
    )
    space: dict[str, Any] | None = setting(
        None,
        "Search space, such as `lr: log(1e-4, 1e-2)`, `weight_decay: [0, 1e-4]` or "
        "`cagrad.c: uniform(0, 1)`; by default, `lr` from a tenth to ten times its value.",
        panel=TUNING,
    )
    tuned_sum: bool = setting(
        True,
        f"Also tune the loss weights of the plain sum, with as many trials, as `{TUNED_SUM}`.",
        panel=TUNING,
    )
    prune: list[int] = setting(
        [],
        "Steps at which a trial stops if it is below the median of the method's earlier trials; by "
        "default, no trial stops early.",
        panel=TUNING,
    )
    trial_seeds: int = setting(
        1, "Number of seeds per trial; a trial is judged by the mean over them.", panel=TUNING, ge=1
    )
    seed: int = setting(
        _FIRST_SEED,
        "First seed of all trials, which a later comparison must not use.",
        panel=TUNING,
        ge=0,
        lt=2**32,
    )

    @classmethod
    def make(cls, settings: Mapping[str, Any], source: str = "the settings") -> Self:
        """Check settings after adding those of the preset; see :meth:`Settings.make`."""
        preset, own = settings.get("preset"), settings.get("space")
        if preset is None:
            made = super().make(settings, source)
        elif preset in PRESETS:
            chosen = PRESETS[preset]
            space = chosen["space"] | dict(own) if isinstance(own, Mapping) else own or chosen["space"]
            made = super().make({**chosen, **settings, "space": space}, source)
        else:
            raise unknown_name("preset", str(preset), PRESETS)
        parts = {part.name for entry in made.entries for part in known_methods.expand(entry.method)}
        for key in own if isinstance(own, Mapping) else ():
            owner, dot, _ = str(key).partition(".")
            if dot and known_methods.canonical(owner) not in parts:
                raise ConfigError(
                    f"{source}, space: {key!r} is an option of {owner}, which is not among the methods; "
                    f"their parts are {', '.join(sorted(parts))}"
                )
        return made

    @field_validator("space")
    @classmethod
    def _read_space(cls, given: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        source = (info.context or {}).get("source", "the settings")
        for key in given or {}:
            owner, dot, _ = str(key).partition(".")
            if dot:
                known_methods.get(owner)
            elif key not in (*SETTINGS, LR_RATIO):
                raise unknown_key(f"{source}, space", key, (*SETTINGS, LR_RATIO, "method.option"))
        if given is None:
            return None
        return {key: parse_search(value, f"{source}, space, {key!r}") for key, value in given.items()}

    @field_validator("prune", mode="before")
    @classmethod
    def _read_prune(cls, given: Any) -> list[int]:
        items = [given] if isinstance(given, int | str) else given
        words = [word for item in items for word in str(item).split(",")]
        if not all(word.strip().isdigit() and int(word) > 0 for word in words):
            raise ValueError(f"'prune' must be a list of steps, such as [200, 400], not {given!r}")
        return sorted({int(word) for word in words})

    @property
    def searched(self) -> dict[str, Search]:
        """The search space that all methods share."""
        if self.space is not None:
            return self.space
        if self.lr <= 0:
            raise ConfigError("without a key 'space' the learning rate is tuned; set 'lr' above 0")
        return {"lr": LogUniform(self.lr / 10, self.lr * 10)}

    def complete(self, entries: list[Entry]) -> list[Entry]:
        """Add the sum with tuned weights, after the plain sum."""
        labels = [entry.label for entry in entries]
        if self.tuned_sum and TUNED_SUM not in labels:
            place = labels.index("sum") + 1 if "sum" in labels else 0
            entries.insert(place, Entry(TUNED_SUM, "constant"))
        return entries

    def trials_for(self, largest_grid: int) -> int:
        """Return the number of trials per method, given the size of the largest grid."""
        if self.trials is not None:
            return self.trials
        return largest_grid if self.sampler == "grid" else _TRIALS
