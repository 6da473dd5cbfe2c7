"""Defects that were found by attacking the engine; each test fails where its defect is back."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import threading
import time
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo.compiled_autograd import _enable
from torch.autograd.graph import save_on_cpu
from torch.func import grad, vmap
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import mtlkit
from mtlkit.config.spec import parse_call, parse_spec
from mtlkit.config.yaml_files import parse_yaml


class Net(nn.Module):
    forks = True

    def __init__(self, spec: str) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        self.method = mtlkit.create_method(spec, 2, feature_dim=6)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        z = self.backbone(x).tanh()
        views = self.method(z) if self.forks else [z, z]
        return [head(view) for head, view in zip(self.heads, views, strict=True)]

    def total(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.total([(y - k).square().mean() for k, y in enumerate(self(x))])


# Complex numbers


def complex_rows(parameter: nn.Parameter, x: torch.Tensor) -> list[torch.Tensor]:
    products = [(parameter * x[k]).sum() for k in range(3)]
    return [product.real**2 + (k + 1) * product.imag for k, product in enumerate(products)]


def test_gradients_of_complex_parameters_keep_their_imaginary_part():
    """The inner product is Re<a, b>, that of the real and imaginary parts side by side."""
    parameter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    x = torch.randn(3, 4, dtype=torch.complex64)
    rows = [torch.autograd.grad(loss, parameter)[0] for loss in complex_rows(parameter, x)]
    real = torch.stack([torch.view_as_real(row).flatten() for row in rows])
    method = mtlkit.create_method("mgda(wrt=parameters)", 3)
    expected = mtlkit.create_method("mgda", 3).combine(real)
    method.total(complex_rows(parameter, x)).backward()
    torch.testing.assert_close(torch.view_as_real(parameter.grad).flatten(), expected)
    torch.testing.assert_close(method.stats.norms, real.norm(dim=1))


def test_complex_features_are_merged_like_their_real_and_imaginary_parts():
    z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    x = torch.randn(3, 4, dtype=torch.complex64)
    losses = [(z * x[k]).abs().square().sum() for k in range(3)]
    rows = [torch.view_as_real(torch.autograd.grad(loss, z)[0]).flatten() for loss in losses]
    method = mtlkit.create_method("mgda", 3)
    views = method(z)
    method.total([(views[k] * x[k]).abs().square().sum() for k in range(3)]).backward()
    expected = mtlkit.create_method("mgda", 3).combine(torch.stack(rows))
    torch.testing.assert_close(torch.view_as_real(z.grad).flatten(), expected)


# Hooks of autograd


@pytest.mark.parametrize("fork", [True, False])
def test_a_hook_of_a_parameter_acts_once_on_the_merged_gradient(fork):
    """As with a learning rate per layer, which would be squared otherwise."""
    gradients = []
    for factor in (1.0, 0.1):
        torch.manual_seed(0)
        backbone, heads = nn.Linear(4, 6), [nn.Linear(6, 1) for _ in range(3)]
        calls = []
        backbone.weight.register_hook(lambda g, f=factor, c=calls: c.append(1) or g * f)
        method = mtlkit.create_method("pcgrad(wrt=parameters)", 3, shared=backbone)
        z = backbone(torch.randn(8, 4)).tanh()
        views = method(z) if fork else [z] * 3
        method.total(
            [(h(v) - k).square().mean() for k, (h, v) in enumerate(zip(heads, views, strict=True))]
        ).backward()
        assert len(calls) == 1
        gradients.append(backbone.weight.grad)
    torch.testing.assert_close(gradients[1], 0.1 * gradients[0])


@pytest.mark.parametrize("fork", [True, False])
def test_a_hook_of_a_parameter_may_scale_its_gradient_while_micro_batches_are_kept(fork):
    """Autograd calls a hook with None where nothing is delivered, which few hooks expect."""
    gradients = []
    for factor in (1.0, 0.1):
        torch.manual_seed(0)
        net, x = Net("pcgrad(wrt=parameters)"), torch.randn(8, 4)
        net.forks = fork
        net.backbone.weight.register_hook(lambda g, f=factor: g * f)
        net.method.total([y.square().mean() for y in net(x)], merge=False).backward()
        net.total(x).backward()
        gradients.append(net.backbone.weight.grad)
    torch.testing.assert_close(gradients[1], 0.1 * gradients[0])


def test_a_hook_of_a_head_whose_task_is_absent_is_not_called():
    net = Net("pcgrad(wrt=parameters)")
    net.forks = False
    net.method.set_shared([net.backbone, net.heads])
    net.heads[1].weight.register_hook(lambda g: 0.1 * g)
    net.method.total([net(torch.randn(8, 4))[0].mean(), None]).backward()
    assert net.heads[1].weight.grad is None


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("spec", ["pcgrad", "gradnorm", "uw+rotograd", "graddrop"])
def test_an_absent_task_raises_no_alarm_of_anomaly_detection(spec):
    method = mtlkit.create_method(spec, 3, feature_dim=6)
    backbone = nn.Linear(4, 6)
    with torch.autograd.detect_anomaly(check_nan=True):
        first, second, _ = method(backbone(torch.randn(8, 4)))
        method.total([first.square().mean(), second.sum(), None]).backward()
    assert backbone.weight.grad.isfinite().all()


@pytest.mark.parametrize("how", ["checkpoint", "save_on_cpu"])
@pytest.mark.parametrize("spec", ["moco(wrt=parameters)", "db_mtl(wrt=parameters)"])
def test_saved_tensor_hooks_do_not_change_which_parameters_a_memory_belongs_to(spec, how):
    nets = []
    for hooked in (True, False):
        torch.manual_seed(0)
        net = Net(spec)
        for x in torch.randn(3, 8, 4):
            net.zero_grad()
            with save_on_cpu() if hooked and how == "save_on_cpu" else contextlib.nullcontext():
                backbone = net.backbone
                z = checkpoint(backbone, x, use_reentrant=False) if hooked else backbone(x)
                views = net.method(z.tanh())
                pairs = zip(net.heads, views, strict=True)
                losses = [(head(view) - k).square().mean() for k, (head, view) in enumerate(pairs)]
                total = net.method.total(losses)
            total.backward()
        nets.append(net)
    torch.testing.assert_close(nets[0].backbone.weight.grad, nets[1].backbone.weight.grad)


# State


def test_a_state_of_the_tasks_in_another_order_is_refused():
    saved = mtlkit.create_method("rotograd", ("seg", "depth"), feature_dim=4).state_dict()
    other = mtlkit.create_method("rotograd", ("depth", "seg"), feature_dim=4)
    with pytest.raises(mtlkit.errors.SpecError, match=r"seg, depth.*depth, seg"):
        other.load_state_dict(saved)


# The graph of a step


def test_one_tensor_given_twice_is_refused():
    z = torch.randn(4, requires_grad=True)
    method = mtlkit.create_method("pcgrad", 2)
    with pytest.raises(mtlkit.errors.UsageError, match="twice"):
        method([z, z])


@pytest.mark.parametrize("between", ["step", "eval", "step and eval"])
def test_a_backward_uses_the_rotations_of_its_forward_or_raises(between):
    torch.manual_seed(0)
    net, x = Net("rotate+sum"), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.method.parameters(), lr=5.0)
    net.total(x).backward()
    optimizer.step()
    expected = torch.autograd.grad(net.total(x), net.backbone.weight)[0]
    in_flight = net.total(x)
    if "step" in between:
        optimizer.step()
        if between == "step":
            net.total(x)  # folds the update into the rotations
    if "eval" in between:
        net.eval()
    net.zero_grad()
    try:
        in_flight.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(net.backbone.weight.grad, expected)


def test_a_graph_whose_step_failed_before_its_total_is_freed_by_train():
    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = nn.Identity()
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    net = Net("pcgrad")
    z = Watched.apply(net.backbone(torch.randn(8, 4)))
    kept = weakref.ref(z.grad_fn.kept)
    net.method(z)
    del z
    net.train()
    gc.collect()
    assert kept() is None


def test_a_loaded_state_ends_an_interrupted_accumulation():
    net, x = Net("pcgrad(wrt=parameters)"), torch.randn(8, 4)
    state = copy.deepcopy(net.state_dict())
    net.total(x).backward()
    expected = net.backbone.weight.grad.clone()
    net.zero_grad()
    net.method.total([y.square().mean() for y in net(torch.randn(8, 4))], merge=False).backward()
    net.zero_grad()
    net.load_state_dict(state)
    net.total(x).backward()
    torch.testing.assert_close(net.backbone.weight.grad, expected)


# Tools around a method


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "upgrad(wrt=parameters)"])
@pytest.mark.parametrize("forks", [True, False])
def test_a_merge_within_a_transform_of_torch_func_is_refused(monkeypatch, spec, forks):
    monkeypatch.setattr(Net, "forks", forks or spec != "upgrad(wrt=parameters)")
    net, x = Net(spec), torch.randn(8, 4)
    with pytest.raises(mtlkit.errors.UsageError, match=r"torch\.func"):
        vmap(net.total)(x)
    with pytest.raises(mtlkit.errors.UsageError, match=r"torch\.func"):
        grad(net.total)(x)
    net.eval()
    torch.testing.assert_close(torch.stack(vmap(net)(x)), torch.stack(net(x)))


def test_a_copy_of_a_method_shares_its_process_group():
    net = Net("rotograd")
    net.method.process_group = threading.Lock()  # cannot be copied either
    assert copy.deepcopy(net).method.process_group is net.method.process_group


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "uw", "upgrad(wrt=parameters)"])
def test_a_method_can_be_inspected(spec):
    names = [name for name, _ in inspect.getmembers(mtlkit.create_method(spec, 2, feature_dim=6))]
    assert ("rotations" in names) == (spec == "rotograd")


@pytest.mark.filterwarnings("ignore")  # of the tracer
@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "pcgrad(wrt=parameters)"])
def test_a_network_is_traced_by_jit_in_eval_mode_and_refused_in_training(spec):
    net, x = Net(spec), torch.randn(8, 4)
    with pytest.raises(mtlkit.errors.UsageError, match="eval"):
        torch.jit.trace(net, x)
    traced = torch.jit.trace(net.eval(), x)
    other = torch.randn(8, 4)
    torch.testing.assert_close(traced(other), net(other))


@pytest.mark.parametrize("fork", [True, False])
def test_sparse_gradients_of_an_embedding_are_merged_as_dense_ones(fork):
    gradients = []
    for sparse in (True, False):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 6, sparse=sparse)
        heads = [nn.Linear(6, 1) for _ in range(2)]
        method = mtlkit.create_method("mgda(wrt=parameters)", 2, shared=embedding)
        z = embedding(torch.arange(4))
        views = method(z) if fork else [z, z]
        method.total(
            [(head(view) - 1).square().mean() for head, view in zip(heads, views, strict=True)]
        ).backward()
        gradients.append(embedding.weight.grad)
    torch.testing.assert_close(gradients[0].to_dense(), gradients[1])


@pytest.mark.parametrize("name", mtlkit.list_methods())
def test_a_network_that_is_made_on_the_meta_device_trains_after_to_empty_and_a_state(name):
    """State of a method has values at once; weights come from the state dict, as for any module."""
    torch.manual_seed(0)
    ready, x = Net(name), torch.randn(8, 4)
    with torch.device("meta"):
        net = Net(name)
    net.to_empty(device="cpu")
    net.load_state_dict(ready.state_dict())
    for each in (net, ready):
        each.total(x).backward()
    torch.testing.assert_close(net.backbone.weight.grad, ready.backbone.weight.grad)


def test_an_average_of_weights_made_after_the_first_step_keeps_a_memory_per_coordinate():
    """Before it the memory is empty, and AveragedModel copies into what it has."""
    torch.manual_seed(0)
    net, x = Net("moco(wrt=parameters)"), torch.randn(8, 4)
    net.total(x).backward()
    average = AveragedModel(net)
    net.total(x).backward()
    average.update_parameters(net)
    torch.testing.assert_close(average.module.method.state_dict(), net.method.state_dict())


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd"])
def test_a_head_that_begins_in_place_is_answered_with_what_to_do(spec):
    net = Net(spec)
    first, _ = net.method(net.backbone(torch.randn(8, 4)))
    with pytest.raises(RuntimeError, match="out-of-place"):
        nn.ReLU(inplace=True)(first)


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_hooks_of_a_module_run_once_per_task_with_respect_to_the_parameters():
    calls = {}
    for spec in ("pcgrad", "pcgrad(wrt=parameters)"):
        net, made = Net(spec), []
        net.backbone.register_full_backward_hook(lambda *_, made=made: made.append(1))
        net.total(torch.randn(8, 4)).backward()
        calls[spec] = len(made)
    assert calls == {"pcgrad": 1, "pcgrad(wrt=parameters)": 3}


def run_compiled_autograd(total: torch.Tensor) -> None:
    torch.compiler.reset()
    with _enable(lambda graph: torch.compile(graph, backend="eager")):
        total.backward()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # where it breaks the graph
@pytest.mark.parametrize("spec", ["pcgrad", "mgda", "rotograd", "pcgrad(wrt=parameters)"])
def test_compiled_autograd_gives_the_gradients_of_eager_mode(spec):
    torch.manual_seed(0)
    net, x = Net(spec), torch.randn(8, 4)
    if "parameters" in spec:
        net.forks = False
        net.method.set_shared(net.backbone)
    plain = copy.deepcopy(net)
    run_compiled_autograd(net.total(x))
    plain.total(x).backward()
    torch.testing.assert_close(net.backbone.weight.grad, plain.backbone.weight.grad)


def test_compiled_autograd_of_a_fork_with_respect_to_the_parameters_is_refused():
    net = Net("pcgrad(wrt=parameters)")
    with pytest.raises(mtlkit.errors.UsageError, match="compiled autograd"):
        run_compiled_autograd(net.total(torch.randn(8, 4)))


# Config strings and files


def test_deeply_nested_parts_are_refused_at_once():
    depth = 40
    with pytest.raises(mtlkit.errors.SpecError, match="nested"):
        parse_spec("cr_mogm(inner=" * depth + "pcgrad" + ")" * depth)
    three = "a(b=" * 3 + "c" + ")" * 3
    assert parse_call(parse_call(parse_call(three).options["b"]).options["b"]).options["b"] == "c"


def test_many_keys_of_a_yaml_file_are_read_in_linear_time():
    """Doubling 20,000 keys would take four times as long where each is compared with all others."""
    lines = [f"key_{number}: 1" for number in range(20_000)]
    begun = time.process_time()
    assert len(parse_yaml("\n".join(lines), "a text")) == len(lines)
    assert time.process_time() - begun < 6
    with pytest.raises(mtlkit.errors.ConfigError, match="key_7"):
        parse_yaml("\n".join([*lines, "key_7: 2"]), "a text")
