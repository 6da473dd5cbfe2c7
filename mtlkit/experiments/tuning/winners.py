"""The best settings of every method in ``winners.yaml``, which ``mtlkit compare --tuned`` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtlkit.config.registry import option_names
from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.config.yaml_files import read_yaml, write_yaml
from mtlkit.data.base import datasets
from mtlkit.errors import ConfigError, unknown_name

WINNERS = "winners.yaml"
_PLAIN: dict[str, Any] = {"seed": int, "trial_seeds": int, "trials": int, "sampler": str}


@dataclass(frozen=True)
class Winner:
    """The best trial of a method.

    Attributes:
        label: label of the method.
        method: config string, without the shared normalization.
        settings: training settings that differ from the shared ones.
        value: improvement over the reference run on validation data, in percent.
        trial: index of the trial.

    >>> Winner("cagrad", "cagrad(c=0.3)", {"lr": 0.002}, value=4.2, trial=7).settings["lr"]
    0.002
    """

    label: str
    method: str
    settings: dict[str, Any]
    value: float
    trial: int


@dataclass(frozen=True)
class Winners:
    """The winners of a search, and its cost.

    Attributes:
        shared: settings of all trials.
        seed: first seed of all trials, which a comparison must not use.
        trials: trials per method.
        sampler: ``tpe``, ``random`` or ``grid``.
        best: winners, in the order of the methods.
        cost: ``trials``, ``failed``, ``pruned``, ``seconds`` and ``steps`` by label.
        trial_seeds: number of seeds per trial, from ``seed``.

    >>> best = [Winner("sum", "sum", {"lr": 0.002}, 1.5, 3), Winner("mgda", "mgda", {}, 0.5, 0)]
    >>> found = Winners({"data": "multidigits"}, 100, 20, "tpe", best)
    >>> found.training()
    {'data': 'multidigits(test_seed=100)', 'lr': 0.002, 'method': 'sum'}
    """

    shared: dict[str, Any]
    seed: int
    trials: int
    sampler: str
    best: list[Winner] = field(default_factory=list)
    cost: dict[str, dict[str, float]] = field(default_factory=dict)
    trial_seeds: int = 1

    @property
    def seeds(self) -> range:
        """The seeds of the trials."""
        return range(self.seed, self.seed + self.trial_seeds)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``winners.yaml``."""
        content: dict[str, Any] = {key: getattr(self, key) for key in _PLAIN}
        content["methods"] = [
            {
                "label": winner.label,
                "method": winner.method,
                **winner.settings,
                "improvement": round(winner.value, 3),
                "trial": winner.trial,
            }
            for winner in self.best
        ]
        path = Path(folder) / WINNERS
        write_yaml(path, {**content, "cost": self.cost, "shared": self.shared})
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Winners:
        """Read ``winners.yaml`` of a folder.

        Raises:
            ConfigError: if it is missing or damaged.
        """
        path = Path(folder) / WINNERS
        if not path.is_file():
            raise ConfigError(
                f"{folder} contains no {WINNERS}; give a folder in which `mtlkit tune` has finished"
            )
        content = read_yaml(path)
        try:
            best = []
            for item in content["methods"]:
                known = [item.pop(key) for key in ("label", "method", "improvement", "trial")]
                best.append(Winner(known[0], known[1], item, float(known[2]), int(known[3])))
            given = {key: kind(content[key]) for key, kind in _PLAIN.items() if key in content}
            return cls(dict(content["shared"]), best=best, cost=dict(content["cost"]), **given)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} was not written by `mtlkit tune`: {error!r}") from None

    def comparison(self) -> dict[str, Any]:
        """Return the settings of a comparison of the winners, on test samples that no trial saw.

        Networks that are not tuned, such as single-task ones, have the settings of the tuned sum.
        """
        shared: dict[str, Any] = dict(self.shared)
        shared["data"] = self.hold_out(shared["data"])
        for winner in self.best:
            if winner.label == "sum":
                shared |= winner.settings
        shared["methods"] = [
            {"method": winner.method, "label": winner.label, **winner.settings} for winner in self.best
        ]
        return shared

    def training(self, label: str | None = None) -> dict[str, Any]:
        """Return the settings to train one winner; the best one for None."""
        found = {winner.label: winner for winner in self.best}
        if not found:
            raise ConfigError("all trials of the search failed, so there is no winner to train")
        if label is None:
            label = max(self.best, key=lambda winner: winner.value).label
        if label not in found:
            raise unknown_name("tuned method", label, found)
        chosen = found[label]
        shared = {k: v for k, v in self.shared.items() if k not in ("normalize", "improvement_over")}
        if "extra_capacity" in chosen.settings:
            raise ConfigError(f"{label!r} has extra_capacity, which only a comparison can train")
        method = f"normalize+{chosen.method}" if self.shared.get("normalize") else chosen.method
        data = self.hold_out(shared["data"])
        return {**shared, **chosen.settings, "data": data, "method": method}

    def hold_out(self, data: str) -> str:
        """Return the spec of the data set with the test samples that the search held out."""
        return hold_out_test(data, self.seed)


def hold_out_test(data: str, seed: int) -> str:
    """Return the spec of a data set with the test samples of ``seed``, for any seed of the run.

    Data sets that draw their test samples have the option ``test_seed``, or ``split_seed`` for all three
    splits. The others have fixed test samples, or generate new ones.
    """
    (part,) = parse_spec(data)
    options = dict(part.options)
    known = option_names(datasets.get(part.name))
    option = next((name for name in ("test_seed", "split_seed") if name in known), None)
    if option is not None and options.get("split_seed") is None:  # else the split is already fixed
        options.setdefault(option, seed)
    if isinstance(options.get("of"), Mapping):  # several data sets in one
        options["of"] = {name: hold_out_test(one, seed) for name, one in options["of"].items()}
    return format_spec([Part(part.name, options)])
