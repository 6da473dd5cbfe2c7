"""What a data set decided by itself, said to the user."""

from __future__ import annotations

import sys

from mtlkit.config.launching import is_first_process

said: set[str] = set()
"""Lines that were said in this process."""


def say(dataset: str, message: str) -> None:
    """Say what was decided, once per process: a comparison reads its data many times."""
    line = f"{dataset}: {message}"
    if line not in said and is_first_process():
        said.add(line)
        print(line, file=sys.stderr)
