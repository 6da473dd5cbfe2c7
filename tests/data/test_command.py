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
    } <= set(list_datasets())
    for name in list_datasets():
        assert name in out
    assert "embedded" in out
    assert "not found" in out


def test_a_preview_is_an_image(capsys, tmp_path):
    path = tmp_path / "out" / "preview.png"
    spec = "multidigits(train=40, val=10, test=10)"
    code, out, _ = run(capsys, spec, "--preview", str(path), "--count", "3")
    assert code == 0
    assert str(path) in out
    with Image.open(path) as image:
        assert image.width > 300
        assert len(image.convert("RGB").getcolors(100_000)) > 10


FILES = [
    "celeba", "cifar10", "cityscapes", "multifashion", "multimnist", "multisvhn", "nyuv2", "office31",
    "office_home",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_without_files_tasks_are_described_and_the_place_to_get_them(
    capsys, monkeypatch, tmp_path, name
):
    monkeypatch.setenv("MTLKIT_DATA", str(tmp_path))
    code, out, err = run(capsys, name)
    assert code == 0
    assert not err
    assert "files: not found" in out
    assert "metric" in out
    assert "://" in out
    assert "DATA_DIR/" in out


def test_a_preview_without_files_is_an_error_with_the_place_to_get_them(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    code, _, err = run(capsys, "celeba", "--preview", str(tmp_path / "x.png"))
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


def test_a_data_set_that_needs_options_is_explained_without_them(capsys):
    code, out, _ = run(capsys, "table")
    assert code == 0
    assert "targets  " in out
    assert "test_file  " in out
    code, _, err = run(capsys, "table(file=people.csv)")
    assert code == 2
    assert "table(targets=...)" in err


def test_a_table_is_described_and_has_no_image(capsys, tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 17};{'abc'[i % 3]};{'yes' if i % 5 else 'no'}" for i in range(60)]
    (tmp_path / "people.csv").write_text("\n".join(["age;job;married", *rows]))
    spec = "table(file=people.csv, targets=[married])"
    code, out, err = run(capsys, spec)
    assert code == 0
    assert "samples: 36 train, 12 val, 12 test" in out
    assert "married: binary" in out
    assert "target 'married': binary, guessed" in err
    code, _, err = run(capsys, spec, "--preview", "x.png")
    assert code == 2
    assert "no images" in err


@pytest.mark.parametrize("file", ["people.csv", "data/people.csv.gz", "people.parquet"])
def test_a_file_instead_of_a_data_set_is_refused_with_what_to_write(capsys, file):
    code, _, err = run(capsys, file)
    assert code != 0
    assert f"write table(file='{file}', targets=...)" in err
