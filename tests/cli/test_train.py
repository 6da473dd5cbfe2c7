import functools
import json
import math
import socket
import subprocess
import sys

import pytest
import torch
import yaml

import mtlkit
import mtlkit.data
from mtlkit.cli import main
from mtlkit.training import experiment, load_checkpoint
from tests.cli import small_run
from tests.training.processes import ROOT, environment

pytestmark = pytest.mark.filterwarnings("ignore:no validation set")


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setattr(mtlkit.data, "load_dataset", small_run.load_dataset, raising=False)
    monkeypatch.setattr(experiment, "create_architecture", small_run.create_architecture)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code


def weights(path):
    state = load_checkpoint(path)["model"]
    return torch.cat([tensor.double().reshape(-1) for tensor in state.values()])


def test_flags_train_test_and_tell_where_the_run_is(tmp_path, capsys):
    code = call(
        "train", "--data", "small", "--method", "rotograd", "--epochs", 2, "-o", tmp_path / "run"
    )
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "test set  label: loss" in shown
    assert "mtlkit report" in shown
    assert call("report", tmp_path / "run") == 0
    assert "Plotly" in (tmp_path / "run" / "report.html").read_text()
    figures = json.loads((tmp_path / "run" / "test.json").read_text())
    assert 0 <= figures["label"]["accuracy"] <= 1
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["method"] == "rotograd"


def test_an_embedded_data_set_and_its_own_network_train(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    code = call("train", "--data", "multidigits", "--method", "rotograd", "--steps", 3, "-o", tmp_path)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "test set  left: loss" in shown.out


def test_a_file_means_the_same_as_flags_and_flags_override_it(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "data: small\nmethod: {name: cagrad, c: 0.3}\nlr: 1e-2\nmixed_precision: no\nepochs: 9\n"
        "optimizer: sgd(momentum=0.9)\nschedule: cosine\n"
    )
    assert (
        call("train", "-c", tmp_path / "a.yaml", "--epochs", 1, "-o", tmp_path / "one", "--no-test") == 0
    )
    assert call("train", "-c", tmp_path / "one" / "config.yaml", "-o", tmp_path / "two") == 0
    saved = "checkpoints/step-000000001.pt"
    assert torch.equal(weights(tmp_path / "one" / saved), weights(tmp_path / "two" / saved))


def test_an_interrupted_run_goes_on_with_resume(tmp_path):
    options = ["train", "--data", "small", "--batch-size", 8, "--method", "pcgrad"]
    assert call(*options, "--steps", 9, "-o", tmp_path / "whole") == 0
    assert call(*options, "--steps", 4, "-o", tmp_path / "parts") == 0
    assert call(*options, "--steps", 9, "-o", tmp_path / "parts") == 1  # it holds a run already
    assert call(*options, "--steps", 9, "-o", tmp_path / "parts", "--resume", "auto") == 0
    name = "checkpoints/step-000000009.pt"
    assert torch.equal(weights(tmp_path / "whole" / name), weights(tmp_path / "parts" / name))


def test_a_refused_run_leaves_the_folder_as_it_was(tmp_path, capsys):
    options = ["train", "--data", "small", "--batch-size", 8, "--no-test", "-o", tmp_path / "run"]
    assert call(*options, "--steps", 2, "--lr", 0.01, "--optimizer", "adam") == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    assert tmp_path / "run" / "config.yaml" in kept
    assert call(*options, "--steps", 3, "--method", "pcgrad") == 1
    capsys.readouterr()
    for key, value in (("lr", "0.1"), ("seed", "1"), ("batch-size", "4"), ("schedule", "cosine")):
        again = [*options, "--lr", 0.01, f"--{key}", value, "--steps", 3, "--resume", "auto"]
        assert call(*again) != 0
        assert f"{key.replace('-', '_')} was" in capsys.readouterr().err
    other = [*options, "--lr", 0.1, "--steps", 3, "--resume"]
    assert call(*other, tmp_path / "no.pt") == 1
    assert "no checkpoint at" in capsys.readouterr().err
    (tmp_path / "x" / "checkpoints").mkdir(parents=True)
    copied = tmp_path / "x" / "checkpoints" / "best.pt"
    copied.write_bytes((tmp_path / "run" / "checkpoints" / "best.pt").read_bytes())
    assert call(*other, copied) == 2
    assert "lr was" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in kept} == kept
    assert call(*options, "--lr", 0.01, "--steps", 3, "--logging-steps", 1, "--resume", "auto") == 0


