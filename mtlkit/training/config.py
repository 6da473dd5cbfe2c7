"""The settings of a training run, from a YAML file or the command line, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from zlib import crc32

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from mtlkit.config.plugins import load_plugin, resolve_plugin, split_location
from mtlkit.config.settings import Names, Settings, Spec, setting
from mtlkit.config.spec import Part, format_spec, parse_spec
from mtlkit.errors import shorten

RESUMABLE = (
    *("output", "data_dir", "plugins", "epochs", "steps", "early_stopping_patience", "on_nonfinite"),
    *("device", "mixed_precision", "channels_last", "compile", "workers", "eval_steps", "save_steps"),
    *("save_total_limit", "logging_steps", "monitor_steps", "log_with", "test"),
)
"""Settings that a run may be resumed with other values of."""

DATA = "Data, network and method"
LENGTH = "Length and optimizer"
SPEED = "Speed and devices"
LOG = "Validation, checkpoints and log"

# YAML 1.1 reads the word no as false
Precision = Annotated[
    Literal["no", "bf16", "fp16"], BeforeValidator(lambda value: "no" if value is False else value)
]


class TrainingSettings(Settings):
    """The settings of one training, on its own or within a comparison.

    ``setting(..., per_method=True)`` lets one method of a comparison have a value of its own.
    """

    synonyms: ClassVar[Mapping[str, str]] = {
        "accumulate": "gradient_accumulation_steps",
        "accumulate_grad_batches": "gradient_accumulation_steps",
        "checkpoint_every": "save_steps",
        "clip_norm": "max_grad_norm",
        "dataset": "data",
        "early_stop": "early_stopping_patience",
        "gradient_clip_val": "max_grad_norm",
        "keep_checkpoints": "save_total_limit",
        "learning_rate": "lr",
        "log_every": "logging_steps",
        "max_epochs": "epochs",
        "max_steps": "steps",
        "model": "architecture",
        "num_train_epochs": "epochs",
        "num_workers": "workers",
        "output_dir": "output",
        "patience": "early_stopping_patience",
        "precision": "mixed_precision",
        "report_to": "log_with",
        "scheduler": "schedule",
        "trackers": "log_with",
        "validate_every": "eval_steps",
    }

    data: Spec = setting(
        ...,
        "Data set, such as `multimnist` or `multidigits(size=28)`, see `mtlkit data`; or one of your "
        "own, `my.py:Cars`.",
        panel=DATA,
        missing="name a data set, see 'mtlkit data'",
    )
    sources: dict[str, Spec] | None = setting(
        None, "In place of `data`: the data set of every task, `{task: table(...)}`.", panel=DATA
    )
    mixing: str | None = setting(
        None,
        "Share of each source in training: `uniform`, `proportional` to the sizes, or "
        "`temperature(2)`, to size^(1/2); without it, `proportional`.",
        panel=DATA,
    )
    batches: Literal["one", "all"] | None = setting(
        None, "Whether a batch is of one source or of all; without it, of all.", panel=DATA
    )
    data_dir: str | None = setting(None, "Folder with the data sets' files.", panel=DATA)
    architecture: Spec | None = setting(
        None,
        "Network, see `mtlkit architectures`; without one, the data set's own.",
        panel=DATA,
        per_method=True,
    )
    preference: Spec | None = setting(
        None,
        "`lora(rank=4)` or `full`: train one network for all trade-offs between the tasks, and choose "
        "among them later, see `mtlkit front`.",
        panel=DATA,
        per_method=True,
    )
    plugins: Names = setting(
        [],
        "Your own Python files or modules, which register data sets, methods, networks or tasks.",
        panel=DATA,
        flags=("--plugin",),
    )

    epochs: int | None = setting(
        None,
        "Passes over the data; without `epochs` and `steps`, 10, but for a table at least 4000 steps, "
        "which end after 10 validations without progress.",
        panel=LENGTH,
        per_method=True,
        ge=0,
    )
    steps: int | None = setting(None, "Optimizer steps.", panel=LENGTH, per_method=True, ge=0)
    batch_size: int = setting(
        64,
        "Samples per step and batch, over all processes together.",
        panel=LENGTH,
        per_method=True,
        ge=1,
    )
    optimizer: Spec = setting(
        "adam",
        "An optimizer of torch, in lower case, with its options: `adamw`, `sgd(momentum=0.9)`, ...",
        panel=LENGTH,
        per_method=True,
    )
    method_optimizer: Spec | None = setting(
        None,
        "That of the method's own parameters; without one, `optimizer`.",
        panel=LENGTH,
        per_method=True,
    )
    lr: float = setting(1e-3, "Learning rate of the network.", panel=LENGTH, per_method=True, ge=0)
    method_lr: float | None = setting(
        None,
        "Learning rate of the method's own parameters; without one, half of `lr`.",
        panel=LENGTH,
        per_method=True,
        ge=0,
    )
    weight_decay: float = setting(
        0.0, "Weight decay of the network.", panel=LENGTH, per_method=True, ge=0
    )
    schedule: Spec = setting(
        "constant",
        "Of the learning rate: `constant`, `cosine` or `linear` down to zero, `cosine(period=200)`, "
        "`step(every=100, factor=0.5)` in steps or `step(epochs=100, factor=0.5)`, "
        "`plateau(factor=0.7, patience=5)` of the validation's score; with `on=network` the method's "
        "own rate does not change.",
        panel=LENGTH,
        per_method=True,
    )
    rotation_decay: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] | None = setting(
        None,
        "Factor of the rotations' learning rate at every step; `auto` ends at the rate that the "
        "paper's run on multi-MNIST ended at, however long this one is.",
        panel=LENGTH,
        per_method=True,
    )
    gradient_accumulation_steps: int = setting(1, "Batches per optimizer step.", panel=LENGTH, ge=1)
    max_grad_norm: float | None = setting(
        None, "Largest norm of the gradient.", panel=LENGTH, per_method=True, gt=0
    )
    clip: Literal["all", "shared"] = setting(
        "all",
        "Whose gradient `max_grad_norm` limits: of all parameters, or of those that the tasks share.",
        panel=LENGTH,
        per_method=True,
    )
    on_nonfinite: Literal["raise", "skip"] = setting(
        "raise", "Stop at a step that is not finite, or skip it.", panel=LENGTH
    )

    mixed_precision: Precision = setting(
        "no", "Mixed precision: `bf16`, `fp16`, or `no` for float32.", panel=SPEED
    )
    channels_last: bool = setting(
        False,
        "Keep convolutions in that memory format; LeNet trains twice as fast on a CPU.",
        panel=SPEED,
    )
    compile: bool = setting(
        False, "Compile the network with `torch.compile`; the first steps take long.", panel=SPEED
    )
    forward_per_task: Literal["auto", "always", "never"] = setting(
        "auto",
        "One forward pass per task, for methods with `wrt=parameters`: `auto` where no sample of a "
        "batch has labels of two tasks and the network has no BatchNorm, which would see the tasks "
        "apart; `always` or `never`.",
        panel=SPEED,
        per_method=True,
    )
    workers: int = setting(0, "Processes that read data.", panel=SPEED, ge=0)

    eval_steps: int | None = setting(
        None, "Steps between validations; without it, after every epoch.", panel=LOG, ge=1
    )
    save_steps: int | None = setting(
        None, "Steps between checkpoints; without it, with every validation.", panel=LOG, ge=1
    )
    best_by: str | dict[str, float] = setting(
        "improvement",
        "Which validation is best: by `improvement`, `loss`, `task/metric`, `mean/metric` over tasks, "
        "or Delta m to a single-task row `{task/metric: value}`.",
        panel=LOG,
        cli=str,
    )
    test_last: int | None = setting(
        None,
        "Report the mean of the test metrics after each of the last so many epochs, as papers on NYUv2 "
        "do; without it, the best checkpoint is tested once.",
        panel=LOG,
        ge=1,
    )
    early_stopping_patience: int | None = setting(
        None, "Validations without progress that end the run.", panel=LOG, ge=1
    )
    single_task_metrics: dict[str, dict[str, float]] | None = setting(
        None,
        "Metrics of single-task models on the validation set, `{depth: {mae: 0.61}}`, for methods that "
        "favor tasks behind them (`pivrg`).",
        panel=LOG,
    )
    logging_steps: int = setting(50, "Steps between lines of the log.", panel=LOG, ge=1)
    monitor_steps: int = setting(
        10, "Steps between samples of the gradients' statistics; 0 for none.", panel=LOG, ge=0
    )
    log_with: Names = setting(
        [],
        "Where metrics go besides the log, by Accelerate's names: `tensorboard`, `wandb`, `mlflow`, ...",
        panel=LOG,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_sources(cls, values: Any) -> Any:
        """Turn the keys about sources into the data set ``sources(of=...)``."""
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
            raise ValueError("'data' and 'sources' exclude each other: each says what to learn from")
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
        """`data: my.py:Cars` is `data: Cars` with the plugin `my.py`."""
        file, spec = split_location(values.get("data")) if isinstance(values, dict) else (None, None)
        if file is None:
            return values
        given = values.get("plugins", [])
        plugins = [*(given if isinstance(given, list | tuple) else [given]), file]
        return {**values, "data": spec, "plugins": plugins}

    @field_validator("plugins")
    @classmethod
    def _load_plugins(cls, plugins: list[str]) -> list[str]:
        """Now, since other settings may name what they register."""
        resolved = list(dict.fromkeys(map(resolve_plugin, plugins)))
        for plugin in resolved:
            load_plugin(plugin)
        return resolved


class TrainConfig(TrainingSettings):
    """The settings of a run. The keys of the file are these names.

    >>> from mtlkit.training.config import TrainConfig
    >>> config = TrainConfig.make({"data": "multidigits", "lr": "1e-2", "epochs": 3})
    >>> config.lr, config.method
    (0.01, 'sum')
    """

    device: str = setting("auto", "`auto`, `cpu`, `mps`, `cuda` or `cuda:1`.", panel=SPEED)
    method: Spec = setting(
        "sum", "How the tasks' gradients are merged; see `mtlkit methods`.", panel=DATA
    )
    save_total_limit: int = setting(2, "How many checkpoints stay, besides the best.", panel=LOG, ge=1)
    test: bool = setting(True, "Report on the test set at the end, with the best checkpoint.", panel=LOG)
    seed: int = setting(0, "Of weights, order and augmentation.", ge=0, lt=2**32)
    output: str | None = setting(
        None, "Folder of the run; without one, a name under `runs`.", flags=("--output", "-o")
    )

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
        values: dict[str, Any] = self.model_dump()
        return yaml.safe_dump(values, sort_keys=False)
