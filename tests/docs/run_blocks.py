"""The Python blocks of a page; as a script, run those of the pages that are given."""

from __future__ import annotations

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(?:python|\{code-cell\}(?:\n:[^\n]*)*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line before the block, and its code."""
    text = page.read_text()
    return [(text[: match.start(1)].count("\n"), match[1]) for match in BLOCK.finditer(text)]


def run(page: Path) -> None:
    """Run the blocks of a page in order, in one namespace."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for line, code in blocks(page):
        # blank lines in front make a traceback show the line of the page
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
        print(f"{len(blocks(Path(name)))} blocks of {name} run")
