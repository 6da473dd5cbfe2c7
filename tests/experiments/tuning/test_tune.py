"""A search from end to end, on few samples: counted, on validation only, and whole after a kill."""

import json
import re
import signal
import statistics
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

import mtlkit
from mtlkit.cli import main
from mtlkit.data.published.digit_pairs import MultiDigits
from mtlkit.data.table.splitting import split_by_share
from mtlkit.errors import ConfigError, SpecError, UsageError
from mtlkit.experiments.compare import Stopped
from mtlkit.experiments.compare import run_comparison as compare
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.tuning import TuneConfig, Winners
from mtlkit.experiments.tuning.ledger import Ledger
from mtlkit.experiments.tuning.objective import WORST, improvement
from mtlkit.experiments.tuning.plan import Plan
from mtlkit.experiments.tuning.winners import hold_out_test
from mtlkit.report.results import FRONT, TaskRecord
from tests.background import started, wait_for

SETTINGS = {
    "data": "multidigits(train=96, val=40, test=40)",
    "methods": ["sum", "cagrad"],
    "trials": 3,
    "epochs": 2,
    "batch_size": 32,
    "normalize": True,
    "jobs": 1,
    "logging_steps": 2,
    "space": {"lr": "log(1e-3, 3e-2)"},
}
LABELS = ["sum", "tuned sum", "cagrad"]
LONGER = {**SETTINGS, "tuned_sum": False, "epochs": 4}


def winners_of(folder: Path) -> dict:
    """The winners without the seconds, which always differ."""
    content = yaml.safe_load((folder / "winners.yaml").read_text())
    for cost in content["cost"].values():
        del cost["seconds"]
    return content


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiDigits, "test", property(_never))
        made = mtlkit.tune(SETTINGS, folder, progress=False)
    return folder, made


def _never(self):
    raise AssertionError("a trial looked at the test samples")


def test_every_method_gets_the_same_number_of_trials_on_validation_only(whole):
    folder, made = whole
    assert {label: len(trials) for label, trials in made.trials.items()} == dict.fromkeys(LABELS, 3)
    assert all(trial.state == "done" for trials in made.trials.values() for trial in trials)
    assert not list(folder.rglob("test.json"))
    assert {cost["trials"] for cost in made.winners.cost.values()} == {3}
    assert {cost["steps"] for cost in made.winners.cost.values()} == {18}


def test_the_winner_is_the_best_trial_and_can_be_read_back(whole):
    folder, made = whole
    for winner in made.winners.best:
        best = max(made.trials[winner.label], key=lambda trial: trial.value)
        assert (winner.value, winner.trial) == (best.value, best.index)
        assert winner.settings["lr"] == best.point["lr"]
    again = Winners.load(folder)
    assert [w.method for w in again.best] == [w.method for w in made.winners.best]
    assert again.cost == made.winners.cost
    assert again.best[1].method.startswith("constant(weights={left: ")


def test_the_first_trial_of_the_sum_is_the_reference(whole):
    _, made = whole
    assert made.trials["sum"][0].value == 0.0
    assert made.trials["tuned sum"][0].value == pytest.approx(0.0, abs=1e-3)


