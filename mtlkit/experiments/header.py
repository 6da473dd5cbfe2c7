"""Write ``comparison.json``, and check that a folder belongs to the same comparison."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mtlkit._version import __version__
from mtlkit.config.files import read_json
from mtlkit.config.logs import plain_values
from mtlkit.config.settings import describe_changes
from mtlkit.config.yaml_files import write_yaml
from mtlkit.errors import ConfigError, UsageError
from mtlkit.experiments.compare_config import CONFIG, CompareConfig
from mtlkit.experiments.entries import SINGLE_TASK
from mtlkit.experiments.jobs import FREE, open_data
from mtlkit.report.results import HEADER, Comparison, TaskRecord, read_header
from mtlkit.training.config import TrainingSettings


def write_header(
    config: CompareConfig,
    folder: Path,
    title: str,
    tasks: list[TaskRecord],
    threads: int,
    *,
    grows: bool,
) -> None:
    """Write the header and the settings; ``grows`` if runs will be added.

    Raises:
        ConfigError: if the folder contains runs with other tasks or settings.
        UsageError: if runs will be added, and the data are not those of the finished ones.
    """
    old: dict[str, Any] = {}
    if (folder / HEADER).is_file():
        old = read_header(folder)
        if [task["name"] for task in old.get("tasks", ())] != [task.name for task in tasks]:
            raise ConfigError(
                f"{folder} contains a comparison of other tasks; choose another output folder"
            )
    before = old.get("config") or {}
    labels = ([SINGLE_TASK] if config.single_task else []) + [entry.label for entry in config.entries]
    earlier = [label for label in before.get("order", ()) if label not in labels]
    methods = {k: v for k, v in before.get("methods", {}).items() if k in earlier}
    described = {
        **{key: value for key, value in config.train.items() if value is not None},
        "normalize": config.normalize,
        "single_task": config.single_task,
        "methods": {
            entry.label: {"method": entry.method, **entry.own} if entry.own else entry.method
            for entry in config.entries
        }
        | methods,
        "seeds": list(config.seeds),
        "threads": threads,
        "order": labels + earlier,
    }
    for key in ("improvement_over", "primary", "single_task_row", "published"):
        if getattr(config, key) is not None:
            described[key] = getattr(config, key)
    if config.protocol == "field":
        described["protocol"] = config.protocol
    _check_settings(folder, before, plain_values(described))
    if grows:
        _check_data(config, folder)
    Comparison(
        title=title,
        tasks=tasks,
        config=described,
        versions=old.get("versions") or _versions(threads),
        baseline=SINGLE_TASK if config.single_task or SINGLE_TASK in earlier else None,
        reference=config.reference,
        split=old.get("split", "test"),
        tuning=config.tuning,
    ).save_header(folder)
    write_yaml(folder / CONFIG, config.settings)


def _check_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a ConfigError if the finished runs had other settings."""
    if not before:
        return
    done = {run.label for run in Comparison.load(folder).runs if run.status == "done"}
    fields = TrainingSettings.model_fields
    # a missing key was None, or is a newer setting
    known = {*before, *(key for key, field in fields.items() if field.default is None)} - FREE
    keys = [key for key in ("normalize", *fields) if key in known]
    old, new = dict(before), dict(now)
    for label in done.intersection(before.get("methods", {}), now["methods"]):
        name = f"method {label!r}"
        old[name], new[name] = before["methods"][label], now["methods"][label]
        keys.append(name)
    changes = describe_changes(old, new, keys)
    if done and changes:
        raise ConfigError(
            f"{folder} contains runs with other settings ({changes}), which do not belong in the same "
            "table; choose another output folder, or delete this one"
        )


def _check_data(config: CompareConfig, folder: Path) -> None:
    """Raise a UsageError if the data are not those of a finished run; one shows it for all."""
    for path in sorted(folder.glob("runs/*/result.json")):
        known, job = read_json(path) or {}, read_json(path.with_name("job.json")) or {}
        if known.get("data") is not None and isinstance(job.get("seed"), int):
            now = getattr(open_data(config.data, config.data_dir, job["seed"]), "checksum", None)
            if now == known["data"]:
                return
            raise UsageError(
                f"the data changed since the first runs in {folder}, so new results cannot be compared "
                "with theirs. Choose another output folder, or restore the data"
            )


def _versions(threads: int) -> dict[str, str]:
    import numpy

    program = Path(sys.argv[0]).name
    command = ["mtlkit" if program == "__main__.py" else program, *sys.argv[1:]]
    return {
        "mtlkit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads per run": str(threads),
        "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(command),
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    text = facts.read_text(encoding="utf-8") if facts.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)", text, re.MULTILINE)
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
