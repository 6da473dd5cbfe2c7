"""``mtlkit data``."""

import pytest
from PIL import Image

from mtlkit.cli import main
from mtlkit.data import list_datasets


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["data", *arguments])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_all_data_sets_are_listed(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MTLKIT_DATA", str(tmp_path))
    code, out, _ = run(capsys)
    assert code == 0
    assert {
        "multidigits",
        "multimnist",
        "multifashion",
        "multisvhn",
        "cifar10",
        "celeba",
        "nyuv2",
        "scenes",
    } <= set(list_datasets())
    for name in list_datasets():
        assert name in out
    assert "embedded" in out
    assert "not found" in out


@pytest.mark.parametrize(
    "spec", ["multidigits(train=40, val=10, test=10)", "scenes(size=16, train=4, val=1, test=1)"]
)
def test_a_preview_is_a_picture(capsys, tmp_path, spec):
    path = tmp_path / "out" / "preview.png"
    code, out, _ = run(capsys, spec, "--preview", str(path), "--count", "3")
    assert code == 0
    assert str(path) in out
    with Image.open(path) as image:
        assert image.width > 300
        assert len(image.convert("RGB").getcolors(100_000)) > 10


def test_missing_files_are_an_error_with_the_place_to_get_them(capsys, monkeypatch):
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    code, _, err = run(capsys, "celeba")
    assert code == 1
    assert "mmlab" in err
    assert "Traceback" not in err


def test_a_wrong_name_is_bad_usage(capsys):
    code, _, err = run(capsys, "multimnits")
    assert code == 2
    assert "did you mean 'multimnist'" in err


def test_a_preview_without_a_data_set_is_bad_usage(capsys, tmp_path):
    code, _, _ = run(capsys, "--preview", str(tmp_path / "x.png"))
    assert code == 2
