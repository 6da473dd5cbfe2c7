"""Find the files of data sets, and explain errors of their readers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from mtlkit.errors import MtlkitError

DataDir: TypeAlias = str | os.PathLike[str] | None
ENVIRONMENT = "MTLKIT_DATA"


class DataError(MtlkitError, OSError):
    """Files of a data set are missing, damaged or not in the expected layout.

    >>> import mtlkit
    >>> mtlkit.load_dataset("celeba", data_dir="no/such/folder").train
    Traceback (most recent call last):
        ...
    mtlkit.data.files.DataError: ...
    """


def data_root(data_dir: DataDir) -> Path | None:
    """Return the folder of the data sets: ``data_dir``, ``$MTLKIT_DATA``, or None."""
    root = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT) or None
    return None if root is None else Path(root).expanduser()


def find_path(name: str | os.PathLike[str], data_dir: DataDir, *, folder: bool = False) -> Path:
    """Return a file or folder, relative to the current folder or to that of the data sets.

    Raises:
        DataError: if it is in neither.
    """
    root = data_root(data_dir)
    places = [Path(name).expanduser(), *([] if root is None else [root / name])]
    for place in places:
        if place.is_dir() if folder else place.is_file():
            return place
    tried = " or ".join(dict.fromkeys(str(place.absolute()) for place in places))
    raise DataError(f"there is no {'folder' if folder else 'file'} {tried}")


def find_first(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of these files or folders that exists, or None."""
    return next((folder / name for name in names if (folder / name).exists()), None)


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn any error of a reader into a :class:`DataError` that names the file."""
    try:
        yield
    except MtlkitError:
        raise
    except Exception as error:  # readers raise many kinds of errors for damaged files
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"cannot read {what}: {reason}; if it is damaged, download it again") from None
