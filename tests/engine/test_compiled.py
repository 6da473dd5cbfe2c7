"""Compiled steps are those of eager mode, for the default back end, Inductor, and for ``aot_eager``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import mtlkit
from tests.engine.run_compiled import ALL_LABELS, SEVERAL_LOSSES

pytestmark = pytest.mark.timeout(3600)  # a minute of one core, all of it in the set-up of the first test
ROOT = Path(__file__).parents[2]
# one of each kind of state, also with a task without labels; and all others that draw at random, and more
DOZEN = ["pcgrad", "rotograd", "uw", "gradnorm"]
MORE = ("gradvac", "graddrop", "rlw", "random", "relobralo", "mgda", "imtl_g", "modo")
DOZEN += [name + ALL_LABELS for name in MORE]


def check(backend: str, names: Sequence[str], cache: Path) -> dict[str, str]:
    """What is wrong with each method; after a crash a new process goes on with the next one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more would be processes that import torch
    wrong: dict[str, str] = {}
    while len(wrong) < len(names):
        command = [sys.executable, "-m", "tests.engine.run_compiled", backend, *names[len(wrong) :]]
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        wrong |= dict(json.loads(line) for line in ended.stdout.splitlines() if line.startswith("["))
        if len(wrong) < len(names):
            crashed = names[len(wrong)]
            wrong[crashed] = f"ended with code {ended.returncode}: {ended.stderr[-2000:]}"
    return wrong


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(scope="module")
def wrong_with_the_dozen(cache) -> dict[str, str]:
    return check("inductor", [SEVERAL_LOSSES, *DOZEN], cache)  # first, in a process without a method


@pytest.mark.parametrize("name", [*DOZEN, SEVERAL_LOSSES])
def test_the_default_back_end_takes_the_steps_of_eager_mode(wrong_with_the_dozen, name):
    assert not wrong_with_the_dozen[name]


@pytest.fixture(scope="module", params=["inductor", "aot_eager"])
def wrong_with_all(cache, request) -> dict[str, str]:
    return check(request.param, mtlkit.list_methods(), cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", mtlkit.list_methods())
def test_every_method_takes_the_steps_of_eager_mode(wrong_with_all, name):
    assert not wrong_with_all[name]


def test_a_crash_is_the_failure_of_one_method(cache, monkeypatch):
    """The process that runs the law is replaced by one that dies at the second name."""
    script = "import os, sys; print('[\"' + sys.argv[4] + '\", \"\"]', flush=True); os.abort()"
    run = subprocess.run

    def run_crashing(command, **options):
        return run([sys.executable, "-c", script, *command[1:]], **options)

    monkeypatch.setattr(subprocess, "run", run_crashing)
    wrong = check("inductor", ["a", "b", "c"], cache)
    assert [bool(error) for error in wrong.values()] == [False, True, False]
