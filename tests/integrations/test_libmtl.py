"""mtlkit's methods in LibMTL's own Trainer, with its own architectures.

LibMTL is not a dependency. It is taken from where it is installed, or from the folder that the
environment variable MTLKIT_LIBMTL names (``make test`` does so).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import mtlkit
from mtlkit.errors import MtlkitError, SpecError, UnknownNameError, UsageError
from mtlkit.integrations import libmtl

try:
    Trainer = libmtl.load_trainer("cpu")
except MtlkitError as reason:
    pytest.skip(f"{reason}; or set MTLKIT_LIBMTL to a folder that holds it", allow_module_level=True)

from LibMTL.architecture import CGC, HPS, MTAN, PLE, Cross_stitch, DSelect_k, MMoE
from LibMTL.loss import CELoss
from LibMTL.metrics import AccMetric
from LibMTL.model import resnet18
from LibMTL.weighting import EW

TASKS = ["kind", "side", "size"]
CLASSES = 4


def encoder():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())


def resnet():
    return resnet18(pretrained=False)


class Case:
    """One of LibMTL's architectures with small decoders."""

    def __init__(self, architecture, encoder_class, decoder, image, arch_args=None):
        self.architecture, self.encoder_class, self.decoder = architecture, encoder_class, decoder
        self.image, self.arch_args = image, arch_args or {}

    def trainer(self, weighting, multi_input=False, **optim):
        torch.manual_seed(1)
        task_dict = {
            task: {"metrics": ["Acc"], "metrics_fn": AccMetric(), "loss_fn": CELoss(), "weight": [1]}
            for task in TASKS
        }
        return Trainer(
            task_dict,
            weighting,
            self.architecture,
            self.encoder_class,
            nn.ModuleDict({task: self.decoder() for task in TASKS}),
            rep_grad=False,
            multi_input=multi_input,
            optim_param={"optim": "adam", "lr": 1e-2, **optim},
            scheduler_param=None,
            weight_args={},
            arch_args=self.arch_args,
        )

    def data(self, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *self.image, generator=generator)
        rule = torch.randn(x[0].numel(), len(TASKS), CLASSES, generator=torch.Generator().manual_seed(9))
        labels = torch.einsum("bi,itc->btc", x.flatten(1), rule).argmax(dim=2)
        return x, {task: labels[:, t] for t, task in enumerate(TASKS)}

    def loader(self, count, seed=0):
        x, labels = self.data(count, seed)
        items = [(x[i], {task: labels[task][i] for task in TASKS}) for i in range(count)]
        return DataLoader(items, batch_size=16)


