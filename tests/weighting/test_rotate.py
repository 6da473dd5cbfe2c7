"""RotoGrad: the algorithm, the manifold, every option, copies and saved states."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import mtlkit
from mtlkit.config.registry import methods
from mtlkit.errors import SpecError, UsageError
from tests.networks import SmallNet, train
from tests.rotations.checks import assert_rotations
from tests.weighting.algorithm1 import Algorithm1


def rotate_part(method: mtlkit.GradientAggregator):
    return next(part for part in method.parts if "fork" in part.roles)


def batches(count: int, size: int = 8, inputs: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, inputs, generator=generator) for _ in range(count)]


def split_sgd(net: nn.Module, lr: float = 0.05, method_lr: float = 0.02) -> torch.optim.SGD:
    return torch.optim.SGD(mtlkit.param_groups(net, lr=lr, method_lr=method_lr))


# the algorithm


@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("size", [None, 4])
def test_thirty_steps_are_those_of_algorithm_1(tasks: int, size: int | None) -> None:
    inputs, width, features, batch, rate, rotation_rate = 4, 9, 7, 6, 0.05, 0.4
    torch.manual_seed(tasks)
    backbone = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, features))
    heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(tasks))
    spec = f"rotate(size={size or features}, fold_every=1)+scale"
    method = mtlkit.create_method(spec, tasks, feature_dim=features)
    modules = [backbone, heads, method]
    groups = [{"params": [*backbone.parameters(), *heads.parameters()], "lr": rate}]
    groups.append({"params": list(method.parameters()), "lr": rotation_rate})
    for module in modules:
        module.double()
    optimizer = torch.optim.SGD(groups)
    reference = Algorithm1(
        *(p.detach().numpy() for p in backbone.parameters()),
        heads=[head.weight.detach().numpy()[0] for head in heads],
        biases=[head.bias.item() for head in heads],
        size=size or features,
        rate=rate,
        rotation_rate=rotation_rate,
    )
    random = np.random.default_rng(0)
    for _ in range(30):
        X = random.normal(size=(batch, inputs))
        Y = np.sin(X @ random.normal(size=(inputs, tasks)))
        expected = reference.step(X, Y)
        x, y = torch.from_numpy(X), torch.from_numpy(Y)
        views = method(backbone(x))
        losses = [
            ((head(view)[:, 0] - y[:, k]) ** 2).mean()
            for k, (head, view) in enumerate(zip(heads, views, strict=True))
        ]
        assert np.allclose([loss.item() for loss in losses], expected, atol=1e-5)
        optimizer.zero_grad()
        method.total(losses).backward()
        optimizer.step()
    rotations = np.stack(reference.rotations)
    assert np.abs(rotations - np.eye(size or features)).max() > 1e-2, "nothing has rotated"
    assert np.abs(method.rotations.numpy() - rotations).max() < 1e-5
    ours = [p.detach().numpy() for p in backbone.parameters()]
    theirs = [reference.W1, reference.b1, reference.W2, reference.b2]
    for mine, its in zip(ours, theirs, strict=True):
        assert np.abs(mine - its).max() < 1e-5
    for head, weight in zip(heads, reference.heads, strict=True):
        assert np.abs(head.weight.detach().numpy()[0] - weight).max() < 1e-5


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("batch", "side"), [(5, 6), (1, 64)])  # one sample turns few planes far
def test_an_sgd_step_is_the_exponential_of_the_skew_gradient(blocks, batch: int, side: int) -> None:
    rate, half = 0.3 * 6 / side, side // 2
    method = mtlkit.create_method(f"rotate(blocks={blocks}, fold_every=1)", 2, feature_dim=side).double()
    optimizer = torch.optim.SGD(method.parameters(), lr=rate)
    for _ in range(3):  # away from the identity
        z = torch.randn(batch, side, dtype=torch.float64, requires_grad=True)
        heads = torch.randn(2, side, dtype=torch.float64)
        before = method.rotations
        views = method(z)
        gradients = []
        for view in views:
            view.retain_grad()
        losses = [(view @ head).square().mean() for view, head in zip(views, heads, strict=True)]
        optimizer.zero_grad()
        method.total(losses).backward()
        optimizer.step()
        gradients = [view.grad for view in views]
        G = [gradient @ R for gradient, R in zip(gradients, before, strict=True)]
        V = sum(g / g.norm() for g in G) / 2
        expected = []
        for gradient, R in zip(gradients, before, strict=True):
            E = -gradient.T @ V
            A = R.T @ E - E.T @ R
            if blocks == 2:
                A[:half, half:] = A[half:, :half] = 0
            expected.append(R @ torch.linalg.matrix_exp(-rate * A))
        assert (method.rotations - torch.stack(expected)).abs().max() < 1e-10


def run_param(param: str, rate: float, steps: int, move_base: bool) -> Tensor:
    torch.manual_seed(5)
    net = SmallNet(f"rotate(backend={param}, fold_every=1)+scale").double()
    optimizer = split_sgd(net, lr=0.02, method_lr=rate)
    for x in batches(steps):
        if move_base:
            for frame in rotate_part(net.method).rotation.frames:
                frame.weight = frame.weight.detach()
        optimizer.zero_grad()
        net(x.double()).backward()
        optimizer.step()
    return net.method.rotations


@pytest.mark.filterwarnings("ignore:the rotations' learning rate")
def test_lie_is_geotorch_whose_base_point_moves_before_every_step() -> None:
    ours = run_param("lie", 0.05, 50, move_base=False)
    theirs = run_param("geotorch", 0.05, 50, move_base=True)
    assert (ours - torch.eye(6)).abs().max() > 0.1
    assert (ours - theirs).abs().max() < 1e-5


def test_lie_differs_from_geotorch_at_a_fixed_base_point_at_second_order_of_the_rate() -> None:
    rates = [0.02, 0.01, 0.005]
    differences = [
        float((run_param("lie", rate, 6, False) - run_param("geotorch", rate, 6, False)).abs().max())
        for rate in rates
    ]
    assert differences[-1] > 1e-9
    # the base point enters by commutators of moves, so second order at most; a factor 4 per halving
    assert differences[0] / differences[1] > 3.3
    assert differences[1] / differences[2] > 3.3


@pytest.mark.parametrize("name", ["rotograd", "rotate_only", "scale_only"])
def test_aliases_are_sums_of_parts(name: str) -> None:
    spec = {"rotograd": "rotate+scale", "rotate_only": "rotate+sum", "scale_only": "scale"}[name]
    nets = []
    for given in (name, spec):
        torch.manual_seed(0)
        nets.append(train(SmallNet(given), batches(5)))
    for mine, its in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(mine, its)


def merges_and_losses() -> tuple[list[str], list[str]]:
    merges, losses = [], []
    for name in mtlkit.list_methods():
        if name in methods.aliases():
            continue
        roles = methods.get(name).roles
        if "merge" in roles:
            merges.append(name)
        elif "loss" in roles:
            losses.append(name)
    return merges, losses


@pytest.mark.parametrize("merge", merges_and_losses()[0])
def test_rotations_go_together_with_every_merge(merge: str) -> None:
    net = train(SmallNet(f"rotate+{merge}"), batches(10))
    assert_rotations(net.method.rotations)
    assert (net.method.rotations - torch.eye(6)).abs().max() > 1e-4
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.parametrize("loss", merges_and_losses()[1])
def test_rotations_go_together_with_every_way_to_weigh_losses(loss: str) -> None:
    net = train(SmallNet(f"{loss}+rotate+scale"), batches(10))
    assert_rotations(net.method.rotations)
    assert (net.method.rotations - torch.eye(6)).abs().max() > 1e-5


def test_the_merge_gets_gradients_that_are_turned_back() -> None:
    """With rotations held still, rotate+pcgrad is pcgrad on the features themselves."""
    rotations = torch.linalg.qr(torch.randn(2, 6, 6, dtype=torch.float64))[0]
    rotations[:, 0] *= torch.linalg.det(rotations)[:, None]
    method = mtlkit.create_method("rotate+pcgrad", 2, feature_dim=6).double()
    rotate_part(method).rotation.base.copy_(rotations)
    plain = mtlkit.create_method("pcgrad", 2)
    z = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    views = method(z)
    method.total([views[0].pow(3).sum(), (views[1] - 1).pow(2).sum()]).backward()
    rows = [
        torch.autograd.grad(loss, z)[0].flatten()
        for loss in ((z @ rotations[0].T).pow(3).sum(), (z @ rotations[1].T - 1).pow(2).sum())
    ]
    assert torch.allclose(z.grad.flatten(), plain.combine(torch.stack(rows)), atol=1e-12)


def test_rotations_may_start_at_random() -> None:
    specs = ["rotate(start=random)+scale", "rotate(start=random, seed=0)+scale"]
    specs += ["rotate(start=random, backend=geotorch)+scale", "rotate(start=random, seed=1)+scale"]
    state = torch.get_rng_state()
    same, again, reference, other = (
        mtlkit.create_method(spec, 3, feature_dim=6).rotations for spec in specs
    )
    assert torch.equal(state, torch.get_rng_state())
    assert_rotations(same)
    assert torch.equal(same, again)
    assert torch.allclose(same, reference, atol=1e-5)
    for one, two in ((same[0], torch.eye(6)), (same[0], same[1]), (same, other)):
        assert (one - two).abs().max() > 0.1
    net = train(SmallNet("rotate(start=random, blocks=2)+scale"), batches(5))
    assert_rotations(net.method.rotations)
    assert (net.method.rotations[:, :3, :3] - torch.eye(3)).abs().max() > 0.1
    assert "start=random" in str(net.method)


# the manifold


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


def move_at_random(method, optimizer, steps: int, side: int, batch: int = 3) -> None:
    """Train on random task gradients, so that the rotations never converge."""
    for _ in range(steps):
        z = torch.randn(batch, side)
        targets = torch.randn(len(method.tasks), batch, side)
        views = method(z.requires_grad_())
        optimizer.zero_grad()
        method.total([(v * t).sum() for v, t in zip(views, targets, strict=True)]).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "optimizer",
    ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS if name != "adam")],
)
def test_rotations_stay_on_the_manifold_for_ten_thousand_steps(optimizer: str) -> None:
    method = mtlkit.create_method("rotograd(fold_every=1)", 2, feature_dim=5)
    moving = OPTIMIZERS[optimizer](method.parameters())
    move_at_random(method, moving, 50, 5)
    rotations = rotate_part(method).rotation
    for _ in range(10_000):
        for lie in method.parameters():
            lie.grad = 0.1 * torch.randn_like(lie)
        moving.step()
        rotations.fold()
    assert rotations.folds >= 10_000
    assert_rotations(method.rotations)


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 256])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_large_rotations_stay_on_the_manifold_for_ten_thousand_steps(optimizer: str, side: int) -> None:
    method = mtlkit.create_method("rotograd", 2, feature_dim=side)
    move_at_random(method, OPTIMIZERS[optimizer](method.parameters()), 10_000, side)
    assert_rotations(method.rotations)


def test_an_optimizer_that_breaks_the_symmetry_leaves_the_rotations_orthogonal() -> None:
    method = mtlkit.create_method("rotograd", 2, feature_dim=12)
    optimizer = torch.optim.Adafactor(method.parameters(), lr=0.05)
    move_at_random(method, optimizer, 50, 12)
    with torch.no_grad():
        for lie in method.parameters():
            lie.add_(torch.randn_like(lie) * 0.1)
    assert_rotations(method.rotations)


def test_a_move_that_is_not_finite_is_not_applied_and_others_are() -> None:
    method = mtlkit.create_method("rotograd(fold_every=1)", 2, feature_dim=4)
    move_at_random(method, torch.optim.SGD(method.parameters(), lr=0.1), 3, 4)
    rotate_part(method).rotation.fold()  # else the move of the last step would be lost
    before = method.rotations
    with torch.no_grad():
        next(method.parameters()).fill_(torch.nan)
    assert torch.allclose(method.rotations, before, atol=1e-6)
    with pytest.warns(RuntimeWarning, match="not finite"):
        move_at_random(method, torch.optim.SGD(method.parameters(), lr=0.1), 16, 4)
    assert_rotations(method.rotations)
    assert torch.allclose(method.rotations[0], before[0], atol=1e-6)
    assert (method.rotations[1] - before[1]).abs().max() > 1e-2


def test_rotations_stay_float32_under_bf16_autocast() -> None:
    net = SmallNet("rotograd")
    optimizer = torch.optim.RAdam(mtlkit.param_groups(net, lr=0.01))
    for x in batches(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(x)
        loss.backward()
        optimizer.step()
    assert net.method.rotations.dtype == torch.float32
    assert_rotations(net.method.rotations)
    assert (net.method.rotations - torch.eye(6)).abs().max() > 1e-3


def test_rotations_stay_float32_in_a_bf16_model() -> None:
    net = SmallNet("rotograd").to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in batches(30):
        optimizer.zero_grad()
        net(x.to(torch.bfloat16)).backward()
        optimizer.step()
    assert all(p.dtype == torch.float32 for p in net.method.parameters())
    assert net.method.rotations.dtype == torch.float32
    assert next(net.backbone.parameters()).dtype == torch.bfloat16
    assert_rotations(net.method.rotations)
    assert (net.method.rotations - torch.eye(6)).abs().max() > 1e-3


def test_state_is_two_matrices_per_task_and_counters() -> None:
    tasks, side = 3, 16
    method = mtlkit.create_method("rotograd", tasks, feature_dim=side)
    move_at_random(method, torch.optim.SGD(method.parameters(), lr=0.1), 2, side)
    owned = [*method.parameters(), *method.buffers()]
    numbers = sum(tensor.numel() for tensor in owned)
    assert numbers <= tasks * 2 * side**2 + 40 * tasks + 5 * tasks**2
    blocked = mtlkit.create_method("rotate(blocks=4)", tasks, feature_dim=side)
    matrices = [t.numel() for t in (*blocked.parameters(), *blocked.buffers()) if t.dim() > 2]
    assert sum(matrices) == tasks * 2 * side**2 // 4


def test_a_method_keeps_no_large_tensor_but_its_state() -> None:
    """No copy of the gradients or of the rotations, and nothing of a graph, after a step."""
    side = 32
    method = mtlkit.create_method("rotograd", 2, feature_dim=side)
    move_at_random(method, torch.optim.SGD(method.parameters(), lr=0.1), 3, side)
    known = {id(tensor) for tensor in (*method.parameters(), *method.buffers())}
    held, seen = [method], {id(method)}
    while held:
        for value in gc.get_referents(held.pop()):
            if id(value) in seen or isinstance(value, type | ModuleType):
                continue
            seen.add(id(value))
            value = value.__closure__ if isinstance(value, FunctionType) else value  # not its globals
            if isinstance(value, Tensor):
                assert id(value) in known or value.numel() < side, value.shape
            elif isinstance(value, dict | list | tuple) or hasattr(value, "__dict__"):
                held.append(value)
    assert known <= seen


# options


def rotated(method, z: Tensor) -> list[Tensor]:
    method.eval()
    with torch.no_grad():
        views = method(z)
    method.train()
    return views


def turn_randomly(method) -> None:
    with torch.no_grad():
        for lie in method.parameters():
            lie.copy_(torch.randn_like(lie))


def test_a_subspace_is_rotated_and_the_other_features_pass() -> None:
    method = mtlkit.create_method("rotate(size=3)", 2, feature_dim=7)
    turn_randomly(method)
    z = torch.randn(5, 7)
    assert method.rotations.shape == (2, 3, 3)
    for view, R in zip(rotated(method, z), method.rotations, strict=True):
        assert torch.allclose(view[:, :3], z[:, :3] @ R.T, atol=1e-6)
        assert torch.equal(view[:, 3:], z[:, 3:])


def test_blocks_are_the_dense_block_diagonal_rotation() -> None:
    method = mtlkit.create_method("rotate(blocks=3)", 2, feature_dim=6)
    turn_randomly(method)
    z = torch.randn(5, 6)
    rotations = method.rotations
    assert rotations.shape == (2, 6, 6)
    assert rotations[:, :2, 2:].abs().max() == 0
    assert_rotations(rotations)
    for view, R in zip(rotated(method, z), rotations, strict=True):
        assert torch.allclose(view, z @ R.T, atol=1e-6)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("blocks", [1, 2])
def test_channels_are_rotated_alike_at_every_position(size: int | None, blocks: int) -> None:
    """dim=channel is dim=-1 with the channel axis moved last: views, merged gradient and rotations."""
    options = {"size": size, "blocks": blocks}
    images = mtlkit.create_method("rotate+scale", 2, feature_dim=6, dim="channel", **options)
    tokens = mtlkit.create_method("rotate+scale", 2, feature_dim=6, **options)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.3) for m in (images, tokens)]
    for _ in range(4):
        z, weights = torch.randn(3, 6, 4, 5), torch.randn(2, 3, 6, 4, 5)
        grads = []
        for method, optimizer, last in (
            (images, optimizers[0], False),
            (tokens, optimizers[1], True),
        ):
            given = (z.movedim(1, -1) if last else z).clone().requires_grad_()
            views = method(given)
            views = [view.movedim(-1, 1) if last else view for view in views]
            optimizer.zero_grad()
            losses = [(v * w).sin().sum() for v, w in zip(views, weights, strict=True)]
            method.total(losses).backward()
            optimizer.step()
            grads.append(given.grad.movedim(-1, 1) if last else given.grad)
        assert torch.allclose(grads[0], grads[1], atol=1e-5)
    side = size or 6
    assert (images.rotations - torch.eye(side)).abs().max() > 1e-3
    assert torch.allclose(images.rotations, tokens.rotations, atol=1e-5)


def test_tokens_are_rotated_on_the_last_axis_and_their_gradient_is_that_of_the_flat_batch() -> None:
    tokens = mtlkit.create_method("rotograd", 2, feature_dim=4)
    flat = mtlkit.create_method("rotograd", 2, feature_dim=4)
    for method, shape in ((tokens, (3, 5, 4)), (flat, (15, 4))):
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(method.parameters(), lr=0.3)
        for _ in range(3):
            z, weights = torch.randn(15, 4), torch.randn(2, 15, 4)
            views = method(z.reshape(shape).clone().requires_grad_())
            assert views[0].shape == shape
            losses = [(v.reshape(15, 4) * w).sin().sum() for v, w in zip(views, weights, strict=True)]
            optimizer.zero_grad()
            method.total(losses).backward()
            optimizer.step()
    assert torch.allclose(tokens.rotations, flat.rotations, atol=1e-6)


def test_flat_rotates_the_first_numbers_of_the_flattened_map() -> None:
    method = mtlkit.create_method("rotate(size=10, dim=flat)", 2)
    turn_randomly(method)
    z = torch.randn(3, 4, 2, 2)
    for view, R in zip(rotated(method, z), method.rotations, strict=True):
        expected = z.flatten(1).clone()
        expected[:, :10] = z.flatten(1)[:, :10] @ R.T
        assert torch.allclose(view.flatten(1), expected, atol=1e-6)
        assert view.shape == z.shape
    views = method(z.requires_grad_())
    method.total([views[0].sin().sum(), views[1].cos().sum()]).backward()
    assert all(p.grad.abs().sum() > 0 for p in method.parameters())


def test_between_updates_rotations_rest_and_have_no_gradient() -> None:
    net = SmallNet("rotate(update_every=3)+scale")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    moved, learned, graded = [], [], []
    for x in batches(9):
        before, lie = net.method.rotations, copy.deepcopy(list(net.method.parameters()))
        optimizer.zero_grad()
        net(x).backward()
        optimizer.step()
        moved.append(bool((before - net.method.rotations).abs().max() > 1e-5))
        learned.append(
            not all(torch.equal(*pair) for pair in zip(lie, net.method.parameters(), strict=True))
        )
        graded.append(all(p.grad is not None for p in net.method.parameters()))
    assert moved == learned == graded == [True, False, False] * 3


def test_burn_in_may_stand_at_either_part() -> None:
    nets = []
    for spec in ("rotate(burn_in=4)+scale", "rotate+scale(burn_in=4)", "rotate+scale"):
        torch.manual_seed(0)
        nets.append(train(SmallNet(spec), batches(8)).state_dict())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])
    assert any(not torch.equal(nets[0][key], nets[2][key]) for key in nets[0])


def test_a_chosen_leaf_of_nested_features_is_rotated() -> None:
    features = {"skips": [torch.randn(2, 3), torch.randn(2, 5)], "top": torch.randn(2, 3)}
    last = mtlkit.create_method("rotate", 2, feature_dim=3)
    middle = mtlkit.create_method("rotate(feature_index=1)", 2, feature_dim=5)
    for method in (last, middle):
        turn_randomly(method)
    for view, R in zip(rotated(last, features), last.rotations, strict=True):
        assert torch.equal(view["skips"][0], features["skips"][0])
        assert torch.equal(view["skips"][1], features["skips"][1])
        assert torch.allclose(view["top"], features["top"] @ R.T, atol=1e-6)
    for view, R in zip(rotated(middle, features), middle.rotations, strict=True):
        assert torch.equal(view["top"], features["top"])
        assert torch.allclose(view["skips"][1], features["skips"][1] @ R.T, atol=1e-6)


def test_nested_features_train_the_rotation_of_their_leaf() -> None:
    method = mtlkit.create_method("rotograd", 2, feature_dim=3)
    features = [torch.randn(4, 5, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    views = method(features)
    losses = [(v[0].sum() * (k + 1) + v[1].pow(2 + k).sum()) for k, v in enumerate(views)]
    method.total(losses).backward()
    assert all(p.grad.abs().sum() > 0 for p in method.parameters())
    assert all(f.grad is not None for f in features)


def test_a_rotation_of_an_absent_task_gets_no_gradient_and_stays() -> None:
    net = SmallNet("rotograd")
    labels = torch.tensor([[1, 1, 0]] * 8)
    train(net, [(x, labels) for x in batches(5)])
    assert torch.equal(net.method.rotations[2], torch.eye(6))
    assert (net.method.rotations[0] - torch.eye(6)).abs().max() > 1e-5


def test_with_an_absent_task_the_others_turn_as_without_it() -> None:
    gradients = []
    for tasks in (2, 3):
        method = mtlkit.create_method("rotograd", tasks, feature_dim=4)
        views = method(torch.linspace(-1, 1, 12).view(3, 4).requires_grad_())
        losses = [views[0].sin().sum(), views[1].exp().sum(), None]
        method.total(losses[:tasks]).backward()
        gradients.append([parameter.grad for parameter in [*method.parameters()][:2]])
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().sum() > 0 for gradient in gradients[0])


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_gradients_are_turned_back_by_the_rotations_of_their_own_tasks(absent: int) -> None:
    method = mtlkit.create_method("rotate(start=random)", 3, feature_dim=4)
    z = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    expected = z.detach().clone().requires_grad_()
    present = [k for k in range(3) if k != absent]
    sum((expected @ method.rotations[k].T).exp().sum() for k in present).backward()
    views = method(z)
    method.total([views[k].exp().sum() if k in present else None for k in range(3)]).backward()
    torch.testing.assert_close(z.grad, expected.grad)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("rotate", {}, "feature_dim"),
        ("rotate(size=0)", {"feature_dim": 4}, "size of rotate must be"),
        ("rotate(size=5)", {"feature_dim": 4}, "between 1 and"),
        ("rotate(blocks=3)", {"feature_dim": 4}, "divide"),
        ("rotate(blocks=0)", {"feature_dim": 4}, "blocks of rotate must be"),
        ("rotate(update_every=0)", {"feature_dim": 4}, "update_every"),
        ("rotate(burn_in=-1)+scale", {"feature_dim": 4}, "burn_in"),
        ("rotate(burn_in=3)+pcgrad", {"feature_dim": 4}, "burn_in"),
        ("rotate(burn_in=3)", {"feature_dim": 4}, "burn_in"),
        ("rotate(backend=cayley)", {"feature_dim": 4}, "backend"),
        ("rotate(start=zero)", {"feature_dim": 4}, "start"),
        ("rotate(dim=width)", {"feature_dim": 4}, "dim"),
        ("rotate(sizes=3)", {"feature_dim": 4}, "size"),
        ("rotate+rotate", {"feature_dim": 4}, "rotate"),
    ],
)
def test_a_wrong_option_is_refused_by_name(spec: str, options: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        mtlkit.create_method(spec, 2, **options)


@pytest.mark.parametrize(
    ("spec", "feature", "message"),
    [
        ("rotate", torch.randn(3, 5), "feature_dim=5"),
        ("rotate(size=4)", torch.randn(3, 2), "has 2"),
        ("rotate(dim=channel)", torch.randn(4), "cannot rotate"),
        ("rotate(dim=channel)", torch.randn(3, 5, 2, 2), "has 5"),
        ("rotate(dim=3)", torch.randn(3, 4), "dim=3"),
        ("rotate", torch.ones(3, 4, dtype=torch.long), "int64"),
        ("rotate(feature_index=2)", torch.randn(3, 4), "feature_index=2"),
    ],
)
def test_features_that_do_not_fit_are_refused_with_their_shape(spec, feature, message) -> None:
    method = mtlkit.create_method(spec, 2, feature_dim=4)
    with pytest.raises(UsageError, match=message):
        rotated(method, feature)


def test_options_survive_the_round_trip_through_the_string() -> None:
    spec = "rotate(size=4, blocks=2, dim=channel, update_every=2, feature_index=0)+scale(burn_in=20)"
    method = mtlkit.create_method(spec, 2, feature_dim=6)
    again = mtlkit.create_method(str(method), 2, feature_dim=6)
    assert str(again) == str(method)
    assert rotate_part(again).blocks == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own access
@pytest.mark.parametrize(
    "spec",
    [
        "rotate(update_every=2)+scale",
        pytest.param("rotograd", marks=pytest.mark.slow),
        pytest.param("rotate(blocks=2)", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_net_takes_the_same_steps(spec: str) -> None:
    eager, compiled = SmallNet(spec), SmallNet(spec)
    compiled.load_state_dict(eager.state_dict())
    module = torch.compile(compiled, backend="aot_eager")
    for net, module in ((eager, eager), (compiled, module)):  # noqa: B020
        optimizer = split_sgd(net)
        for x in batches(6):
            optimizer.zero_grad()
            module(x).backward()
            optimizer.step()
    torch._dynamo.reset()
    assert torch.allclose(eager.method.rotations, compiled.method.rotations, atol=1e-5)
    assert (eager.method.rotations - torch.eye(6)).abs().max() > 1e-3


def test_a_deep_copy_goes_its_own_way() -> None:
    net = train(SmallNet("rotograd"), batches(3))
    before = net.method.rotations
    train(copy.deepcopy(net), batches(3, seed=1))
    assert torch.equal(before, net.method.rotations)


class Forked(nn.Module):
    """A network as it is deployed: predictions, not losses."""

    def __init__(self, spec: str = "rotograd") -> None:
        super().__init__()
        self.net = SmallNet(spec)

    def forward(self, x: Tensor) -> Tensor:
        views = self.net.method(self.net.backbone(x))
        return torch.cat([h(v) for h, v in zip(self.net.heads, views, strict=True)], dim=1)


def timm_average(model: nn.Module) -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.utils.ModelEmaV3(model, decay=0.95)


AVERAGES = {
    "timm": timm_average,
    "buffers": lambda m: AveragedModel(m, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.95)),
    "parameters": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.95)),
}


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("spec", ["rotograd", "rotate(blocks=2, start=random)+scale"])
def test_an_averaged_network_predicts_with_rotations(kind: str, spec: str) -> None:
    model = Forked(spec)
    average = AVERAGES[kind](model)
    optimizer = torch.optim.SGD(mtlkit.param_groups(model, lr=0.1, method_lr=0.1), momentum=0.5)
    x, mean = torch.randn(16, 4), None
    for batch in batches(60):
        optimizer.zero_grad()
        model.net(batch).backward()
        optimizer.step()
        average.update(model) if kind == "timm" else average.update_parameters(model)
        with torch.no_grad():
            found = model.eval()(x)
            mean = found if mean is None else 0.95 * mean + 0.05 * found
        model.train()
    copied = average.module
    assert_rotations(copied.eval().net.method.rotations)
    with torch.no_grad():
        predicted, last = average(x), model.eval()(x)
    assert torch.isfinite(predicted).all()
    # measured: at most 0.13 of the distance of the last weights
    assert (predicted - mean).abs().max() < 0.25 * (last - mean).abs().max()
    assert (copied.net.method.rotations - model.net.method.rotations).abs().max() > 0.03
    # training may go on from the average
    train(copied.train().net, batches(5))
    assert_rotations(copied.net.method.rotations)


def test_a_grad_scaler_changes_no_step_and_an_overflow_leaves_the_rotations() -> None:
    plain, scaled = SmallNet("rotograd"), SmallNet("rotograd")
    scaled.load_state_dict(plain.state_dict())
    optimizers = [split_sgd(net) for net in (plain, scaled)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step, x in enumerate(batches(6)):
        before = scaled.method.rotations
        overflow = step == 3
        optimizers[1].zero_grad()
        scaler.scale(scaled(x * torch.inf if overflow else x)).backward()
        scaler.step(optimizers[1])
        scaler.update()
        if overflow:
            assert torch.allclose(before, scaled.method.rotations, atol=1e-6)
            continue
        optimizers[0].zero_grad()
        plain(x).backward()
        optimizers[0].step()
    assert (plain.method.rotations - torch.eye(6)).abs().max() > 1e-3
    assert torch.allclose(plain.method.rotations, scaled.method.rotations, atol=1e-5)


def test_accumulated_gradients_of_the_rotations_are_the_sum_of_the_steps() -> None:
    net = train(SmallNet("rotate+pcgrad"), batches(3))
    single = []
    for x in batches(2, seed=1):
        net.zero_grad()
        net(x).backward()
        single.append([p.grad.clone() for p in net.method.parameters()])
    rotations = net.method.rotations
    net.zero_grad()
    for x in batches(2, seed=1):
        net(x).backward()
    assert torch.allclose(net.method.rotations, rotations, atol=1e-6)
    for parameter, *parts in zip(net.method.parameters(), *single, strict=True):
        assert torch.allclose(parameter.grad, sum(parts), atol=1e-6)


def test_checkpointing_around_the_rotations_changes_nothing() -> None:
    plain, stored = SmallNet("rotograd"), SmallNet("rotograd")
    stored.load_state_dict(plain.state_dict())
    for net, checkpointed in ((plain, False), (stored, True)):
        optimizer = split_sgd(net)
        for x in batches(5):
            optimizer.zero_grad()
            losses = checkpoint(net.losses, x, use_reentrant=False) if checkpointed else net.losses(x)
            net.method.total(losses).backward()
            optimizer.step()
    assert (plain.method.rotations - torch.eye(6)).abs().max() > 1e-3
    assert torch.equal(plain.method.rotations, stored.method.rotations)


def test_maps_in_channels_last_give_the_same_rotations() -> None:
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 6, 3)).to(memory_format=layout)
        method = mtlkit.create_method("rotate(dim=channel)+scale", 2, feature_dim=6)
        method.to(memory_format=layout)
        optimizer = torch.optim.SGD([*net.parameters(), *method.parameters()], lr=3.0)
        for _ in range(4):
            views = method(net(torch.randn(2, 3, 6, 6).to(memory_format=layout)))
            optimizer.zero_grad()
            method.total([views[0].sin().mean(), views[1].square().mean()]).backward()
            optimizer.step()
        found.append(method.rotations)
    assert (found[0] - torch.eye(6)).abs().max() > 1e-2
    assert torch.allclose(*found, atol=1e-6)


# random lives


class Life(RuleBasedStateMachine):
    """Steps, saves, loads, eval calls and optimizer changes in any order."""

    @initialize(
        spec=st.sampled_from(
            ["rotograd", "rotate(size=4)+pcgrad", "rotate(blocks=2, update_every=2)+scale", "uw+rotate"]
        )
    )
    def begin(self, spec: str) -> None:
        torch.manual_seed(0)
        self.spec = spec
        self.net = SmallNet(spec)
        self.seed = 0
        self.kind = "sgd"
        self.new_optimizer("sgd")
        self.saved: dict | None = None

    def new_optimizer(self, kind: str) -> None:
        groups = mtlkit.param_groups(self.net, lr=0.02, method_lr=0.02)
        makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
        self.kind, self.optimizer = kind, makers[kind](groups)

    def step(self, seed: int) -> None:
        (x,) = batches(1, seed=seed)
        self.optimizer.zero_grad()
        self.net(x).backward()
        self.optimizer.step()

    @rule(count=st.integers(1, 20))
    def take_steps(self, count: int) -> None:
        for _ in range(count):
            self.seed += 1
            self.step(self.seed)

    @rule(kind=st.sampled_from(["sgd", "adam", "radam"]))
    def change_optimizer(self, kind: str) -> None:
        self.new_optimizer(kind)

    @rule()
    def evaluate(self) -> None:
        rotations = self.net.method.rotations
        state = copy.deepcopy(self.net.state_dict())
        self.net.eval()
        with torch.no_grad():
            self.net.method(self.net.backbone(torch.randn(3, 4)))
        self.net.train()
        assert torch.equal(rotations, self.net.method.rotations)
        for key, value in self.net.state_dict().items():
            assert torch.equal(value, state[key]), key

    @rule()
    def save(self) -> None:
        self.saved = copy.deepcopy(
            {
                "net": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "kind": self.kind,
                "seed": self.seed,
            }
        )

    @precondition(lambda self: getattr(self, "saved", None) is not None)
    @rule(steps=st.integers(1, 5))
    def load_and_continue_as_before(self, steps: int) -> None:
        ends = []
        for _ in range(2):
            self.net = SmallNet(self.spec)
            self.net.load_state_dict(self.saved["net"], strict=True)
            self.new_optimizer(self.saved["kind"])
            self.optimizer.load_state_dict(copy.deepcopy(self.saved["optimizer"]))
            for step in range(steps):
                self.step(self.saved["seed"] + 1 + step)
            ends.append(copy.deepcopy(self.net.state_dict()))
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
        self.seed = self.saved["seed"] + steps

    @rule(steps=st.integers(1, 5))
    def a_loaded_twin_stays_equal_bit_for_bit(self, steps: int) -> None:
        twin = Life()
        twin.spec, twin.net = self.spec, SmallNet(self.spec)
        twin.net.load_state_dict(copy.deepcopy(self.net.state_dict()), strict=True)
        twin.new_optimizer(self.kind)
        twin.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        for _ in range(steps):
            self.seed += 1
            self.step(self.seed)
            twin.step(self.seed)
        assert torch.equal(self.net.method.rotations, twin.net.method.rotations)
        for key, value in self.net.state_dict().items():
            assert torch.equal(value, twin.net.state_dict()[key]), key

    @invariant()
    def rotations_are_rotations(self) -> None:
        if hasattr(self, "net"):
            assert_rotations(self.net.method.rotations)


class TestLife(Life.TestCase):
    settings = settings(max_examples=15, stateful_step_count=15, deadline=None)

    def runTest(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            super().runTest()


def test_fold_every_is_refused_where_the_reference_moves_at_every_step() -> None:
    with pytest.raises(SpecError, match="fold_every"):
        mtlkit.create_method("rotate(backend=geotorch, fold_every=2)", 2, feature_dim=3)


@pytest.mark.parametrize(
    ("spec", "every"),
    [("rotograd", 8), ("rotograd(fold_every=4)", 4), ("rotograd(fold_every=1)", 1)],
)
def test_the_network_trains_with_rotations_that_move_at_every_nth_step_only(
    spec: str, every: int
) -> None:
    torch.manual_seed(0)
    net = SmallNet(spec)
    optimizer, seen = split_sgd(net), []
    for x in batches(20):
        train(net, [x], optimizer)
        seen.append(rotate_part(net.method).rotation.current().clone())
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert moved == [update % every == 0 for update in range(19)]


def test_rotations_that_are_updated_in_turns_move_at_every_update() -> None:
    net = SmallNet("rotate(update_every=3)+scale")
    assert rotate_part(net.method).rotation.fold_every == 1
