"""The settings of a training run, from a YAML file or the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from zlib import crc32

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from mtlkit.config.plugins import load_plugin, resolve_plugin, split_location
from mtlkit.config.registry import methods
from mtlkit.config.settings import Names, Settings, Spec, setting
from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.errors import shorten

RESUMABLE = (
    *("output", "data_dir", "plugins", "epochs", "steps", "early_stopping_patience", "on_nonfinite"),
    *("device", "mixed_precision", "channels_last", "compile", "workers", "eval_steps", "save_steps"),
    *("save_total_limit", "logging_steps", "monitor_steps", "log_with", "test", "test_last"),
)
"""Settings that may change when a run is resumed."""

DATA = "Data, network and method"
LENGTH = "Length and optimizer"
SPEED = "Speed and devices"
LOG = "Validation, checkpoints and log"

# YAML 1.1 reads no as false
Precision = Annotated[
    Literal["no", "bf16", "fp16"], BeforeValidator(lambda value: "no" if value is False else value)
]


class TrainingSettings(Settings):
    """The settings of one training, alone or within a comparison.

    With ``per_method=True``, each method of a comparison may have its own value.
    """

    synonyms: ClassVar[Mapping[str, str]] = {
        "accumulate": "gradient_accumulation_steps",
        "accumulate_grad_batches": "gradient_accumulation_steps",
        "checkpoint_every": "save_steps",
        "clip_norm": "max_grad_norm",
        "dataloader_num_workers": "workers",
        "dataset": "data",
        "early_stop": "early_stopping_patience",
        "grad_clip": "max_grad_norm",
        "gradient_clip_val": "max_grad_norm",
        "keep_checkpoints": "save_total_limit",
        "learning_rate": "lr",
        "log_every": "logging_steps",
        "lr_scheduler_type": "schedule",
        "max_epochs": "epochs",
        "max_steps": "steps",
        "model": "architecture",
        "num_train_epochs": "epochs",
        "num_workers": "workers",
        "optim": "optimizer",
        "output_dir": "output",
        "patience": "early_stopping_patience",
        "per_device_train_batch_size": "batch_size",
        "precision": "mixed_precision",
        "report_to": "log_with",
        "scheduler": "schedule",
        "trackers": "log_with",
        "validate_every": "eval_steps",
    }

    data: Spec = setting(
        ...,
        "Data set, such as `multimnist` or `multidigits(size=28)`, see `mtlkit data`; or your own, such "
        "as `my.py:Cars`.",
        panel=DATA,
        missing="name a data set, see 'mtlkit data'",
    )
    sources: dict[str, Spec] | None = setting(
        None, "Instead of `data`: the data set of each task, `{task: table(...)}`.", panel=DATA
    )
    mixing: str | None = setting(
        None,
        "Sampling rate of each source: `uniform`, `proportional` to its size (default), or "
        "`temperature(2)` for size^(1/2).",
        panel=DATA,
    )
    batches: Literal["one", "all"] | None = setting(
        None, "Sources of a batch: `one` or `all` (default).", panel=DATA
    )
    data_dir: str | None = setting(None, "Folder with the files of the data sets.", panel=DATA)
    architecture: Spec | None = setting(
        None,
        "Network, see `mtlkit architectures`; by default, that of the data set.",
        panel=DATA,
        per_method=True,
    )
    preference: Spec | None = setting(
        None,
        "`lora(rank=4)` or `full`: train one network for all trade-offs between the tasks and choose "
        "one later, see `mtlkit front`.",
        panel=DATA,
        per_method=True,
    )
    plugins: Names = setting(
        [],
        "Your Python files or modules that register data sets, methods, networks or tasks.",
        panel=DATA,
        flags=("--plugin",),
    )

    epochs: int | None = setting(
        None,
        "Passes over the data. Without `epochs` and `steps`: 10; for a table, at least 4000 steps, "
        "with early stopping after 10 validations without progress.",
        panel=LENGTH,
        per_method=True,
        ge=0,
    )
    steps: int | None = setting(None, "Optimizer steps.", panel=LENGTH, per_method=True, ge=0)
    batch_size: int = setting(
        64, "Samples per batch, over all processes.", panel=LENGTH, per_method=True, ge=1
    )
    optimizer: Spec = setting(
        "adam",
        "Optimizer of torch in lower case, with its options: `adamw`, `sgd(momentum=0.9)`, ...",
        panel=LENGTH,
        per_method=True,
    )
    method_optimizer: Spec | None = setting(
        None,
        "Optimizer of the method's parameters; by default, `optimizer`.",
        panel=LENGTH,
        per_method=True,
    )
    lr: float = setting(1e-3, "Learning rate of the network.", panel=LENGTH, per_method=True, ge=0)
    method_lr: float | None = setting(
        None,
        "Learning rate of the method's parameters; by default, half of `lr`.",
        panel=LENGTH,
        per_method=True,
        ge=0,
    )
    weight_decay: float = setting(
        0.0, "Weight decay of the network.", panel=LENGTH, per_method=True, ge=0
    )
    schedule: Spec = setting(
        "constant",
        "Schedule of the learning rate: `constant`, `cosine` or `linear` to zero, `cosine(period=200)`, "
        "`step(every=100, factor=0.5)` in steps or `step(epochs=100, factor=0.5)`, "
        "`plateau(factor=0.7, patience=5)` of the validation score; with `on=network`, the method's "
        "rate is constant.",
        panel=LENGTH,
        per_method=True,
    )
    rotation_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None = setting(
        None,
        "Factor of the rotations' learning rate at every step; `auto` ends at the final rate of the "
        "RotoGrad paper on multi-MNIST, for any number of steps.",
        panel=LENGTH,
        per_method=True,
    )
    gradient_accumulation_steps: int = setting(1, "Batches per optimizer step.", panel=LENGTH, ge=1)
    max_grad_norm: float | None = setting(
        None, "Clip the gradient to this norm.", panel=LENGTH, per_method=True, gt=0
    )
    clip: Literal["all", "shared"] = setting(
        "all",
        "Parameters whose gradient `max_grad_norm` clips: `all`, or those `shared` by the tasks.",
        panel=LENGTH,
        per_method=True,
    )
    on_nonfinite: Literal["raise", "skip"] = setting(
        "raise", "Stop at a loss or gradient that is not finite, or skip the step.", panel=LENGTH
    )

    mixed_precision: Precision = setting(
        "no", "Mixed precision: `bf16`, `fp16`, or `no` for float32.", panel=SPEED
    )
    channels_last: bool = setting(
        False, "Use the memory format channels_last; LeNet trains twice as fast on a CPU.", panel=SPEED
    )
    compile: bool = setting(
        False, "Compile the network with `torch.compile`; the first steps are slow.", panel=SPEED
    )
    forward_per_task: Literal["auto", "always", "never"] = setting(
        "auto",
        "One forward pass per task, for methods with `wrt=parameters`: `always`, `never`, or `auto` if "
        "no sample of a batch has labels of two tasks and the network has no BatchNorm.",
        panel=SPEED,
        per_method=True,
    )
    workers: int = setting(0, "Number of processes that load data.", panel=SPEED, ge=0)

    eval_steps: int | None = setting(
        None, "Steps between validations; by default, one after every epoch.", panel=LOG, ge=1
    )
    save_steps: int | None = setting(
        None, "Steps between checkpoints; by default, one with every validation.", panel=LOG, ge=1
    )
    best_by: str | dict[str, float] = setting(
        "improvement",
        "Criterion of the best validation: `improvement`, `loss`, `task/metric`, `mean/metric` over "
        "tasks, or Delta m to a single-task row `{task/metric: value}`.",
        panel=LOG,
        cli=str,
    )
    test_last: int | None = setting(
        None,
        "Report the mean of the test metrics over this many last epochs, as papers on NYUv2 do; by "
        "default, only the best checkpoint is tested.",
        panel=LOG,
        ge=1,
    )
    early_stopping_patience: int | None = setting(
        None, "Stop after this many validations without progress.", panel=LOG, ge=1
    )
    single_task_metrics: dict[str, dict[str, float]] | None = setting(
        None,
        "Validation metrics of single-task models, `{depth: {mae: 0.61}}`, for methods that favor tasks "
        "that are worse (`pivrg`).",
        panel=LOG,
    )
    logging_steps: int = setting(50, "Steps between lines of the log.", panel=LOG, ge=1)
    monitor_steps: int = setting(
        10, "Steps between samples of gradient statistics; 0 for none.", panel=LOG, ge=0
    )
    log_with: Names = setting(
        [],
        "Trackers of Accelerate, in addition to the log: `tensorboard`, `wandb`, `mlflow`, ...",
        panel=LOG,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_sources(cls, values: Any) -> Any:
        """Replace ``sources``, ``mixing`` and ``batches`` by the data set ``sources(of=...)``."""
        keys = ("sources", "mixing", "batches")
        given = {key: values[key] for key in keys if values.get(key) is not None}
        if not given:
            return values
        options: dict[str, Any] = {key: given[key] for key in keys[1:] if key in given}
        data = values.get("data")
        if "sources" not in given:
            parts = [Part("")] if data is None else parse_spec(data)
            if parts[0].name != "sources":
                raise ValueError(f"{', '.join(map(repr, options))}: only 'sources' can be mixed")
            options = {**parts[0].options, **options}
        elif data is not None:
            raise ValueError("'data' and 'sources' exclude each other; give one of them")
        elif not isinstance(given["sources"], Mapping) or not given["sources"]:
            raise ValueError(f"'sources' must be task: data set, not {shorten(given['sources'])}")
        else:
            sources = {
                str(name): format_spec(parse_spec(spec)) for name, spec in given["sources"].items()
            }
            options = {"of": sources, **options}
        rest = {key: value for key, value in values.items() if key not in keys}
        return {**rest, "data": format_spec([Part("sources", options)])}

    @model_validator(mode="before")
    @classmethod
    def _find_file(cls, values: Any) -> Any:
        """Read ``data: my.py:Cars`` as ``data: Cars`` with the plugin ``my.py``."""
        file, spec = split_location(values.get("data")) if isinstance(values, dict) else (None, None)
        if file is None:
            return values
        given = values.get("plugins", [])
        plugins = [*(given if isinstance(given, list | tuple) else [given]), file]
        return {**values, "data": spec, "plugins": plugins}

    @field_validator("plugins")
    @classmethod
    def _load_plugins(cls, plugins: list[str]) -> list[str]:
        """Load plugins first, because other settings may use their names."""
        resolved = list(dict.fromkeys(map(resolve_plugin, plugins)))
        for plugin in resolved:
            load_plugin(plugin)
        return resolved


class TrainConfig(TrainingSettings):
    """The settings of a run; these are the keys of its YAML file.

    >>> from mtlkit.training.config import TrainConfig
    >>> config = TrainConfig.make({"data": "multidigits", "lr": "1e-2", "epochs": 3})
    >>> config.lr, config.method
    (0.01, 'sum')
    """

    device: str = setting("auto", "`auto`, `cpu`, `mps`, `cuda` or `cuda:1`.", panel=SPEED)
    method: Spec = setting(
        "sum", "Method that merges the task gradients, see `mtlkit methods`.", panel=DATA
    )
    save_total_limit: int = setting(
        2, "Number of recent checkpoints to keep, in addition to the best.", panel=LOG, ge=1
    )
    test: bool = setting(True, "Evaluate the best checkpoint on the test set at the end.", panel=LOG)
    seed: int = setting(0, "Seed of weights, sample order and augmentation.", ge=0, lt=2**32)
    output: str | None = setting(
        None, "Output folder; by default, a folder in `runs`.", flags=("--output", "-o")
    )

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        """Raise for a wrong name or option before any data is loaded."""
        for part in methods.expand(method):
            methods.check(part)
        return method

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        if self.output is not None:
            return Path(self.output)
        data, method = (re.sub(r"[^A-Za-z0-9.=-]+", "_", s).strip("_") for s in (self.data, self.method))
        if len(data) + len(method) > 80:
            mark = crc32(f"{self.data} {self.method}".encode())
            data, method = data[:40].strip("_"), f"{method[:40].strip('_')}-{mark:08x}"
        return Path("runs") / f"{data}-{method}-{self.seed}"

    def to_yaml(self) -> str:
        """Return the settings as YAML."""
        return str(yaml.safe_dump(self.model_dump(), sort_keys=False))
