"""A comparison from end to end, on few samples."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pandas
import pytest
import torch
from scipy import stats

import mtlkit
from mtlkit.architectures.capacity import TaskMatrix, add_capacity
from mtlkit.data.published.digit_pairs import MultiDigits
from mtlkit.errors import ConfigError, SpecError, UsageError
from mtlkit.experiments import jobs as jobs_module
from mtlkit.experiments import timing as timing_module
from mtlkit.experiments.compare import Stopped, _seeds_that_fit, first_jobs, plan_jobs
from mtlkit.experiments.compare import run_comparison as compare
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.demo import PARTS
from mtlkit.experiments.entries import split_specs
from mtlkit.experiments.jobs import Job, Outcome, read_outcome, run_job
from mtlkit.report import build_table
from mtlkit.report.histories import read_history
from mtlkit.report.results import Comparison, Run, run_folder
from mtlkit.training import experiment
from tests.background import started, wait_for

DATA = "multidigits(train=96, val=40, test=40)"
TASKS = ["left", "right", "parity", "digit_sum", "pixels"]
SETTINGS = {
    "data": DATA,
    "methods": ["sum", "rotograd"],
    "seeds": 2,
    "epochs": 2,
    "batch_size": 32,
    "normalize": True,
    "timing": 0,
    "jobs": 1,
    "logging_steps": 2,
    "monitor_steps": 1,
}


def make(**changes) -> CompareConfig:
    return CompareConfig.make({**SETTINGS, **changes})


def tables(folder) -> str:
    """All values of a comparison, at full precision."""
    return (Path(folder) / "table.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare(make(timing=2), folder, progress=False)


def test_a_comparison_has_every_method_with_every_seed_and_its_baseline(whole):
    folder, made = whole
    assert {(run.label, run.seed) for run in made.runs} == {
        (label, seed) for label in ("single-task", "sum", "rotograd") for seed in (0, 1)
    }
    assert made.labels == ["single-task", "sum", "rotograd"]
    assert all(set(run.metrics) == set(TASKS) for run in made.runs)
    assert (made.baseline, made.reference) == ("single-task", "sum")
    tables = ("table.md", "table.tex", "table.csv", "results.csv")
    for name in (*tables, "report.html", "results.jsonl", "timing.json"):
        assert (folder / name).stat().st_size > 0, name
    assert len((folder / "results.jsonl").read_text().splitlines()) == 6
    assert made.find("sum", 0).method == "normalize+sum"


def test_figures_of_the_table_follow_from_the_runs(whole):
    _, made = whole
    table = build_table(made)
    row = next(row for row in table.rows if row.label == "rotograd")
    own = [run.metrics["digit_sum"]["mse"] for run in made.of("rotograd")]
    base = [run.metrics["digit_sum"]["mse"] for run in made.of("sum")]
    assert row.cells["digit_sum/mse"].spread.median == pytest.approx(sum(own) / 2)
    expected = stats.ttest_rel(own, base, alternative="less")
    assert row.cells["digit_sum/mse"].test.p_value == pytest.approx(expected.pvalue)
    gains = []
    for seed in (0, 1):
        single = made.find("single-task", seed).metrics["left"]["accuracy"]
        other = made.find("rotograd", seed).metrics["left"]["accuracy"]
        gains.append(100 * (other - single) / single)
    found = row.cells["delta/maximum"].spread.median
    assert found >= sum(gains) / 2 - 1e-9


def test_histories_of_all_runs_can_be_read(whole):
    folder, made = whole
    assert made.runs
    for run in made.runs:
        history, monitor = read_history(folder / "runs" / run_folder(run.label, run.seed))
        validations = [row for row in history if row.split == "val"]
        assert len(validations) == 2
        assert set(validations[-1].metrics) == set(TASKS)
        assert bool(monitor) == (run.label != "single-task")


def test_the_reference_has_step_time_one(whole):
    _, made = whole
    assert made.find("sum", 1).step_ratio == 1.0
    assert made.find("single-task", 1).step_ratio is None


def test_a_step_time_that_noise_decides_is_not_shown(monkeypatch):
    base = [1.0, 1.1, 0.9, 1.0, 1.2] * 4
    times = {"sum": base, "slow": [2 * t for t in base], "noisy": [0.3, 0.7, 2.0, 1.5, 0.2] * 4}
    monkeypatch.setattr(timing_module, "measure_steps", lambda *_: times)
    assert timing_module.time_steps({}, "sum", 20) == {"sum": 1.0, "slow": 2.0}


def test_all_runs_of_a_seed_start_from_the_same_weights_and_batch(whole):
    folder, _ = whole
    jobs = plan_jobs(make(), folder, TASKS)
    for seed in (0, 1):
        outcomes = [read_outcome(job) for job in jobs if job.seed == seed]
        assert len(outcomes) == 7
        assert len({outcome.weights for outcome in outcomes}) == 1
        assert len({outcome.batch for outcome in outcomes}) == 1
    assert len({read_outcome(job).weights for job in jobs}) == 2
    assert len({read_outcome(job).batch for job in jobs}) == 2


def test_every_batch_is_the_same_for_every_method(tmp_path, monkeypatch):
    seen = {}
    from mtlkit.experiments import jobs as module

    def record(job):
        def change(model, tasks):
            changed, chosen = module.network_change(job)(model, tasks)
            (Path(job.folder) / "start.json").write_text('{"weights": 0, "batch": 0}')

            def note(network, inputs):
                if network.training:
                    seen.setdefault(job.name, []).append(module.batch_checksum(inputs))

            changed.register_forward_pre_hook(note)
            return changed, chosen

        return change

    monkeypatch.setattr(module, "_noting_start", record)
    config = make(methods=["sum", "rotograd"], seeds=[3])
    for job in plan_jobs(config, tmp_path, ["left"]):
        assert run_job(job).error == ""
    assert len(seen) == 3
    assert len(next(iter(seen.values()))) == 6
    assert len({tuple(batches) for batches in seen.values()}) == 1


def test_unequal_starts_are_refused(tmp_path, monkeypatch):
    from mtlkit.experiments import jobs as module

    real = module.weights_checksum
    monkeypatch.setattr(module, "weights_checksum", lambda m: real(m) + ("rotate" in str(m.method)))
    with pytest.raises(UsageError, match="did not start alike"):
        compare(make(single_task=False, seeds=1), tmp_path, progress=False)


def test_a_second_call_repeats_nothing(whole, monkeypatch):
    folder, made = whole

    def never(*_, **__):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(experiment, "run", never)
    before = tables(folder), (folder / "results.jsonl").read_text()
    again = compare(make(timing=2), folder, progress=False)
    assert (tables(folder), (folder / "results.jsonl").read_text()) == before
    assert again.runs == made.runs


def test_python_gets_a_tidy_frame_the_verdict_and_the_report(whole):
    folder, made = whole
    found = mtlkit.compare({**SETTINGS, "timing": 2}, folder, progress=False, seeds=2)
    frame = found.frame()
    metrics = {(task, name) for run in made.runs for task in run.metrics for name in run.metrics[task]}
    assert len(frame) == 6 * len(metrics)
    chosen = frame[(frame.method == "sum") & (frame.seed == 1) & (frame.task == "left") & frame.main]
    assert chosen.value.item() == made.find("sum", 1).metrics["left"]["accuracy"]
    written = pandas.read_csv(folder / "results.csv")
    assert list(written.columns) == list(frame.columns)
    assert written.value.to_numpy() == pytest.approx(frame.value.to_numpy(), nan_ok=True)
    assert found.verdict
    assert found.report.is_file()


def test_a_comparison_without_a_folder_is_refused():
    with pytest.raises(ConfigError, match="needs output="):
        mtlkit.compare(SETTINGS)


def test_runs_that_were_best_at_their_last_validation_are_counted(whole):
    _, made = whole
    late = sum(bool(run.best_last) for run in made.runs)
    assert all(isinstance(run.best_last, bool) for run in made.runs)
    text = build_table(made).verdict.text
    assert (f"{late} of 6 runs were best at their last validation" in text) == (late >= 2)
    assert "5 networks, 5 times the parameters, 5 times the steps" in (whole[0] / "table.md").read_text()


def test_networks_of_the_same_budget_take_a_fraction_of_the_steps(tmp_path):
    config = make(single_task="same_budget", methods=["sum"], seeds=1, epochs=5)
    jobs = plan_jobs(config, tmp_path, TASKS)
    outcome = run_job(jobs[0])
    assert jobs[0].task == "left"
    assert (outcome.error, outcome.steps) == ("", 15 // 5)
    assert len([row for row in read_history(jobs[0].folder)[0] if row.split == "val"]) == 3


def test_a_time_budget_adds_the_seeds_that_fit():
    runs = [Run("sum", seed, seconds=10.0) for seed in range(3)]
    made = Comparison("x", [], runs)
    assert _seeds_that_fit(make(seeds=3, minutes=1), made) == (0, 1, 2, 3, 4, 5)
    assert _seeds_that_fit(make(seeds=3, minutes=0.1), made) == (0, 1, 2)
    assert len(_seeds_that_fit(make(seeds=3, minutes=1e6), made)) == 50
    assert _seeds_that_fit(make(seeds=3), made) == (0, 1, 2)


def test_simple_models_of_the_data_set_are_rows_that_are_not_tested(tmp_path, monkeypatch):
    calls = []

    def baselines(self):
        calls.append(self.seed)
        return {"constant": {task: {"accuracy": 0.1} for task in TASKS}}

    monkeypatch.setattr(MultiDigits, "baselines", baselines, raising=False)
    config = make(single_task=False, methods=["sum", "mgda"], seeds=2, epochs=1)
    for _ in range(2):
        made = compare(config, tmp_path, progress=False)
    assert calls == [0, 1]
    assert (made.labels, made.simple_labels) == (["sum", "mgda"], ["constant"])
    row = build_table(made).rows[-1]
    assert (row.label, row.role) == ("constant", "simple")
    assert row.cells["left/accuracy"].spread.median == 0.1
    assert all(cell.test is None and not cell.best for cell in row.cells.values())


def test_methods_and_seeds_can_be_added(tmp_path):
    compare(make(single_task=False, methods=["sum"], seeds=1), tmp_path, progress=False)
    first = (tmp_path / "results.jsonl").read_text()
    header = json.loads((tmp_path / "comparison.json").read_text())
    del header["config"]["gradient_accumulation_steps"]  # as if it had come with a later version
    (tmp_path / "comparison.json").write_text(json.dumps(header))
    config = make(single_task=False, methods=["sum", "mgda"], logging_steps=3, data_dir=str(tmp_path))
    made = compare(config, tmp_path, progress=False)
    assert len(made.runs) == 4
    assert (tmp_path / "results.jsonl").read_text().startswith(first)
    made = compare(make(single_task=False, methods=["mgda"], seeds=1), tmp_path, progress=False)
    assert made.config["methods"] == {"sum": "normalize+sum", "mgda": "normalize+mgda"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, r"epochs was 2, now 3\)"),
        ({"epochs": None, "steps": 5, "normalize": False}, "normalize .* epochs was 2, now None; steps"),
        ({"methods": ["sum", {"method": "rotograd", "lr": 0.1}]}, "method 'rotograd' was 'normalize"),
    ],
)
def test_other_settings_are_refused_on_new_seeds_too(whole, changes, message):
    folder, _ = whole
    before = (folder / "comparison.json").read_text()
    with pytest.raises(ConfigError, match=message):
        compare(make(**changes, seeds=[7]), folder, progress=False)
    assert (folder / "comparison.json").read_text() == before


def test_a_folder_without_a_finished_run_takes_other_settings(whole, tmp_path):
    (tmp_path / "comparison.json").write_text((whole[0] / "comparison.json").read_text())
    config = make(epochs=1, methods=["sum"], single_task=False, seeds=1)
    assert compare(config, tmp_path, progress=False).config["epochs"] == 1


def test_step_times_follow_the_reference(tmp_path, monkeypatch):
    timing = {"rounds": 9, "reference": "sum", "ratios": {"sum": 1.0, "rotograd": 2.0}}
    (tmp_path / "timing.json").write_text(json.dumps(timing))
    monkeypatch.setattr(timing_module, "time_steps", lambda chosen, *_: dict.fromkeys(chosen, 1.0))

    def ratios(reference, **changes):
        config = make(reference=reference, **changes)
        jobs = first_jobs(config, plan_jobs(config, tmp_path, TASKS))
        path = tmp_path / "timing.json"
        return timing_module.known_or_timed(path, jobs, reference, config.timing, print)

    assert ratios("rotograd") == {"sum": 0.5, "rotograd": 1.0}
    Comparison("x", [], [Run("sum", 0, step_ratio=1.0)], reference="rotograd").save(tmp_path)
    assert Comparison.load(tmp_path).runs[0].step_ratio == 0.5
    # a reference that was never timed: all is timed again
    assert ratios("mgda", timing=2) == {"mgda": 1.0, "sum": 1.0, "rotograd": 1.0}
    assert json.loads((tmp_path / "timing.json").read_text())["reference"] == "mgda"


def test_without_test_samples_the_table_says_that_it_shows_the_validation(tmp_path, monkeypatch):
    monkeypatch.setattr(MultiDigits, "test", None)
    made = compare(make(single_task=False, methods=["sum"]), tmp_path, progress=False)
    assert made.split == "validation"
    assert "over seeds on the validation set" in (tmp_path / "table.md").read_text()
    assert "over seeds on the validation set" in (tmp_path / "report.html").read_text()


def test_another_comparison_in_the_folder_is_refused(whole):
    folder, _ = whole
    with pytest.raises(ConfigError, match=r"other settings \(train.epochs was 2, now 3\)"):
        compare(make(epochs=3), folder, progress=False)


def test_two_processes_give_the_runs_of_one(whole, tmp_path):
    def results(made):
        runs = [run for run in made.runs if run.seed == 1]
        return {run.label: (run.metrics, run.steps, run.best_last, run.history) for run in runs}

    made = compare(make(jobs=2, seeds=[1]), tmp_path, progress=False)
    assert results(made) == results(whole[1])


def long(jobs: int) -> dict:
    """Settings with which there is time for a kill."""
    return {**SETTINGS, "jobs": jobs, "epochs": 6, "seeds": 1}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_comparison_goes_on_and_gives_the_identical_table(tmp_path, jobs):
    compare(make(epochs=6, seeds=1), tmp_path / "left_alone", progress=False)
    out = tmp_path / "killed" / "out"
    results = out / "results.jsonl"
    with started("compare", tmp_path / "killed", long(jobs)) as process:
        # a run is finished, and another one has a checkpoint
        wait_for(lambda: results.exists() and any(out.glob("runs/*/checkpoints/step-*.pt")), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = results.read_text()
    assert len(done.splitlines()) < 3
    with started("compare", tmp_path / "killed", long(jobs)) as process:
        wait_for(lambda: process.poll() is not None)
    assert process.returncode == 0, (tmp_path / "killed" / "output.txt").read_text()
    assert results.read_text().startswith(done)
    assert len(results.read_text().splitlines()) == 3
    assert tables(out) == tables(tmp_path / "left_alone")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_comparison_says_how_to_go_on(tmp_path, number):
    out = tmp_path / "out"
    with started("compare", tmp_path, long(2)) as process:
        wait_for(lambda: any(out.glob("runs/*/task*/checkpoints/step-*.pt")), process)
        process.send_signal(number)
        wait_for(lambda: process.poll() is not None)
    output = (tmp_path / "output.txt").read_text()
    assert process.returncode == 130, output
    assert f"resume with: mtlkit compare -c {out / 'compare.yaml'} -o {out}" in output
    assert "Traceback" not in output


def test_an_interrupt_in_this_process_stops_the_comparison(tmp_path, monkeypatch):
    real = TaskMatrix.forward

    def press(self, features):
        os.kill(os.getpid(), signal.SIGINT)
        return real(self, features)

    monkeypatch.setattr(TaskMatrix, "forward", press)
    config = make(
        methods=["sum", {"method": "mgda", "extra_capacity": True}], single_task=False, seeds=1
    )
    with pytest.raises(Stopped):
        compare(config, tmp_path, progress=False)
    assert [run.label for run in Comparison.load(tmp_path).runs] == ["sum"]
    assert (tmp_path / "report.html").exists()
    monkeypatch.setattr(TaskMatrix, "forward", real)
    assert len(compare(config, tmp_path, progress=False).runs) == 2


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_method_that_fails_does_not_lose_the_others(tmp_path, jobs):
    methods = ["sum", {"method": "rotograd(size=51)", "label": "wrong"}, "mgda"]
    # with several processes, those that read data are the children of children
    settings = {"methods": methods, "seeds": 1, "jobs": jobs, "workers": jobs - 1, "timing": 1}
    made = compare(make(single_task=False, **settings), tmp_path, progress=False)
    assert {run.label: run.status for run in made.runs} == {
        "sum": "done",
        "wrong": "failed",
        "mgda": "done",
    }
    assert "size of rotate must be between 1 and" in made.find("wrong", 0).error
    assert "Traceback" in (tmp_path / "runs" / run_folder("wrong", 0) / "error.log").read_text()
    row = next(row for row in build_table(made).rows if row.label == "wrong")
    assert (row.done, row.failed) == (0, 1)


def test_a_run_that_another_process_finishes_meanwhile_is_read_and_not_repeated(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    looked, found = threading.Event(), []
    real = jobs_module.read_outcome

    def look(job):
        outcome = real(job)
        looked.set()
        return outcome

    def never(*_, **__):
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(jobs_module, "read_outcome", look)
    monkeypatch.setattr(experiment, "run", never)
    job = plan_jobs(make(methods=["sum"], single_task=False, seeds=1), tmp_path, TASKS)[0]
    folder = Path(job.folder)
    folder.mkdir(parents=True)
    late = threading.Thread(target=lambda: found.append(run_job(job)), daemon=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the other process does while it trains
        late.start()
        assert looked.wait(60)
        assert late.is_alive()
        jobs_module.claim(job)
        outcome = Outcome(metrics={"left": {"accuracy": 0.5}}, steps=7)
        jobs_module.write_json(folder / "result.json", asdict(outcome))
    late.join(60)
    assert found == [outcome]
    assert not (folder / "error.log").exists()


def test_a_process_that_dies_costs_its_run_only(tmp_path):
    from mtlkit.experiments.launchers import LocalProcesses

    jobs = [Job(str(tmp_path / "a"), "a", 0, {}), Job(str(tmp_path / "b"), "b", 0, {})]
    jobs[0].train["data"] = DeadlyData()
    jobs[1].train["data"] = "nonsense"
    outcomes = {}
    LocalProcesses(2).run(
        jobs, lambda job: None, lambda job, outcome: outcomes.update({job.label: outcome})
    )
    assert "ended with exit code 9" in outcomes["a"].error
    assert "nonsense" in outcomes["b"].error


CALL = (
    "mtlkit.compare(data='multidigits(train=64, val=32, test=32)', methods=['sum', 'mean'], jobs={}, "
    "seeds=1, epochs=1, timing=0, single_task=False, progress=False, output='runs')"
)


def run_python(folder, *arguments):
    environment = os.environ | {"PYTHONPATH": str(Path(mtlkit.__file__).parent.parent)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_script_that_its_processes_would_run_again_is_refused_before_it_trains(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"import mtlkit\n{CALL.format(2)}\n")
    bare = run_python(tmp_path, script)
    assert bare.stderr.count("Traceback") == 1  # no process was started
    assert "put the call under `if __name__ == '__main__':`" in bare.stderr
    script.write_text(f"import mtlkit\nif '__main__' == __name__:\n    {CALL.format(2)}\n")
    guarded = run_python(tmp_path, script)
    assert guarded.returncode == 0, guarded.stderr
    assert (tmp_path / "runs" / "report.html").is_file()
    # a finished comparison starts no process
    script.write_text(f"import mtlkit\n{CALL.format(2)}\n{CALL.format(1)}\n")
    again = run_python(tmp_path, script)
    assert again.returncode == 0, again.stderr


def test_the_main_module_of_a_package_needs_no_guard(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(f"import mtlkit\n{CALL.format(2)}\n")
    ended = run_python(tmp_path, "-m", "package")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "runs" / "report.html").is_file()


class DeadlyData:
    """Ends the process that reads it, as a crash in native code does."""

    def __reduce__(self):
        return (os._exit, (9,))


@pytest.mark.slow
def test_submitit_runs_every_training_as_a_job_of_its_own(tmp_path):
    pytest.importorskip("submitit")
    config = make(methods=["sum"], single_task=False, seeds=1, epochs=1, launcher="submitit")
    config = CompareConfig.make({**config.settings, "launcher_options": {"cluster": "local"}})
    made = compare(config, tmp_path, progress=False)
    assert [run.status for run in made.runs] == ["done"]
    assert list((tmp_path / "submitit").glob("*_result.pkl"))


def test_wrong_options_of_submitit_are_an_error(tmp_path):
    pytest.importorskip("submitit")
    options = {"launcher": "submitit", "launcher_options": {"cluster": "local", "partition_": "x"}}
    with pytest.raises(ConfigError, match="launcher_options"):
        compare(make(**options), tmp_path, progress=False)


def test_extra_capacity_starts_as_the_identity_and_learns():
    torch.manual_seed(0)
    model = mtlkit.create_architecture("paper_mnist(logits=True)", {"left": 10, "sum": 1})
    x = torch.rand(4, 1, 28, 28)
    model.eval()
    before = model(x)
    count = sum(p.numel() for p in model.parameters())
    add_capacity(model, {})
    after = model(x)
    for task, prediction in before.items():
        torch.testing.assert_close(after[task], prediction)
    assert sum(p.numel() for p in model.parameters()) == count + 2 * 50 * 50
    after["left"].sum().backward()
    matrices = {t: model.heads[t][0].matrix for t in ("left", "sum")}
    assert matrices["left"].grad.abs().sum() > 0
    assert matrices["sum"].grad is None
    assert {id(m) for m in matrices.values()} <= {
        id(p) for t in ("left", "sum") for p in model.task_parameters(t)
    }


def test_extra_capacity_turns_channels_or_the_first_of_all_features():
    maps = torch.randn(2, 3, 4, 5)
    channel, flat = TaskMatrix(3, "channel"), TaskMatrix(7, "flat")
    with torch.no_grad():
        for module in (channel, flat):
            module.matrix.copy_(torch.randn(len(module.matrix), len(module.matrix)))
    expected = torch.einsum("ij,bjhw->bihw", channel.matrix, maps)
    torch.testing.assert_close(channel(maps), expected)
    turned = flat(maps).flatten(1)
    torch.testing.assert_close(turned[:, :7], maps.flatten(1)[:, :7] @ flat.matrix.T)
    assert torch.equal(turned[:, 7:], maps.flatten(1)[:, 7:])


def test_a_reference_is_added_and_labels_are_kept_apart():
    config = make(methods=["pcgrad", "cagrad(c=0.4)"], reference_with_rotations=True)
    assert [e.label for e in config.entries] == ["sum", "sum with R_k", "pcgrad", "cagrad(c=0.4)"]
    assert config.entries[0].method == "normalize+sum"
    assert config.entries[1].extra_capacity == {}


def test_a_method_can_have_settings_of_its_own():
    config = make(methods=["sum", {"method": "rotograd", "label": "fast", "method_lr": "5e-2"}])
    (job,) = [
        job for job in plan_jobs(config, Path("x"), TASKS) if job.label == "fast" and job.seed == 0
    ]
    assert job.train["method_lr"] == 0.05
    assert job.config().method_lr == 0.05
    assert job.config().best_by == "improvement"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"small": {"epoch": 3}}, "small: unknown key 'epoch'"),
        ({"methods": []}, "'methods' must name one or more methods"),
        ({"methods": ""}, "'methods' must name one or more methods"),
        ({"methods": [""]}, "'methods' must name one or more methods"),
        ({"methods": ["pcgad"]}, "did you mean 'pcgrad'"),
        ({"methods": ["sum", "sum"]}, "two methods have the label 'sum'"),
        ({"methods": [{"method": "sum", "labl": "x"}]}, "did you mean 'label'"),
        ({"methods": ["single-task("]}, "cannot read spec"),
        ({"methods": [{"method": "sum", "label": "single-task"}]}, "cannot be a label"),
        (
            {"methods": [{"method": "sum", "extra_capacity": {"side": 3}}]},
            "extra_capacity must be true or",
        ),
        ({"seeds": 0}, "'seeds' must be a number from 1"),
        ({"seeds": [1, 1]}, "a seed twice"),
        ({"jobs": 0}, "'jobs' must be 1 or more, not 0"),
        ({"timing": True}, "'timing' must be an integer"),
        ({"launcher": "slurm"}, "'launcher' must be one of 'local', 'submitit', not 'slurm'"),
        ({"normalize": "yes"}, "'normalize' must be true or false"),
        ({"lr": "fast"}, "'lr' must be"),
        ({"reference": "nonsense"}, "unknown method 'nonsense'"),
        ({"small": 3}, "'small' must be a mapping"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        make(**changes)


@pytest.mark.parametrize("given", [2, "2", "0, 1", [0, 1], ["0", "1"], (0, 1)])
def test_seeds_are_a_number_or_a_list_and_may_be_in_quotes(given):
    assert make(seeds=given).seeds == (0, 1)


def test_the_fields_protocol_changes_the_keys_under_field(tmp_path):
    file = tmp_path / "rows.yaml"
    row = "{method: LS, spec: sum, delta_m: 5.6, source: nash}"
    file.write_text(f"sources: {{nash: A paper}}\ndata_sets: {{digits: {{rows: [{row}]}}}}\n")
    own = {"test_last": 10, "single_task": False, "published": f"{file}:digits"}
    settings = {**SETTINGS, "field": own}
    assert CompareConfig.make(settings).train["test_last"] is None
    field = CompareConfig.make({**settings, "protocol": "field"})
    assert (field.train["test_last"], field.single_task) == (10, False)
    assert field.published["rows"][0]["source"] == "A paper"
    assert CompareConfig.make(field.settings).settings == field.settings
    with pytest.raises(ConfigError, match="needs a key 'field'"):
        CompareConfig.make({**SETTINGS, "protocol": "field"})
    with pytest.raises(ConfigError, match="field: unknown key 'epoch'"):
        CompareConfig.make({**SETTINGS, "protocol": "field", "field": {"epoch": 3}})
    with pytest.raises(ConfigError, match="names in the file: digits"):
        CompareConfig.make({**SETTINGS, "published": f"{file}:letters"})


def test_the_small_budget_overrides():
    settings = {**SETTINGS, "small": {"epochs": 1, "methods": ["mgda"]}}
    assert CompareConfig.make(settings).train["epochs"] == 2
    small = CompareConfig.make(settings, budget="small")
    assert small.train["epochs"] == 1
    assert [e.label for e in small.entries] == ["sum", "mgda"]
    with pytest.raises(ConfigError, match="needs a key 'small'"):
        CompareConfig.make(SETTINGS, budget="small")


def test_a_wrong_task_in_improvement_over_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="did you mean 'left'"):
        compare(make(improvement_over=["lef"]), tmp_path, progress=False)


def test_statistics_can_leave_tasks_out(whole):
    _, made = whole
    made.config["improvement_over"] = ["left"]
    try:
        cells = next(row for row in build_table(made).rows if row.label == "sum").cells
    finally:
        del made.config["improvement_over"]
    assert cells["delta/mean"].spread.median == cells["delta/minimum"].spread.median


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("sum,pcgrad", ["sum", "pcgrad"]),
        ("cagrad(c=0.4, wrt=features) , sum,", ["cagrad(c=0.4, wrt=features)", "sum"]),
        ("constant(weights=[1,2,3]),sum", ["constant(weights=[1,2,3])", "sum"]),
        ("a(b='x,y'),c", ["a(b='x,y')", "c"]),
    ],
)
def test_methods_are_split_at_the_top_level_only(text, pieces):
    assert split_specs(text) == pieces


def test_the_demo_compares_the_same_in_raw_units_and_normalized():
    raw, normalized = (part.config({}) for part in PARTS)
    labels = [entry.label for entry in raw.entries]
    assert labels == ["sum", "imtl_g", "scale", "rotograd"]
    assert [entry.label for entry in normalized.entries] == labels
    assert "pixels=count" in raw.train["data"]
    assert not raw.normalize
    assert normalized.normalize
    for config in (raw, normalized):
        assert (len(config.seeds), config.single_task) == (5, True)
    assert PARTS[0].config({"seeds": 1}).seeds == (0,)
