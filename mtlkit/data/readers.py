"""Readers of published files: idx, MATLAB's, NumPy's, and pickled arrays.

A damaged or hostile file raises a :class:`DataError`; none of its content is executed.
"""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.files import DataError, reading

Array: TypeAlias = NDArray[Any]

_MATRIX, _COMPRESSED = 14, 15
# element types of MATLAB's format, by number
_NUMERIC = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
# array classes by number: the dtype of the array, which may be stored in a smaller type
_CLASSES = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, plain or gzipped, with this many dimensions.

    The format: two zero bytes, a type code (8: unsigned byte), the number of dimensions, each size as a
    big-endian 32-bit number, then the values.
    """
    header = 4 + 4 * dimensions
    with reading(path):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        found, wanted = content[:4].hex(), f"000008{dimensions:02x}"
        if found != wanted:
            raise ValueError(f"it starts with {found}, expected {wanted}")
        shape = struct.unpack(f">{dimensions}I", content[4:header])
        if math.prod(shape) != len(content) - header:
            raise ValueError(f"it has {len(content) - header} values, and {shape} by its header")
        return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def read_npy(path: Path) -> Array:
    """Read an .npy file."""
    with reading(path), path.open("rb") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def read_npz(path: Path, names: Iterable[str]) -> dict[str, Array]:
    """Read these arrays of an .npz file."""
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        for name in names:
            if name not in content:
                raise DataError(f"{path} lacks the array {name}; it has {', '.join(content)}")
        return {name: content[name] for name in names}


def find_npz(folder: Path) -> Path | None:
    """Return the first .npz file of a folder."""
    return min(folder.glob("*.npz"), default=None)


def read_pickle(path: Path) -> Any:
    """Read pickled mappings, lists, strings, numbers and NumPy arrays."""
    with reading(path), path.open("rb") as file:
        return _ArraysOnly(file, encoding="bytes").load()


class _ArraysOnly(pickle.Unpickler):
    """Rejects all other types, which could run code."""

    _ALLOWED = {("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")  # how protocol 2 stores Python 2 strings
        package, _, inner = module.replace("numpy._core", "numpy.core").partition(".core.")
        is_array = package == "numpy" and (inner, name) in self._ALLOWED
        if not is_array and (module, name) not in {("numpy", "ndarray"), ("numpy", "dtype")}:
            raise DataError(f"the file contains {module}.{name}, which is rejected: it could run code")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_mat(path: Path) -> dict[str, Array]:
    """Read all real numeric arrays of a MATLAB file of version 5, by name.

    SciPy's reader can crash the process on a damaged file (segmentation fault); here a wrong length
    is an error.
    """
    arrays = {}
    with reading(path):
        content = path.read_bytes()
        order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
        if order is None or content.startswith(b"MATLAB 7.3"):
            raise ValueError("it is not a MATLAB file of version 5; save it with '-v6' or '-v7'")
        for kind, data in _elements(memoryview(content)[128:], order):
            if kind == _COMPRESSED:
                kind, data = next(_elements(memoryview(zlib.decompress(data)), order), (0, data))
            found = _matrix(data, order) if kind == _MATRIX else None
            if found is not None:
                arrays[found[0]] = found[1]
    return arrays


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield types and contents of the elements in ``data``, padded to eight bytes if not compressed."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(order + "II", data, place)
        if kind >> 16:  # a small element: type and size share four bytes, four bytes of content follow
            kind, size = kind & 0xFFFF, kind >> 16
            start, following = place + 4, place + 8
        else:
            start = place + 8
            following = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if start + size > len(data):
            raise ValueError(f"an element has {size} bytes, but {len(data) - start} are left")
        yield kind, data[start : start + size]
        place = following


def _matrix(data: memoryview, order: str) -> tuple[str, Array] | None:
    """Return name and values; None unless it is a real numeric array."""
    parts = [part for _, part in zip(range(4), _elements(data, order), strict=False)]
    (flags,) = struct.unpack_from(order + "I", parts[0][1])
    is_complex = bool(flags & 0x0800)
    if (flags & 0xFF) not in _CLASSES or is_complex:
        return None
    shape = tuple(int(side) for side in np.frombuffer(parts[1][1], dtype=order + "i4"))
    name = bytes(parts[2][1]).decode("ascii")
    kind, values = parts[3]
    flat = np.frombuffer(values, dtype=order + _NUMERIC[kind])
    if any(side < 0 for side in shape) or math.prod(shape) != flat.size:
        raise ValueError(f"{flat.size} values for an array of {shape}")
    return name, flat.astype(_CLASSES[flags & 0xFF], copy=False).reshape(shape, order="F")
