"""Labels that are the names of folders: one per class, with or without train, val and test above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mtlkit.data.base import DataError
from mtlkit.data.images.files import SUFFIXES, list_images
from mtlkit.data.table.splitting import SPLIT_NAMES

__all__ = ["rows_of_folder"]


def rows_of_folder(folder: Path) -> dict[str, Sequence[str]]:
    """Columns ``file``; ``label`` where pictures are in folders; ``split`` where these have parts."""
    names = list_images(folder)
    if not names:
        raise DataError(f"the folder {folder} has no pictures: {', '.join(SUFFIXES)}")
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
            f"some pictures of {folder} are in folders of a class and some are not, such as {flat}; put "
            "each into the folder of its class, or give a table: labels=labels.csv"
        )
    return rows
