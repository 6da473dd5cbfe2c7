"""Training on own images, from the command line: N processes are one, and a killed run goes on."""

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mtlkit.cli import main
from mtlkit.training import load_checkpoint
from tests.training.processes import run_processes, start_processes

pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")
pytest.importorskip("timm", reason="timm is in mtlkit[vision]")
from PIL import Image  # comes with torchvision


def write_images(folder: Path, count: int = 27) -> None:
    """Write images of several sizes, with two labels of which some are missing."""
    draw = random.Random(0)
    pixels = np.random.default_rng(0)
    (folder / "photos").mkdir()
    lines = ["name,kind,age"]
    for index in range(count):
        shape = (draw.randint(20, 30), draw.randint(20, 30), 3)
        Image.fromarray(pixels.integers(0, 256, shape, dtype=np.uint8)).save(
            folder / f"photos/{index}.png"
        )
        kind = "" if draw.random() < 0.3 else "abc"[index % 3]
        lines.append(f"{index}.png,{kind},{draw.gauss(30, 9)}")
    (folder / "labels.csv").write_text("\n".join(lines))


def order(folder: Path, name: str) -> list[str]:
    """The arguments that train into the folder ``name``; the network has no batch normalization."""
    data = (
        f"images(folder='{folder}/photos', labels='{folder}/labels.csv', file=name, size=[32, 48], "
        "targets={kind: classification, age: regression}, augment=crop+flip+color, split_seed=1)"
    )
    network = "hard_sharing(backbone=timm.test_convnext)"
    run = ["train", "--data", data, "--architecture", network, "--method", "rotograd"]
    run += ["--batch-size", "5", "--epochs", "8", "--save-steps", "2", "--logging-steps", "1"]
    return [*run, "--resume", "auto", "--output", str(folder / name)]


def train(folder: Path, name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(order(folder, name))
    assert not ended.value.code


def final(folder: Path) -> tuple[torch.Tensor, dict]:
    """The last parameters of a run, and its test results."""
    last = max((folder / "checkpoints").glob("step-*.pt"))
    parameters = [t.double().reshape(-1) for t in load_checkpoint(last)["model"].values()]
    return torch.cat(parameters), json.loads((folder / "test.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with images and the run of one process that was left alone."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    train(folder, "alone")
    return folder


@pytest.mark.slow
def test_two_processes_end_with_the_parameters_of_one(alone):
    run_processes(["-m", "mtlkit", *order(alone, "two")], world=2)
    (one, tested), (two, tested_by_two) = final(alone / "alone"), final(alone / "two")
    assert json.loads((alone / "two/log.jsonl").read_text().splitlines()[0])["processes"] == 2
    assert (one - two).abs().max() < 1e-5
    for task, metrics in tested.items():
        assert tested_by_two[task] == pytest.approx(metrics, abs=1e-5)


def test_a_killed_run_goes_on_bit_for_bit(alone):
    killed = alone / "killed"
    (process,) = start_processes(["-m", "mtlkit", *order(alone, "killed")], 1)
    while process.poll() is None and not list(killed.glob("checkpoints/step-*.pt")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    assert not (killed / "test.json").exists()
    train(alone, "killed")
    (one, tested), (resumed, tested_again) = final(alone / "alone"), final(killed)
    assert torch.equal(one, resumed)
    assert tested == tested_again
