"""Image files: which there are, how large they are, and their pixels; errors name the file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtlkit.data.base import DataError
from mtlkit.errors import MissingExtraError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".gif")
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_ORIENTATION = 0x0112  # EXIF: how the camera was held
_SIDEWAYS = (5, 6, 7, 8)


def import_pillow() -> Any:
    """Pillow's module Image, or an error that names the extra."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "vision", "reading images") from None
    return Image


def list_images(folder: Path) -> list[str]:
    """Paths of all images below a folder, from the folder, in the order of the alphabet."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        base = Path(parent).relative_to(folder)
        found += [
            (base / name).as_posix()
            for name in sorted(names)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return found


class ImageFiles:
    """Where images are that a table names, with their ending or without.

    Args:
        folder: names are looked for below it,
        others: and then below these.
        suffixes: endings that a name may lack.
    """

    def __init__(
        self, folder: Path, others: Iterable[Path] = (), suffixes: tuple[str, ...] = SUFFIXES
    ) -> None:
        self.folder = folder
        self._places = [folder, *others]
        self._suffixes = suffixes

    def find(self, name: str) -> Path | None:
        """The file of this name; None where there is none."""
        for place in self._places:
            path = place / name
            if path.is_file():
                return path
            for suffix in self._suffixes:
                for ending in (suffix, suffix.upper()):
                    if path.with_name(path.name + ending).is_file():
                        return path.with_name(path.name + ending)
        return None

    def find_all(self, names: Iterable[str], what: str) -> list[Path]:
        """The files of these names.

        Raises:
            DataError: that names some of those that are not there.
        """
        found = {name: self.find(name) for name in dict.fromkeys(names)}
        absent = [name for name, path in found.items() if path is None]
        if absent:
            shown = ", ".join(map(repr, absent[:3])) + (" ..." if len(absent) > 3 else "")
            places = " or ".join(dict.fromkeys(str(place.absolute()) for place in self._places))
            raise DataError(
                f"{len(absent)} of {len(found)} {what} are not in the folder {places}: {shown}; write "
                "their names as seen from there"
            )
        return [path for name in names if (path := found[name]) is not None]


def image_size(path: Path) -> tuple[int, int]:
    """(height, width) of an image, from its first bytes, as it is looked at.

    Raises:
        DataError: for a file that is no image, or has more than eight bits per channel.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise DataError(f"cannot read the image {path}: {error.strerror}") from None
    return _size_of(path, changed)


@cache
def _size_of(path: Path, changed: int) -> tuple[int, int]:
    try:
        with import_pillow().open(path) as image:
            _check_mode(path, image.mode)
            width, height = image.size
            sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
    except (DataError, MissingExtraError):
        raise
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise DataError(f"cannot read the image {path}: {_reason(error, path)}") from None
    return (width, height) if sideways else (height, width)


def read_image(path: Path, channels: int = 3) -> Tensor:
    """(channels, H, W) pixels of 0 to 255, turned as the camera was held."""
    module = import_pillow()
    from PIL import ImageOps

    try:
        with module.open(path) as image:
            _check_mode(path, image.mode)
            upright = ImageOps.exif_transpose(image)
            pixels = np.array(upright.convert("RGB" if channels == 3 else "L"))
    except DataError:
        raise
    except Exception as error:  # as above
        raise DataError(f"cannot read the image {path}: {_reason(error, path)}") from None
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


def _check_mode(path: Path, mode: str) -> None:
    if mode not in _EIGHT_BITS:
        raise DataError(
            f"the image {path} has mode {mode}: more than eight bits per channel. Convert it to eight "
            "bits with a scale of your choice, since values above 255 would be cut off"
        )


def _reason(error: Exception, path: Path) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "it is not an image, or it is damaged"
    return " ".join(str(error).split()).replace(str(path), path.name) or type(error).__name__