class SmallResNet(nn.Module):
    """The parts of a ResNet that LibMTL's PLE and Cross_stitch take apart and recombine."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(2)
        for place in range(1, 5):
            setattr(self, f"layer{place}", nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()))


def pooled(size=512):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, CLASSES))


CASES = {
    "HPS": Case(HPS, encoder, lambda: nn.Linear(8, CLASSES), (3, 2, 2)),
    "MMoE": Case(
        MMoE,
        encoder,
        lambda: nn.Linear(8, CLASSES),
        (3, 2, 2),
        {"img_size": [3, 2, 2], "num_experts": [3]},
    ),
    "MTAN": Case(MTAN, resnet, pooled, (3, 32, 32)),
    "CGC": Case(
        CGC,
        encoder,
        lambda: nn.Linear(8, CLASSES),
        (3, 2, 2),
        {"img_size": [3, 2, 2], "num_experts": [2, 1, 1, 2]},
    ),
    "DSelect_k": Case(
        DSelect_k,
        encoder,
        lambda: nn.Linear(8, CLASSES),
        (3, 2, 2),
        {"img_size": [3, 2, 2], "num_experts": [3], "num_nonzeros": 2, "kgamma": 1.0},
    ),
    "PLE": Case(
        PLE,
        SmallResNet,
        lambda: pooled(8),
        (3, 8, 8),
        {"img_size": [3, 8, 8], "num_experts": [2, 1, 1, 2]},
    ),
    "Cross_stitch": Case(Cross_stitch, SmallResNet, lambda: pooled(8), (3, 8, 8)),
}
MAPS = ("MTAN", "PLE", "Cross_stitch")  # whose decoders are given maps instead of vectors


def losses_of(predictions, labels):
    return [F.cross_entropy(predictions[task], labels[task]) * (t + 1) for t, task in enumerate(TASKS)]


def models(case, spec, multi_input=False):
    """A model with the weighting of ``spec``, its plain twin, and a method for the twin; all in double."""
    model = case.trainer(libmtl.weighting(spec), multi_input).model.double()
    twin = case.trainer(EW, multi_input).model.double()
    twin.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("method.")})
    return model, twin


def assert_same_gradients(model, twin, method):
    found = dict(model.named_parameters())
    expected = {
        **dict(twin.named_parameters()),
        **{f"method.{k}": p for k, p in method.named_parameters()},
    }
    assert found.keys() == expected.keys()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in expected.values())
    for name, parameter in expected.items():
        if parameter.grad is None:
            assert found[name].grad is None, name
        else:
            torch.testing.assert_close(
                found[name].grad,
                parameter.grad,
                rtol=1e-7,
                atol=1e-10,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def every_method():
    found = []
    for name in mtlkit.list_methods():
        method = mtlkit.create_method(name, 3, feature_dim=8)
        merge = method.merging
        found.append(name)
        # graddrop draws in the order of the parameters, which for a fork is that of the graph
        if merge is not None and "wrt_parameters" not in merge.waived_laws and name != "graddrop":
            found.append(f"{name}(wrt=parameters)")
    return [*found, "uw+rotate(start=random)+cagrad", "rotate(start=random)+mgda(wrt=parameters)"]


@pytest.mark.parametrize("spec", every_method())
def test_every_method_takes_the_steps_of_the_fork(spec):
    case = CASES["HPS"]
    model, twin = models(case, spec)
    method = mtlkit.create_method(spec, TASKS, feature_dim=8, shared=twin.encoder).double()
    x, labels = case.data(10)
    x = x.double()
    pairs = zip(model.parameters(), [*twin.parameters(), *method.parameters()], strict=True)
    ours, theirs = zip(*pairs, strict=True)
    optimizers = [torch.optim.SGD(list(parameters), lr=0.05) for parameters in (ours, theirs)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.manual_seed(4)
        model.backward(losses_of(model(x), labels))
        torch.manual_seed(4)
        views = method(twin.encoder(x))
        predictions = {task: twin.decoders[task](view) for task, view in zip(TASKS, views, strict=True)}
        method.total(losses_of(predictions, labels)).backward()
        assert_same_gradients(model, twin, method)
        for optimizer in optimizers:
            optimizer.step()


def recorded(twin, method=None):
    """Let the twin's decoders read rotated representations; both are kept."""
    kept = {}

    def prepare(rep, task, same_rep=None):
        view = rep
        if method is not None and method.forking is not None:
            index = TASKS.index(task)
            maps = rep.dim() == 4
            given = rep.movedim(1, -1) if maps else rep
            view = given @ method.rotations[index].detach().T
            view = view.movedim(-1, 1) if maps else view
        kept[task] = (rep, view)
        return view

    twin._prepare_rep = prepare
    return kept


