"""The best setting of every method, as ``winners.yaml``, which ``mtlkit compare --tuned`` reads."""

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
        label: of the method.
        method: config string, without the normalization that all share.
        settings: of the training that differ from the shared ones.
        value: improvement over the reference run on validation, in percent.
        trial: its index.

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
    """What a search found, and at which cost.

    Attributes:
        shared: settings of the training that all trials had, with ``normalize`` and the like.
        seed: the first one of all trials; a comparison must use others.
        trials: per method.
        sampler: ``tpe``, ``random`` or ``grid``.
        best: the winners, in order.
        cost: by label: ``trials``, ``failed``, ``seconds``, ``steps``.
        trial_seeds: seeds that each trial was trained with, from ``seed`` on.

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
            ConfigError: where there is none, or it is not what ``mtlkit tune`` writes.
        """
        path = Path(folder) / WINNERS
        if not path.is_file():
            raise ConfigError(
                f"{folder} holds no {WINNERS}; give a folder in which `mtlkit tune` has finished"
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
            raise ConfigError(f"{path} is not what `mtlkit tune` writes: {error!r}") from None

    def comparison(self) -> dict[str, Any]:
        """Return the settings of a comparison of the winners, on test samples that no trial saw.

        Networks that are not tuned, such as single-task ones, train as the winner of the plain sum.
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
        """Return the settings of one training with a winner, for ``mtlkit train``.

        Args:
            label: of the method; None takes the best one.

        Raises:
            SpecError: for a label that the search does not have.
        """
        found = {winner.label: winner for winner in self.best}
        if not found:
            raise ConfigError("no trial of the search ended well, so there is no winner to train")
        if label is None:
            label = max(self.best, key=lambda winner: winner.value).label
        if label not in found:
            raise unknown_name("tuned method", label, found)
        chosen = found[label]
        shared = {k: v for k, v in self.shared.items() if k not in ("normalize", "improvement_over")}
        if "extra_capacity" in chosen.settings:
            raise ConfigError(f"{label!r} has extra matrices, which only a comparison can train")
        method = f"normalize+{chosen.method}" if self.shared.get("normalize") else chosen.method
        data = self.hold_out(shared["data"])
        return {**shared, **chosen.settings, "data": data, "method": method}

    def hold_out(self, data: str) -> str:
        """Return the data set with the test samples that the search set aside."""
        return hold_out_test(data, self.seed)


def hold_out_test(data: str, seed: int) -> str:
    """Return the data set with the test samples that it has with ``seed``, whatever its own seed is.

    Data sets that draw their test samples have the option ``test_seed``, or ``split_seed`` for all three
    parts. The others have published test samples, or make new ones.
    """
    (part,) = parse_spec(data)
    options = dict(part.options)
    known = option_names(datasets.get(part.name))
    option = next((name for name in ("test_seed", "split_seed") if name in known), None)
    if option is not None and options.get("split_seed") is None:  # else the split is fixed already
        options.setdefault(option, seed)
    if isinstance(options.get("of"), Mapping):  # several data sets in one
        options["of"] = {name: hold_out_test(one, seed) for name, one in options["of"].items()}
    return format_spec([Part(part.name, options)])
