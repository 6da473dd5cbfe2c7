"""The junction at the losses: ``total(losses)`` without ``method(features)``."""

from __future__ import annotations

import copy
import gc
import itertools
import shutil
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mtlkit
from mtlkit.errors import UsageError
from mtlkit.method.aggregator import GradientAggregator

TASKS = 3
SPECS = [
    "pcgrad(wrt=parameters)",
    "mgda(wrt=parameters)",
    "imtl_g(wrt=parameters)",
    "upgrad(wrt=parameters)",
    "config(wrt=parameters)",
    "cagrad(wrt=parameters)",
    "scale(wrt=parameters)",
    "gradnorm(wrt=parameters)",
    "graddrop(wrt=parameters)",
    "moco(wrt=parameters)",
    "uw+pcgrad(wrt=parameters)",
    "normalize+cagrad(wrt=parameters)",
]
PCGRAD = "pcgrad(wrt=parameters)"
SCALE = "scale(wrt=parameters)"


class OneHead(nn.Module):
    """A network with a single output that every task is a function of."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Adapted(nn.Module):
    """A frozen network with low-rank adapters in all its layers."""

    def __init__(self, width: int = 6):
        super().__init__()
        sizes = [2, width, width, 1]
        self.frozen = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.frozen.requires_grad_(False)
        self.down = nn.ParameterList(torch.randn(2, layer.in_features) for layer in self.frozen)
        self.up = nn.ParameterList(torch.randn(layer.out_features, 2) / 2 for layer in self.frozen)

    def forward(self, x: Tensor) -> Tensor:
        for layer, down, up in zip(self.frozen, self.down, self.up, strict=True):
            x = torch.tanh(layer(x) + x @ down.T @ up.T)
        return x


def targets_of(net: nn.Module, x: Tensor) -> list[Tensor]:
    """One loss per task, which ask different things of one output."""
    y = net(x)[:, 0]
    return [((y - (-2) ** k * torch.sin((k + 1) * x[:, 0])) ** 2).mean() for k in range(TASKS)]


def physics_of(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Losses that contain first and second derivatives of the output by the input."""
    x = x.clone().requires_grad_()
    y = net(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return [
        (slope[:, 1] - bend[:, 0]).square().mean(),
        (y - 1).square().mean(),
        (slope + y).square().mean(),
    ]


def rows_of(losses: list[Tensor | None], parameters: list[Tensor]) -> Tensor:
    """(P, N) gradients of the losses that are there, one backward for each."""
    rows = []
    for loss in losses:
        if loss is not None:
            found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat(
                    [
                        (torch.zeros_like(p) if g is None else g).reshape(-1)
                        for p, g in zip(parameters, found, strict=True)
                    ]
                )
            )
    return torch.stack(rows)


def trainable(net: nn.Module) -> list[Tensor]:
    return [p for p in net.parameters() if p.requires_grad]


def gradient_of(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in trainable(net)])


def batches(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(16, 2, generator=generator).to(dtype) for _ in range(count)]


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(3)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("make", "losses_of"),
    [(OneHead, targets_of), (Adapted, targets_of), (OneHead, physics_of)],
    ids=["one head", "adapters", "derivatives"],
)
def test_equals_one_backward_per_loss_and_combine(spec, make, losses_of):
    net = make().double()
    by_coordinate = spec.startswith(("graddrop", "moco"))  # in the order of the reference's rows
    method = mtlkit.create_method(spec, TASKS, shared=trainable(net) if by_coordinate else None)
    for parameter in method.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    reference = copy.deepcopy(method)
    differs = False
    for x in batches(3, torch.float64):
        losses = losses_of(net, x)
        rows = rows_of(losses, trainable(net))
        expected = reference.combine(rows, torch.stack([loss.detach() for loss in losses]))
        net.zero_grad()
        method.total(losses).backward()
        torch.testing.assert_close(gradient_of(net), expected, rtol=1e-9, atol=1e-12)
        differs = differs or not torch.allclose(expected, rows.sum(dim=0), rtol=1e-3)
        with torch.no_grad():
            for parameter in trainable(net):
                parameter -= 0.05 * parameter.grad
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(method.state_dict()[name], value, rtol=1e-9, atol=1e-12)
    assert differs, "the plain sum would do as well"