@pytest.mark.parametrize("name", [name for name in CASES if name != "HPS"])
@pytest.mark.parametrize("spec", ["rotograd(start=random)", "cagrad", "nash_mtl", "pcgrad", "uw+mgda"])
def test_versions_of_the_representation_are_merged_as_one(name, spec):
    """The weights are those of a fork at which the tasks' gradients of their versions arrive."""
    case = CASES[name]
    model, twin = models(case, spec)
    size = 512 if name == "MTAN" else 8
    options = {"dim": "channel"} if name in MAPS and "roto" in spec else {}
    method = mtlkit.create_method(spec, TASKS, feature_dim=size, **options).double()
    x, labels = case.data(4)
    x = x.double()
    losses = losses_of(model(x), labels)
    model.zero_grad()  # as LibMTL's Trainer does: DSelect_k leaves gradients of its own in the forward pass
    model.backward(losses)

    kept = recorded(twin, method)
    losses = losses_of(twin(x), labels)
    arrived = torch.autograd.grad(sum(losses), [kept[task][1] for task in TASKS], retain_graph=True)
    common = torch.zeros_like(kept["kind"][0]).requires_grad_()
    views = method(common)
    values = [loss.detach() for loss in losses]
    # losses of the same values whose gradients are those that arrived
    surrogates = [
        (view * g).sum() - (view * g).sum().detach() + value
        for view, g, value in zip(views, arrived, values, strict=True)
    ]
    method.total(surrogates).backward()
    weights = method.stats.weights.double()
    factors = torch.ones(3, dtype=torch.float64)
    if spec.startswith("uw"):
        part = method.parts[0]
        factors = part.weigh_losses(torch.stack(values), part.read((0, 1, 2)))[0].detach()
    heads = list(twin.decoders.parameters())
    weighed = sum(f * loss for f, loss in zip(factors, losses, strict=True))
    gradients = torch.autograd.grad(weighed, heads, retain_graph=True)
    for parameter, gradient in zip(heads, gradients, strict=True):
        parameter.grad = gradient
    below = [p for n, p in twin.named_parameters() if not n.startswith("decoders")]
    total = sum(w * f * loss for w, f, loss in zip(weights, factors, losses, strict=True))
    for parameter, gradient in zip(
        below, torch.autograd.grad(total, below, allow_unused=True), strict=True
    ):
        parameter.grad = gradient
    found = dict(model.named_parameters())
    for key, parameter in twin.named_parameters():
        if parameter.grad is not None:
            # stats keep the weights in float32
            tolerance = 1e-5 * float(parameter.grad.abs().max()) + 1e-12
            assert (found[key].grad - parameter.grad).abs().max() <= tolerance, key
    for key, parameter in method.named_parameters():
        torch.testing.assert_close(found[f"method.{key}"].grad, parameter.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "spec"),
    [(name, "cagrad") for name in CASES]
    + [("HPS", "graddrop"), ("MMoE", "graddrop"), ("MMoE", "uw+config")],
)
def test_shared_parameters_are_merged_as_at_the_losses(name, spec):
    case = CASES[name]
    spec += "(wrt=parameters)"
    model, twin = models(case, spec)
    x, labels = case.data(4)
    x = x.double()
    model.backward(losses_of(model(x), labels))
    method = mtlkit.create_method(spec, TASKS, shared=list(twin.get_share_params())).double()
    method.total(losses_of(twin(x), labels)).backward()
    assert_same_gradients(model, twin, method)


def test_tasks_with_inputs_of_their_own_are_merged_as_one_batch():
    case = CASES["HPS"]
    for spec in ("rotograd", "mgda", "config", "cagrad(wrt=parameters)", "rotate+mgda(wrt=parameters)"):
        model, twin = models(case, spec, multi_input=True)
        method = mtlkit.create_method(spec, TASKS, feature_dim=8, shared=twin.encoder).double()
        x, labels = case.data(12)
        x = x.double()
        own = {task: slice(4 * t, 4 * t + 4) for t, task in enumerate(TASKS)}
        predictions = {task: model(x[own[task]], task)[task] for task in TASKS}
        cut = {task: labels[task][own[task]] for task in TASKS}
        model.backward(losses_of(predictions, cut))
        views = dict(zip(TASKS, method(twin.encoder(x)), strict=True))
        predictions = {task: twin.decoders[task](views[task][own[task]]) for task in TASKS}
        method.total(losses_of(predictions, cut)).backward()
        assert_same_gradients(model, twin, method)


