"""``mtlkit export`` and ``mtlkit predict``."""

from __future__ import annotations

import pandas
import pytest

from mtlkit.cli import main
from tests.deployment.people import people


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code, capsys.readouterr()


def test_export_says_what_it_wrote_and_how_exact_it_is(run, capsys, tmp_path):
    code, output = call(capsys, "export", run, "--output", tmp_path / "net.pt2")
    assert code == 0
    assert f"wrote {tmp_path / 'net.pt2'} (" in output.out
    assert "batch dynamic)" in output.out
    difference = float(output.out.split("difference from the network: ")[1].split()[0])
    assert difference < 1e-5
    code, output = call(capsys, "export", run, "--format", "safetensors", "--batch", 4)
    assert code == 0
    assert (run / "model.safetensors").is_file()


def test_wrong_orders_to_export_exit_with_2(run, capsys):
    for arguments, message in (
        (["--format", "onx"], "did you mean 'onnx'"),
        (
            ["--format", "pt2", "--batch", "many"],
            "--batch must be dynamic or a number of samples, not 'many'",
        ),
        ([], "set the format: one of pt2, onnx, safetensors"),
    ):
        code, output = call(capsys, "export", run, *arguments)
        assert code == 2
        assert message in output.err


def test_predict_writes_a_row_per_sample(run, capsys, tmp_path):
    people(30, seed=3)[["id", "hours", "job", "age"]].to_csv(tmp_path / "new.csv", index=False)
    paths = ["--input", tmp_path / "new.csv", "--output", tmp_path / "out.csv"]
    code, output = call(
        capsys, "predict", run, *paths, "--keep", "id", "--keep", "age", "--batch-size", 7
    )
    assert (code, output.err) == (0, "")
    assert f"wrote {tmp_path / 'out.csv'}: 30 rows in " in output.out
    found = pandas.read_csv(tmp_path / "out.csv")
    assert len(found) == 30
    assert list(found)[:3] == ["id", "age", "rich"]


def test_predict_says_what_is_wrong(run, capsys, tmp_path):
    out = tmp_path / "out.csv"
    (tmp_path / "new.csv").write_text("id,age\np1,30\n")
    code, output = call(capsys, "predict", run, "--input", tmp_path / "new.csv", "--output", out)
    assert code == 1
    assert "mtlkit: the network reads columns that" in output.err
    assert "lacks: 'hours', 'job'; given are: id, age" in output.err
    code, output = call(capsys, "predict", tmp_path, "--input", tmp_path / "new.csv", "--output", out)
    assert code == 1
    assert "holds no run of mtlkit" in output.err
    code, _ = call(capsys, "predict", run, "--input", tmp_path / "new.csv")
    assert code == 2  # --output is missing
    assert not out.exists()


@pytest.mark.filterwarnings("always:the run in")
def test_a_run_that_goes_on_is_noted(run, capsys, tmp_path):
    import json

    record = run / "model.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "trained": None}))
    people(3).to_csv(tmp_path / "new.csv", index=False)
    paths = ["--input", tmp_path / "new.csv", "--output", tmp_path / "out.csv"]
    code, output = call(capsys, "predict", run, *paths)
    assert code == 0
    assert output.err.startswith("note: the run in")