@pytest.mark.parametrize("spec", SPECS)
def test_a_missing_task_is_left_out_and_its_state_is_kept(spec):
    net, (first, second) = OneHead().double(), batches(2, torch.float64)
    method = mtlkit.create_method(spec, TASKS)
    method.total(targets_of(net, first)).backward()
    kept = copy.deepcopy(method.state_dict())
    losses: list[Tensor | None] = targets_of(net, second)
    losses[1] = None
    rows = rows_of(losses, trainable(net))
    net.zero_grad()
    method.total(losses).backward()
    for name, value in method.state_dict().items():
        if value.dim():  # one entry per task, in the first axis
            assert torch.equal(value[1], kept[name][1]), name
    assert torch.isnan(method.stats.norms).tolist() == [False, True, False]
    if "moco" not in spec and "graddrop" not in spec:  # the others end in one weight per task
        weights = torch.linalg.lstsq(rows.T, gradient_of(net)[:, None]).solution[:, 0]
        torch.testing.assert_close(weights @ rows, gradient_of(net))


def test_a_missing_task_does_not_change_the_order_of_the_coordinates():
    # each task enters the trunk at another layer
    trunk = nn.ModuleList(nn.Linear(size, 3) for size in (4, 3, 3)).double()
    method = mtlkit.create_method("moco(wrt=parameters)", TASKS)
    reference = mtlkit.create_method("moco(wrt=parameters)", TASKS, shared=trunk)
    for absent in (None, 2, 0, 1):
        x, states = torch.randn(8, 4, dtype=torch.float64), []
        for layer in trunk:
            x = torch.tanh(layer(x))
            states.append(x.square().mean() + x.sum())
        losses = [states[2] * states[0], states[2] - states[1], states[2].sin() + states[0]]
        given = [None if k == absent else loss for k, loss in enumerate(losses)]
        merged = []
        for each in (reference, method):
            trunk.zero_grad()
            each.total(given).backward(retain_graph=True)
            merged.append(gradient_of(trunk))
        torch.testing.assert_close(*merged)


def test_a_memory_per_coordinate_refuses_other_parameters():
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    method = mtlkit.create_method("moco(wrt=parameters)", TASKS)
    losses = [first.sum() + second.sum(), first.sum() * 2, second.sum() + first.square().sum()]
    method.total(losses).backward(retain_graph=True)
    with pytest.raises(UsageError, match=r"3 entries.*remembers 5.*`shared`"):
        method.total([losses[0], losses[1], None]).backward()


@pytest.mark.parametrize("spec", [PCGRAD, "mgda(wrt=parameters)", "config(wrt=parameters)"])
def test_two_of_three_tasks_give_what_a_method_of_two_gives(spec):
    net, (x,) = OneHead().double(), batches(1, torch.float64)
    losses: list[Tensor | None] = targets_of(net, x)
    losses[1] = None
    expected = mtlkit.create_method(spec, 2).combine(rows_of(losses, trainable(net)))
    mtlkit.create_method(spec, TASKS).total(losses).backward()
    torch.testing.assert_close(gradient_of(net), expected)


@pytest.mark.parametrize("spec", SPECS)
def test_a_single_present_task_gets_the_gradient_of_its_weighed_loss(spec):
    net, (first, second) = OneHead(), batches(2)
    method = mtlkit.create_method(spec, TASKS)
    method.total(targets_of(net, first)).backward()
    losses = targets_of(net, second)
    factors = method.loss_factors(torch.stack(losses).detach())
    expected = rows_of([factors[2] * losses[2]], trainable(net))[0]
    net.zero_grad()
    method.total([None, None, losses[2]]).backward()
    assert torch.equal(gradient_of(net), expected)


def test_no_loss_at_all_says_that_the_batch_is_to_be_skipped():
    method = mtlkit.create_method(PCGRAD, TASKS)
    with pytest.raises(UsageError, match=r"every loss is None.*skip this batch"):
        method.total([None] * TASKS)