def test_values_follow_from_the_best_validation(whole):
    folder, made = whole
    trial = made.trials["cagrad"][1]
    (log,) = folder.glob("trials/cagrad-seed100000/001/log.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    validations = [row for row in rows if row["kind"] == "validation"]
    best = max(validations, key=lambda row: row["score"])
    assert trial.facts["metrics"]["left"]["accuracy"] == best["tasks"]["left"]["accuracy"]


def test_a_second_call_repeats_nothing(whole, monkeypatch):
    folder, _ = whole
    from mtlkit.training import experiment

    monkeypatch.setattr(experiment, "run", _never)
    before = (folder / "winners.yaml").read_text()
    mtlkit.tune(SETTINGS, folder, progress=False)
    assert (folder / "winners.yaml").read_text() == before


def test_settings_may_be_read_from_the_file_that_the_search_wrote(whole):
    folder, made = whole
    again = mtlkit.tune(folder / "tune.yaml", folder, progress=False)
    assert again.winners == made.winners


def test_another_search_in_the_folder_is_refused(whole):
    folder, _ = whole
    for changes, what in (
        ({"epochs": 3}, "train.epochs was 2, now 3"),
        ({"space": {"lr": "log(1e-3, 1e-2)"}}, "sum.space was"),
        ({"seed": 5}, "seed was 100000, now 5"),
    ):
        with pytest.raises(ConfigError, match=f"contains another search \\({what}"):
            mtlkit.tune({**SETTINGS, **changes}, folder, progress=False)


def test_another_extra_capacity_is_another_search_and_old_folders_do_not_name_it(tmp_path):
    def write(size):
        method = {"method": "sum", "extra_capacity": {"size": size}}
        Plan.make(TuneConfig.make({**SETTINGS, "methods": [method]}), tmp_path).write()

    write(8)
    write(8)
    with pytest.raises(ConfigError, match="contains another search"):
        write(9)
    path = tmp_path / "tune.json"
    content = json.loads(path.read_text())
    content["identity"] = {
        key: value for key, value in content["identity"].items() if not key.endswith("extra_capacity")
    }
    path.write_text(json.dumps(content))
    write(9)


def test_winners_are_compared_on_new_seeds_and_samples_that_the_search_never_saw(whole, tmp_path):
    folder, made = whole
    config = CompareConfig.make(
        {"tuned": str(folder), "seeds": 1, "front": 2, "single_task": False, "timing": 0, "jobs": 1}
    )
    assert [entry.label for entry in config.entries] == LABELS
    found = compare(config, tmp_path, progress=False)
    assert found.labels == LABELS
    assert found.front_labels == ["front 1", "front 2"]
    assert found.tuning == made.winners.cost
    assert {run.kind for run in found.runs} == {"", FRONT}
    assert found.config["data"] == "multidigits(train=96, val=40, test=40, test_seed=100000)"
    assert found.config["methods"]["cagrad"]["lr"] == made.winners.best[2].settings["lr"]
    again = CompareConfig.make(yaml.safe_load((tmp_path / "compare.yaml").read_text()))
    assert again.entries == config.entries
    assert len(compare(again, tmp_path, progress=False).runs) == 5


def test_a_comparison_of_winners_may_name_some_and_add_others(whole):
    folder, made = whole
    config = CompareConfig.make({"tuned": str(folder), "methods": ["cagrad", "mgda"]})
    assert [entry.label for entry in config.entries] == ["sum", "cagrad", "mgda"]
    assert config.entries[1].settings["lr"] == made.winners.best[2].settings["lr"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 100_000]}, "used seed 100000"),
        ({"data": "multidigits"}, "were tuned on 'multidigits"),
        ({"tuned": "nowhere"}, "nowhere contains no winners.yaml"),
    ],
)
def test_a_comparison_that_would_not_be_fair_is_refused(whole, changes, message):
    folder, _ = whole
    with pytest.raises(ConfigError, match=message):
        CompareConfig.make({"tuned": str(folder), **changes})


def test_test_samples_are_those_of_the_search_and_the_others_are_drawn_anew():
    searched = mtlkit.load_dataset("multidigits", seed=100_000)
    later = mtlkit.load_dataset(hold_out_test("multidigits", 100_000), seed=1)
    digits = {
        (name, split): {image.tobytes() for image in data.digits(split)[0]}
        for name, data in (("searched", searched), ("later", later))
        for split in ("train", "val", "test")
    }
    assert digits["searched", "test"] == digits["later", "test"]
    assert digits["searched", "val"] != digits["later", "val"]
    for split in ("train", "val"):
        assert not digits["searched", split] & digits["later", "test"]
        assert len(digits["searched", split]) == len(digits["later", split])


def test_rows_for_test_are_those_of_the_test_seed():
    shares = {"val": 0.2, "test": 0.3}
    searched = split_by_share(50, shares, seed=7)
    later = split_by_share(50, shares, seed=1, test_seed=7)
    assert later["test"].tolist() == searched["test"].tolist()
    assert later["val"].tolist() != searched["val"].tolist()
    assert sorted(row for part in later.values() for row in part) == list(range(50))
    assert {part: len(rows) for part, rows in later.items()} == {"train": 25, "val": 10, "test": 15}


