"""Numeric arrays of MATLAB files (version 5), such as SVHN's.

SciPy reads these too, but a damaged file can crash its reader and with it the process; here a length
that does not fit is an error. Only real numeric arrays are read, which is all that data sets hold.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import DataError

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
# element types of the format, by number
_NUMERIC = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
# array classes by number: the dtype of the array, which may be stored in a smaller type
_CLASSES = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """All real numeric arrays of the file, by name."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if content[:19] == b"MATLAB 7.3 MAT-file":
        raise DataError(f"{path} is of MATLAB's version 7.3; save it as version 5 ('-v6' or '-v7')")
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if len(content) < _HEADER or order is None:
        raise DataError(f"{path} is not a MATLAB file of version 5")
    arrays = {}
    try:
        for kind, data in _elements(memoryview(content)[_HEADER:], order):
            if kind == _COMPRESSED:
                unpacked = zlib.decompress(data)
                kind, data = next(_elements(memoryview(unpacked), order))
            found = _matrix(data, order) if kind == _MATRIX else None
            if found is not None:
                arrays[found[0]] = found[1]
    except (struct.error, zlib.error, ValueError, StopIteration, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it again") from None
    return arrays


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Types and contents of the elements in ``data``, each padded to eight bytes but the compressed."""
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
            raise ValueError(f"an element of {size} bytes where {len(data) - start} are left")
        yield kind, data[start : start + size]
        place = following


def _matrix(data: memoryview, order: str) -> tuple[str, NDArray[Any]] | None:
    """Name and values; None for what is not a real numeric array."""
    parts = _elements(data, order)
    flags = struct.unpack_from(order + "I", next(parts)[1])[0]
    is_complex = bool(flags & 0x0800)
    if (flags & 0xFF) not in _CLASSES or is_complex:
        return None
    shape = tuple(int(side) for side in np.frombuffer(next(parts)[1], dtype=order + "i4"))
    name = bytes(next(parts)[1]).decode("ascii")
    kind, values = next(parts)
    if kind not in _NUMERIC:
        raise ValueError(f"values of the unknown type {kind}")
    flat = np.frombuffer(values, dtype=order + _NUMERIC[kind])
    if any(side < 0 for side in shape) or int(np.prod(shape, dtype=object)) != flat.size:
        raise ValueError(f"{flat.size} values for an array of {shape}")
    return name, flat.astype(_CLASSES[flags & 0xFF], copy=False).reshape(shape, order="F")