@pytest.mark.parametrize("spec", SPECS)
def test_a_loss_scale_is_divided_out(spec):
    net, xs = OneHead().double(), batches(3, torch.float64)
    method = mtlkit.create_method(spec, TASKS)
    scaled = copy.deepcopy(method)
    for x in xs:
        net.zero_grad()
        method.total(targets_of(net, x)).backward()
        expected = gradient_of(net)
        net.zero_grad()
        (scaled.total(targets_of(net, x)) * 1024).backward()
        torch.testing.assert_close(gradient_of(net) / 1024, expected, rtol=1e-9, atol=1e-12)
    for name, value in method.state_dict().items():
        torch.testing.assert_close(scaled.state_dict()[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", [s for s in SPECS if "+" not in s])
def test_an_overflow_gives_non_finite_gradients_and_leaves_the_state(spec):
    net, (first, second) = OneHead(), batches(2)
    method = mtlkit.create_method(spec, TASKS)
    optimizer = torch.optim.SGD([*net.parameters(), *method.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(method.total(targets_of(net, first))).backward()
    scaler.step(optimizer)
    scaler.update()
    before = copy.deepcopy(method.state_dict())
    parameters = copy.deepcopy(net.state_dict())
    optimizer.zero_grad()
    losses = targets_of(net, second)
    scaler.scale(method.total([losses[0] * float("inf"), *losses[1:]])).backward()
    assert not torch.isfinite(gradient_of(net)).all()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert all(torch.equal(v, before[name]) for name, v in method.state_dict().items())
    assert all(torch.equal(v, parameters[name]) for name, v in net.state_dict().items())


def test_accumulated_batches_add_up():
    net, xs = OneHead().double(), batches(3, torch.float64)
    method = mtlkit.create_method(SCALE, TASKS)
    twin = copy.deepcopy(method)
    expected = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for x in xs:
        net.zero_grad()
        twin.total(targets_of(net, x)).backward()
        expected += gradient_of(net) / len(xs)
    net.zero_grad()
    for x in xs:
        (method.total(targets_of(net, x)) / len(xs)).backward()
    torch.testing.assert_close(gradient_of(net), expected)


def test_a_task_in_one_of_two_micro_batches_has_the_loss_of_its_labels_in_the_whole_batch():
    net, (x, *_) = OneHead().double(), batches(1, torch.float64)
    whole = mtlkit.create_method("gradnorm(wrt=parameters)", TASKS)
    parts = copy.deepcopy(whole)
    whole.total(targets_of(net, x)).backward()
    _, *others = targets_of(net, x)
    parts.total([None, *others], merge=False).div(2).backward()
    first, *others = targets_of(net, x)
    parts.total([2 * first, *others]).div(2).backward()  # 2: one of two micro-batches has its labels
    torch.testing.assert_close(parts.stats.losses, whole.stats.losses)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())


@pytest.mark.parametrize("spec", [PCGRAD, "config(wrt=parameters)"])
def test_autocast_merges_in_single_precision(spec):
    net, (x,) = OneHead(), batches(1)
    method = mtlkit.create_method(spec, TASKS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = targets_of(net, x)
        total = method.total(losses)
    expected = copy.deepcopy(method).combine(rows_of(losses, trainable(net)))
    total.backward()
    assert all(p.grad.dtype == torch.float32 for p in net.parameters())
    torch.testing.assert_close(gradient_of(net), expected, rtol=1e-5, atol=1e-6)


def test_losses_and_parameters_of_different_precision_are_merged():
    first = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    second = nn.Parameter(torch.ones(3))
    method = mtlkit.create_method("mean(wrt=parameters)", 2)
    total = method.total([(first.float() * second).sum(), -3 * first.sum() + second.sum().bfloat16()])
    total.backward()
    assert [p.grad.dtype for p in (first, second)] == [torch.bfloat16, torch.float32]
    assert [p.grad.tolist() for p in (first, second)] == [[-1.0] * 3, [1.0] * 3]
    assert total.item() == -3.0


@pytest.mark.parametrize("spec", [PCGRAD, SCALE, "moco(wrt=parameters)"])
def test_checkpointing_changes_no_bit(spec):
    net, xs = OneHead(), batches(3)
    twin = copy.deepcopy(net)
    method = mtlkit.create_method(spec, TASKS)
    other = copy.deepcopy(method)

    def recomputed(x: Tensor) -> Tensor:
        return checkpoint(twin, x, use_reentrant=False)

    for x in xs:
        net.zero_grad()
        twin.zero_grad()
        method.total(targets_of(net, x)).backward()
        other.total(targets_of(recomputed, x)).backward()
        assert torch.equal(gradient_of(net), gradient_of(twin))


def test_leaf_tensors_that_are_no_parameters_are_merged():
    leaf = torch.zeros(2, requires_grad=True)
    method = mtlkit.create_method("mean(wrt=parameters)", 2)
    method.total([leaf.sum(), 3 * leaf[0]]).backward()
    assert leaf.grad.tolist() == [2.0, 0.5]


def test_leaf_tensors_beside_parameters_get_the_sum():
    leaf, parameter = torch.zeros(2, requires_grad=True), nn.Parameter(torch.ones(2))
    method = mtlkit.create_method("mean(wrt=parameters)", 2)
    method.total([(leaf + parameter).sum(), (3 * leaf + parameter)[0]]).backward()
    assert leaf.grad.tolist() == [4.0, 1.0]
    assert parameter.grad.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("as_module", [True, False])
def test_parameters_outside_of_shared_get_the_plain_sum(as_module):
    net, (x,) = OneHead().double(), batches(1, torch.float64)
    shared, rest = net.layers[0], list(net.layers[2:].parameters())
    method = mtlkit.create_method(PCGRAD, TASKS, shared=shared if as_module else shared.parameters())
    losses = targets_of(net, x)
    expected = copy.deepcopy(method).combine(rows_of(losses, list(shared.parameters())))
    added = rows_of(losses, rest).sum(dim=0)
    method.total(losses).backward()
    torch.testing.assert_close(gradient_of(shared), expected)
    torch.testing.assert_close(torch.cat([p.grad.reshape(-1) for p in rest]), added)


def test_a_parameter_that_is_named_twice_gets_its_gradient_once():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    method = mtlkit.create_method("mean(wrt=parameters)", 2, shared=[first, second, first])
    method.total([(first + second).sum(), 3 * first.sum() + second.sum()]).backward()
    assert [p.grad.tolist() for p in (first, second)] == [[2.0, 2.0], [1.0, 1.0]]


def test_shared_parameters_that_the_losses_do_not_reach_are_an_error():
    method = mtlkit.create_method(PCGRAD, TASKS, shared=nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"reach none of the parameters in `shared`"):
        method.total(targets_of(OneHead(), torch.randn(4, 2)))


@pytest.mark.parametrize("spec", SPECS[:-2])
def test_what_one_task_alone_reaches_gets_that_tasks_gradient_bit_for_bit(spec):
    trunk = nn.Linear(4, 8)
    heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(TASKS))
    method = mtlkit.create_method(spec, TASKS)
    features = torch.tanh(trunk(torch.randn(16, 4)))
    losses = [(head(features) - k).square().mean() for k, head in enumerate(heads)]
    own = [rows_of([loss], list(head.parameters()))[0] for loss, head in zip(losses, heads, strict=True)]
    method.total(losses).backward()
    for head, expected in zip(heads, own, strict=True):
        assert torch.equal(gradient_of(head), expected)


def test_a_task_that_shares_no_parameter_does_not_enter_the_merge():
    # its row would be zero, and MGDA's shortest combination with it
    trunk, apart = nn.Linear(3, 1), nn.Linear(3, 1)
    method = mtlkit.create_method("mgda(wrt=parameters)", TASKS)
    x = torch.randn(8, 3)
    y = trunk(x)
    losses = [(y - 1).square().mean(), (y + 2 * x[:, :1]).square().mean(), apart(x).square().mean()]
    pair = mtlkit.create_method("mgda(wrt=parameters)", 2)
    expected = pair.combine(rows_of(losses[:2], list(trunk.parameters())))
    method.total(losses).backward()
    torch.testing.assert_close(gradient_of(trunk), expected)
    assert gradient_of(trunk).norm() > 1e-3
    assert torch.isnan(method.stats.norms).tolist() == [False, False, True]


class _Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        _Counted.calls += 1
        return gradient


def test_the_graph_is_walked_once_per_task():
    net, (x,) = OneHead(), batches(1)
    hooks = []
    net.layers[2].register_full_backward_hook(lambda *_: hooks.append(1))
    method = mtlkit.create_method(PCGRAD, TASKS)
    _Counted.calls = 0
    method.total(targets_of(lambda x: _Counted.apply(net(x)), x)).backward()
    assert (_Counted.calls, len(hooks)) == (TASKS, TASKS)
    losses = targets_of(lambda x: _Counted.apply(net(x)), x)
    method.total([losses[0], None, losses[2]]).backward()
    assert (_Counted.calls, len(hooks)) == (TASKS + 2, TASKS + 2)


class _Holding(torch.autograd.Function):
    """Multiply by a tensor that nobody else refers to."""

    @staticmethod
    def forward(ctx, x, held):
        buffer = torch.full_like(x, 2.0)
        held.append(weakref.ref(buffer))
        ctx.save_for_backward(buffer)
        return x * buffer

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


@pytest.mark.parametrize("together", [True, False])
def test_the_backward_frees_the_graphs_although_the_losses_live(together):
    net, held = OneHead(), []
    method = mtlkit.create_method(PCGRAD, TASKS)
    if together:
        losses = targets_of(lambda x: _Holding.apply(net(x), held), torch.randn(4, 2))
    else:  # every task has a batch, and a graph, of its own
        losses = [_Holding.apply(net(x), held).square().mean() for x in batches(TASKS)]
    total = method.total(losses)
    assert all(buffer() is not None for buffer in held)
    total.backward()
    gc.collect()
    assert len(held) == (1 if together else TASKS)
    assert all(buffer() is None for buffer in held)
    assert losses[0].grad_fn is not None


def test_a_retained_graph_may_be_walked_again():
    net, (x,) = OneHead(), batches(1)
    total = mtlkit.create_method("mgda(wrt=parameters)", TASKS).total(targets_of(net, x))
    total.backward(retain_graph=True)
    once = gradient_of(net)
    total.backward()
    torch.testing.assert_close(gradient_of(net), 2 * once)


def test_a_second_backward_says_what_to_do():
    net, (x,) = OneHead(), batches(1)
    total = mtlkit.create_method(PCGRAD, TASKS).total(targets_of(net, x))
    total.backward()
    with pytest.raises(
        UsageError, match=r"differentiated before.*compute them again.*retain_graph=True"
    ):
        total.backward()


def test_a_derivative_of_the_total_is_refused():
    net, (x,) = OneHead(), batches(1)
    total = mtlkit.create_method(PCGRAD, TASKS).total(targets_of(net, x))
    with pytest.raises(UsageError, match=r"create_graph=True on total.*inside the losses"):
        torch.autograd.grad(total, list(net.parameters()), create_graph=True)


@pytest.mark.parametrize("spec", ["mgda(wrt=parameters)", "mgda(normalize=loss, wrt=parameters)"])
@pytest.mark.parametrize("one_forward", [True, False])
def test_two_totals_in_one_backward_add_up(spec, one_forward):
    net, (first, second) = OneHead().double(), batches(2, torch.float64)
    expected = torch.zeros(sum(p.numel() for p in net.parameters()), dtype=torch.float64)
    for x in (first, second):
        net.zero_grad()
        mtlkit.create_method(spec, TASKS).total(targets_of(net, x)).backward()
        expected += gradient_of(net)
    net.zero_grad()
    method = mtlkit.create_method(spec, TASKS)
    outputs = net(torch.cat([first, second])).chunk(2) if one_forward else [net(first), net(second)]
    totals = [
        method.total(targets_of(lambda _, y=y: y, x))
        for x, y in zip((first, second), outputs, strict=True)
    ]
    both = totals[0] + totals[1]
    both.backward(retain_graph=True)
    torch.testing.assert_close(gradient_of(net), expected)
    # each total frees the graphs that it has walked, unless it is told to retain them
    both.backward(retain_graph=one_forward)
    torch.testing.assert_close(gradient_of(net), 2 * expected)


def test_a_term_beside_the_total_may_use_the_same_graph():
    net, (x,) = OneHead().double(), batches(1, torch.float64)
    method = mtlkit.create_method("mgda(wrt=parameters)", TASKS)
    method.total(targets_of(net, x)).backward()
    net(x).square().mean().backward()
    expected = gradient_of(net)
    net.zero_grad()
    y = net(x)
    losses, penalty = targets_of(lambda _: y, x), y.square().mean()
    (method.total(losses) + penalty).backward()
    torch.testing.assert_close(gradient_of(net), expected)
    with pytest.raises(RuntimeError, match=r"second time"):  # and the graph is freed
        y.sum().backward()


def test_a_loss_that_is_a_parameter_itself_is_merged():
    parameter = nn.Parameter(torch.tensor(2.0))
    mtlkit.create_method("mean(wrt=parameters)", 2).total([parameter, parameter * 3]).backward()
    assert parameter.grad.item() == 2.0


@pytest.mark.parametrize("spec", [PCGRAD, "uw+pcgrad(wrt=parameters)", "gradnorm(wrt=parameters)"])
def test_eval_mode_gives_the_plain_sum_of_the_weighed_losses(spec):
    net, (x,) = OneHead(), batches(1)
    method = mtlkit.create_method(spec, TASKS).eval()
    before = copy.deepcopy(method.state_dict())
    losses = targets_of(net, x)
    total = method.total(losses)
    factors = method.loss_factors(torch.stack(losses).detach())
    expected = sum(f * loss for f, loss in zip(factors, losses, strict=True))
    added = rows_of([expected], trainable(net))[0]
    with pytest.warns(UserWarning, match="evaluation mode"):
        total.backward()
    torch.testing.assert_close(gradient_of(net), added)
    method.train()
    with torch.no_grad():
        silent = method.total(targets_of(net, x))
    assert not silent.requires_grad
    torch.testing.assert_close(silent, total.detach())
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_losses_without_gradients_give_their_sum():
    total = mtlkit.create_method(PCGRAD, 2).total([torch.tensor(1.0), torch.tensor(2.0)])
    assert (total.item(), total.requires_grad) == (3.0, False)


@pytest.mark.parametrize(
    ("spec", "backend"),
    [
        (PCGRAD, "aot_eager"),
        ("cagrad(wrt=parameters)", "aot_eager"),
        ("uw+pcgrad(wrt=parameters)", "aot_eager"),
        pytest.param(PCGRAD, "inductor", marks=pytest.mark.slow),  # quick ones: test_compiled.py
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_a_compiled_network_equals_eager(spec, inside, backend):
    if backend == "inductor" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("inductor needs a C++ compiler")
    torch._dynamo.reset()
    net, xs = OneHead(), batches(3)
    twin = copy.deepcopy(net)
    method = mtlkit.create_method(spec, TASKS)
    other = copy.deepcopy(method)
    if inside:
        compiled = torch.compile(lambda x: other.total(targets_of(twin, x)), backend=backend)
    else:
        network = torch.compile(twin, backend=backend)

        def compiled(x: Tensor) -> Tensor:
            return other.total(targets_of(network, x))

    for x in xs:
        net.zero_grad()
        twin.zero_grad()
        method.total(targets_of(net, x)).backward()
        compiled(x).backward()
        torch.testing.assert_close(gradient_of(twin), gradient_of(net), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [SCALE, "moco(wrt=parameters)", "gradnorm(wrt=parameters)"])
def test_a_copy_is_independent(spec):
    net, xs = OneHead(), batches(3)
    model = nn.ModuleDict({"net": net, "method": mtlkit.create_method(spec, TASKS, shared=net)})
    pending = model["method"].total(targets_of(net, xs[0]))
    pending.backward()
    twin = copy.deepcopy(model)
    for x in xs[1:]:
        for each in (model, twin):
            each.zero_grad()
            each["method"].total(targets_of(each["net"], x)).backward()
        assert torch.equal(gradient_of(model["net"]), gradient_of(twin["net"]))
    before = copy.deepcopy(twin["method"].state_dict())
    model["method"].total(targets_of(net, xs[0])).backward()
    assert all(torch.equal(v, before[name]) for name, v in twin["method"].state_dict().items())


class _Mirror(GradientAggregator):
    """A part that forks: every other task sees the features with their sign changed."""

    name = "mirror"

    def fork(self, features: list[Tensor], *held: Tensor) -> list[list[Tensor]]:
        return [[z * (-1) ** k for z in features] for k in range(len(self.tasks))]

    def pull_back(self, grads, *held):
        return {k: [g * (-1) ** k for g in rows] for k, rows in grads.items()}


def test_a_merge_of_feature_gradients_without_a_fork_says_what_to_write():
    method = mtlkit.create_method("pcgrad", TASKS)
    with pytest.raises(UsageError, match=r"give the heads what method\(features\).*wrt=parameters"):
        method.total(targets_of(OneHead(), torch.randn(4, 2)))


def test_a_part_that_forks_without_a_fork_says_what_to_write():
    method = mtlkit.Method(_Mirror(TASKS))
    with pytest.raises(UsageError, match=r"mirror forks the features.*leave mirror out.*wrt=parameters"):
        method.total(targets_of(OneHead(), torch.randn(4, 2)))


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("spec", ["pcgrad", PCGRAD])
def test_differentiating_a_forked_prediction_says_what_to_write(spec, tasks):
    trunk, head = nn.Linear(2, 4), nn.Linear(4, 1)
    x = torch.randn(8, 2, requires_grad=True)
    views = mtlkit.create_method(spec, tasks)(torch.tanh(trunk(x)))
    with pytest.raises(UsageError, match=r"leave method\(features\) out.*wrt=parameters"):
        torch.autograd.grad(head(views[0]).sum(), x, create_graph=True)
    views = mtlkit.create_method(spec, tasks)(torch.tanh(trunk(x)))
    with pytest.raises(UsageError, match=r"leave method\(features\) out.*wrt=parameters"):
        torch.autograd.grad(sum(head(view).sum() for view in views), x, create_graph=True)