def test_data_sets_with_published_test_samples_stay_as_they_are():
    assert hold_out_test("multimnist(size=28)", 7) == "multimnist(size=28)"
    assert hold_out_test("table(file=x, split_seed=3)", 7) == "table(file=x, split_seed=3)"
    assert hold_out_test("table(file=x)", 7) == "table(file=x, test_seed=7)"
    several = "sources(of={a: 'table(file=x)', b: multimnist})"
    assert hold_out_test(several, 7) == "sources(of={a: 'table(file=x, test_seed=7)', b: multimnist})"


def test_a_trial_may_be_judged_by_the_mean_over_several_seeds(tmp_path):
    settings = {**SETTINGS, "methods": ["sum"], "tuned_sum": False, "trials": 2, "epochs": 1}
    made = mtlkit.tune({**settings, "trial_seeds": 2}, tmp_path, progress=False)
    first, second = made.trials["sum"]
    assert first.value == 0.0
    assert second.value == pytest.approx(statistics.fmean(second.facts["values"]))
    assert len(set(second.facts["values"])) == 2
    assert {trial.facts["steps"] for trial in made.trials["sum"]} == {6}
    again = Winners.load(tmp_path)
    assert list(again.seeds) == [100_000, 100_001]
    with pytest.raises(ConfigError, match="used seed 100001"):
        CompareConfig.make({"tuned": str(tmp_path), "seeds": [1, 100_001]})
    # the test samples of the first seed are kept from every trial
    config = yaml.safe_load((tmp_path / "trials" / "sum-seed100001" / "001" / "config.yaml").read_text())
    assert "test_seed=100000" in config["data"]


def test_a_winner_is_trained_with_its_settings(whole, tmp_path):
    folder, made = whole
    settings = made.winners.training("cagrad")
    assert settings["method"].startswith("normalize+cagrad")
    assert settings["lr"] == made.winners.best[2].settings["lr"]
    best = max(made.winners.best, key=lambda winner: winner.value)
    assert made.winners.training()["lr"] == best.settings["lr"]
    with pytest.raises(SpecError, match="did you mean 'cagrad'"):
        made.winners.training("cagrd")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--tuned", str(folder), "--method", "cagrad", "-o", str(tmp_path / "run")])
    assert stop.value.code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["method"], config["lr"]) == (settings["method"], settings["lr"])
    assert "test_seed=100000" in config["data"]


def test_a_method_that_fails_costs_its_trials_only(tmp_path):
    settings = {**SETTINGS, "methods": ["sum", "rotograd(size=500)"], "trials": 2, "epochs": 1}
    made = mtlkit.tune({**settings, "tuned_sum": False}, tmp_path, progress=False)
    assert made.failed == ["rotograd(size=500)"]
    assert [winner.label for winner in made.winners.best] == ["sum"]
    assert made.winners.cost["rotograd(size=500)"]["failed"] == 2
    assert "size of rotate must be between" in made.trials["rotograd(size=500)"][0].facts["error"]


def test_settings_that_repeat_are_not_trained_again(tmp_path, monkeypatch):
    from mtlkit.training import experiment

    runs = []
    real = experiment.run
    monkeypatch.setattr(experiment, "run", lambda *a, **k: runs.append(1) or real(*a, **k))
    settings = {**SETTINGS, "methods": ["sum"], "tuned_sum": False, "space": {}, "sampler": "grid"}
    made = mtlkit.tune({**settings, "trials": 3, "epochs": 1}, tmp_path, progress=False)
    assert [trial.facts.get("repeats") for trial in made.trials["sum"]] == [None, 0, 0]
    assert len(runs) == 2  # the reference and one trial


UNPRUNED = {**SETTINGS, "methods": ["sum"], "tuned_sum": False, "trials": 7, "sampler": "random"}
PRUNED = {**UNPRUNED, "prune": [3]}


