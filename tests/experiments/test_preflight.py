"""What does not fit raises before the first run, and nothing is written."""

from collections import Counter

import pytest
import torch

from mtlkit.errors import ConfigError
from mtlkit.experiments import timing
from mtlkit.experiments.compare import load_tasks
from mtlkit.experiments.compare import run_comparison as compare
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.jobs import Job
from mtlkit.experiments.timing import check_first_step, measure_steps

DATA = "multidigits(train=40, val=20, test=20)"


def make(**changes) -> CompareConfig:
    common = {"data": DATA, "methods": ["sum"], "seeds": 1, "steps": 1, "batch_size": 10}
    return CompareConfig.make({**common, "timing": 0, "jobs": 1, "single_task": False, **changes})


def test_a_network_that_does_not_fit_the_data_raises_before_anything_is_written(tmp_path):
    wrong = make(architecture="hard_sharing(backbone=mlp(8, inputs=5))")
    before = torch.random.get_rng_state()
    with pytest.raises(
        ConfigError, match=r"nothing was started.*RuntimeError.*inputs \(10, 1, 22, 22\)"
    ):
        compare(wrong, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda:99"}, "no device 'cuda:99'"),
        ({"best_by": "left/acuracy"}, "did you mean 'left/accuracy'"),
        ({"optimizer": "sgd(nesterov=True)"}, "Nesterov"),
        ({"architecture": "hard_sharing(backbone=no_such)"}, "no_such"),
        ({"log_with": ["tensorbord"]}, "did you mean 'tensorboard'"),
    ],
)
def test_a_wrong_device_optimizer_or_network_raises_at_once(tmp_path, changes, message):
    with pytest.raises(Exception, match=message):
        compare(make(**changes), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


PLUGIN = """
import torch
from mtlkit import register_architecture
from mtlkit.architectures.hard_sharing import HardSharing


@register_architecture("careless")
class Careless(HardSharing):
    def forward(self, inputs):
        return {}["nothing"]
"""


def test_an_error_in_the_users_own_file_names_its_line(tmp_path):
    (tmp_path / "careless_net.py").write_text(PLUGIN)
    config = make(
        architecture="careless(backbone=mlp(8, inputs=484))", plugins=[str(tmp_path / "careless_net.py")]
    )
    with pytest.raises(ConfigError, match=r"KeyError: 'nothing', in .*careless_net\.py, line 10 \(data"):
        compare(config, tmp_path / "out", progress=False)


EXITS = """
import sys
from mtlkit import register_architecture
from mtlkit.architectures.hard_sharing import HardSharing


@register_architecture("exits")
class Exits(HardSharing):
    steps = 0

    def __init__(self, *args, with_method: str = 'sum', after: int = 0, **options):
        super().__init__(*args, **options)
        self.with_method, self.after = with_method, after

    def forward(self, inputs):
        self.steps += self.training
        if self.steps > self.after and str(self.method) == self.with_method:
            sys.exit("enough")
        return super().forward(inputs.flatten(1))
"""


def test_a_plugin_that_exits_in_the_first_step_raises_before_anything_is_written(tmp_path):
    (tmp_path / "exits_first.py").write_text(EXITS.replace('"exits"', '"exits_first"'))
    network = "exits_first(backbone=mlp(8, inputs=484))"
    config = make(architecture=network, plugins=[str(tmp_path / "exits_first.py")])
    with pytest.raises(ConfigError, match="SystemExit: enough"):
        compare(config, tmp_path / "out", progress=False)


def test_a_plugin_that_exits_later_fails_its_own_run_only(tmp_path):
    (tmp_path / "exits_later.py").write_text(EXITS.replace('"exits"', '"exits_later"'))
    network = "exits_later(backbone=mlp(8, inputs=484), with_method=mgda, after=2)"
    plugins = [str(tmp_path / "exits_later.py")]
    config = make(methods=["mgda", "sum"], steps=4, architecture=network, plugins=plugins)
    compare(config, tmp_path / "out", progress=False)
    logs = [path.read_text() for path in (tmp_path / "out").rglob("error*")]
    assert ["SystemExit: enough" in log for log in logs] == [True]
    assert len(list((tmp_path / "out").rglob("result.json"))) == 1


def test_a_timed_step_is_that_of_a_run_with_a_forward_pass_per_source(tmp_path, monkeypatch):
    passes = []

    def network_change(job):
        def change(model, tasks):
            model.register_forward_pre_hook(lambda *_: passes.append(job.label))
            return model, tasks

        return change

    monkeypatch.setattr(timing, "network_change", network_change)
    rows = "".join(f"{k * 7 % 11 / 2},{k % 2}\n" for k in range(40))
    for name in ("first", "second"):
        (tmp_path / f"{name}.csv").write_text(f"x,{name}\n{rows}")
    of = ", ".join(
        f"{name}: table(file='{tmp_path / name}.csv', targets={{{name}: binary}})"
        for name in ("first", "second")
    )
    train = {"data": f"sources(of={{{of}}})", "batch_size": 8, "epochs": 1}
    jobs = {
        method: Job(str(tmp_path / "run"), method, 0, {**train, "method": method}, device="cpu")
        for method in ("sum", "pcgrad(wrt=parameters)")
    }
    times = measure_steps(jobs, 2)
    steps = timing._WARM_UP + 2
    assert [len(own) for own in times.values()] == [2, 2]
    assert [passes.count(label) for label in jobs] == [steps, 2 * steps]


def test_a_timed_turn_has_as_many_steps_as_it_takes_until_the_cost_repeats(tmp_path, monkeypatch):
    steps = Counter()

    def network_change(job):
        def change(model, tasks):
            model.register_forward_pre_hook(lambda *_: steps.update([job.label]))
            return model, tasks

        return change

    monkeypatch.setattr(timing, "network_change", network_change)
    table = tmp_path / "table.csv"
    table.write_text("x,a,b\n" + "".join(f"{k * 7 % 11 / 2},{k % 2},{k % 3}\n" for k in range(40)))
    data = f"table(file='{table}', targets={{a: binary, b: regression}})"
    train = {"data": data, "batch_size": 8, "epochs": 1}
    periods = {
        "sum": 1,
        "rotograd": 8,
        "rotograd(fold_every=1)": 1,
        "rotate(update_every=3)": 3,
        "rotograd(fold_every=1000)": timing._LONGEST_TURN,
    }
    jobs = {
        method: Job(str(tmp_path / "run"), method, 0, {**train, "method": method}, device="cpu")
        for method in periods
    }
    measure_steps(jobs, 2)
    turns = timing._WARM_UP + 2
    assert {label: steps[label] / turns for label in jobs} == periods


def test_a_file_that_changed_is_read_again(tmp_path):
    table = tmp_path / "table.csv"
    config = CompareConfig.make({"data": f"table(file='{table}', targets=['t*'])", "methods": "sum"})
    for tasks in (["t1"], ["t1", "t2"]):
        header = ",".join(["x", *tasks])
        rows = [",".join(f"{k * n % 11 / 2}" for n in (7, 3, 5)[: len(tasks) + 1]) for k in range(40)]
        table.write_text("\n".join([header, *rows]))
        assert [task.name for task in load_tasks(config, 0)[1]] == tasks


def test_without_waiting_jobs_there_is_nothing_to_check():
    check_first_step([])
