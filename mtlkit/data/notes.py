"""Messages to the user about what a data set decided automatically."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from mtlkit.config.launching import is_first_process

printed: set[str] = set()
"""Lines that were printed in this process."""
_SHOWN = 6


def print_note(dataset: str, message: str) -> None:
    """Print a message once per process, because a comparison reads its data many times."""
    line = f"{dataset}: {message}"
    if line not in printed and is_first_process():
        printed.add(line)
        print(line, file=sys.stderr)


def listed(values: Iterable[object]) -> str:
    """Return some values as text: ``'a', 'b' and 3 more``."""
    shown = [repr(value) if isinstance(value, str) else str(value) for value in values]
    if len(shown) <= _SHOWN:
        return ", ".join(shown)
    return f"{', '.join(shown[:_SHOWN])} and {len(shown) - _SHOWN} more"


class Notices:
    """Messages about columns or targets of a data set; equal ones are printed as one line."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self._groups: dict[tuple[str, str], list[str]] = {}

    def add(self, what: str, name: str, message: str) -> None:
        """Note a message about ``name``, a ``what`` such as a column: a sentence, or ``is left out``."""
        if message:
            self._groups.setdefault((what, message), []).append(name)

    def note(self, message: str) -> None:
        """Note a message about the data as a whole."""
        self._groups.setdefault(("", message), [])

    def print(self) -> None:
        """Print and discard all messages."""
        for (what, message), names in self._groups.items():
            if not what:
                print_note(self.dataset, message)
            elif len(names) == 1:
                joint = " " if message.startswith("is ") else ": "
                print_note(self.dataset, f"{what} {names[0]!r}{joint}{message}")
            else:
                joint = " are " if message.startswith("is ") else ": "
                rest = message.removeprefix("is ")
                print_note(self.dataset, f"{len(names)} {what}s ({listed(names)}){joint}{rest}")
        self._groups = {}