def test_a_run_that_is_resumed_with_more_steps_follows_the_longer_schedule(tmp_path):
    options = ["train", "--data", "small", "--batch-size", 8, "--no-test", "--schedule", "cosine"]
    assert call(*options, "--steps", 4, "-o", tmp_path / "run", "--logging-steps", 1) == 0
    more = ["--steps", 8, "-o", tmp_path / "run", "--logging-steps", 1, "--resume", "auto"]
    assert call(*options, *more) == 0
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    rates = [line["rates"]["network"] for line in lines if line["kind"] == "train"]
    assert len(rates) == 8
    expected = [1e-3 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(5, 9)]
    assert rates[4:] == pytest.approx(expected)


def test_a_run_whose_folder_was_moved_resumes_where_it_lies_and_says_so(tmp_path, capsys):
    options = ["train", "--data", "small", "--batch-size", 8, "--no-test"]
    assert call(*options, "--steps", 4, "-o", tmp_path / "old") == 0
    (tmp_path / "old").rename(tmp_path / "new")
    again = ["train", "-c", tmp_path / "new" / "config.yaml", "--steps", 6, "--resume", "auto"]
    assert call(*again) == 0
    shown = capsys.readouterr()
    assert f"resuming in {tmp_path / 'new'}" in shown.err
    assert f"6 steps, 1 epochs; {tmp_path / 'new'}" in shown.out
    assert not (tmp_path / "old").exists()


