"""Files that are looked at before training, so that a damaged one does not end a run at night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtlkit.data.base import DataError
from mtlkit.data.images.files import image_size, read_image
from mtlkit.data.images.maps import MapTarget
from mtlkit.data.images.transforms import Sizing
from mtlkit.data.notes import say
from mtlkit.errors import MissingExtraError

Part = tuple[Sequence[Path], Mapping[MapTarget, Sequence[Path | None]]]
_SLOW = 20_000  # files, which take some seconds


def check_packages() -> None:
    """Ask for both extras at once: images are of one, and the rows that name them of the other."""
    for module, package in (("torchvision", "torchvision"), ("PIL", "pillow"), ("pandas", "pandas")):
        if find_spec(module) is None:
            raise MissingExtraError(package, "vision,table", "data set images")


def check_files(parts: Mapping[Any, Part], sizing: Sizing, check: str) -> tuple[int, int]:
    """Read the first bytes of all images and maps, or all pixels; returns the first image's size.

    Raises:
        DataError: for a file that cannot be read, a map of another size than its image, and images
            of several sizes where none was asked for.
    """
    paths = [path for files, _ in parts.values() for path in files]
    first = image_size(paths[0])
    if check == "none" and sizing.size is not None:
        return first
    if len(paths) > _SLOW:
        say("images", f"looking at the first bytes of {len(paths)} images; check=none leaves this out")
    for files, maps in parts.values():
        for index, path in enumerate(files):
            size = image_size(path)
            if sizing.size is None and size != first:
                raise DataError(
                    f"the image {path} is {_shape(size)}, and {paths[0]} is {_shape(first)}; give "
                    "size=... to bring all to one size"
                )
            for target, held in maps.items():
                _check_map(target, held[index], path, size)
            if check == "pixels":
                read_image(path, sizing.channels)
                for target, held in maps.items():
                    if (file := held[index]) is not None:
                        target.read(file)
    return first


def _check_map(target: MapTarget, file: Path | None, path: Path, size: tuple[int, int]) -> None:
    if file is None:
        return
    found = target.map_size(file)
    if found != size:
        raise DataError(
            f"the map {file} of task {target.task!r} is {_shape(found)}, but its image {path} is "
            f"{_shape(size)}; they must agree"
        )


def _shape(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
