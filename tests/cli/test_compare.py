import json

import pytest

from mtlkit.cli import main

SMALL = ["--data", "multidigits(train=64, val=32, test=32)", "--epochs", "1", "--batch-size", "32"]
SMALL += ["--seeds", "2", "--jobs", "1", "--timing", "0", "--no-single-task"]


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code


def test_flags_compare_and_tell_where_the_report_is(tmp_path, capsys):
    code = call("compare", *SMALL, "--methods", "cagrad(c=0.4, wrt=features),sum", "-o", tmp_path)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert f"report: {tmp_path / 'report.html'}" in shown.out
    assert "cagrad(c=0.4, wrt=features)" in shown.out
    assert "[4/4]" in shown.err
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["label"] for line in lines} == {"sum", "cagrad(c=0.4, wrt=features)"}
    # what it wrote down repeats it, and nothing is left to do
    assert call("compare", "--config", tmp_path / "compare.yaml", "-o", tmp_path) == 0
    assert "[" not in capsys.readouterr().err
    assert call("report", tmp_path, "--output", tmp_path / "again.html") == 0


def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path, capsys):
    folder = tmp_path / "out"
    assert call("compare", *SMALL, "--methods", "sum,mgda", "-o", folder, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "0 of 4 training runs are done" in shown
    assert "mgda: 2 training runs of 2 steps" in shown
    assert not folder.exists()


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_an_output_that_is_a_file_is_refused(command, tmp_path, capsys):
    path = tmp_path / "people.csv"
    path.write_text("age\n")
    assert call(command, "--data", "multidigits", "--methods", "sum", "-o", path) == 2
    assert "is a file" in " ".join(capsys.readouterr().err.split())
    assert path.read_text() == "age\n"


def test_a_failed_method_ends_with_code_1_and_its_error(tmp_path, capsys):
    code = call("compare", *SMALL, "--methods", "sum,rotograd(size=999)", "-o", tmp_path)
    shown = capsys.readouterr()
    assert code == 1
    assert "failed: rotograd(size=999), seed 0: size of rotate must be" in shown.err
    assert "0, 2 failed" in shown.out
    assert (tmp_path / "report.html").exists()


def test_a_file_and_flags_go_together(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "data: multidigits(train=64, val=32, test=32)\nmethods: [sum]\nepochs: 5\ntiming: 0\n"
        "single_task: false\njobs: 1\nsmall: {epochs: 4, seeds: 1}\n"
    )
    assert call("compare", "-c", "mine.yaml", "--budget", "small", "--epochs", "1") == 0
    header = json.loads((tmp_path / "runs" / "mine" / "comparison.json").read_text())
    assert (header["config"]["epochs"], header["config"]["seeds"]) == (1, [0])
    everything = ("--epochs", "2", "--seeds", "1", "-o", "all")
    assert call("compare", "-c", "mine.yaml", "--budget", "small", *everything) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "multidigits"], "--methods is missing"),
        ([], "--data is missing"),
        (["--data", "multidigit", "--methods", "sum"], "did you mean 'multidigits'"),
        (["--data", "multidigits", "--methods", "pcgad"], "did you mean 'pcgrad'"),
        (["--data", "multidigits", "--methods", "sum", "--budget", "tiny"], "'small' or 'full'"),
        (["--data", "multidigits", "--methods", "sum", "--budget", "small"], "needs a key 'small'"),
        (["--demo", "--config", "x.yaml"], "--demo has its own data and settings"),
        (["--demo", "--data", "multidigits"], "--demo has its own data and settings"),
        (["--config", "absent.yaml"], "there is no configuration file absent.yaml"),
        (
            ["--data", "multidigits", "--methods", "sum", "--launcher", "ray"],
            "one of 'local', 'submitit'",
        ),
    ],
)
def test_bad_usage_ends_with_code_2_and_the_reason(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("compare", *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_missing_submitit_names_the_extra_before_anything_is_timed(tmp_path, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "submitit", None)
    options = ["--methods", "sum", "--launcher", "submitit", "--timing", 3, "-o", tmp_path]
    assert call("compare", *SMALL, *options) == 1
    shown = capsys.readouterr().err
    assert "pip install 'mtlkit[bench]'" in shown
    assert "timing" not in shown
