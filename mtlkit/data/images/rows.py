"""A row per image: where its file is named, and what is to be learned of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtlkit.data.base import DataError
from mtlkit.data.images.files import SUFFIXES, list_images
from mtlkit.data.notes import Notices
from mtlkit.data.table.reading import Frame, import_pandas
from mtlkit.data.table.splitting import SPLIT_NAMES
from mtlkit.data.table.targets import expand_targets
from mtlkit.errors import SpecError


def rows_of_folder(folder: Path) -> dict[str, Sequence[str]]:
    """Columns ``file``; ``label`` where images are in folders; ``split`` where these have parts."""
    names = list_images(folder)
    if not names:
        raise DataError(f"the folder {folder} has no images: {', '.join(SUFFIXES)}")
    above = [Path(name).parts[:-1] for name in names]
    rows: dict[str, Sequence[str]] = {"file": names}
    tops = {parts[0].lower() if parts else "" for parts in above}
    if "train" in {SPLIT_NAMES.get(top) for top in tops} and tops <= set(SPLIT_NAMES):
        rows["split"] = [parts[0] for parts in above]
        above = [parts[1:] for parts in above]
    if all(above):
        rows["label"] = [parts[0] for parts in above]
    elif any(above):
        flat = next(name for name, parts in zip(names, above, strict=True) if not parts)
        raise DataError(
            f"some images of {folder} are in folders of a class and some are not, such as {flat}; put "
            "each into the folder of its class, or give a table: labels=labels.csv"
        )
    return rows


def frame_of_folder(folder: Path, targets: Any) -> Frame:
    """The rows of a folder without a table; see :func:`rows_of_folder`."""
    rows = rows_of_folder(folder)
    if targets is None and "label" not in rows:
        raise DataError(
            f"the images of {folder} have no labels: give a table with labels=labels.csv and "
            "targets={...}, or put each image into the folder of its class"
        )
    return import_pandas().DataFrame(rows)


def wanted_targets(targets: Any, frame: Frame, labels: Any) -> dict[Any, Any]:
    """Kind by task; None where it is to be guessed."""
    if targets is None:
        if labels is not None:
            raise SpecError(
                "images needs targets=..., the columns of its table to learn; they are: "
                f"{', '.join(frame.columns)}"
            )
        return {"label": "classification"}
    return expand_targets(targets, list(frame.columns))


def known_names(column: Any) -> list[str]:
    """The names of images in a column."""
    if empty := int(column.isna().sum()):
        raise DataError(f"column {column.name!r} is to name the images, but {empty} cells are empty")
    return [str(name) for name in column]


def guess_file_column(frame: Frame, source: str, notices: Notices) -> str:
    """The first column whose values end like images."""
    for name in frame.columns:
        known = frame[name].dropna()
        if len(known) and all(str(value).lower().endswith(SUFFIXES) for value in known.unique()[:50]):
            notices.note(f"column {name!r} names the images, guessed from its values")
            return str(name)
    raise DataError(
        f"no column of {source} looks like names of images; say which with file=..., one of: "
        f"{', '.join(frame.columns)}"
    )
