"""The Python blocks and commands of a page; as a script, run those of the pages that are given."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(python|console run)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Line before the block, its language and its code."""
    text = page.read_text()
    return [(text[: match.start(2)].count("\n"), match[1], match[2]) for match in BLOCK.finditer(text)]


def run_commands(code: str) -> None:
    """Run the lines, which begin with ``$ mtlkit``, in this process."""
    from mtlkit.cli import main

    for line in code.replace("\\\n", " ").splitlines():
        prompt, program, *arguments = shlex.split(line)
        assert (prompt, program) == ("$", "mtlkit")
        try:
            main(arguments)
        except SystemExit as stop:
            assert stop.code == 0, line


def run(page: Path) -> None:
    """Run the blocks of a page in order, the Python ones in one namespace."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for line, language, code in blocks(page):
        if language != "python":
            run_commands(code)
            continue
        # blank lines in front make a traceback show the line of the page
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
        print(f"{len(blocks(Path(name)))} blocks of {name} run")
