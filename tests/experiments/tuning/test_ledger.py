"""The book of trials: counted, shared by several processes, and whole after a kill."""

import threading
from pathlib import Path

import pytest

from mtlkit.config.search import Choice, LogUniform
from mtlkit.experiments.tuning.ledger import JOURNAL, Ledger
from mtlkit.experiments.tuning.spaces import make_space

TRAIN = {"lr": 1e-3, "method_lr": None}
GIVEN = {"lr": LogUniform(1e-4, 1e-2)}
METHODS = ("sum", "cagrad", "rotograd")
SPACES = {name: make_space(name, GIVEN, TRAIN, ("a", "b"), lambda: 40) for name in METHODS}


@pytest.fixture
def open_ledger():
    opened = []

    def make(folder: Path, trials: int = 4, sampler: str = "random", spaces=SPACES) -> Ledger:
        opened.append(Ledger(folder, spaces, trials, sampler, seed=7))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


def die(ledger: Ledger) -> None:
    """What the system does when a process is killed: its locks are free, its files stay."""
    ledger._alive.release()


def value_of(trial) -> float:
    return -abs(trial.point["lr"] - 2e-3)


def work(ledger: Ledger) -> list:
    done = []
    while (trial := ledger.take()) is not None:
        ledger.finish(trial, value_of(trial), seconds=1.0)
        done.append((trial.label, trial.index))
    return done


def points(ledger: Ledger) -> dict:
    return {label: [(t.index, t.point, t.value) for t in ledger.of(label)] for label in METHODS}


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_every_method_gets_the_counted_number_in_turns(tmp_path, open_ledger, sampler):
    ledger = open_ledger(tmp_path, sampler=sampler)
    done = work(ledger)
    assert done == [(label, index) for index in range(4) for label in METHODS]
    assert ledger.is_complete()
    assert ledger.take() is None


def test_the_first_trial_is_what_is_given_and_methods_share_learning_rates(tmp_path, open_ledger):
    ledger = open_ledger(tmp_path)
    work(ledger)
    first = {label: ledger.of(label)[0].point for label in METHODS}
    assert first["sum"] == {"lr": 1e-3}
    assert first["cagrad"] == {"lr": 1e-3, "cagrad.c": 0.4}
    assert first["rotograd"] == {"lr": 1e-3, "rotate.size": None, "lr_ratio": 0.5}
    for index in range(4):
        assert len({ledger.of(label)[index].point["lr"] for label in METHODS}) == 1
    assert len({trial.point["lr"] for trial in ledger.of("sum")}) == 4


def test_several_processes_share_the_trials_and_draw_what_one_would(tmp_path, open_ledger):
    alone = open_ledger(tmp_path / "alone", trials=10)
    work(alone)
    ledgers = [open_ledger(tmp_path / "shared", trials=10) for _ in range(4)]
    found: list = []
    threads = [threading.Thread(target=lambda one=one: found.extend(work(one))) for one in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted((label, index) for index in range(10) for label in METHODS)
    assert points(ledgers[0]) == points(alone)


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_trial_whose_process_died_is_taken_over_and_the_rest_is_drawn_as_before(
    tmp_path, open_ledger, sampler
):
    alone = open_ledger(tmp_path / "alone", trials=8, sampler=sampler)
    work(alone)
    left = None
    for more in range(1, 5):
        ledger = open_ledger(tmp_path / "killed", trials=8, sampler=sampler)
        for _ in range(more):
            trial = ledger.take()
            assert left is None or trial.point == left.point
            ledger.finish(trial, value_of(trial))
            left = None
        left = ledger.take()
        die(ledger)
    last = open_ledger(tmp_path / "killed", trials=8, sampler=sampler)
    work(last)
    assert points(last) == points(alone)


def test_the_trial_of_a_process_that_lives_is_left_to_it(tmp_path, open_ledger):
    one, other = open_ledger(tmp_path, trials=1), open_ledger(tmp_path, trials=1)
    mine = one.take()
    assert {other.take().label, other.take().label} == {"cagrad", "rotograd"}
    assert other.take() is None
    assert not other.is_complete()
    die(one)
    again = other.take()
    assert (again.label, again.index, again.point) == (mine.label, mine.index, mine.point)
    other.finish(again, 1.0)
    one.finish(mine, 2.0)  # it was not dead after all; what is noted stays
    assert [trial.value for trial in other.of(mine.label)] == [1.0]


def test_a_line_that_was_cut_short_is_dropped(tmp_path, open_ledger):
    ledger = open_ledger(tmp_path)
    trial = ledger.take()
    ledger.finish(trial, 1.0)
    die(ledger)
    with open(tmp_path / JOURNAL, "a") as file:
        file.write('{"op_code":5,"worker_id":"x","tri')
    again = open_ledger(tmp_path)
    assert again.of("sum")[0].value == 1.0
    work(again)
    assert again.is_complete()
    assert all(line.endswith("}") for line in (tmp_path / JOURNAL).read_text().splitlines())


def test_a_trial_that_died_while_it_was_drawn_does_not_count(tmp_path, open_ledger, monkeypatch):
    alone = open_ledger(tmp_path / "alone")
    work(alone)
    ledger = open_ledger(tmp_path / "killed")

    def dies(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "_note", dies)
    with pytest.raises(KeyboardInterrupt):
        ledger.take()
    die(ledger)
    again = open_ledger(tmp_path / "killed")
    work(again)
    assert points(again) == points(alone)


def test_more_trials_can_be_asked_for_later_and_fewer_are_looked_at(tmp_path, open_ledger):
    work(open_ledger(tmp_path, trials=2))
    more = open_ledger(tmp_path, trials=5)
    assert len(work(more)) == 9
    assert [len(more.of(label)) for label in METHODS] == [5, 5, 5]
    fewer = open_ledger(tmp_path, trials=3)
    assert [len(fewer.of(label)) for label in METHODS] == [3, 3, 3]
    assert fewer.take() is None


def test_loss_weights_are_drawn_where_the_rest_is_a_grid(tmp_path, open_ledger):
    given = {"lr": Choice(1e-3, 1e-2)}
    ledger = open_ledger(
        tmp_path, 4, "grid", {"constant": make_space("constant", given, TRAIN, ("a", "b"), lambda: 40)}
    )
    work(ledger)
    found = [trial.point for trial in ledger.of("constant")]
    assert sorted(point["lr"] for point in found) == [1e-3, 1e-3, 1e-2, 1e-2]
    assert len({point["constant.weights.a"] for point in found}) == 4


def test_a_setting_that_was_tried_is_found_again(tmp_path, open_ledger):
    spaces = {"sum": make_space("sum", {}, TRAIN, ("a", "b"), lambda: 40)}
    ledger = open_ledger(tmp_path, 2, "grid", spaces)
    first = ledger.take()
    assert ledger.twin(first) is None
    ledger.finish(first, 3.0)
    assert ledger.twin(ledger.take()).value == 3.0