def test_a_dry_run_builds_everything_and_writes_nothing(tmp_path, capsys):
    options = ["train", "--data", "small", "--batch-size", 8, "--method", "rotograd", "--lr", 0.01]
    assert call(*options, "--epochs", 3, "-o", tmp_path / "run", "--device", "cpu", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "18 steps, 6 per epoch" in shown
    assert "lr 0.005, half the network's" in shown
    assert not (tmp_path / "run").exists()
    assert call(*options, "--method", "pcgad", "--dry-run") == 2


def test_an_unknown_device_or_one_that_is_absent_is_refused(tmp_path, capsys):
    for device in ("gpu", "cuda:x", *(() if torch.cuda.is_available() else ("cuda",))):
        assert call("train", "--data", "small", "-o", tmp_path, "--device", device) == 2
        assert f"'{device}'" in capsys.readouterr().err


def test_the_shell_completes_commands_and_options(monkeypatch, capsys):
    for words, completion in (("mtlkit tra", "train"), ("mtlkit train --mixed", "--mixed-precision")):
        monkeypatch.setenv("_MTLKIT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        call()
        assert completion in capsys.readouterr().out.split()


def test_a_schedule_ends_where_the_run_does(tmp_path):
    options = ["train", "--data", "small", "--batch-size", 8, "--no-test", "--schedule", "cosine"]
    assert call(*options, "--epochs", 1, "--steps", 1000, "-o", tmp_path, "--logging-steps", 1) == 0
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [line["rates"]["network"] for line in lines if line["kind"] == "train"][-1] == 0


ROLES = ("rotograd", "uw", "mgda", "pcgrad(wrt=parameters)")
QUICK = {("mgda", "aot_eager"), ("pcgrad(wrt=parameters)", "aot_eager"), ("uw", "inductor")}
COMPILED = [
    pytest.param(m, b, marks=() if (m, b) in QUICK else pytest.mark.slow)
    for b in ("aot_eager", "inductor")
    for m in ROLES
]


@pytest.mark.parametrize(("method", "backend"), COMPILED)
def test_a_compiled_run_has_the_weights_of_an_eager_one_and_resumes(
    tmp_path, monkeypatch, method, backend
):
    torch.compiler.reset()
    if backend != "inductor":  # which is the default
        other = functools.partialmethod(torch.nn.Module.compile, backend=backend)
        monkeypatch.setattr(torch.nn.Module, "compile", other)
    # some batches have no label of one of the tasks, which compiled code must leave out as well
    data = "small(missing=0.5)"
    options = ["train", "--data", data, "--batch-size", 1, "--method", method, "--no-test"]
    assert call(*options, "--steps", 4, "-o", tmp_path / "eager") == 0
    assert call(*options, "--steps", 2, "-o", tmp_path / "compiled", "--compile", "--channels-last") == 0
    again = ["train", "-c", tmp_path / "compiled" / "config.yaml", "--steps", 4, "--resume", "auto"]
    assert call(*again) == 0
    name = "checkpoints/step-000000004.pt"
    eager, compiled = (load_checkpoint(tmp_path / run / name)["model"] for run in ("eager", "compiled"))
    assert list(eager) == list(compiled)
    for key, tensor in eager.items():
        if tensor.is_floating_point():  # how often rotations were folded is counted in eager runs only
            torch.testing.assert_close(compiled[key], tensor, atol=1e-5, rtol=1e-4)


def test_figures_go_to_the_trackers_that_are_named(tmp_path, capsys):
    options = ["train", "--data", "small", "--steps", 2, "--logging-steps", 1, "--no-test"]
    assert call(*options, "-o", tmp_path / "run", "--log-with", "tensorboard") == 0
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    assert call(*options, "-o", tmp_path / "other", "--log-with", "tensorbord") == 2
    assert "did you mean 'tensorboard'" in capsys.readouterr().err


class StandInForWandb:
    """W&B as far as Accelerate calls it: ``init`` returns the run that is active, if one is."""

    def __init__(self) -> None:
        self.runs: list[dict] = []
        self.active = False
        self.config = self

    def init(self, **options):
        if not self.active:
            self.runs.append({"name": options["name"], "rows": [], "config": {}})
        self.active = True
        return self

    def update(self, values, **_):
        self.runs[-1]["config"] |= values

    def log(self, values, step=None):
        self.runs[-1]["rows"].append((step, values))

    def finish(self):
        self.active = False


def test_every_run_of_a_process_has_a_wandb_run_of_its_own(tmp_path, monkeypatch):
    import accelerate.tracking
    from accelerate.utils import LoggerType

    wandb = StandInForWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(accelerate.tracking, "get_available_trackers", lambda: [LoggerType.WANDB])
    for method in ("sum", "rotograd"):
        settings = {
            "data": "small",
            "method": method,
            "steps": 3,
            "logging_steps": 1,
            "log_with": ["wandb"],
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
        assert call("train", "--config", tmp_path / "run.yaml", "-o", tmp_path / method) == 0
    assert [run["name"] for run in wandb.runs] == ["sum", "rotograd"]
    for run in wandb.runs:
        assert run["config"]["method"] == run["name"]
        assert [step for step, row in run["rows"] if "loss/label" in row] == [1, 2, 3]
        tested = json.loads((tmp_path / run["name"] / "test.json").read_text())
        assert run["rows"][-1][1]["test/label/loss"] == tested["label"]["loss"]
    assert not wandb.active


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    import os
    import signal

    from tests.training.small_problem import SmallNet

    forward, seen = SmallNet.forward, []

    def press(self, x):
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(self, x)

    monkeypatch.setattr(SmallNet, "forward", press)
    code = call("train", "--data", "small", "--batch-size", 8, "--steps", 9, "-o", tmp_path)
    assert code == 130
    assert f"mtlkit train --config {tmp_path / 'config.yaml'} --resume auto" in capsys.readouterr().err
    monkeypatch.setattr(SmallNet, "forward", forward)
    assert call("train", "--config", tmp_path / "config.yaml", "--resume", "auto") == 0
    assert (tmp_path / "checkpoints" / "step-000000009.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "--data is missing"),
        (["diagnose"], "--data is missing"),
        (["train", "--data", "smal"], "did you mean 'small'"),
        (["train", "--data", "small", "--method", "pcgad"], "did you mean 'pcgrad'"),
        (["train", "--data", "small", "--method", "pcgrad("], "cannot read spec"),
        (["train", "--data", "small", "--optimizer", "adamm"], "did you mean 'adam'"),
        (["train", "--data", "small", "--optimizer", "sgd(momentun=1)"], "did you mean 'momentum'"),
        (
            ["train", "--data", "small", "--mixed-precision", "f16"],
            "must be one of 'no', 'bf16', 'fp16'",
        ),
        (["train", "--data", "small", "--batch-size", "0"], "'batch_size' must be 1 or more"),
        (["train", "--data", "small", "--lr", "x"], "'lr' must be a number, not 'x'"),
        (["train", "--nonsense"], "--nonsense"),
        (["train", "--config", "absent.yaml"], "there is no configuration file absent.yaml"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_usage_ends_with_code_2_and_the_reason(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_unknown_key_is_an_error_with_the_nearest_key(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("data: small\nbatchsize: 3\n")
    assert call("train", "--config", tmp_path / "a.yaml") == 2
    assert "unknown key 'batchsize'; did you mean 'batch_size'" in capsys.readouterr().err


def test_a_failed_run_ends_with_code_1(tmp_path, capsys):
    code = call("train", "--data", "small", "--optimizer", "sgd", "--lr", "1e30", "-o", tmp_path)
    assert code == 1
    assert "is not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["doctor", "--help"], ["--version"]]
)
def test_help_ends_with_code_0(arguments, capsys):
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    if arguments[-1] == "--help" and len(arguments) > 1:
        assert f"mtlkit {arguments[0]}" in " ".join(shown.split())


def test_no_arguments_show_the_help_and_end_with_code_2(capsys):
    assert call() == 2
    shown = capsys.readouterr()
    assert "Commands" in shown.out + shown.err


def test_the_doctor_lists_versions_and_extras(capsys):
    assert call("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert torch.__version__.startswith(report["packages"]["torch"])
    assert report["missing"] == []
    assert "gloo" in report["backends"]
    assert call("doctor") == 0
    assert "distributed back ends: gloo yes" in capsys.readouterr().out


def test_the_doctor_says_how_to_install_what_is_missing(capsys, monkeypatch):
    from mtlkit.cli import doctor

    real = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name == "timm" else real(name))
    assert call("doctor") == 0
    assert "missing timm; pip install 'mtlkit[vision]'" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name == "scipy" else real(name))
    assert call("doctor") == 1


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
FSDP = ["accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
FSDP += ["--mixed_precision", "no", "--dynamo_backend", "no", "--use_fsdp", "--fsdp_version", "2"]


def launch(
    launcher: list[str], options: list[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start two processes of the command line."""
    command = ["-m", *launcher]
    if launcher is FSDP:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            command += ["--main_process_port", str(probe.getsockname()[1])]
    return subprocess.run(
        [sys.executable, *command, "-m", "tests.cli.small_run", *options],
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.slow
def test_accelerate_leaves_fsdp_out_on_a_cpu_and_it_is_said(tmp_path):
    options = ["train", "--data", "small(missing=0.4)", "--method", "rotograd", "--batch-size", "8"]
    options += ["--epochs", "1", "--no-test"]
    assert call(*options, "-o", tmp_path / "one") == 0
    ended = launch(FSDP, [*options, "-o", str(tmp_path / "two")])
    assert ended.returncode == 0, ended.stderr[-3000:]
    name = "checkpoints/step-000000006.pt"
    assert (weights(tmp_path / "one" / name) - weights(tmp_path / "two" / name)).abs().max() < 1e-5
    # Accelerate takes DDP where FSDP is asked for, without a word of its own
    assert ended.stderr.count("FSDP was requested") == 1


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with GPUs, Accelerate joins the processes")
def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path):
    options = ["train", "--data", "small", "--epochs", "1", "-o", str(tmp_path / "two")]
    ended = launch(TORCHRUN, options, ACCELERATE_USE_CPU="false")
    assert ended.returncode != 0
    assert "2 processes were started, but Accelerate sees 1" in ended.stderr
    assert "set ACCELERATE_USE_CPU=true" in ended.stderr
    assert not list(tmp_path.rglob("*.pt"))
