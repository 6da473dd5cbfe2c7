"""A small table of people, and runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas

from mtlkit.training.config import TrainConfig
from mtlkit.training.experiment import run

TARGETS = (
    "{rich: binary, grade: classification, height: regression, likes: multilabel(columns=[tea, jazz])}"
)


def people(number: int = 240, seed: int = 0) -> pandas.DataFrame:
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 80, number)
    job = draw.choice(["nurse", "teacher", "clerk"], number)
    hours = np.where(draw.random(number) < 0.1, np.nan, draw.normal(38, 6, number).round(1))
    return pandas.DataFrame(
        {
            "id": [f"p{index}" for index in range(number)],
            "age": age,
            "job": job,
            "hours": hours,
            "rich": np.where((age > 45) ^ (draw.random(number) < 0.1), "yes", "no"),
            "grade": np.select([job == "nurse", age > 50], ["a", "b"], "c"),
            "height": 150 + age / 4 + (job == "clerk") * 20,
            "tea": (age > 40).astype(int),
            "jazz": (job == "clerk").astype(int),
        }
    )


def write_people(path: Path, **options: Any) -> None:
    people(**options).to_csv(path, index=False)


def train(folder: Path, table: Path, **settings: Any) -> Path:
    """A run on the table, in the folder ``folder``."""
    data = f"table(file='{table}', targets={TARGETS}, ignore=[id])"
    given = {
        "data": data,
        "method": "rotograd",
        "epochs": 4,
        "batch_size": 32,
        "lr": 0.01,
        "output": str(folder),
        **settings,
    }
    run(TrainConfig.make(given, "test"), progress=False)
    return folder
