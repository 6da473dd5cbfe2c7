"""The API reference has every public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
PACKAGES = (
    "mtlkit",
    "mtlkit.architectures",
    "mtlkit.data",
    "mtlkit.diagnosis",
    "mtlkit.report",
    "mtlkit.report.statistics",
    "mtlkit.report.significance",
    "mtlkit.report.verdict",
    "mtlkit.integrations.libmtl",
    "mtlkit.integrations.lightning",
    "mtlkit.tasks",
    "mtlkit.testing",
    "mtlkit.training",
    "mtlkit.experiments.tuning",
    "mtlkit.weighting",
)


def documented_names() -> set[str]:
    names = set()
    for kind, name in re.findall(r"^\.\. (?:auto|py:)(\w+):: (\S+)", PAGE.read_text(), re.MULTILINE):
        if kind == "module":
            names |= set(importlib.import_module(name).__all__)
        else:
            names.add(name.rpartition(".")[2])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    assert set(importlib.import_module(package).__all__) <= documented_names()
