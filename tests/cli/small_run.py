"""``mtlkit train`` on the small problem: stands in for a data set and an architecture of mtlkit.

Usage: python -m tests.cli.small_run train --data small --method pcgrad ...
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import mtlkit
import mtlkit.data
from mtlkit.cli import main
from mtlkit.config.spec import parse_spec
from mtlkit.errors import unknown_name
from mtlkit.training import experiment
from tests.training.small_problem import SmallData, SmallNet


def load_dataset(spec, data_dir=None, seed=0):
    (part,) = parse_spec(spec)
    if part.name != "small":
        raise unknown_name("data set", part.name, ["small"])
    kinds = [
        SimpleNamespace(name="label", kind="classification", outputs=3),
        SimpleNamespace(name="value", kind="regression", outputs=1),
    ]
    return SimpleNamespace(
        tasks=kinds,
        train=SmallData(53, seed=seed, missing=part.options.get("missing", 0.0)),
        val=SmallData(21, seed=seed + 1),
        test=SmallData(22, seed=seed + 2),
        default_architecture="small_net",
    )


def create_architecture(spec, tasks, *, method="sum"):
    (part,) = parse_spec(spec)
    if part.name != "small_net":
        raise unknown_name("architecture", part.name, ["small_net"])
    return SmallNet(method, tasks=tasks, **part.options)


def install() -> None:
    mtlkit.data.load_dataset = load_dataset
    experiment.create_architecture = create_architecture


if __name__ == "__main__":
    install()
    main(sys.argv[1:])
