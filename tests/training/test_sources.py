"""Each task with its own data: N processes are one, a killed run goes on, and the Trainer speaks up."""

import json
import signal
import time
import warnings

import pytest
import torch

from mtlkit.data import mix
from tests.training.processes import run_processes, run_together, start_processes
from tests.training.run_sources import CASES, loaders, main, train
from tests.training.small_problem import make_loader, make_trainer, records


@pytest.fixture(scope="module")
def whole():
    """The runs of one process that was left alone."""
    return {case: train(case) for case in CASES}


def rows(batches) -> list[list[tuple]]:
    """The samples of every batch, in an order that does not depend on the split over processes."""
    return [sorted(map(tuple, batch.tolist())) for batch in batches]


def test_two_processes_draw_the_samples_of_one_and_end_with_its_parameters(whole, tmp_path):
    run_together(main, tmp_path, 0.0)
    for case, one in whole.items():
        first, second = (torch.load(tmp_path / f"{case}-{rank}.pt") for rank in (0, 1))
        if case == "few":  # a process without samples of a task has no forward pass for it
            assert len(first["seen"]) < len(second["seen"])
        else:
            together = [torch.cat(pair) for pair in zip(first["seen"], second["seen"], strict=True)]
            assert rows(together) == rows(one["seen"])
        assert first["step"] == one["step"] > 10
        for two in (first, second):
            assert (one["parameters"] - two["parameters"]).abs().max() < 1e-5
            for task, metrics in one["metrics"].items():
                assert two["metrics"][task] == pytest.approx(metrics, abs=1e-5)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(whole, tmp_path):
    program = ["-m", "tests.training.run_sources", str(tmp_path)]
    (process,) = start_processes([*program, "0.04"], 1)
    log = tmp_path / "one" / "log.jsonl"  # the second case has begun, the first is finished
    # a step takes 0.04 s at least, so that there is time to kill it after some lines
    while process.poll() is None and (not log.exists() or log.read_text().count("\n") < 4):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    before = [json.loads(line) for line in log.read_text().splitlines()]
    assert not (tmp_path / "one-0.pt").exists()
    assert before
    run_processes(program)
    for case, one in whole.items():
        resumed = torch.load(tmp_path / f"{case}-0.pt")
        assert torch.equal(resumed["parameters"], one["parameters"])
        assert resumed["metrics"] == one["metrics"]


def test_a_run_that_stops_within_an_epoch_goes_on_with_the_same_batches(whole, tmp_path):
    for case, one in whole.items():
        first = train(case, tmp_path / case, steps=8)["seen"]
        second = train(case, tmp_path / case, resume="auto")
        assert torch.equal(second["parameters"], one["parameters"])
        seen = first + second["seen"]
        assert len(seen) == len(one["seen"])
        assert all(map(torch.equal, seen, one["seen"]))


def notes_of(method: str, data, folder, steps: int = 25) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer(method, output=folder).fit(data, steps=steps)
    notes = [record["message"] for record in records(folder, "note")]
    return [note for note in notes if "validation" not in note]


def test_the_trainer_says_once_that_gradients_of_different_samples_never_overlap(tmp_path):
    (note,) = notes_of("pcgrad", loaders(), tmp_path / "a")
    assert "never overlap" in note
    assert "wrt=parameters" in note
    (note,) = notes_of("rotograd", loaders(), tmp_path / "b")
    assert "without rotate" in note
    (note,) = notes_of("pcgrad(wrt=parameters)", mix(loaders(), batches="one"), tmp_path / "c")
    assert "one task only" in note
    assert "batches=all" in note


@pytest.mark.parametrize("method", ["sum", "uw", "gradnorm", "pcgrad(wrt=parameters)"])
def test_the_trainer_is_silent_where_labels_apart_do_no_harm(method, tmp_path):
    assert notes_of(method, loaders(), tmp_path) == []


def test_the_trainer_is_silent_where_samples_have_labels_of_both_tasks(tmp_path):
    assert notes_of("pcgrad", make_loader(missing=0.6), tmp_path) == []
