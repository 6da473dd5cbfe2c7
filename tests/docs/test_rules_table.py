"""The evidence beside the rules of the diagnosis is what the results say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mtlkit.diagnosis.rules import NOTHING, RULES

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs" / "_ext"))

import rules_table  # noqa: E402

CITED = [each for cited in rules_table.EVIDENCE.values() for each in cited]
NUMBER = re.compile(r"[-+]?\d*\.?\d+")


@pytest.mark.parametrize(("folder", "text"), CITED, ids=lambda value: value[:30])
def test_every_figure_is_in_the_readme_of_its_folder(folder, text):
    readme = (ROOT / "benchmarks" / "results" / folder / "README.md").read_text()
    assert [figure for figure in NUMBER.findall(text) if figure not in NUMBER.findall(readme)] == []


def test_every_rule_has_evidence_or_says_that_there_is_none():
    rows = [line for line in rules_table.rules_table().splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len((*RULES, NOTHING))
    assert all("](" in row or rules_table.NONE in row for row in rows)
