"""A command of mtlkit in a process of its own, for tests that stop or kill it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def started(
    command: str, folder: Path, settings: Mapping[str, Any], *options: str
) -> Iterator[subprocess.Popen]:
    """``mtlkit COMMAND``, writing to ``out`` in ``folder``; it does not outlive a test that fails.

    What it prints is added to ``output.txt`` there.
    """
    folder.mkdir(exist_ok=True)
    (folder / "given.yaml").write_text(json.dumps(settings))
    arguments = [command, "-c", str(folder / "given.yaml"), "-o", str(folder / "out"), *options]
    with (
        open(folder / "output.txt", "a") as output,
        subprocess.Popen(
            [sys.executable, "-m", "mtlkit", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            # a shell's background job ignores it, and so would what is started there
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    """Wait some minutes, by turns and not by the clock: a busy machine may pause the test for long."""
    for _ in range(15_000):
        if condition():
            return
        assert process is None or process.poll() is None, "the command ended too early"
        time.sleep(0.02)
    raise AssertionError("the command takes too long")
