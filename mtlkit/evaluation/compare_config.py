"""The settings of a comparison, from a YAML file or the command line, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from mtlkit.errors import ConfigError, SpecError, unknown_key
from mtlkit.spec import format_spec, parse_spec
from mtlkit.training.config import TrainConfig

__all__ = ["DEMO", "SINGLE_TASK", "CompareConfig", "Entry", "split_specs"]

SINGLE_TASK = "single-task"
WITH_ROTATIONS = "with R_k"

_TRAIN_KEYS = (
    "data", "data_dir", "architecture", "epochs", "steps", "batch_size", "optimizer", "method_optimizer",
    "lr", "method_lr", "weight_decay", "schedule", "rotation_decay", "accumulate", "clip_norm",
    "precision", "on_nonfinite", "validate_every", "checkpoint_every", "early_stop", "log_every",
    "monitor_every", "workers",
)  # fmt: skip
_PER_METHOD = (
    "optimizer", "method_optimizer", "lr", "method_lr", "weight_decay", "schedule", "rotation_decay",
    "clip_norm",
)  # fmt: skip
_LAUNCHERS = ("local", "submitit")

DEMO: dict[str, Any] = {
    "title": "multidigits: two digits per image, five tasks",
    "data": "multidigits(val=600, test=1500)",
    "methods": [
        "sum",
        "pcgrad",
        "mgda",
        "gradnorm",
        "imtl_g",
        "graddrop",
        # the losses' references change at step 20, so the gradients' must too
        {"method": "rotograd(burn_in=20)", "label": "rotograd"},
    ],
    "seeds": 3,
    "epochs": 6,
    "batch_size": 64,
    "optimizer": "radam",
    "lr": 3e-3,
    "method_lr": 1.5e-3,
    "rotation_decay": 0.9999,
    "normalize": True,
    "channels_last": True,
    "improvement_over": ["left", "right", "parity", "sum"],
    "log_every": 21,
    "monitor_every": 7,
    "timing": 30,
}
"""What ``mtlkit compare --demo`` runs: the paper's settings, but three times its learning rates."""


