"""The junction under everything that hooks into autograd."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mtlkit
from mtlkit.engine.features import flatten_features
from mtlkit.errors import UsageError
from tests.networks import SmallNet, train

COMPILED = ["sum", "scale", "pcgrad", "rotate+scale"]
SPECS = [
    "sum",
    "mean",
    "scale",
    "pcgrad",
    "graddrop",
    "mgda",
    "imtl_g",
    "gradnorm",
    "rotate+scale",
    "normalize+pcgrad",
]


def grads(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_heads_get_the_gradient_of_their_own_loss_untouched():
    net = SmallNet("scale")
    x = torch.randn(8, 4)
    net(x).backward()
    plain = SmallNet("sum")
    plain.load_state_dict(net.state_dict(), strict=False)
    plain(x).backward()
    for mine, theirs in zip(net.heads.parameters(), plain.heads.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_sum_of_two_tasks_is_autograd_without_mtlkit_bit_for_bit():
    # of three tasks, the order of the additions would decide the last bit
    net = SmallNet("sum", tasks=2)
    x = torch.randn(8, 4)
    net(x).backward()
    mine = grads(net)
    net.zero_grad()
    z = net.backbone(x)
    total = 0
    for k, head in enumerate(net.heads):
        target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
        total = total + ((head(z)[:, 0] - target) ** 2).sum() / len(x)
    total.backward()
    for left, right in zip(mine, grads(net), strict=True):
        assert torch.equal(left, right)


def test_nested_features_are_merged_jointly():
    method = mtlkit.create_method("mgda", 2)
    leaves = [torch.randn(3, 4, requires_grad=True), torch.randn(3, 2, 5, requires_grad=True)]
    features = {"deep": leaves[0], "skips": [leaves[1], (None,)]}
    forked = method(features)
    assert [set(view) for view in forked] == [{"deep", "skips"}] * 2
    assert forked[0]["skips"][1] == (None,)
    losses = [
        (view["deep"] * (k + 1)).sum() + (view["skips"][0] ** 2 * (1 - 2 * k)).sum()
        for k, view in enumerate(forked)
    ]
    method.total(losses).backward()
    rows = torch.stack(
        [
            torch.cat([torch.full((12,), k + 1.0), (2 * leaves[1].detach() * (1 - 2 * k)).flatten()])
            for k in range(2)
        ]
    )
    expected = mtlkit.create_method("mgda", 2).combine(rows)
    merged = torch.cat([leaf.grad.flatten() for leaf in leaves])
    torch.testing.assert_close(merged, expected)


def test_a_tensor_that_only_one_task_uses_counts_as_zero_for_the_others():
    method = mtlkit.create_method("imtl_g", 2)
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    (first, second) = method([a, b])
    method.total([first[0].sum(), (second[0] * second[1]).sum()]).backward()
    rows = torch.stack(
        [
            torch.cat([torch.ones(6), torch.zeros(6)]),
            torch.cat([b.detach().flatten(), a.detach().flatten()]),
        ]
    )
    expected = mtlkit.create_method("imtl_g", 2).combine(rows)
    torch.testing.assert_close(torch.cat([a.grad.flatten(), b.grad.flatten()]), expected)


def test_unused_and_integer_leaves_pass_through():
    method = mtlkit.create_method("pcgrad", 2)
    z, index = torch.randn(4, 3, requires_grad=True), torch.arange(4)
    unused = torch.randn(2, requires_grad=True)
    forked = method({"z": z, "index": index, "unused": unused})
    assert torch.equal(forked[1]["index"], index)
    method.total([view["z"].sum() * (k + 1) for k, view in enumerate(forked)]).backward()
    assert torch.equal(z.grad, torch.full((4, 3), 3.0))
    assert unused.grad is None


def test_named_tuples_and_order_survive_flattening():
    from collections import namedtuple

    Pair = namedtuple("Pair", "left right")
    features = Pair(torch.zeros(1), [torch.ones(1), {"x": torch.full((1,), 2.0)}])
    leaves, rebuild = flatten_features(features)
    assert [float(leaf) for leaf in leaves] == [0, 1, 2]
    again = rebuild(leaves)
    assert isinstance(again, Pair)
    assert again.right[1]["x"] is features.right[1]["x"]


@pytest.mark.parametrize("spec", ["pcgrad", "mgda", "imtl_g", "scale", "rotate+pcgrad"])
@pytest.mark.parametrize("given", ["module", "parameters", "found"])
def test_rows_with_respect_to_parameters_are_those_of_one_backward_per_loss(spec, given):
    net = SmallNet(f"{spec}(wrt=parameters)").double()
    if given == "module":
        net.method.set_shared(net.backbone)
    elif given == "parameters":
        net.method.set_shared(net.backbone.parameters())
    x = torch.randn(8, 4, dtype=torch.float64)
    parameters = list(net.backbone.parameters())
    net.method.eval()
    losses = net.losses(x)
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)])
            for loss in losses
        ]
    )
    net.method.train()
    net(x).backward()
    expected = mtlkit.create_method(spec.split("+")[-1], 3).combine(rows)
    merged = torch.cat([p.grad.flatten() for p in parameters])
    torch.testing.assert_close(merged, expected)
    norms = net.method.stats.norms
    torch.testing.assert_close(norms, rows.norm(dim=1).to(norms.dtype))


@pytest.mark.parametrize("spec", ["adatask", "mgda(wrt=parameters)", "moco(wrt=parameters)"])
def test_leaf_tensors_are_merged_where_no_parameter_lies_below_the_features(spec):
    rows = torch.randn(2, 6)
    z = torch.randn(6, requires_grad=True)
    method = mtlkit.create_method(spec, 2)
    method.total([row @ view for row, view in zip(rows, method(z), strict=True)]).backward()
    torch.testing.assert_close(z.grad, mtlkit.create_method(spec, 2).combine(rows))


def test_parameters_below_the_features_but_not_shared_still_get_a_gradient():
    net = SmallNet("pcgrad(wrt=parameters)").double()
    stem = nn.Linear(4, 4).double()
    net.method.set_shared(net.backbone)
    x = torch.randn(8, 4, dtype=torch.float64)
    net(stem(x)).backward()
    assert stem.weight.grad.abs().sum() > 0
    weights = net.method.stats.weights.double()
    backbone_gradient = net.backbone[0].weight.grad.clone()
    net.zero_grad()
    net.method.eval()
    losses = net.losses(stem(x))
    shared = list(net.backbone.parameters())
    rows = [torch.autograd.grad(loss, shared[0], retain_graph=True)[0] for loss in losses]
    expected = sum(w * row for w, row in zip(weights, rows, strict=True))
    torch.testing.assert_close(backbone_gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("spec", ["pcgrad", "mgda", "scale", "gradnorm"])
def test_a_batch_of_a_task_that_reaches_no_shared_parameter_is_a_step(spec):
    shared, other = nn.Linear(4, 4), nn.Linear(4, 4)
    method = mtlkit.create_method(f"{spec}(wrt=parameters)", 2, shared=shared)
    for present in ((0, 1), (1,)):
        x = torch.randn(8, 4)
        (first, _), (_, second) = method([shared(x), other(x)])
        losses = [first.square().mean(), second.square().mean()]
        method.total([losses[k] if k in present else None for k in (0, 1)]).backward()
    assert shared.weight.grad.isfinite().all()
    assert other.weight.grad.isfinite().all()


def test_whole_gradient_merges_need_all_parameters_in_shared():
    net = SmallNet("graddrop(wrt=parameters)")
    stem = nn.Linear(4, 4)
    net.method.set_shared(net.backbone)
    with pytest.raises(mtlkit.MtlkitError, match="pass the whole backbone as shared"):
        net(stem(torch.randn(8, 4))).backward()


@pytest.mark.parametrize("spec", SPECS)
def test_eval_and_no_grad_cost_nothing_and_change_nothing(spec):
    net = train(SmallNet(spec), [torch.randn(8, 4) for _ in range(2)])
    before = copy.deepcopy(net.method.state_dict())
    with torch.no_grad():
        net(torch.randn(8, 4))
    net.eval()
    total = net(torch.randn(8, 4))
    nodes, stack = set(), [total.grad_fn]
    while stack:
        node = stack.pop()
        nodes.add(type(node).__name__)
        stack += [n for n, _ in node.next_functions if n is not None]
    assert not any("Junction" in name for name in nodes)
    after = net.method.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)


# adatask is a method of the shared parameters alone, and here there are none
@pytest.mark.parametrize("spec", sorted({*mtlkit.list_methods(), "uw+pcgrad"} - {"adatask"}))
def test_heads_on_a_frozen_backbone_train_with_any_method(spec):
    net = SmallNet(spec)
    net.backbone.requires_grad_(False)
    for _ in range(2):
        net(torch.randn(8, 4)).backward()
    assert all(p.grad.abs().sum() > 0 for p in net.heads.parameters())


def test_features_of_a_frozen_backbone_still_train_the_rotations():
    net = SmallNet("rotate+scale")
    net.backbone.requires_grad_(False)
    net(torch.randn(8, 4)).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.method.parameters())


@pytest.mark.parametrize("spec", SPECS)
def test_a_scaled_loss_gives_the_scaled_gradient(spec):
    """So GradScaler and accumulation change neither weights nor state."""
    x = torch.randn(8, 4)
    plain, scaled = SmallNet(spec), SmallNet(spec)
    scaled.load_state_dict(plain.state_dict())
    for _ in range(3):
        for net, factor in ((plain, 1.0), (scaled, 1024.0)):
            net.zero_grad()
            (net(x) * factor).backward()
        for left, right in zip(grads(plain), grads(scaled), strict=True):
            torch.testing.assert_close(left * 1024, right, rtol=1e-4, atol=1e-4)
    for key, value in plain.method.state_dict().items():
        torch.testing.assert_close(value, scaled.method.state_dict()[key], rtol=1e-4, atol=1e-5)
    left, right = plain.method.stats, scaled.method.stats
    torch.testing.assert_close(left.norms, right.norms, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_grad_scaler_skips_an_overflow_and_keeps_the_state(spec):
    net = SmallNet(spec)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.randn(8, 4)

    def step(poison: float) -> None:
        optimizer.zero_grad()
        losses = net.losses(x)
        scaler.scale(net.method.total([losses[0] * poison, *losses[1:]])).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    net.method(net.backbone(x))  # brings the rotations to where the optimizer moved them
    before = copy.deepcopy(net.state_dict())
    step(float("inf"))
    after = net.state_dict()
    # the loss part has seen an infinite loss and must not have kept it either
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", SPECS)
def test_autocast_merges_in_single_precision(spec, dtype):
    net, x = SmallNet(spec), torch.randn(8, 4)
    full = copy.deepcopy(net)
    with torch.autocast("cpu", dtype=dtype):
        total = net(x)
    total.backward()
    full(x).backward()
    assert net.method.stats.norms.dtype == torch.float32
    # the activations are rounded, the merge is not
    torch.testing.assert_close(net.method.stats.norms, full.method.stats.norms, rtol=3e-3, atol=0)
    for rounded, exact in zip(grads(net), grads(full), strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.02 * float(exact.abs().max()))


@pytest.mark.parametrize("spec", ["imtl_g", "aligned_mtl", "config", "pcgrad(wrt=parameters)"])
def test_a_backward_within_autocast_merges_in_single_precision_too(spec):
    inside, x = SmallNet(spec), torch.randn(8, 4)
    outside = copy.deepcopy(inside)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = outside(x)
        inside(x).backward()
    total.backward()
    torch.testing.assert_close(inside.method.stats.norms, outside.method.stats.norms, rtol=1e-2, atol=0)
    rows = torch.randn(3, 50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        merged = mtlkit.create_method(spec, 3).combine(rows)
    assert torch.equal(merged, mtlkit.create_method(spec, 3).combine(rows))


def test_a_feature_without_gradient_takes_no_part_in_the_merge():
    frozen = torch.tensor([[1.0, -1.0]])
    for spec in ("pcgrad", "pcgrad(wrt=parameters)", "rotograd"):
        method = mtlkit.create_method(spec, 2, feature_dim=2)
        weight = torch.nn.Parameter(torch.ones(1, 2))
        first, second = method([weight * 1.0, frozen])
        losses = [first[0].sum() + 100 * first[1].sum(), second[0].sum() - 100 * second[1].sum()]
        method.total(losses).backward()
        assert weight.grad is not None
        if spec != "rotograd":  # a rotated view does depend on something that learns
            torch.testing.assert_close(method.stats.cosines, torch.ones(2, 2))
            torch.testing.assert_close(weight.grad, torch.full((1, 2), 2.0))


@pytest.mark.parametrize("spec", ["scale", "gradnorm", "rotate+scale", "normalize+pcgrad"])
def test_half_precision_models_keep_the_methods_state_in_single_precision(spec):
    method = SmallNet(spec).to(torch.bfloat16).method
    state = [t for t in method.state_dict().values() if t.is_floating_point()]
    assert state
    assert all(t.dtype in (torch.float32, torch.float64) for t in state)


@pytest.mark.parametrize("spec", SPECS)
def test_checkpointing_equals_storing_the_activations(spec):
    xs = [torch.randn(8, 4) for _ in range(3)]
    stored = SmallNet(spec)
    recomputed = copy.deepcopy(stored)
    inner = recomputed.backbone
    recomputed.backbone = _Checkpointed(inner)
    train(stored, xs)
    train(recomputed, xs)
    for left, right in zip(stored.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(left, right)


class _Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("spec", SPECS)
def test_a_checkpoint_around_the_junction_itself_changes_nothing(spec):
    xs = [torch.randn(8, 4) for _ in range(3)]
    stored = SmallNet(spec)
    recomputed = copy.deepcopy(stored)
    optimizer = torch.optim.SGD(recomputed.parameters(), lr=0.02, momentum=0.5)
    train(stored, xs)

    def forward(x):
        features = recomputed.method(recomputed.backbone(x))
        return [head(z) for head, z in zip(recomputed.heads, features, strict=True)]

    for x in xs:
        optimizer.zero_grad()
        outputs = checkpoint(forward, x, use_reentrant=False)
        losses = []
        for k, output in enumerate(outputs):
            target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
            losses.append(((output[:, 0] - target) ** 2).sum() / len(x))
        recomputed.method.total(losses).backward()
        optimizer.step()
    for left, right in zip(stored.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "uw+mgda"])
def test_a_checkpoint_around_the_whole_forward_with_its_total_changes_nothing(spec):
    xs = [torch.randn(8, 4) for _ in range(3)]
    stored = SmallNet(spec)
    recomputed = copy.deepcopy(stored)
    train(stored, xs)
    optimizer = torch.optim.SGD(recomputed.parameters(), lr=0.02, momentum=0.5)
    for x in xs:
        optimizer.zero_grad()
        checkpoint(recomputed, x, use_reentrant=False).backward()
        optimizer.step()
    for left, right in zip(stored.parameters(), recomputed.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_checkpoint_around_a_total_that_remembers_losses_is_refused():
    net = SmallNet("dwa+pcgrad")
    total = checkpoint(net, torch.randn(8, 4), use_reentrant=False)
    with pytest.raises(UsageError, match="call total outside of the checkpoint"):
        total.backward()


@pytest.mark.parametrize("spec", COMPILED)
def test_a_full_graph_compiles_and_equals_eager(spec):
    torch.compiler.reset()
    xs = [torch.randn(8, 4) for _ in range(4)]
    eager = SmallNet(spec)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(other.parameters(), lr=0.02, momentum=0.5)
    train(eager, xs)
    for x in xs:
        optimizer.zero_grad()
        compiled(x).backward()
        optimizer.step()
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    for left, right in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, **tolerance)
    if "rotate" in spec:
        torch.testing.assert_close(eager.method.rotations, other.method.rotations, **tolerance)
    assert torch.equal(eager.method.stats.weights > 0, other.method.stats.weights > 0)
    torch.testing.assert_close(eager.method.stats.norms, other.method.stats.norms, **tolerance)
    torch.testing.assert_close(eager.method.stats.losses, other.method.stats.losses, **tolerance)


def test_stats_of_a_compiled_step_replace_those_of_an_eager_one():
    torch.compiler.reset()
    net = SmallNet("scale")
    net(torch.randn(8, 4)).backward()
    eager = net.method.stats
    x = torch.randn(8, 4) * 3
    twin = copy.deepcopy(net)
    torch.compile(net, fullgraph=True, backend="aot_eager")(x).backward()
    twin(x).backward()
    assert not torch.allclose(net.method.stats.norms, eager.norms)
    for name, value in twin.method.stats.items():
        torch.testing.assert_close(net.method.stats[name], value)


class _Predictions(nn.Module):
    def __init__(self, net: SmallNet):
        super().__init__()
        self.net = net

    def forward(self, x):
        features = self.net.method(self.net.backbone(x))
        return [head(z) for head, z in zip(self.net.heads, features, strict=True)]


@pytest.mark.parametrize("spec", COMPILED)
def test_the_total_may_be_taken_outside_of_the_compiled_network(spec):
    torch.compiler.reset()
    eager = SmallNet(spec)
    other = copy.deepcopy(eager)
    compiled = torch.compile(_Predictions(other), fullgraph=True, backend="aot_eager")
    for net, forward in ((eager, _Predictions(eager)), (other, compiled)):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            outputs = forward(torch.randn(8, 4, generator=generator))
            optimizer.zero_grad()
            net.method.total([(y - k).square().mean() for k, y in enumerate(outputs)]).backward()
            optimizer.step()
    for left, right in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["mgda", "gradnorm", "pcgrad(wrt=parameters)", "normalize+imtl_g"])
def test_where_the_graph_breaks_compiling_still_gives_the_same(spec):
    torch.compiler.reset()
    xs = [torch.randn(8, 4) for _ in range(3)]
    eager = SmallNet(spec)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, backend="aot_eager")
    optimizer = torch.optim.SGD(other.parameters(), lr=0.02, momentum=0.5)
    train(eager, xs)
    for x in xs:
        optimizer.zero_grad()
        compiled(x).backward()
        optimizer.step()
    for left, right in zip(eager.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", [lambda z, other: z, lambda z, other: [other, z]])
def test_a_fork_that_begins_a_graph_is_compiled_once(given):
    torch.compiler.reset()
    method = mtlkit.create_method("rotograd", 2, feature_dim=6)
    compiled = torch.compile(method, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            compiled(given(torch.randn(8, 6, requires_grad=True), torch.randn(8, 6)))


@pytest.mark.parametrize("spec", ["sum", "mean", "gradnorm"])
def test_accumulated_gradients_are_the_sum_of_the_steps(spec):
    net = SmallNet(spec)
    xs = [torch.randn(8, 4) for _ in range(3)]
    for x in xs:
        (net(x) / 3).backward()
    accumulated = [p.grad.clone() for p in net.backbone.parameters()]
    singles = [torch.zeros_like(g) for g in accumulated]
    for x in xs:
        net.zero_grad()
        (net(x) / 3).backward()
        singles = [s + p.grad for s, p in zip(singles, net.backbone.parameters(), strict=True)]
    for left, right in zip(accumulated, singles, strict=True):
        torch.testing.assert_close(left, right)


def test_one_nan_task_does_not_poison_the_rows_of_the_others():
    net = SmallNet("sum")
    losses = net.losses(torch.randn(8, 4))
    total = net.method.total([losses[0] * float("nan"), losses[1], losses[2]])
    total.backward()
    assert torch.isfinite(net.heads[1].weight.grad).all()
    norms = net.method.stats.norms
    assert torch.isnan(norms[0])
    assert torch.isfinite(norms[1:]).all()


def test_stats_are_none_before_the_first_step_and_then_describe_it():
    method = mtlkit.create_method("sum", ("a", "b"))
    assert method.stats is None
    z = torch.zeros(1, 2, requires_grad=True)
    first, second = method(z)
    method.total({"a": 3 * first[0, 0], "b": -4 * second[0, 0] + 3 * second[0, 1]}).backward()
    stats = method.stats
    torch.testing.assert_close(stats.norms, torch.tensor([3.0, 5.0]))
    torch.testing.assert_close(stats.cosines, torch.tensor([[1.0, -0.8], [-0.8, 1.0]]))
    torch.testing.assert_close(stats.weights, torch.ones(2))
    merged = torch.tensor([-1.0, 3.0])
    expected = torch.stack([-1 / merged.norm(), 13 / 5 / merged.norm()])
    torch.testing.assert_close(stats.update_cosines, expected)
    torch.testing.assert_close(stats["losses"], torch.zeros(2))
    assert stats.conflict == 1.0


def test_stats_are_none_after_a_step_that_merged_nothing():
    method = mtlkit.create_method("pcgrad(wrt=parameters)", 2)
    weight = torch.ones(3, requires_grad=True)
    method.total([weight.square().sum(), weight.sum()]).backward()
    assert method.stats is not None
    method.total([weight.square().sum(), None]).backward()
    assert method.stats is None


def test_stats_mark_absent_tasks():
    method = mtlkit.create_method("scale", 3)
    z = torch.randn(2, 3, requires_grad=True)
    first, _, third = method(z)
    method.total([first.sum(), None, third.square().sum()]).backward()
    stats = method.stats
    assert torch.isnan(stats.norms[1])
    assert torch.isnan(stats.weights[1])
    assert torch.isnan(stats.losses[1])
    assert torch.isfinite(stats.update_cosines[[0, 2]]).all()


@pytest.mark.parametrize("spec", SPECS)
def test_a_method_can_be_copied_and_pickled_in_the_middle_of_a_step(spec):
    net = train(SmallNet(spec), [torch.randn(8, 4)])
    net.method(net.backbone(torch.randn(8, 4)))
    twin = copy.deepcopy(net)
    again = pickle.loads(pickle.dumps(net.method))
    assert str(again) == str(twin.method) == str(net.method)
    state = net.method.state_dict()
    assert all(torch.equal(value, twin.method.state_dict()[key]) for key, value in state.items())
    train(twin, [torch.randn(8, 4)])


def test_a_head_that_changes_its_features_in_place_is_refused():
    method = mtlkit.create_method("pcgrad", 2)
    first, _ = method(torch.randn(3, 2, requires_grad=True).sin())
    with pytest.raises(RuntimeError, match="inplace"):
        first.relu_()


def test_a_tensor_that_one_task_alone_reads_gets_the_gradient_of_that_task():
    shared = [torch.randn(6, 4, requires_grad=True) for _ in range(2)]
    method = mtlkit.create_method("sum", 2)
    first, second = method([leaf * 1.0 for leaf in shared])
    losses = [(first[0] * 2 + first[1]).square().sum(), second[1].square().sum()]
    method.total(losses).backward()
    one, two = (leaf.detach() for leaf in shared)
    torch.testing.assert_close(shared[0].grad, 4 * (2 * one + two))
    torch.testing.assert_close(shared[1].grad, 2 * (2 * one + two) + 2 * two)
    norms = torch.stack([(20 * (2 * one + two).square().sum()).sqrt(), (2 * two).norm()])
    torch.testing.assert_close(method.stats.norms, norms)
