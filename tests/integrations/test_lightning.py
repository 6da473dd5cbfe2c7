"""The callback: a LightningModule that knows nothing of mtlkit takes the steps of one that forks."""

from __future__ import annotations

import copy
import os
import pickle

import lightning
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mtlkit
from mtlkit.errors import SpecError, UsageError
from mtlkit.integrations.lightning import MultiTask
from mtlkit.testing.processes import run_processes


class Plain(lightning.LightningModule):
    """As its author wrote it; only that the step returns the losses by task."""

    wrapped = False

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.heads = nn.ModuleDict({"kind": nn.Linear(16, 3), "size": nn.Linear(16, 1)})

    def losses(self, batch):
        x, kind, size = batch
        z = self.backbone(x)
        found = {
            "kind": F.cross_entropy(self.heads["kind"](z), kind),
            "size": F.mse_loss(self.heads["size"](z), size),
        }
        return {"losses": found, "seen": len(x)} if self.wrapped else found

    def training_step(self, batch, batch_idx):
        return self.losses(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Forked(Plain):
    """The same with the two lines of mtlkit."""

    def __init__(self, spec):
        super().__init__()
        self.mtlkit_method = mtlkit.create_method(spec, ("kind", "size"), feature_dim=16)

    def training_step(self, batch, batch_idx):
        x, kind, size = batch
        first, second = self.mtlkit_method(self.backbone(x))
        return self.mtlkit_method.total(
            {
                "kind": F.cross_entropy(self.heads["kind"](first), kind),
                "size": F.mse_loss(self.heads["size"](second), size),
            }
        )


def loader(rank=0, world=1):
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x[:, :3].argmax(dim=1), x[:, 3:4].tanh())
    sampler = DistributedSampler(data, world, rank, shuffle=False)
    return DataLoader(data, batch_size=8 // world, sampler=sampler)


def trainer(folder, *callbacks, epochs=2, devices=1, **options):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=devices,
        logger=False,
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


def callback(spec):
    return MultiTask(spec, "backbone", {"kind": "heads.kind", "size": "heads.size"})


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("spec", ["rotograd", "cagrad", "uw+pcgrad", "mgda(wrt=parameters)"])
def test_one_line_takes_the_steps_of_the_fork(tmp_path, spec, wrapped):
    plain, forked = Plain(), Forked(spec)
    plain.wrapped = wrapped
    forked.load_state_dict(plain.state_dict(), strict=False)
    trainer(tmp_path, callback(spec), accumulate_grad_batches=2).fit(plain, loader())
    trainer(tmp_path, accumulate_grad_batches=2).fit(forked, loader())
    found = plain.state_dict()
    for name, expected in forked.state_dict().items():
        torch.testing.assert_close(found[name], expected, msg=name)
    assert "training_step" not in vars(plain)


def test_a_module_is_fitted_again_after_an_exception(tmp_path):
    class Broken(Plain):
        works = False

        def training_step(self, batch, batch_idx):
            if not self.works:
                raise ValueError("a mistake")
            return super().training_step(batch, batch_idx)

    module = Broken()
    with pytest.raises(ValueError, match="a mistake"):
        trainer(tmp_path, callback("rotograd")).fit(module, loader())
    module.works = True
    trainer(tmp_path, callback("rotograd")).fit(module, loader())
    assert "training_step" not in vars(module)


def test_a_second_fit_continues_with_the_same_method(tmp_path):
    once, twice = Plain(), Plain()
    twice.load_state_dict(once.state_dict())
    trainer(tmp_path, callback("rotograd"), epochs=2).fit(once, loader())
    for _ in range(2):
        trainer(tmp_path, callback("rotograd"), epochs=1).fit(twice, loader())
    for (name, value), other in zip(once.state_dict().items(), twice.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


def test_a_checkpoint_holds_the_method_and_evaluation_keeps_the_rotations(tmp_path):
    net = Plain()
    first = trainer(tmp_path, callback("rotograd"), epochs=1)
    first.fit(net, loader())
    first.save_checkpoint(tmp_path / "net.ckpt")
    again = Plain()
    second = trainer(tmp_path, callback("rotograd"), epochs=2)
    second.fit(again, loader(), ckpt_path=tmp_path / "net.ckpt")
    trainer(tmp_path, callback("rotograd"), epochs=1).fit(net, loader())
    torch.testing.assert_close(again.mtlkit_method.rotations, net.mtlkit_method.rotations)
    x = torch.randn(4, 6)
    twin = copy.deepcopy(net).eval()
    with torch.no_grad():
        z = net.eval().backbone(x)
        expected = F.linear(
            z @ net.mtlkit_method.rotations[1].T, net.heads["size"].weight, net.heads["size"].bias
        )
        torch.testing.assert_close(net.heads["size"](z), expected)
        torch.testing.assert_close(twin.heads["size"](twin.backbone(x)), expected)


class Sized(Plain):
    """A module with an argument that its checkpoints hold."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.extra = nn.Linear(width, 1)


@pytest.mark.parametrize("spec", ["rotograd", "rotate(size=8)+gradnorm", "uw+pcgrad"])
def test_a_checkpoint_is_loaded_with_its_method_and_predicts_the_same(tmp_path, spec):
    net, x = Sized(3), torch.randn(5, 6)
    fitted = trainer(tmp_path, callback(spec), epochs=1)
    fitted.fit(net, loader())
    fitted.save_checkpoint(tmp_path / "net.ckpt")
    again = MultiTask.load_from_checkpoint(Sized, tmp_path / "net.ckpt")
    assert type(again) is Sized
    assert str(again.mtlkit_method) == str(net.mtlkit_method)
    assert again.hparams["width"] == 3
    for name, value in net.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    with torch.no_grad():
        expected = net.eval().heads["size"](net.backbone(x))
        assert torch.equal(again.eval().heads["size"](again.backbone(x)), expected)
    trainer(tmp_path, callback(spec), epochs=1).fit(again.train(), loader())


def test_a_checkpoint_without_the_callback_is_refused(tmp_path):
    fitted = trainer(tmp_path, epochs=1)
    fitted.fit(Forked("pcgrad"), loader())
    fitted.save_checkpoint(tmp_path / "net.ckpt")
    with pytest.raises(UsageError, match=r"Forked\.load_from_checkpoint"):
        MultiTask.load_from_checkpoint(Forked, tmp_path / "net.ckpt", spec="pcgrad")


def test_manual_optimization_is_refused_and_what_the_message_says_works(tmp_path):
    class Manual(Plain):
        def __init__(self, attached):
            super().__init__()
            self.automatic_optimization = False
            if attached:
                callback("rotograd").attach(self)

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.mtlkit_method.total(self.losses(batch)))
            optimizer.step()

    with pytest.raises(UsageError, match=r"attach\(self\).*manual_backward"):
        trainer(tmp_path, callback("rotograd")).fit(Manual(False), loader())
    manual, automatic = Manual(True), Plain()
    automatic.load_state_dict(manual.state_dict(), strict=False)
    trainer(tmp_path).fit(manual, loader())
    trainer(tmp_path, callback("rotograd")).fit(automatic, loader())
    assert torch.isfinite(manual.mtlkit_method.stats.cosines).all()
    for name, value in automatic.state_dict().items():
        torch.testing.assert_close(manual.state_dict()[name], value, msg=name)


def test_a_module_with_a_method_can_be_copied_and_pickled():
    net = Plain()
    callback("rotate(start=random)+cagrad").attach(net)
    x = torch.randn(4, 6)
    expected = net.heads["size"](net.backbone(x))
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(twin.heads["size"](twin.backbone(x)), expected)
        assert twin.mtlkit_method is not net.mtlkit_method


SPECS = ("rotograd", "uw+cagrad", "mgda(wrt=parameters)")


def on_rank(rank, world, folder):
    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(world), NODE_RANK="0")
    results = []
    for spec in SPECS:
        torch.manual_seed(0)
        net = Plain()
        joined = trainer(
            folder, callback(spec), strategy="ddp", devices=world, use_distributed_sampler=False
        )
        joined.fit(net, loader(rank, world))
        results.append({name: value.clone() for name, value in net.state_dict().items()})
    return results


@pytest.mark.slow
def test_two_processes_end_where_one_process_does(tmp_path):
    first, second = run_processes(on_rank, tmp_path)
    for spec, ours, theirs in zip(SPECS, first, second, strict=True):
        torch.manual_seed(0)
        net = Plain()
        trainer(tmp_path, callback(spec)).fit(net, loader())
        for name, expected in net.state_dict().items():
            assert torch.equal(ours[name], theirs[name]), (spec, name)
            torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5, msg=f"{spec} {name}")


def test_what_cannot_work_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(SpecError, match="did you mean 'backbone'"):
        trainer(tmp_path, MultiTask("mgda", "bakbone", ["heads.kind"])).fit(Plain(), loader())
    with pytest.raises(SpecError, match="did you mean 'mgda'"):
        MultiTask("mgd", "backbone", ["heads.kind"])

    class Copies(Plain):
        def losses(self, batch):
            return {"kind": self.heads["kind"](self.backbone(batch[0]).clone()).sum()}

    with pytest.raises(UsageError, match="backbone's very output"):
        trainer(tmp_path, callback("mgda")).fit(Copies(), loader())

    class Sums(Plain):
        def losses(self, batch):
            return sum(super().losses(batch).values())

    with pytest.raises(UsageError, match="return the losses by task"):
        trainer(tmp_path, callback("mgda")).fit(Sums(), loader())