@dataclass(frozen=True)
class Entry:
    """One method of a comparison.

    Attributes:
        label: as the table shows it.
        method: config string.
        extra_capacity: a matrix before each head, as RotoGrad has it, but learnt like the head;
            options ``size`` and ``dim``; None for none.
        settings: training settings that differ from those of the others.
    """

    label: str
    method: str
    extra_capacity: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompareConfig:
    """What to compare, and how.

    Attributes:
        title: of the report.
        entries: the methods, the reference included.
        seeds: each gives weights, batches and data split of one run per method.
        train: settings of :class:`~mtlkit.training.config.TrainConfig` that all runs share.
        normalize: put the paper's loss normalisation before every method.
        single_task: train one network per task too, as the baseline of relative improvements.
        reference: label that the t-test compares with.
        improvement_over: tasks that statistics of the improvement are taken over; None for all.
        channels_last: keep the network's convolutions in that memory format; LeNet trains twice as fast
            on a CPU.
        timing: timed steps per method; 0 leaves the time out.
        keep_weights: keep the best weights of every run.
        jobs: runs at a time; None takes the number of GPUs or cores, at most 8.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        launcher: ``local`` or ``submitit``.
        launcher_options: parameters of submitit's executor, such as ``slurm_partition``.
    """

    title: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    train: dict[str, Any]
    normalize: bool = False
    single_task: bool = True
    reference: str | None = "sum"
    improvement_over: tuple[str, ...] | None = None
    channels_last: bool = False
    timing: int = 20
    keep_weights: bool = False
    jobs: int | None = None
    device: str = "auto"
    launcher: Literal["local", "submitit"] = "local"
    launcher_options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings as they were given, to be written down."""

    @classmethod
    def make(
        cls, settings: Mapping[str, Any], source: str = "the settings", budget: str = "full"
    ) -> CompareConfig:
        """Check settings by name, type and range.

        Keys are those of :class:`~mtlkit.training.config.TrainConfig` that all runs can share; those
        above but ``entries``, ``train`` and ``settings``; ``methods``: a list of config strings, or of
        mappings with ``method``, ``label``, ``extra_capacity`` and settings of its own;
        ``reference_with_rotations``: true, or the options of ``extra_capacity``, for a second
        reference with RotoGrad's capacity; and ``small``: what a small budget changes.

        Raises:
            ConfigError: for an unknown key, with the nearest one, or a value that does not fit.
        """
        if budget not in ("small", "full"):
            raise ConfigError(f"{source}: the budget is 'small' or 'full', not {budget!r}")
        given = dict(settings)
        small = given.pop("small", None)
        if small is not None and not isinstance(small, Mapping):
            raise ConfigError(f"{source}: 'small' must hold keys and values, not {small!r}")
        _check_keys(given, source)
        _check_keys(small or {}, f"{source}, small")
        if budget == "small":
            if small is None:
                raise ConfigError(f"{source} has no key 'small' that says what a small budget changes")
            given |= small
        made = _Reader(given, source)
        shared = TrainConfig.make({k: v for k, v in given.items() if k in _TRAIN_KEYS}, source)
        train = {key: getattr(shared, key) for key in _TRAIN_KEYS}
        normalize = made.boolean("normalize", False)
        entries = _entries(given.get("methods"), source, train)
        reference = made.text("reference", "sum", none=True)
        entries, reference = _with_reference(entries, reference)
        extra = given.get("reference_with_rotations", False)
        if extra not in (False, None):
            label = f"sum {WITH_ROTATIONS}"
            entry = Entry(label, "sum", _capacity(extra, f"{source}, 'reference_with_rotations'"))
            if all(known.label != label for known in entries):
                entries.insert(1, entry)
        if normalize:
            entries = [replace(entry, method=f"normalize+{entry.method}") for entry in entries]
        _check_methods(entries, source)
        return cls(
            title=made.text("title", "") or f"{shared.data}: {len(entries)} methods",
            entries=tuple(entries),
            seeds=_seeds(given.get("seeds", 3), source),
            train=train,
            normalize=normalize,
            single_task=made.boolean("single_task", True),
            reference=reference,
            improvement_over=made.words("improvement_over"),
            channels_last=made.boolean("channels_last", False),
            timing=made.whole("timing", 20, least=0),
            keep_weights=made.boolean("keep_weights", False),
            jobs=made.whole("jobs", None, least=1),
            device=made.text("device", "auto"),
            launcher=made.choice("launcher", "local", _LAUNCHERS),
            launcher_options=made.mapping("launcher_options"),
            settings=given,
        )


_OWN_KEYS = tuple(
    f.name for f in fields(CompareConfig) if f.name not in ("entries", "train", "settings")
)
_KEYS = (*_TRAIN_KEYS, *_OWN_KEYS, "methods", "reference_with_rotations", "small")


def split_specs(text: str) -> list[str]:
    """Config strings that are separated by commas; commas within brackets or quotes do not count."""
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


def _check_keys(settings: Mapping[str, Any], source: str) -> None:
    for key in settings:
        if key not in _KEYS:
            raise unknown_key(source, key, _KEYS)


def _entries(given: Any, source: str, train: Mapping[str, Any]) -> list[Entry]:
    if isinstance(given, str):
        given = split_specs(given)
    if not isinstance(given, Sequence) or not given:
        raise ConfigError(f"{source}: 'methods' must name one method or more, such as [sum, rotograd]")
    entries = []
    for item in given:
        where = f"{source}, method {item!r}"
        if not isinstance(item, Mapping) or "method" not in item:
            item = {"method": item}
        for key in item:
            known = ("method", "label", "extra_capacity", *_PER_METHOD)
            if key not in known:
                raise unknown_key(where, key, known)
        try:
            method = format_spec(parse_spec(item["method"]))
        except SpecError as error:
            raise ConfigError(f"{where}: {error}") from None
        capacity = item.get("extra_capacity", False)
        extra = None if capacity in (False, None) else _capacity(capacity, where)
        own = {key: item[key] for key in _PER_METHOD if key in item}
        checked = TrainConfig.make({**train, **own}, where)
        label = item.get("label", method if extra is None else f"{method} {WITH_ROTATIONS}")
        if not isinstance(label, str) or not label.strip() or label == SINGLE_TASK:
            raise ConfigError(f"{where}: {label!r} cannot be a label")
        entries.append(Entry(label, method, extra, {key: getattr(checked, key) for key in own}))
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{source}: two methods are called {label!r}; give one another 'label'")
    return entries


def _with_reference(entries: list[Entry], reference: str | None) -> tuple[list[Entry], str | None]:
    """Add the plain sum where the reference is not among the methods."""
    if reference is None or any(entry.label == reference for entry in entries):
        return entries, reference
    try:
        method = format_spec(parse_spec(reference))
    except SpecError:
        known = ", ".join(entry.label for entry in entries)
        raise ConfigError(f"the reference {reference!r} is not a label; labels: {known}") from None
    return [Entry(reference, method), *entries], reference


def _check_methods(entries: Sequence[Entry], source: str) -> None:
    from mtlkit.registry import methods

    for entry in entries:
        try:
            for part in methods.expand(entry.method):
                methods.check(part)
        except SpecError as error:
            raise ConfigError(f"{source}, method {entry.label!r}: {error}") from None


def _capacity(given: Any, source: str) -> dict[str, Any]:
    if given is True:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= {"size", "dim"}:
        raise ConfigError(f"{source}: extra_capacity is true or {{size: 512, dim: flat}}, not {given!r}")
    return dict(given)


def _seeds(given: Any, source: str) -> tuple[int, ...]:
    seeds = list(range(given)) if isinstance(given, int) and not isinstance(given, bool) else given
    valid = isinstance(seeds, Sequence) and not isinstance(seeds, str) and len(seeds) > 0
    if not valid or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in seeds):
        raise ConfigError(f"{source}: 'seeds' is a number from 1, or a list of seeds, not {given!r}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"{source}: 'seeds' holds a seed twice: {given!r}")
    return tuple(seeds)


class _Reader:
    """Values of the settings that are not those of training."""

    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        self._settings = settings
        self._source = source

    def _wrong(self, key: str, expected: str) -> ConfigError:
        given = self._settings[key]
        return ConfigError(f"{self._source}: {key!r} must be {expected}, not {given!r}")

    def boolean(self, key: str, default: bool) -> bool:
        value = self._settings.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: Any, none: bool = False) -> Any:
        value = self._settings.get(key, default)
        if not (isinstance(value, str) or (none and value is None)):
            raise self._wrong(key, "a word")
        return value

    def whole(self, key: str, default: Any, least: int) -> Any:
        value = self._settings.get(key, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, f"a whole number from {least}")
        return value

    def choice(self, key: str, default: str, known: Sequence[str]) -> Any:
        value = self._settings.get(key, default)
        if value not in known:
            raise self._wrong(key, f"one of {', '.join(known)}")
        return value

    def words(self, key: str) -> tuple[str, ...] | None:
        value = self._settings.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, list | tuple)
            or not all(isinstance(v, str) for v in value)
            or not value
        ):
            raise self._wrong(key, "a list of names")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._settings.get(key) or {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, "keys and values")
        return dict(value)
