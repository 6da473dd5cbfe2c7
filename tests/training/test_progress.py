"""A bar that stays on one line, and a line per epoch where there is no terminal."""

import io
import re

import pytest
from rich.console import Console

from mtlkit.training.run_log import Progress
from tests.training.small_problem import make_loader, make_trainer

LOSSES = {"segmentation": 1.2345, "depth": 0.012345, "normals": 123.45, "edges": 0.5, "more": 1.0}
METRICS = {name: {"loss": 1.0, "accuracy": 0.98765} for name in LOSSES}


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 200])
def test_the_bar_is_whole_on_one_line(columns):
    file = io.StringIO()
    console = Console(file=file, width=columns, force_terminal=True, color_system=None)
    with Progress("bar", 123_456, console) as progress:
        progress.show(23_456, 11, LOSSES, 0.25, METRICS)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")
    lines = [line for line in shown.splitlines() if line.strip()]
    last = lines[-1]
    assert all(line.startswith("epoch") for line in lines)  # none is the rest of another
    assert "23456/123456" in last
    assert re.search(r"[\d-]+:[\d-]{2}\s*$", last)
    assert len(last.rstrip()) <= columns
    assert "…" not in last
    if columns >= 80:
        assert "segmentation 1.23" in last
    if columns >= 140:
        assert "steps/s" in last


@pytest.mark.filterwarnings("ignore:no validation set")
def test_a_pipe_gets_a_line_per_epoch_and_silence_if_asked(capsys):
    make_trainer(progress=None).fit(make_loader(size=40, batch=8), make_loader(size=16), epochs=3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "epoch 1, step 5 of 15", "epoch 2, step 10 of 15", "epoch 3, step 15 of 15",
    ]  # fmt: skip
    assert re.search(r"label [\d.]+ \| value [\d.]+ \| label accuracy [\d.]+ .*steps/s$", lines[-1])
    make_trainer(progress=False).fit(make_loader(size=40, batch=8), epochs=1)
    assert capsys.readouterr().err == ""
