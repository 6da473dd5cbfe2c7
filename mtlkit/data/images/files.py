"""Image files: find them, and read their sizes and pixels; errors name the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.data.files import DataError, reading
from mtlkit.data.notes import print_note
from mtlkit.errors import MissingExtraError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_ORIENTATION = 0x0112  # EXIF tag
_SIDEWAYS = (5, 6, 7, 8)
_SLOW = 20_000  # this many files take some seconds


def check_packages() -> None:
    """Require both extras at once: one for the images, the other for their tables."""
    for module, package in (("torchvision", "torchvision"), ("PIL", "pillow"), ("pandas", "pandas")):
        if find_spec(module) is None:
            raise MissingExtraError(package, "vision,table", "data set images")


def import_pillow() -> Any:
    """Import Pillow's module Image, or raise an error that names the extra."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "vision", "reading images") from None
    return Image


def list_images(folder: Path) -> list[str]:
    """Return the paths of all images below a folder, relative to it, sorted.

    Raises:
        DataError: if there is none.
    """
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        base = Path(parent).relative_to(folder)
        found += [
            (base / name).as_posix()
            for name in sorted(names)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    if not found:
        raise DataError(f"the folder {folder} has no images: {', '.join(SUFFIXES)}")
    return found


def known_names(column: Any) -> list[str]:
    """Return the names of images in a column."""
    if empty := int(column.isna().sum()):
        raise DataError(f"column {column.name!r} must name the images, but {empty} cells are empty")
    return [str(name) for name in column]


def find_image(name: str, places: Sequence[Path], suffixes: tuple[str, ...] = SUFFIXES) -> Path | None:
    """Return the file of this name, with or without its suffix, in one of the folders; or None."""
    for place in places:
        path = place / name
        if path.is_file():
            return path
        for suffix in suffixes:
            for ending in (suffix, suffix.upper()):
                if path.with_name(path.name + ending).is_file():
                    return path.with_name(path.name + ending)
    return None


def find_images(
    names: Iterable[str],
    places: Sequence[Path],
    suffixes: tuple[str, ...] = SUFFIXES,
    what: str = "images",
) -> dict[str, Path]:
    """Return the files of these names; see :func:`find_image`.

    Raises:
        DataError: if some do not exist.
    """
    wanted = list(dict.fromkeys(names))
    found = {name: path for name in wanted if (path := find_image(name, places, suffixes)) is not None}
    absent = [name for name in wanted if name not in found]
    if absent:
        shown = ", ".join(map(repr, absent[:3])) + (" ..." if len(absent) > 3 else "")
        folders = " or ".join(dict.fromkeys(str(place.absolute()) for place in places))
        raise DataError(
            f"{len(absent)} of {len(wanted)} {what} are not in the folder {folders}: {shown}; write "
            "their paths relative to it"
        )
    return found


def image_size(path: Path) -> tuple[int, int]:
    """Return (height, width) of an image from its header, with the EXIF orientation applied.

    Raises:
        DataError: for a file that is not an image, or has more than eight bits per channel.
    """
    with reading(f"the image {path}"):
        return _size_of(path, path.stat().st_mtime_ns)


@cache
def _size_of(path: Path, changed: int) -> tuple[int, int]:
    with import_pillow().open(path) as image:
        _check_mode(path, image.mode)
        width, height = image.size
        sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
    return (width, height) if sideways else (height, width)


def read_image(path: Path, channels: int = 3) -> Tensor:
    """Return (channels, H, W) pixels from 0 to 255, with the EXIF orientation applied."""
    with reading(f"the image {path}"), import_pillow().open(path) as image:
        from PIL import ImageOps

        _check_mode(path, image.mode)
        upright = ImageOps.exif_transpose(image)
        pixels = np.array(upright.convert("RGB" if channels == 3 else "L"))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


def _check_mode(path: Path, mode: str) -> None:
    if mode not in _EIGHT_BITS:
        raise DataError(
            f"the image {path} has mode {mode}: more than eight bits per channel. Rescale it to eight "
            "bits, because values above 255 would be cut off"
        )


def check_files(
    parts: Iterable[tuple[Sequence[Path], Mapping[Any, Sequence[Path | None]]]],
    channels: int,
    check: str,
    one_size: bool,
) -> tuple[int, int]:
    """Check all images and maps before training, and return the size of the first image.

    ``parts`` are the images of every split, and their maps by :class:`MapTarget
    <mtlkit.data.images.maps.MapTarget>`.

    Raises:
        DataError: for a file that cannot be read, or a map or image of the wrong size.
    """
    rows = [
        (path, [(target, held[index]) for target, held in maps.items()])
        for paths, maps in parts
        for index, path in enumerate(paths)
    ]
    first = image_size(rows[0][0])
    if check == "none" and not one_size:
        return first
    if len(rows) > _SLOW:
        print_note("images", f"reading the headers of {len(rows)} images; check=none skips this")
    for path, maps in rows:
        size = image_size(path)
        if one_size and size != first:
            raise DataError(
                f"the image {path} is {_shape(size)}, and {rows[0][0]} is {_shape(first)}; resize all "
                "with size=..."
            )
        if check == "pixels":
            read_image(path, channels)
        for target, file in maps:
            if file is None:
                continue
            found = target.map_size(file)
            if found != size:
                raise DataError(
                    f"the map {file} of task {target.task!r} is {_shape(found)}, but its image {path} "
                    f"is {_shape(size)}; they must agree"
                )
            if check == "pixels":
                target.read(file)
    return first


def _shape(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
