"""The search space of one method: shared training settings, and its own options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mtlkit.config.registry import methods, option_defaults
from mtlkit.config.search import LR_RATIO, Choice, FeatureShare, Search, Simplex, Uniform
from mtlkit.config.spec import Part, format_spec
from mtlkit.errors import ConfigError, unknown_name

Axis = Uniform | Choice
"""A range or choice from which a sampler draws one value."""

_INTEGERS = ("batch_size", "epochs", "steps")
SETTINGS = (
    *("lr", "weight_decay", "max_grad_norm", "rotation_decay", "optimizer", "schedule"),
    *_INTEGERS,
    "architecture",
)
"""Training settings that can be tuned, in addition to ``lr_ratio``."""

PRESETS: dict[str, dict[str, Any]] = {
    # appendix C.1 of Javaloy and Valera, 2022: the learning rate was chosen with the plain sum
    "rotograd_paper": {
        "sampler": "grid",
        "space": {
            "gradnorm.alpha": [0.0, 0.5, 1.0, 2.0],
            "rotate.size": "share(0.25, 0.5, 0.75, 1)",
            "lr_ratio": [0.05, 0.1, 0.5, 1.0, 2.0],  # of rotate and of gradnorm
        },
    }
}
"""Settings of ``--preset``; keys of the configuration override them."""


@dataclass(frozen=True)
class MethodSpace:
    """The search space of one method, and the settings at its points.

    Attributes:
        parts: parts of the method, with aliases replaced.
        axes: ranges by name: ``lr``, ``lr_ratio``, ``cagrad.c``, ``constant.weights.left``.
        defaults: the point with the given settings and default options.
        tasks: names of the tasks.
        simplexes: loss weights by name, each drawn as one number per task.
    """

    parts: tuple[Part, ...]
    axes: dict[str, Axis]
    defaults: dict[str, Any]
    tasks: tuple[str, ...]
    simplexes: dict[str, Simplex] = field(default_factory=dict)

    def is_weight(self, name: str) -> bool:
        """Return whether an axis is one of the numbers that loss weights are computed from."""
        return any(name.startswith(f"{simplex}.") for simplex in self.simplexes)

    def method(self, point: Mapping[str, Any]) -> str:
        """Return the config string of the method at a point."""
        parts, shown = [], self.shown(point)
        for part in self.parts:
            options = dict(part.options)
            for name, value in point.items():
                owner, _, option = name.partition(".")
                if owner == part.name and option and name in self.axes and option.isidentifier():
                    options[option] = value
            for name in self.simplexes:
                owner, _, option = name.partition(".")
                if owner == part.name:
                    options[option] = {task: shown[f"{name}.{task}"] for task in self.tasks}
            known = option_defaults(methods.get(part.name))
            given = {k: v for k, v in options.items() if k in part.options or v != known.get(k)}
            parts.append(Part(part.name, given))
        return format_spec(parts)

    def shown(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point with loss weights in place of the numbers they are computed from."""
        found = dict(point)
        for name, simplex in self.simplexes.items():
            axes = [f"{name}.{task}" for task in self.tasks]
            found |= dict(zip(axes, simplex.weights([point[axis] for axis in axes]), strict=True))
        return found

    def settings(self, point: Mapping[str, Any], train: Mapping[str, Any]) -> dict[str, Any]:
        """Return the training settings at a point; ``method_lr`` keeps its ratio to ``lr``."""
        found = {
            name: round(point[name]) if name in _INTEGERS else point[name]
            for name in SETTINGS
            if name in point
        }
        lr = found.get("lr", train["lr"])
        ratio = point.get(LR_RATIO)
        if ratio is None and train.get("method_lr") is not None and train["lr"] > 0:
            ratio = train["method_lr"] / train["lr"]
        if ratio is not None and (LR_RATIO in point or "lr" in found):
            found["method_lr"] = float(f"{ratio * lr:.4g}")
        return found


def make_space(
    method: str,
    given: Mapping[str, Search],
    train: Mapping[str, Any],
    tasks: tuple[str, ...],
    features: Callable[[], int],
) -> MethodSpace:
    """Make the search space of a method.

    Args:
        method: config string; options that it sets are not tuned.
        given: ranges of the configuration, for ``lr``, ``lr_ratio`` or ``part.option``; they replace
            those that the method declares.
        train: training settings.
        tasks: names of the tasks.
        features: returns the size of the rotated axis; only called if a fraction of it is tuned.
    """
    parts = tuple(methods.expand(method))
    axes: dict[str, Axis] = {}
    simplexes: dict[str, Simplex] = {}
    ratio = (train.get("method_lr") or train["lr"] / 2) / train["lr"] if train["lr"] else 0.5
    defaults: dict[str, Any] = {name: train.get(name) for name in SETTINGS} | {LR_RATIO: ratio}
    for name in SETTINGS:
        if name in given:
            axes[name] = _axis(given[name], name, features)
    for part in parts:
        factory = methods.get(part.name)
        declared: dict[str, Search] = dict(getattr(factory, "search_space", {}))
        known = option_defaults(factory)
        for name, search in given.items():
            owner, _, option = name.partition(".")
            if owner == part.name and option:
                if option != LR_RATIO and option not in known:
                    raise unknown_name(f"option of {owner} in 'space'", option, {*known, LR_RATIO})
                declared[option] = search
        for option, search in declared.items():
            name = LR_RATIO if option == LR_RATIO else f"{part.name}.{option}"
            if option in part.options or name in axes:
                continue
            if isinstance(search, Simplex):
                simplexes[name] = search
                axes |= {f"{name}.{task}": search.axis for task in tasks}
                defaults |= {f"{name}.{task}": 1.0 for task in tasks}
            else:
                axes[name] = _axis(search, name, features)
                if option != LR_RATIO:
                    defaults[name] = known[option]
    if LR_RATIO in given and LR_RATIO in axes:
        axes[LR_RATIO] = _axis(given[LR_RATIO], LR_RATIO, features)
    return MethodSpace(parts, axes, defaults, tasks, simplexes)


def _axis(search: Search, name: str, features: Callable[[], int]) -> Axis:
    if isinstance(search, FeatureShare):
        return search.sizes(features())
    if isinstance(search, Simplex):
        raise ConfigError(f"{name} cannot be tuned on the simplex")
    return search
