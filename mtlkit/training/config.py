"""The settings of a training run, from a YAML file or the command line, checked before anything runs."""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from mtlkit.errors import ConfigError, SpecError, shorten, unknown_key
from mtlkit.registry import describe_type, fits_type
from mtlkit.spec import format_spec, parse_spec

__all__ = ["TrainConfig", "read_yaml"]

_MOST_BYTES = 1_000_000
_SPECS = ("data", "architecture", "method", "optimizer", "method_optimizer", "schedule")
_WHOLE = re.compile(r"[-+]?\d+")


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run. The keys of the file are these names.

    Attributes:
        data: data set, such as ``multimnist`` or ``scenes(size=96)``.
        data_dir: folder with the data sets' files.
        architecture: network; None takes the data set's own.
        method: how the tasks' gradients are merged.
        epochs: passes over the data; without ``epochs`` and ``steps``, 10.
        steps: optimizer steps.
        batch_size: samples per step and batch, over all processes together.
        optimizer: ``adam``, ``adamw``, ``radam`` or ``sgd``, with options as in ``sgd(momentum=0.9)``.
        method_optimizer: that of the method's own parameters; None takes ``optimizer``.
        lr: learning rate of the network.
        method_lr: that of the method's own parameters; None takes half of ``lr``.
        weight_decay: of the network.
        schedule: of the learning rate: ``constant``, ``cosine`` down to zero, ``cosine(period=200)``,
            ``step(every=100, factor=0.5)`` in steps or ``step(epochs=100, factor=0.5)``; with
            ``on=network`` the method's own rate is left alone.
        rotation_decay: factor of the rotations' learning rate at every step; None for none; ``auto``
            ends at the rate that the paper's run on multi-MNIST ended at, however long this one is.
        accumulate: batches per optimizer step.
        clip_norm: largest norm of the gradient.
        precision: ``no``, ``bf16`` or ``fp16``.
        on_nonfinite: ``raise`` or ``skip``.
        validate_every: steps between validations; None after every epoch.
        checkpoint_every: steps between checkpoints; None with every validation.
        keep_checkpoints: how many checkpoints stay, besides the best.
        best_by: ``improvement``, ``loss`` or ``task/metric``.
        early_stop: validations without progress that end the run.
        log_every: steps between lines of the log.
        monitor_every: steps between samples of the gradients' statistics; 0 for none.
        workers: processes that read data.
        tensorboard: write for TensorBoard too.
        test: report on the test set at the end, with the best checkpoint.
        seed: of weights, order and augmentation.
        output: folder of the run; None makes a name under ``runs``.
    """

    data: str
    data_dir: str | None = None
    architecture: str | None = None
    method: str = "sum"
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 64
    optimizer: str = "adam"
    method_optimizer: str | None = None
    lr: float = 1e-3
    method_lr: float | None = None
    weight_decay: float = 0.0
    schedule: str = "constant"
    rotation_decay: float | Literal["auto"] | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    on_nonfinite: Literal["raise", "skip"] = "raise"
    validate_every: int | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 2
    best_by: str = "improvement"
    early_stop: int | None = None
    log_every: int = 50
    monitor_every: int = 10
    workers: int = 0
    tensorboard: bool = False
    test: bool = True
    seed: int = 0
    output: str | None = None

    @classmethod
    def make(cls, settings: Mapping[str, Any], source: str = "the settings") -> TrainConfig:
        """Check settings by name, type and range.

        Raises:
            ConfigError: for an unknown key, with the nearest one, or a value that does not fit.
        """
        hints = _hints()
        values: dict[str, Any] = {}
        for key, value in settings.items():
            if not isinstance(key, str) or key not in hints:
                raise unknown_key(source, key, hints)
            values[key] = _value(key, value, hints[key], source)
        if values.get("data") is None:
            raise ConfigError(f"{source}: the key 'data' is missing; name a data set, see 'mtlkit data'")
        config = cls(**values)
        config._check_ranges(source)
        return config

    def _check_ranges(self, source: str) -> None:
        least = {
            "epochs": 0, "steps": 0, "batch_size": 1, "accumulate": 1, "validate_every": 1,
            "checkpoint_every": 1, "keep_checkpoints": 1, "early_stop": 1, "log_every": 1,
            "monitor_every": 0, "workers": 0, "seed": 0, "lr": 0, "method_lr": 0, "weight_decay": 0,
        }  # fmt: skip
        for key, bound in least.items():
            value = getattr(self, key)
            if value is not None and value < bound:
                raise ConfigError(f"{source}: {key!r} must be {bound} or more, not {value}")
        if self.seed >= 2**32:
            raise ConfigError(f"{source}: 'seed' must be below 2**32, not {self.seed}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"{source}: 'clip_norm' must be above 0, not {self.clip_norm}")
        decay = self.rotation_decay
        if isinstance(decay, float) and not 0 < decay <= 1:
            raise ConfigError(f"{source}: 'rotation_decay' must be above 0 and at most 1, not {decay}")

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        if self.output is not None:
            return Path(self.output)
        name = re.sub(r"[^A-Za-z0-9.=-]+", "_", f"{self.data}-{self.method}")[:80].strip("_")
        return Path("runs") / f"{name}-{self.seed}"

    def to_yaml(self) -> str:
        """The settings as YAML."""
        return yaml.safe_dump(asdict(self), sort_keys=False)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a mapping from a YAML file: plain values only, no tags, no aliases, no key twice.

    Raises:
        ConfigError: for a file that is absent or is anything else.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError(f"{path} has {size} bytes; a configuration has {_MOST_BYTES} at most")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping that a YAML text holds."""
    try:
        content = yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source} is not a plain YAML file: {reason[:300]}") from None
    except (RecursionError, ValueError, OverflowError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{source} is not a plain YAML file: {shorten(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{source} must hold keys and values, not a {type(content).__name__}")
    return content


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without repeated keys and without aliases, which could expand beyond all memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"the alias '*{event.anchor}' is not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in getattr(node, "value", ()) if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


@cache
def _hints() -> dict[str, Any]:
    types = typing.get_type_hints(TrainConfig)
    return {field.name: types[field.name] for field in fields(TrainConfig)}


def _value(key: str, value: Any, hint: Any, source: str) -> Any:
    if key in _SPECS and value is not None:
        try:
            return format_spec(parse_spec(value))
        except SpecError as error:
            raise ConfigError(f"{source}, {key!r}: {error}") from None
    numbers = {choice for choice in (float, int) if choice in (hint, *typing.get_args(hint))}
    if isinstance(value, str) and numbers and str not in typing.get_args(hint):
        value = _number(value)  # YAML 1.1 reads 1e-3 as a word
    if key == "precision" and value is False:
        value = "no"  # YAML 1.1 reads the word no as false
    if not fits_type(value, hint):
        raise ConfigError(f"{source}: {key!r} must be {describe_type(hint)}, not {shorten(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{source}: {key!r} must be finite, not {value}")
    if isinstance(value, int) and float in numbers and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{source}: {key!r} is too large: {shorten(value)}") from None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**63:
        raise ConfigError(f"{source}: {key!r} is too large")
    return value


def _number(text: str) -> Any:
    if _WHOLE.fullmatch(text) and len(text) < 20:
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
