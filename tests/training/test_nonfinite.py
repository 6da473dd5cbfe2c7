"""Losses and gradients that are not finite; and how seldom a step waits for the device."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import mtlkit
from mtlkit.errors import NonFiniteError
from tests.training import run_poisoned
from tests.training.processes import run_together
from tests.training.small_problem import (
    TASKS,
    Poisoned,
    SmallNet,
    flat,
    make_loader,
    make_trainer,
    records,
)

pytestmark = pytest.mark.filterwarnings("ignore:no validation set")

TRAINING = str(Path(mtlkit.__file__).parent / "training")
TASK_MODULE = str(Path(mtlkit.__file__).parent / "tasks")


def poisoned_trainer(method: str, batches: set[int], gradient: bool, **options) -> mtlkit.Trainer:
    torch.manual_seed(0)
    net = Poisoned(SmallNet(method), batches, gradient)
    return mtlkit.Trainer(
        net, TASKS, torch.optim.SGD(net.parameters(), lr=0.1), progress=False, **options
    )


def network(trainer: mtlkit.Trainer) -> torch.Tensor:
    """Without the method, whose rotations are folded at every forward."""
    net = trainer.model.net
    return torch.cat([flat(net.backbone), flat(net.heads)])


@pytest.mark.filterwarnings("ignore:rotate")  # the rotations say so themselves
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("method", ["pcgrad", "rotograd"])
def test_a_nonfinite_task_is_named(method, gradient):
    with pytest.raises(NonFiniteError, match=r"of 'label' is not finite at step 3"):
        poisoned_trainer(method, {2}, gradient).fit(make_loader(), epochs=1)


def test_a_loss_that_ignores_all_labels_of_a_batch_is_told_how_to_name_them():
    def fit(**options):
        net = SmallNet("imtl_g")
        ignoring = nn.CrossEntropyLoss(ignore_index=255)
        tasks = [mtlkit.Task("label", ignoring, outputs=3, **options), TASKS[1]]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batches = [
            (torch.randn(8, 6), {"label": torch.full((8,), label), "value": torch.randn(8, 1)})
            for label in (2, 255)
        ]
        return mtlkit.Trainer(net, tasks, optimizer, progress=False).fit(batches, epochs=1)

    with pytest.raises(NonFiniteError, match=r"'label' is not finite.*no label.*labels=lambda"):
        fit()
    assert fit(labels=lambda target: target != 255).step == 2


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("method", ["sum", "pcgrad", "rotograd"])
def test_skipping_leaves_the_step_out(method, gradient, tmp_path):
    trainer = poisoned_trainer(method, {2}, gradient, on_nonfinite="skip", output=tmp_path)
    trainer.fit(make_loader(), steps=2)
    before = network(trainer)
    trainer.fit(make_loader(), steps=3, resume="auto")
    assert torch.equal(before, network(trainer))
    trainer.fit(make_loader(), steps=5, resume="auto")
    assert not torch.equal(before, network(trainer))
    assert torch.isfinite(network(trainer)).all()
    assert "label" in records(tmp_path, "skipped")[0]["reason"]


def test_a_spoiled_batch_spoils_its_whole_window():
    trainer = poisoned_trainer("pcgrad", {0}, False, on_nonfinite="skip", gradient_accumulation_steps=2)
    before = network(trainer)
    trainer.fit(make_loader(), steps=1)
    assert torch.equal(before, network(trainer))
    assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


def test_skipping_for_ever_is_an_error():
    trainer = poisoned_trainer("sum", set(range(1000)), False, on_nonfinite="skip")
    with pytest.raises(NonFiniteError, match="in a row"):
        trainer.fit(make_loader(), epochs=20)


@pytest.mark.parametrize(
    ("options", "steps"), [({"logging_steps": 3}, 3), ({"eval_steps": 4}, 4), ({}, 5)]
)
def test_an_error_is_noticed_when_the_metrics_are_read_and_nothing_bad_is_saved(
    options, steps, tmp_path
):
    trainer = poisoned_trainer("sum", {1}, False, output=tmp_path, **options)
    with pytest.raises(NonFiniteError, match=r"the loss of 'label' is not finite at step 2, batch 2"):
        trainer.fit(make_loader(), make_loader(seed=1), epochs=1)
    assert trainer.step == steps
    assert not list(tmp_path.rglob("*.pt"))


def test_weights_that_only_the_update_spoilt_are_not_saved(tmp_path):
    trainer = poisoned_trainer("sum", set(), False, output=tmp_path)
    trainer.model.net.heads["label"].weight.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(NonFiniteError, match=r"parameters model.net.heads.label.weight are not finite"):
        trainer.fit(make_loader(), steps=1)
    assert not list(tmp_path.rglob("*.pt"))


def test_an_error_that_follows_from_an_earlier_step_does_not_hide_it():
    class Strict(SmallNet):
        def forward(self, x):
            if not all(p.isfinite().all() for p in self.parameters()):
                raise ValueError("weights must be finite")
            return super().forward(x)

    torch.manual_seed(0)
    net = Poisoned(Strict("sum"), {1}, gradient=True)
    trainer = mtlkit.Trainer(net, TASKS, torch.optim.SGD(net.parameters(), lr=0.1), progress=False)
    with pytest.raises(NonFiniteError, match=r"gradient of 'label' is not finite at step 2") as raised:
        trainer.fit(make_loader(), epochs=1)
    assert isinstance(raised.value.__context__, ValueError)


def test_a_model_without_a_merge_is_checked_by_the_norm_of_its_gradient():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(6, 4)

        def forward(self, x):
            z = self.net(x)
            z.register_hook(lambda gradient: gradient * torch.inf)
            return {"label": z[:, :3], "value": z[:, 3:]}

    model = Plain()
    trainer = mtlkit.Trainer(model, TASKS, torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
    with pytest.raises(NonFiniteError, match="the gradient is not finite at step 1"):
        trainer.fit(make_loader(), steps=1)


@pytest.mark.parametrize("policy", ["raise", pytest.param("skip", marks=pytest.mark.slow)])
def test_two_processes_agree_on_a_batch_that_is_spoilt_on_one(policy):
    run_together(run_poisoned.main, policy)


class Waits(TorchFunctionMode):
    """Counts the calls from mtlkit's training that would wait for a GPU."""

    NAMES = frozenset(
        "item tolist numpy cpu __bool__ __float__ __int__ __index__ __contains__ nonzero equal "
        "allclose masked_select is_nonzero unique".split()
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        masks = name == "__getitem__" and isinstance(args[1], Tensor) and args[1].dtype == torch.bool
        if (name in self.NAMES or masks) and self._is_ours():
            self.found.append(name)
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _is_ours() -> bool:
        """Whether the innermost frame of mtlkit is in the Trainer, not in the method."""
        frame = sys._getframe(2)
        root = str(Path(mtlkit.__file__).parent)
        while frame is not None and not frame.f_code.co_filename.startswith(root):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith((TRAINING, TASK_MODULE))


@pytest.mark.parametrize("method", ["sum", "pcgrad", "rotograd"])
@pytest.mark.parametrize(
    ("options", "waiting"),
    [
        ({"max_grad_norm": 1.0, "monitor_steps": 1, "gradient_accumulation_steps": 2}, set()),
        ({"logging_steps": 3, "monitor_steps": 1}, {3, 6, 9}),
        ({"on_nonfinite": "skip", "gradient_accumulation_steps": 2}, set(range(1, 11))),
    ],
)
def test_a_step_waits_for_the_device_only_if_it_logs_or_may_be_skipped(method, options, waiting):
    torch.manual_seed(0)
    model = SmallNet(method)
    trainer = mtlkit.Trainer(
        model, TASKS, torch.optim.SGD(model.parameters(), lr=0.01), progress=False, **options
    )
    take, after = trainer._step.take, trainer._after_step
    found: dict[int, list[str]] = {}

    def watched(call, step):
        def run(*args):
            with Waits() as waits:
                result = call(*args)
            found.setdefault(step(), []).extend(waits.found)
            return result

        return run

    # the loader, which counts the labels on the host, is left out
    trainer._step.take = watched(take, lambda: trainer.step + 1)
    trainer._after_step = watched(after, lambda: trainer.step)
    trainer.fit(
        make_loader(batch=4 if "gradient_accumulation_steps" in options else 8, missing=0.5), epochs=2
    )
    assert set(found) == set(range(1, 11))
    assert {step for step, names in found.items() if names} == waiting
    if "logging_steps" not in options:
        assert all(len(names) <= 1 for names in found.values()), found


def test_metrics_do_not_pile_up_on_the_device_in_a_run_that_never_logs(monkeypatch):
    monkeypatch.setattr("mtlkit.training.trainer._MOST_UNREAD", 4)
    trainer = make_trainer(logging_steps=10**9)
    sizes = []
    observe = trainer._after_step
    trainer._after_step = lambda progress: (observe(progress), sizes.append(len(trainer._readings)))
    trainer.fit(make_loader(), epochs=2)
    assert sizes == [1, 2, 3, 0, 1, 1, 2, 3, 0, 1]
