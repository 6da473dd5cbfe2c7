"""The lines of the docs that start two CPU processes, run as they stand there."""

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mtlkit.cli import main
from mtlkit.training import load_checkpoint
from tests.training.processes import ROOT, environment

LINE = re.compile(r"^\$ (ACCELERATE_USE_CPU=true .*?--config run\.yaml)", re.MULTILINE)
LINES = LINE.findall((ROOT / "docs" / "training.md").read_text())
SETTINGS = """
data: "table(file=people.csv, targets={label: binary, size: regression})"
method: rotograd
batch_size: 8
epochs: 1
output: runs/two
"""


def write_table(path: Path) -> None:
    draw = random.Random(0)
    lines = ["a,b,label,size"]
    for _ in range(60):
        a, b = draw.gauss(0, 1), draw.gauss(0, 1)
        label = "" if draw.random() < 0.3 else draw.choice(["yes", "no"])
        lines.append(f"{a},{b},{label},{a - b + draw.gauss(0, 1)}")
    path.write_text("\n".join(lines))


def wait_for_port(port: int, seconds: float = 120) -> None:
    """Wait until nobody listens at the port that launchers take by default."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(1)


def weights(folder: Path) -> torch.Tensor:
    (path,) = (folder / "checkpoints").glob("step-*.pt")
    return torch.cat([t.double().reshape(-1) for t in load_checkpoint(path)["model"].values()])


def test_the_docs_have_a_line_for_accelerate_and_one_for_torchrun():
    assert ["accelerate launch" in line for line in LINES] == [True, False]
    assert "torchrun" in LINES[1]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(LINES[0], id="accelerate"),
        pytest.param(LINES[1], id="torchrun", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_as_one_and_speak_as_one(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "people.csv")
    (tmp_path / "run.yaml").write_text(SETTINGS)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config", "run.yaml", "-o", "runs/one"])
    assert ended.value.code == 0
    variables = environment()
    del variables["ACCELERATE_USE_CPU"]  # the line itself sets it
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    wait_for_port(29500)
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (weights(Path("runs/one")) - weights(Path("runs/two"))).abs().max() < 1e-5
    log = (tmp_path / "runs/two/log.jsonl").read_text().splitlines()
    assert json.loads(log[0])["processes"] == 2
    said = done.stderr.splitlines()
    notes = [line for line in said if line.startswith(("note:", "table:", "mtlkit:"))]
    assert len(notes) == len(set(notes)) > 0
    assert sum("find_unused_parameters" in line for line in said) <= 1
