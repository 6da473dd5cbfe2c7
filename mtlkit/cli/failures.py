"""One-sentence explanations of unexpected errors; the traceback goes to a file."""

from __future__ import annotations

import contextlib
import errno
import re
import tempfile
import traceback

import typer

from mtlkit.config.plugins import describe_error, users_line

_FULL = (errno.ENOSPC, errno.EDQUOT)
# torch's messages for tensors whose shapes do not match
_SHAPES = re.compile(
    r"shapes cannot be multiplied|size of tensor|must match|size mismatch|invalid for input of size"
    r"|[Ee]xpected (input|\d+D|target size|more than 1 value)|channels|broadcast|Sizes of tensors"
)
_TORCH_WRITES = re.compile(r"unexpected pos|PytorchStreamWriter|file write failed")
_MAKE_ROOM = (
    "free some space and run the same command again (train: with --resume auto); finished work is kept"
)


def report(error: Exception) -> int:
    """Print an explanation to stderr, and return the exit code."""
    typer.echo(f"mtlkit: {explain(error)}", err=True)
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="mtlkit-", suffix=".log")
        with open(handle, "w", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
        typer.echo(f"traceback: {path}", err=True)
    return 1


def explain(error: Exception) -> str:
    """Return what happened, where, and what to do about it."""
    text = describe_error(error)
    if isinstance(error, OSError):
        if error.errno in _FULL:
            file = f" while writing {error.filename}" if error.filename else ""
            return f"the disk is full{file}; {_MAKE_ROOM}"
        return text
    if _TORCH_WRITES.search(text):
        return f"cannot write a file, probably because the disk is full; {_MAKE_ROOM} ({text})"
    if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError):
        return f"out of memory; try a smaller batch_size, or gradient_accumulation_steps ({text})"
    place = users_line(error)
    if place:
        return f"{text}, in {place}"
    if isinstance(error, RuntimeError | ValueError) and _SHAPES.search(text):
        return f"shapes do not match ({text}); compare the network with the data: mtlkit data NAME"
    return f"{text}; this is a bug in mtlkit or in a library that it uses; please report it"
