"""What long work shows meanwhile: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self


class LiveDisplay(ABC):
    """A context in which :meth:`render` is shown again and again.

    Args:
        shown: None shows a live display on a terminal and lines elsewhere; False shows nothing.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self.quiet = shown is False
        self.live: Any = None
        self.current_note = ""
        if shown is None and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(
                get_renderable=self.render,
                console=Console(stderr=True),
                refresh_per_second=2,
                transient=True,  # the caller prints the final table
            )

    @abstractmethod
    def render(self) -> Any:
        """What is shown now."""

    def note(self, text: str) -> None:
        """Show a line about what is going on."""
        self.current_note = text

    def print_line(self, text: str) -> None:
        """Print a line where nothing is shown live."""
        if self.live is None and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.current_note = ""
        if self.live is not None:
            self.live.stop()
