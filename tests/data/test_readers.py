"""MATLAB files against SciPy's writer."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from mtlkit.data import DataError
from mtlkit.data.readers import read_mat

DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8", "i8", "u8")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_as_scipy_wrote_them(tmp_path, dtype, compressed):
    random = np.random.default_rng(0)
    arrays = {
        "X": random.integers(0, 100, (3, 4, 2, 5)).astype(dtype),
        "y": random.integers(0, 100, (7, 1)).astype(dtype),
        "a_longer_name": random.integers(0, 100, (1, 2)).astype(dtype),
    }
    savemat(tmp_path / "a.mat", {**arrays, "word": "text"}, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_other_versions_and_other_files_are_refused(tmp_path):
    path = tmp_path / "a.mat"
    for content in (b"", b"x" * 50, b"x" * 500, b"MATLAB 7.3 MAT-file".ljust(512)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.mat"):
            read_mat(path)
    with pytest.raises(DataError, match=r"b\.mat"):
        read_mat(tmp_path / "b.mat")


@given(st.data(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_damage_gives_anything_but_arrays_or_an_error(tmp_path_factory, data, compressed):
    stream = io.BytesIO()
    savemat(stream, {"X": np.arange(12, dtype="u1").reshape(3, 4), "y": np.ones((3, 1))},
            do_compression=compressed)  # fmt: skip
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(120, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.mat"
    path.write_bytes(content[: data.draw(st.integers(100, len(content)))])
    with contextlib.suppress(DataError):
        assert all(isinstance(array, np.ndarray) for array in read_mat(path).values())