@pytest.mark.parametrize(
    ("name", "spec"),
    [(name, "rotograd") for name in CASES]
    + [("HPS", spec) for spec in ("cagrad", "nash_mtl", "cagrad(wrt=parameters)")],
)
def test_libmtls_trainer_trains(name, spec, capsys):
    case = CASES[name]
    trainer = case.trainer(libmtl.weighting(spec), lr=1e-3 if name == "MTAN" else 1e-2)
    optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in trainer.model.method.parameters()} <= optimized
    epochs = 3 if name == "MTAN" else 20
    loader = case.loader(32 if name == "MTAN" else 64)
    weights = trainer.train(loader, loader, epochs, return_weight=True)
    history = trainer.model.train_loss_buffer.sum(axis=0)
    assert np.isfinite(weights).all()
    assert (weights != 0).any()
    # Cross_stitch stays on a plateau for many epochs with some seeds, also with mtlkit's plain sum
    assert history[-1] < (0.95 if name == "Cross_stitch" else 0.9) * history[0]
    if spec == "rotograd":
        rotations = trainer.model.method.rotations
        side = rotations.shape[-1]
        assert side == (512 if name == "MTAN" else 8)
        assert (rotations - torch.eye(side)).abs().max() > 1e-4
        assert (rotations @ rotations.mT - torch.eye(side)).abs().max() < 1e-4


def test_the_trainer_takes_tasks_with_loaders_of_their_own(capsys):
    case = CASES["HPS"]
    trainer = case.trainer(libmtl.weighting("pcgrad(wrt=parameters)"), multi_input=True)
    x, labels = case.data(64)
    loaders = {
        task: DataLoader(list(zip(x, labels[task], strict=True)), batch_size=8 + t)
        for t, task in enumerate(TASKS)
    }
    trainer.train(loaders, loaders, 10)
    history = trainer.model.train_loss_buffer.sum(axis=0)
    assert history[-1] < 0.9 * history[0]


def test_a_decoder_may_change_its_input_in_place():
    case = Case(
        HPS, encoder, lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, CLASSES)), (3, 2, 2)
    )
    model, twin = models(case, "sum")
    x, labels = case.data(6)
    model.backward(losses_of(model(x.double()), labels))
    sum(
        losses_of({t: twin.decoders[t][1](twin.encoder(x.double()).relu()) for t in TASKS}, labels)
    ).backward()
    assert_same_gradients(model, twin, mtlkit.create_method("sum", TASKS))


def test_a_forward_pass_without_backward_is_forgotten():
    case = CASES["HPS"]
    (first, second), (x, labels) = (models(case, "mgda")[0] for _ in range(2)), case.data(6)
    first(x.double() + 1)
    for model in (first, second):
        model.backward(losses_of(model(x.double()), labels))
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_evaluation_reads_the_rotated_representation():
    case = CASES["HPS"]
    model, twin = models(case, "rotograd(start=random)")
    x, _ = case.data(6)
    with torch.no_grad():
        found = model.eval()(x.double())["side"]
        z = twin.encoder(x.double()) @ model.method.rotations[1].T
        torch.testing.assert_close(found, twin.decoders["side"](z))


def test_what_cannot_work_is_refused_with_what_to_do():
    case = CASES["HPS"]
    model, _ = models(case, "mgda")
    x, labels = case.data(6)
    losses = losses_of(model(x.double()), labels)
    with pytest.raises(SpecError, match="write those of mtlkit into the string"):
        model.backward(losses, calpha=0.5)
    model.backward(losses)
    with pytest.raises(UsageError, match="before a forward pass"):
        model.backward(losses)
    model, _ = models(CASES["MMoE"], "graddrop")
    with pytest.raises(UsageError, match=r"no weight per task.*wrt=parameters"):
        model.backward(losses_of(model(x.double()), labels))
    bare = Case(HPS, encoder, nn.Flatten, (3, 2, 2))
    with pytest.raises(SpecError, match="feature_dim"):
        bare.trainer(libmtl.weighting("rotograd"))
    assert bare.trainer(libmtl.weighting("rotograd", feature_dim=8)).model.method.rotations.shape == (
        3,
        8,
        8,
    )
    with pytest.raises(SpecError, match="unknown"):
        libmtl.weighting("pcgrd")


def test_a_wrong_option_is_noticed_when_the_weighting_is_made():
    with pytest.raises(UnknownNameError, match="unknown option of cagrad 'z'"):
        libmtl.weighting("cagrad(z=1)")
