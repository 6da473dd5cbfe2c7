"""The idx files of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.base import DataError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with this many dimensions.

    The format: two zero bytes, a type code (8: unsigned byte), the number of dimensions, each size as a
    big-endian 32-bit number, then the values.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path} is cut short: {len(content)} bytes, its header alone has {header}")
    zeros, code, found = struct.unpack(">HBB", content[:4])
    if zeros != 0 or code != _UNSIGNED_BYTE or found != dimensions:
        raise DataError(
            f"{path} is not an idx file of bytes with {dimensions} dimensions: it starts with "
            f"{content[:4].hex()}, expected 000008{dimensions:02x}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise DataError(
            f"{path} is damaged: its header promises {expected} values "
            f"({' x '.join(map(str, shape))}), it holds {len(content) - header}; fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
