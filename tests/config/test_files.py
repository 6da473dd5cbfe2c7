import os

import pytest

from mtlkit.config.files import UNFINISHED, replacing, write_text


def test_a_text_is_written_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "Straße\n")
    write_text(path, "twice\n")
    assert path.read_text(encoding="utf-8") == "twice\n"
    assert os.listdir(path.parent) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_nothing_else(error, tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half")
        assert list(tmp_path.glob(UNFINISHED)) == [temporary]
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
