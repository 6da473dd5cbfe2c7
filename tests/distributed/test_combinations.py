"""Compilers x processes x places of the merge: each takes the steps of eager mode in one process, or raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.distributed.combinations import CELLS, PAGE, REFUSED, table

ROOT = Path(__file__).parents[2]
QUICK = {cell for cell in CELLS if cell[:2] in {("aot_eager", "1 process"), ("eager", "FSDP2")}}
"""The quick ones; tests/engine/test_compiled.py has Inductor, test_defects.py DDP with a compiler."""

pytestmark = pytest.mark.timeout(1800)


@cache
def found(backend: str, setup: str, quick: bool) -> dict[str, str | float]:
    """What the process of a back end and a setup found at the places that are quick, or at the others."""
    places = [place for b, s, place in CELLS if (b, s) == (backend, setup)]
    places = [place for place in places if ((backend, setup, place) in QUICK) == quick]
    command = [sys.executable, "-m", "tests.distributed.combinations", backend, setup, *places]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("backend", "setup", "place"),
    [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in CELLS],
)
def test_a_combination_takes_the_steps_of_eager_mode_or_is_refused(backend, setup, place):
    outcome = found(backend, setup, (backend, setup, place) in QUICK)[place]
    if (setup, place) in REFUSED:
        assert str(outcome).startswith("UsageError")
        assert REFUSED[setup, place] in str(outcome)
    else:
        assert isinstance(outcome, float), outcome
        assert outcome < 1e-5


def test_the_table_of_the_page_shows_what_is_asserted():
    assert table() in PAGE.read_text(encoding="utf-8"), "run python -m tests.distributed.combinations"