@pytest.fixture(scope="module")
def with_pruning(tmp_path_factory):
    return mtlkit.tune(PRUNED, tmp_path_factory.mktemp("pruned"), progress=False)


def test_pruning_ends_what_is_below_the_median_and_leaves_the_others_as_they_were(
    tmp_path, with_pruning
):
    whole = mtlkit.tune(UNPRUNED, tmp_path / "whole", progress=False).trials["sum"]
    made = with_pruning
    trials = made.trials["sum"]
    reached = [trial.facts["value at 3"] for trial in trials]
    pruned = [i for i in range(4, 7) if reached[i] < statistics.median(reached[:i])]
    assert pruned
    assert [trial.index for trial in trials if trial.state == "pruned"] == pruned
    for before, now in zip(whole, trials, strict=True):
        assert now.facts["steps"] == (3 if now.index in pruned else 6)
        assert now.index in pruned or now.value == before.value
    assert made.winners.best[0].trial not in pruned
    assert made.winners.cost["sum"]["steps"] == 7 * 6 - 3 * len(pruned)


def test_pruning_ends_the_same_trials_when_the_search_is_interrupted_after_each(
    tmp_path, monkeypatch, with_pruning
):
    alone = with_pruning.trials["sum"]
    real, seen = Ledger.finish, set()

    def finish(self, trial, value, **facts):
        if trial.index not in seen:  # all is done, and nothing is noted
            seen.add(trial.index)
            raise KeyboardInterrupt
        real(self, trial, value, **facts)

    monkeypatch.setattr(Ledger, "finish", finish)
    for _ in range(7):
        with pytest.raises(Stopped):
            mtlkit.tune(PRUNED, tmp_path / "stopped", progress=False)
    found = mtlkit.tune(PRUNED, tmp_path / "stopped", progress=False).trials["sum"]
    assert "pruned" in [trial.state for trial in alone]

    def told(trials):
        return [(t.state, t.value, t.facts["steps"], t.facts["value at 3"]) for t in trials]

    assert told(found) == told(alone)


def test_a_trial_that_fails_has_its_cost(tmp_path):
    settings = {**SETTINGS, "methods": ["sum"], "tuned_sum": False, "trials": 2, "logging_steps": 1}
    space = {"lr": [1e-3, 1e30]}  # the second one is soon infinite
    made = mtlkit.tune(
        {**settings, "space": space, "sampler": "grid", "on_nonfinite": "raise"},
        tmp_path,
        progress=False,
    )
    (failed,) = [trial for trial in made.trials["sum"] if trial.state == "failed"]
    assert failed.facts["seconds"] > 0
    assert failed.facts["steps"] > 0


def test_a_gain_has_no_unit_and_no_metric_outweighs_the_others():
    tasks = [TaskRecord("a", {"accuracy": True}), TaskRecord("b", {"mse": False})]
    reference = {"a": {"accuracy": 0.8}, "b": {"mse": 100.0}}
    assert improvement(reference, reference, tasks) == 0
    better = {"a": {"accuracy": 0.88}, "b": {"mse": 90.0}}
    expected = (0.08 / 0.84 + 10 / 95) / 2 * 100
    assert improvement(better, reference, tasks) == pytest.approx(expected)
    scaled = {"a": {"accuracy": 0.88}, "b": {"mse": 0.9}}
    assert improvement(scaled, {**reference, "b": {"mse": 1.0}}, tasks) == pytest.approx(expected)
    assert improvement({"a": {"accuracy": 0.8}, "b": {"mse": 1e9}}, reference, tasks) > -100
    assert improvement({"b": {"mse": float("nan")}}, reference, tasks) == WORST


def has_begun(out: Path) -> bool:
    """Whether a trial is finished and another one has a checkpoint."""
    done = {path.parent for path in out.glob("trials/*/*/result.json")}
    begun = {path.parents[1] for path in out.glob("trials/*/*/checkpoints/step-*.pt")}
    return bool(done) and bool(begun - done)


