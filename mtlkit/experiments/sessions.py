"""The time that a run has taken over all processes that worked on it, including killed ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mtlkit.config.files import write_text
from mtlkit.config.logs import LOG_NAME
from mtlkit.report.histories import read_lines

_NAME = "session.json"


class Session:
    """The work of one process on a run, from now on.

    The time of a process that was killed counts until the last line of its log.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = time.monotonic()
        self.earlier = 0.0
        try:
            before = json.loads((folder / _NAME).read_text(encoding="utf-8"))
            worked = self._last("time") - float(before["begun"])
            self.earlier = float(before["earlier"]) + max(worked, 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        write_text(folder / _NAME, json.dumps({"begun": time.time(), "earlier": self.earlier}) + "\n")

    @property
    def seconds(self) -> float:
        """The seconds of all processes up to now."""
        return self.earlier + time.monotonic() - self._begun

    @property
    def steps(self) -> int:
        """The last step that was logged."""
        return int(self._last("step"))

    def _last(self, key: str) -> float:
        path = self._folder / LOG_NAME
        rows = read_lines(path) if path.is_file() else []
        return max(
            (float(row[key]) for row in rows if isinstance(row.get(key), int | float)), default=0.0
        )
