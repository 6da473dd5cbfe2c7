"""``mtl_backward`` and ``backward``: heads that were computed already, the same gradients as the fork."""

from __future__ import annotations

import copy

import pytest
import torch
import torchjd
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchjd.aggregation import Mean, UPGrad
from torchjd.linalg import QuadprogProjector

import mtlkit
from mtlkit.errors import SpecError, UsageError
from tests.distributed.launch import run_processes

TASKS = ("a", "b", "c")
EXACT_UPGRAD = UPGrad(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-10))


class Net(nn.Module):
    """Backbone and three heads; features and predictions come out together."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)) for _ in TASKS
        )
        self.to(dtype)

    def forward(self, x):
        z = self.backbone(x)
        return z, [head(z) for head in self.heads]


def losses_of(predictions, x):
    return [
        ((p[:, 0] - torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) - 3) ** 2).mean()
        for k, p in enumerate(predictions)
    ]


def forked(net, method, x, absent=()):
    views = method(net.backbone(x))
    losses = losses_of([head(view) for head, view in zip(net.heads, views, strict=True)], x)
    method.total([None if k in absent else loss for k, loss in enumerate(losses)]).backward()


def dropped_in(net, method, x, absent=()):
    z, predictions = net(x)
    losses = losses_of(predictions, x)
    mtlkit.mtl_backward([None if k in absent else loss for k, loss in enumerate(losses)], z, method)


def cases():
    found = []
    for name in mtlkit.list_methods():
        method = mtlkit.create_method(name, TASKS, feature_dim=6)
        if method.forking is not None:
            continue
        found.append(name)
        merge = method.merging
        if merge is not None and "wrt_parameters" not in merge.waived_laws:
            found.append(f"{name}(wrt=parameters)")
    return [*found, "uw+cagrad", "normalize+mgda", "dwa+pcgrad(wrt=parameters)"]


@pytest.fixture
def net():
    return Net()


def assert_same_gradients(found: nn.Module, expected: nn.Module):
    named = dict(found.named_parameters())
    for name, parameter in expected.named_parameters():
        ours = named[name].grad
        if parameter.grad is None:
            assert ours is None, name
        else:
            torch.testing.assert_close(ours, parameter.grad, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("spec", cases())
def test_gradients_and_memory_are_those_of_the_fork(net, spec):
    twin = copy.deepcopy(net)
    method = mtlkit.create_method(spec, TASKS).double()
    other = copy.deepcopy(method)
    for step in range(4):
        x = torch.randn(7, 4, dtype=torch.float64)
        absent = (1,) if step == 2 else ()
        for run, model, merge in ((forked, twin, other), (dropped_in, net, method)):
            torch.manual_seed(step)
            run(model, merge, x, absent)
        assert_same_gradients(net, twin)
        assert_same_gradients(method, other)
        with torch.no_grad():
            for module in (net, twin, method, other):
                for p in module.parameters():
                    if p.grad is not None and step % 2:  # two steps accumulate
                        p -= 0.01 * p.grad
                        p.grad = None
    kept = other.state_dict()
    for name, value in method.state_dict().items():
        torch.testing.assert_close(value, kept[name], rtol=1e-7, atol=1e-9, msg=name)


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, walks, name):
        ctx.walks, ctx.name = walks, name
        ctx.set_materialize_grads(False)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if gradient is not None:
            ctx.walks[ctx.name] = ctx.walks.get(ctx.name, 0) + 1
        return gradient, None, None


@pytest.mark.parametrize(
    ("spec", "backbone"), [("pcgrad", 1), ("cagrad", 1), ("cagrad(wrt=parameters)", 3)]
)
def test_every_head_is_walked_once_and_the_backbone_no_more_than_with_the_fork(net, spec, backbone):
    walks: dict[str, int] = {}
    x = torch.randn(7, 4, dtype=torch.float64)
    z = Counted.apply(net.backbone(x), walks, "backbone") * 1.0
    predictions = [
        head(Counted.apply(z, walks, name)) for name, head in zip(TASKS, net.heads, strict=True)
    ]
    mtlkit.mtl_backward(losses_of(predictions, x), z, mtlkit.create_method(spec, TASKS))
    assert walks == {"a": 1, "b": 1, "c": 1, "backbone": backbone}


@pytest.mark.parametrize(("spec", "aggregator"), [("mean", Mean()), ("upgrad", EXACT_UPGRAD)])
def test_equal_to_torchjd_with_respect_to_parameters(net, spec, aggregator):
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)
    dropped_in(net, mtlkit.create_method(spec, TASKS, wrt="parameters"), x)
    z, predictions = twin(x)
    torchjd.autojac.mtl_backward(losses_of(predictions, x), features=z)
    torchjd.autojac.jac_to_grad(twin.backbone.parameters(), aggregator)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-9)


def test_backward_takes_one_parameter_or_a_list_of_modules():
    weight = torch.nn.Parameter(torch.ones(2))
    method = mtlkit.create_method("mgda(wrt=parameters)", 2)
    mtlkit.backward([2 * weight[0], weight[1]], method, parameters=weight)
    torch.testing.assert_close(weight.grad, torch.tensor([0.4, 0.8]))
    layers = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
    first, second = (layer(torch.tensor([1.0, 0.0])).sum() for layer in layers)
    method = mtlkit.create_method("mgda(wrt=parameters)", 2)
    mtlkit.backward([2 * first + second, first], method, parameters=layers)
    torch.testing.assert_close(layers[0].weight.grad, torch.tensor([[1.0, 0.0]]))
    assert [*map(id, method.shared)] == [id(layer.weight) for layer in layers]


def test_backward_equals_torchjd_backward(net):
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)
    method = mtlkit.create_method("upgrad(wrt=parameters)", TASKS)
    mtlkit.backward(losses_of(net(x)[1], x), method, net.backbone)
    shared = list(twin.backbone.parameters())
    torchjd.autojac.backward(losses_of(twin(x)[1], x), inputs=shared)
    torchjd.autojac.jac_to_grad(shared, EXACT_UPGRAD)
    for p, q in zip(net.backbone.parameters(), shared, strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-9)


def test_features_may_be_nested_and_lie_below_each_other(net):
    """The gradient of a lower feature must not hold what comes through the higher one."""
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)

    def losses(low, high, module):
        return [(head(high * k + low[:, :6]) ** 2).sum() for k, head in enumerate(module.heads, start=1)]

    def features(module):
        low = module.backbone[1](module.backbone[0](x))
        return {"maps": [low, module.backbone[3](module.backbone[2](low))]}

    found = features(net)
    methods = [mtlkit.create_method("mgda", TASKS) for _ in range(2)]
    mtlkit.mtl_backward(losses(*found["maps"], net), found, methods[0])
    views = methods[1](features(twin))
    each = [losses(*view["maps"], twin)[k] for k, view in enumerate(views)]
    methods[1].total(each).backward()
    assert_same_gradients(net, twin)
    torch.testing.assert_close(methods[0].stats.cosines, methods[1].stats.cosines)


def test_a_loss_may_reach_the_backbone_past_the_features(net):
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)

    def penalized(losses, module):
        return [losses[0] + module.backbone[0].weight.square().sum(), *losses[1:]]

    z, predictions = net(x)
    mtlkit.mtl_backward(
        penalized(losses_of(predictions, x), net), z, mtlkit.create_method("mgda", TASKS)
    )
    method = mtlkit.create_method("mgda", TASKS)
    views = method(twin.backbone(x))
    predictions = [head(view) for head, view in zip(twin.heads, views, strict=True)]
    method.total(penalized(losses_of(predictions, x), twin)).backward()
    assert_same_gradients(net, twin)


def test_losses_by_name_and_a_scale_leave_true_norms_to_the_method(net):
    method, scaled = (mtlkit.create_method("dwa+gradnorm", TASKS) for _ in range(2))
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)
    for module, merge, gradient in ((net, method, None), (twin, scaled, torch.tensor(1024.0).double())):
        z, predictions = module(x)
        losses = dict(zip(TASKS, losses_of(predictions, x), strict=True))
        mtlkit.mtl_backward(losses, features=z, method=merge, gradient=gradient)
    torch.testing.assert_close(method.stats.norms, scaled.stats.norms)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(1024 * p.grad, q.grad)


def test_a_grad_scaler_gives_its_factor_and_takes_it_away(net):
    net.float()
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4)
    method, other = (mtlkit.create_method("uw+cagrad", TASKS) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    z, predictions = net(x)
    mtlkit.mtl_backward(losses_of(predictions, x), z, method, gradient=scaler.scale(torch.ones(())))
    scaled = net.backbone[0].weight.grad.clone()
    scaler.unscale_(optimizer)
    forked(twin, other, x)
    torch.testing.assert_close(scaled, net.backbone[0].weight.grad * scaler.get_scale())
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_graphs_are_freed_unless_they_are_retained(net):
    method = mtlkit.create_method("pcgrad", TASKS)
    x = torch.randn(7, 4, dtype=torch.float64)
    z, predictions = net(x)
    losses = losses_of(predictions, x)
    mtlkit.mtl_backward(losses, z, method, retain_graph=True)
    once = [p.grad.clone() for p in net.parameters()]
    mtlkit.mtl_backward(losses, z, method)
    for p, expected in zip(net.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * expected)
    with pytest.raises(RuntimeError, match="second time"):
        losses[0].backward()
    method = mtlkit.create_method("pcgrad(wrt=parameters)", TASKS)
    net.zero_grad()
    losses = losses_of(net(x)[1], x)
    mtlkit.backward(losses, method, net, retain_graph=True)
    once = [p.grad.clone() for p in net.parameters()]
    mtlkit.backward(losses, method, net)
    for p, expected in zip(net.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * expected)
    with pytest.raises(RuntimeError, match="second time"):
        losses[0].backward()


def test_heads_may_share_layers_above_the_features(net):
    twin = copy.deepcopy(net)
    x = torch.randn(7, 4, dtype=torch.float64)
    z, _ = net(x)
    common = net.heads[0](z)
    methods = [mtlkit.create_method("cagrad", TASKS) for _ in range(2)]
    mtlkit.mtl_backward([(common * k).square().sum() for k in (1, 2, 3)], z, methods[0])
    views = methods[1](twin.backbone(x))
    methods[1].total(
        [(twin.heads[0](v) * k).square().sum() for k, v in enumerate(views, start=1)]
    ).backward()
    assert_same_gradients(net, twin)


def test_a_frozen_backbone_leaves_the_heads_their_gradients(net):
    net.backbone.requires_grad_(False)
    x = torch.randn(7, 4, dtype=torch.float64)
    dropped_in(net, mtlkit.create_method("pcgrad", TASKS), x)
    assert all(p.grad is not None for p in net.heads.parameters())


def test_what_cannot_work_is_refused_with_what_to_do(net):
    x = torch.randn(7, 4, dtype=torch.float64)
    z, predictions = net(x)
    losses = losses_of(predictions, x)
    with pytest.raises(UsageError, match=r"rotates the features.*method\(features\)"):
        mtlkit.mtl_backward(losses, z, mtlkit.create_method("rotograd", TASKS, feature_dim=6))
    with pytest.raises(UsageError, match="no loss depends on the features"):
        mtlkit.mtl_backward(losses, z.clone(), mtlkit.create_method("mgda", TASKS))
    with pytest.raises(SpecError, match="create_method"):
        mtlkit.mtl_backward(losses, z, "mgda")
    with pytest.raises(SpecError, match="wrt=parameters"):
        mtlkit.backward(losses, mtlkit.create_method("mgda", TASKS), net.backbone)
    with pytest.raises(UsageError, match="hold no tensor"):
        mtlkit.mtl_backward(losses, [], mtlkit.create_method("mgda", TASKS))


SPECS = ("pcgrad", "uw+cagrad", "nash_mtl(wrt=parameters)", "gradnorm")


def build(spec):
    torch.manual_seed(5)
    return Net(), mtlkit.create_method(spec, TASKS).double()


def train(net, module, method, rank, world, call):
    optimizer = torch.optim.SGD([*net.parameters(), *method.parameters()], lr=0.02, momentum=0.5)
    generator = torch.Generator().manual_seed(3)
    share = 8 // world
    for _ in range(5):
        x = torch.randn(8, 4, generator=generator, dtype=torch.float64)[
            rank * share : (rank + 1) * share
        ]
        optimizer.zero_grad()
        z, predictions = module(x)
        losses = losses_of(predictions, x)
        if call == "backward":
            mtlkit.backward(losses, method, net.backbone)
        else:
            mtlkit.mtl_backward(losses, z, method)
        optimizer.step()
    return {
        key: value.clone() for key, value in (*net.state_dict().items(), *method.state_dict().items())
    }


def runs():
    return [("mtl_backward", spec) for spec in SPECS] + [("backward", SPECS[2])]


def on_rank(rank, world):
    results = {}
    for call, spec in runs():
        net, method = build(spec)
        results[call, spec] = train(net, DistributedDataParallel(net), method, rank, world, call)
    net, method = build("mgda")
    with pytest.raises(UsageError, match="no labels on this process"):
        dropped_in(net, method, torch.randn(4, 4, dtype=torch.float64), absent=(1,))
    net, method = build("mgda")
    module = DistributedDataParallel(net, find_unused_parameters=True)
    z, predictions = module(torch.randn(4, 4, dtype=torch.float64))
    with pytest.raises(UsageError, match="find_unused_parameters"):
        mtlkit.mtl_backward([p.sum() for p in predictions], z, method)
    return results


def test_two_processes_end_where_one_process_does():
    first, second = run_processes(on_rank)
    for call, spec in runs():
        net, method = build(spec)
        alone = train(net, net, method, 0, 1, call)
        for key, expected in alone.items():
            assert torch.equal(first[call, spec][key], second[call, spec][key]), (call, spec, key)
            torch.testing.assert_close(
                first[call, spec][key], expected, rtol=1e-7, atol=1e-8, msg=f"{call} {spec} {key}"
            )