def rows_to_keep(log: Path) -> str:
    """The log up to the last checkpoint; what comes after it is done again, at another time."""
    steps = [int(path.stem.partition("-")[2]) for path in log.parent.glob("checkpoints/step-*.pt")]
    lines = log.read_text().splitlines(keepends=True)
    if not steps:  # the trial is finished
        return "".join(lines)
    return "".join(takewhile(lambda line: json.loads(line)["step"] < max(steps), lines))


def test_a_killed_search_goes_on_and_two_processes_end_as_one_would(tmp_path):
    alone = mtlkit.tune(LONGER, tmp_path / "alone", progress=False)
    out = tmp_path / "shared" / "out"
    with started("tune", tmp_path / "shared", LONGER) as process:
        wait_for(lambda: has_begun(out), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "winners.yaml").exists()
    logs = {path: rows_to_keep(path) for path in out.glob("trials/*/*/log.jsonl")}
    with started("tune", tmp_path / "shared", LONGER) as process:
        made = mtlkit.tune(LONGER, out, progress=False)
        wait_for(lambda: process.poll() is not None)
    output = (tmp_path / "shared" / "output.txt").read_text()
    assert process.returncode == 0, output
    assert all(path.read_text().startswith(text) for path, text in logs.items())
    assert winners_of(out) == winners_of(tmp_path / "alone")
    for label, trials in made.trials.items():
        assert [(t.index, t.point, t.value) for t in trials] == [
            (t.index, t.point, t.value) for t in alone.trials[label]
        ]
    assert len(list(out.glob("trials/*/*/result.json"))) == 6


@pytest.mark.slow
def test_an_interrupted_search_says_how_to_go_on(tmp_path):
    out = tmp_path / "out"
    with started("tune", tmp_path, LONGER) as process:
        wait_for(lambda: "[1/6]" in (tmp_path / "output.txt").read_text(), process)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: process.poll() is not None)
    output = (tmp_path / "output.txt").read_text()
    assert process.returncode == 130, output
    assert f"resume with: mtlkit tune -c {out / 'tune.yaml'} -o {out}" in output
    assert "Traceback" not in output
    assert re.search(r"\[1/6\] sum, trial 1: \+0.00 %  normalize\+sum lr=0.001 \(\d+\.\d s\)", output)
    written = TuneConfig.make(yaml.safe_load((out / "tune.yaml").read_text()))
    assert written.model_dump() == TuneConfig.make(LONGER).model_dump()


@pytest.mark.slow
def test_a_search_in_four_processes_that_is_killed_three_times_loses_nothing(tmp_path):
    settings = {**LONGER, "sampler": "random"}
    mtlkit.tune(settings, tmp_path / "alone", progress=False)
    options = ("--sampler", "random", "--jobs", "2")
    out = tmp_path / "killed" / "out"
    for _ in range(3):
        before = len(list(out.glob("trials/*/*/start.json")))
        with (
            started("tune", tmp_path / "killed", LONGER, *options) as one,
            started("tune", tmp_path / "killed", LONGER, *options) as two,
        ):
            wait_for(
                lambda: one.poll() is not None or len(list(out.glob("trials/*/*/start.json"))) > before  # noqa: B023
            )
            one.kill()
            two.kill()
    with started("tune", tmp_path / "killed", LONGER, *options) as process:
        wait_for(lambda: process.poll() is not None)
    assert process.returncode == 0, (tmp_path / "killed" / "output.txt").read_text()
    assert winners_of(out) == winners_of(tmp_path / "alone")


@pytest.mark.slow
def test_submitit_runs_every_trial_as_a_job_of_its_own(tmp_path):
    pytest.importorskip("submitit")
    settings = {**SETTINGS, "methods": ["sum"], "tuned_sum": False, "trials": 1, "epochs": 1}
    where = {"launcher": "submitit", "launcher_options": {"cluster": "local"}}
    made = mtlkit.tune({**settings, **where}, tmp_path, progress=False)
    assert [trial.state for trial in made.trials["sum"]] == ["done"]
    assert list((tmp_path / "submitit").glob("*_result.pkl"))


def test_a_launcher_of_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="mtlkit tune starts its own processes"):
        mtlkit.tune(SETTINGS, tmp_path)
