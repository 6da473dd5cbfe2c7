"""The law of data parallelism over every registered method, in one pair of processes."""

from __future__ import annotations

import pytest
import torch

import mtlkit
from mtlkit.testing.cases import MethodCase
from mtlkit.testing.processes import require_same_end, train_alone, train_on_two_processes


def exact_methods() -> list[str]:
    """Methods that do not waive the law."""
    made = {name: mtlkit.create_method(name, 3, feature_dim=6) for name in mtlkit.list_methods()}
    return [
        name
        for name, method in made.items()
        if not any("distributed" in part.waived_laws for part in method.parts)
    ]


CASES = {
    name: MethodCase(
        name, {}, tasks=3, seed=7, examples=1, device=torch.device("cpu"), dtype=torch.float64
    )
    for name in exact_methods()
}


@pytest.fixture(scope="module")
def ranks():
    return [
        dict(zip(CASES, states, strict=True)) for states in train_on_two_processes([*CASES.values()])
    ]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_where_one_process_does(ranks, name):
    """With respect to the features and, for a merge, to the parameters."""
    for alone, first, second in zip(train_alone(CASES[name]), *(r[name] for r in ranks), strict=True):
        require_same_end(alone, first, second)
