"""The time of a run over all processes that worked on it."""

import json

import pytest

from mtlkit.experiments.jobs import Session


def log(folder, *rows):
    text = "".join(
        json.dumps({"kind": "train", "step": step, "time": time}) + "\n" for step, time in rows
    )
    (folder / "log.jsonl").write_text(text + '{"kind": "tr')  # killed while it wrote


def test_time_of_killed_processes_counts_until_their_last_line(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    assert Session(tmp_path).earlier == 0
    log(tmp_path, (5, 1010.0), (10, 1020.0))
    clock[0] = 5000.0  # nobody worked in between
    second = Session(tmp_path)
    assert (second.earlier, second.steps) == (20, 10)
    log(tmp_path, (5, 1010.0), (10, 5003.0))  # a resumed run begins at its checkpoint
    clock[0] = 9000.0
    third = Session(tmp_path)
    assert third.earlier == pytest.approx(23)
    assert third.seconds >= 23
    clock[0] = 9100.0
    assert Session(tmp_path).earlier == pytest.approx(23)  # the third one logged nothing
