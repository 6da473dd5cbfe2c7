"""The log of a run: one JSON object per line, in ``log.jsonl``."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mtlkit.config.files import write_text
from mtlkit.errors import MtlkitError

LOG_NAME = "log.jsonl"


class Log:
    """Append records to a file; each is on disk when :meth:`write` returns.

    Args:
        path: the file.
        until: keep the records up to this step; a resumed run writes the later ones again. None
            starts an empty log.

    >>> import tempfile
    >>> from mtlkit.training import Log, read_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(f"{folder}/log.jsonl")
    ...     log.write("train", step=1, losses={"seg": 0.5})
    ...     log.close()
    ...     list(read_log(f"{folder}/log.jsonl"))
    [{'kind': 'train', 'step': 1, 'losses': {'seg': 0.5}}]
    """

    def __init__(self, path: str | os.PathLike[str], until: int | None = None) -> None:
        self.path = Path(path)
        kept: list[dict[str, Any]] = []
        if until is not None and self.path.exists():
            kept = [record for record in read_log(self.path) if record.get("step", 0) <= until]
        self._kinds = {record.get("kind") for record in kept}
        write_text(self.path, "".join(map(json_line, kept)))
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115

    def has(self, kind: str) -> bool:
        """Return whether the kept records include one of this kind."""
        return kind in self._kinds

    def write(self, kind: str, step: int, **fields: Any) -> None:
        """Add one record."""
        self._file.write(json_line({"kind": kind, "step": step, **fields}))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a log, except a last line that a killed process left unfinished.

    >>> from mtlkit.training import read_log
    >>> records = read_log("runs/points/log.jsonl")  # read when they are iterated over
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MtlkitError(f"cannot read the log {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == len(lines):
                return
            raise MtlkitError(f"{path}, line {number} is not a record of a log: {error}") from None
        yield record


def json_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSON."""
    return json.dumps(plain_values(record), allow_nan=False) + "\n"


def plain_values(value: Any) -> Any:
    """Convert a value to types of JSON; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [plain_values(item) for item in value]
    if hasattr(value, "item"):
        return plain_values(value.item())
    return str(value)
