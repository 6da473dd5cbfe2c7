"""Rotations as a module: folds, copies, averages, states."""

from __future__ import annotations

import copy
import io
import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

import mtlkit
from mtlkit.rotations import GeotorchRotations, Rotations
from mtlkit.rotations.exponential import unpack
from tests.rotations.checks import assert_rotations, orthogonality_error


def random_step(module: Rotations, size: float, seed: int | None = None) -> None:
    """What an optimizer does, in all directions."""
    generator = torch.Generator().manual_seed(seed) if seed is not None else None
    with torch.no_grad():
        for lie in module.lie:
            lie.add_(size * torch.randn(lie.shape, generator=generator).to(lie.dtype))


def turned(count: int = 2, side: int = 6, steps: int = 5, size: float = 0.05, **options) -> Rotations:
    """Rotations some folds away from where they started."""
    module = Rotations(count, side, **options)
    for seed in range(steps):
        random_step(module, size, seed)
        module.fold()
    return module


def exact(base: Tensor, lie: Tensor) -> Tensor:
    """(b, n, n) ``base exp(lie)`` of packed ``lie``, in float64."""
    moves = unpack(lie.detach().double(), base.shape[-1])
    return torch.stack([b @ torch.matrix_exp(m) for b, m in zip(base.double(), moves, strict=True)])


# folds


@pytest.mark.parametrize(("side", "blocks"), [(6, 1), (6, 2), (7, 1), (9, 3), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fold_is_the_exponential_of_the_move(side: int, blocks: int, dtype: torch.dtype) -> None:
    module = Rotations(3, side, blocks, start="random").to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for seed in range(3):
        before, applied = module.base.clone(), [lie.detach().clone() for lie in module.lie]
        random_step(module, 0.03, seed)
        found = module.fold()
        assert found.shape == (3, blocks, side // blocks, side // blocks)
        assert found.dtype == dtype
        for k, lie in enumerate(module.lie):
            expected = exact(before[k * blocks : (k + 1) * blocks], lie.detach() - applied[k])
            assert (found[k] - expected).abs().max() < tolerance


def test_the_parameters_are_only_read_and_a_second_fold_moves_nothing() -> None:
    module = turned()
    random_step(module, 0.05, seed=9)
    lie = [p.detach().clone() for p in module.lie]
    versions = [p._version for p in module.lie]
    first = module.fold().clone()
    module.waiting = 1  # a fold that is done again, as with a sharded parameter
    second = module.fold()
    assert torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(lie, module.lie, strict=True))
    assert versions == [p._version for p in module.lie]
    assert torch.equal(module.applied, torch.cat(lie))


@pytest.mark.parametrize("angle", [2.0, 7.0])
def test_a_large_move_arrives_over_several_folds(angle: float) -> None:
    module = turned(1, 5)
    before, applied = module.base.clone(), module.applied.clone()
    random_step(module, 1.0, seed=3)
    with torch.no_grad():
        norm = torch.linalg.matrix_norm(unpack(module.lie[0] - applied, 5), 2)
        module.lie[0].copy_(applied + (module.lie[0] - applied) * angle / norm)
    needed = math.ceil(angle / 0.5)
    folds = module.folds
    while not torch.equal(module.applied, module.lie[0].detach()):
        module.waiting = 1
        module.fold()
        assert module.folds - folds <= needed
    assert module.folds - folds >= needed / 1.3
    expected = exact(before, module.lie[0].detach() - applied)
    assert (module.base - expected).abs().max() < 1e-5


def test_a_huge_move_turns_by_the_capacity_and_rotations_stay_rotations() -> None:
    module = turned(2, 5)
    before = module.matrices()
    with torch.no_grad():
        module.lie[0][:, 0, 0] = 1e30
    after = module.fold()[:, 0].clone()
    assert_rotations(after)
    assert 0.3 < torch.linalg.matrix_norm(after[0] - before[0], 2) < 0.7
    assert torch.allclose(after[1], before[1], atol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_move_that_is_not_finite_is_not_applied_and_others_are(bad: float) -> None:
    module = turned(3, 4)
    before, applied = module.base.clone(), module.applied.clone()
    random_step(module, 0.05, seed=1)
    good = [lie.detach().clone() for lie in module.lie]
    with torch.no_grad():
        module.lie[1][0, 1, 0] = bad
    module.fold()
    assert torch.equal(module.base[1], before[1])
    assert torch.equal(module.applied[1], applied[1])
    assert (module.base[[0, 2]] - before[[0, 2]]).abs().amax((1, 2)).min() > 1e-3
    with torch.no_grad():
        module.lie[1].copy_(good[1])  # somebody repairs it
    module.fold()
    assert (module.base[1] - exact(before[1:2], good[1] - applied[1:2])).abs().max() < 1e-6


def test_parameters_that_are_not_finite_cause_a_warning_at_the_next_check() -> None:
    module = turned(2, 4, steps=1)
    with torch.no_grad():
        module.lie[0][0, 0, 0] = torch.nan
    for _ in range(15):
        random_step(module, 0.01)
        module.fold()
    random_step(module, 0.01)
    with pytest.warns(RuntimeWarning, match="not finite"):
        module.fold()
    assert_rotations(module.base)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


@pytest.mark.parametrize(
    ("side", "steps"),
    [
        (5, 1000),
        pytest.param(5, 10_000, marks=pytest.mark.slow),
        pytest.param(64, 10_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rotations_stay_on_the_manifold(optimizer: str, side: int, steps: int) -> None:
    torch.manual_seed(0)
    module = Rotations(2, side)
    moving = OPTIMIZERS[optimizer](module.parameters())
    for _ in range(steps):
        for lie in module.lie:
            lie.grad = 0.1 * torch.randn_like(lie)
        moving.step()
        module.fold()
    assert module.folds == steps
    assert (module.base - torch.eye(side)).abs().max() > 0.1
    assert_rotations(module.base)


class NoHostReads(TorchDispatchMode):
    """Fails where the host would have to wait for a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero"), name
        return func(*args, **(kwargs or {}))


def test_an_ordinary_fold_reads_nothing_on_the_host() -> None:
    module = turned(3, 8, steps=16)
    reading = []
    for fold in range(32):
        random_step(module, 0.05, seed=fold)
        try:
            with NoHostReads():
                module.gradients([0, 2], torch.randn(2, 1, 3, 8), torch.randn(1, 3, 8))
                module.fold()
        except AssertionError:
            reading.append(fold)
            module.fold()
    assert reading == [0, 16]


class NoSquareProducts(TorchDispatchMode):
    """Fails at a product of matrices of which none has fewer than ``side`` rows or columns."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "bmm", "addmm", "baddbmm", "baddbmm_", "matmul"):
            sizes = [size for a in args if isinstance(a, Tensor) for size in a.shape[-2:]]
            assert min(sizes) < self.side // 2, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("every", [2, 3])
def test_after_the_first_update_rotations_move_at_every_nth_by_the_sum_of_the_moves(every: int) -> None:
    module, reference = Rotations(2, 6, fold_every=every), Rotations(2, 6)
    module.fold(), reference.fold()
    for step in range(1, 13):
        random_step(module, 0.05, seed=step), random_step(reference, 0.05, seed=step)
        evaluated = module.eval().fold()
        module.train()
        if step == 1 or step % every == 1:
            reference.fold()
        else:
            with NoSquareProducts(6):
                module.fold()
        found = module.fold().clone()
        assert torch.allclose(found, reference.current(), atol=2e-6)
        assert torch.equal(module.fold(), found)  # as with accumulated gradients, this is no update
        assert torch.allclose(evaluated, module.current(), atol=1e-6)
    assert module.folds == 1 + 11 // every
    assert (module.base - torch.eye(6)).abs().max() > 0.05


def test_folds_without_a_change_of_the_parameters_are_skipped() -> None:
    module = turned()
    folds = module.folds
    module.fold()
    assert module.folds == folds


@pytest.mark.parametrize("every", [1, 3])
def test_an_optimizer_that_writes_to_data_moves_the_rotations(every: int) -> None:
    module = Rotations(2, 6, fold_every=every)
    module.fold()
    for step in range(1, 7):
        for lie in module.lie:
            lie.data.add_(0.01)  # changes no version
        module.fold()
        assert module.folds == 1 + (step - 1) // every
    module.waiting = every
    module.fold()
    assert torch.equal(module.applied, torch.cat([lie.detach() for lie in module.lie]))


def test_an_optimizer_that_writes_to_data_after_a_write_with_a_version_moves_the_rotations() -> None:
    module = turned(steps=1, fold_every=3)
    for _ in range(9):
        for lie in module.lie:
            lie.data.add_(0.01)
        module.fold()
    assert module.folds == 1 + 3


class WritesToData(torch.optim.SGD):
    """Changes no version, like FSDP and some optimizers."""

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(0.01 * parameter.grad)


@pytest.mark.parametrize("kind", [torch.optim.SGD, WritesToData])
def test_accumulated_gradients_are_no_updates(kind: type[torch.optim.SGD]) -> None:
    module = Rotations(2, 6, fold_every=2)
    optimizer = kind(module.parameters(), lr=0.01)
    for step in range(1, 7):
        for _ in range(3):
            module.fold()
            gradients = module.gradients([0], torch.ones(1, 1, 3, 6), torch.eye(6)[None, :3])
            torch.autograd.backward(module.owned(), gradients)
        optimizer.step()
        optimizer.zero_grad()
        module.fold()
        assert module.folds == (step + 1) // 2


def test_a_write_to_data_after_a_fold_moves_the_rotations_of_an_optimizer_with_versions() -> None:
    module = turned(steps=3)
    for lie in module.lie:
        lie.data.add_(0.01)
    module.fold()
    assert torch.equal(module.applied, torch.cat([lie.detach() for lie in module.lie]))


def test_the_first_sum_of_steady_updates_is_folded_whole() -> None:
    module = Rotations(1, 6, fold_every=8)
    module.fold()
    for _ in range(9):
        random_step(module, 0.005, seed=0)
        module.fold()
    assert module.folds == 2
    assert torch.equal(module.applied, module.lie[0].detach())


@pytest.mark.parametrize("waiting", range(4))
def test_an_export_has_the_rotations_of_the_last_evaluation(waiting: int) -> None:
    class Turn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotations = turned(steps=2 + waiting, fold_every=3)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.rotations.fold()[0, 0].T

    net, x = Turn().eval(), torch.randn(2, 6)
    random_step(net.rotations, 0.05, seed=9)
    expected = net(x)
    exported = torch.export.export(net, (x,)).module()
    assert torch.allclose(exported(x), expected, atol=1e-5)


@pytest.mark.parametrize("warm", [1, 10])
def test_small_first_updates_do_not_hold_up_large_later_ones(warm: int) -> None:
    module = Rotations(1, 6, fold_every=8)
    module.fold()
    for step in range(1, 50):
        random_step(module, 1e-6 if step <= warm else 0.05, seed=0)
        module.fold()
        if step > 32 and step % 8 == 1:
            assert torch.equal(module.applied, module.lie[0].detach())
    assert_rotations(module.base)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_traced_equals_eager(training: bool, every: int) -> None:
    eager, traced = turned(2, 7, fold_every=every), turned(2, 7, fold_every=every)
    eager.train(training), traced.train(training)
    weights = torch.randn(2, 1, 7, 7)

    def forward(module: Rotations) -> Tensor:
        return (module.fold() * weights).sum()

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for step in range(20):
        random_step(eager, 0.05, step), random_step(traced, 0.05, step)
        assert abs(forward(eager) - compiled(traced)) < 2e-5
    assert torch.equal(eager.applied, traced.applied)
    assert torch.equal(eager.matrices(), traced.matrices())
    if not training:  # an average in a compiled evaluation
        with torch.no_grad():
            for module in (eager, traced):
                module.base.mul_(0.6)
        assert abs(forward(eager) - compiled(traced)) < 2e-5
    torch.compiler.reset()


def test_rotations_keep_their_precision_under_autocast_and_casts() -> None:
    plain, cast = turned(), turned()
    cast.to(torch.bfloat16).to(memory_format=torch.channels_last)
    assert {t.dtype for t in cast.state_dict().values()} == {torch.float32, torch.int64}
    for seed in range(3):
        random_step(plain, 0.05, seed), random_step(cast, 0.05, seed)
        with torch.autocast("cpu", torch.bfloat16):
            rotations = cast.fold()
            gradients = cast.gradients([0, 1], torch.ones(2, 1, 3, 6).bfloat16(), torch.ones(1, 3, 6))
        assert torch.equal(plain.fold(), rotations)
        assert gradients[0].dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(plain.eval().fold(), cast.eval().fold())
        plain.train(), cast.train()
    assert cast.double().fold().dtype == torch.float64


# evaluation and copies


def test_evaluation_writes_nothing_and_has_the_last_step_in_it() -> None:
    module = turned(3, 6, blocks=2)
    random_step(module, 0.05, seed=8)
    state = copy.deepcopy(module.state_dict())
    with torch.inference_mode():
        training_mode = module.fold()
    module.eval()
    evaluated = module.fold()
    assert evaluated is module.fold()  # cached
    assert torch.equal(training_mode, evaluated)
    (evaluated * torch.ones(3, 2, 3, 3, requires_grad=True)).sum().backward()  # no inference tensor
    for key, value in module.state_dict().items():
        assert torch.equal(value, state[key]), key
    dense = module.matrices()
    assert dense.shape == (3, 6, 6)
    assert torch.equal(dense[1], torch.block_diag(*evaluated[1]))
    assert torch.allclose(module.train().fold(), evaluated, atol=2e-6)
    random_step(module, 0.05, seed=10)
    assert not torch.allclose(module.eval().fold(), evaluated, atol=1e-3)


def test_all_of_a_large_move_is_in_an_evaluation() -> None:
    module = turned(1, 6)
    before, applied = module.base.clone(), module.applied.clone()
    random_step(module, 2.0, seed=0)
    found = module.eval().fold()[0]
    assert (found - exact(before, module.lie[0].detach() - applied)).abs().max() < 2e-5


class Net(nn.Module):
    def __init__(self, every: int) -> None:
        super().__init__()
        self.rotations = Rotations(2, 6, fold_every=every)


def timm_average(net: Net):
    from timm.utils import ModelEmaV3

    return ModelEmaV3(net, decay=0.9)


AVERAGES = {
    "timm": timm_average,
    "buffers": lambda net: AveragedModel(net, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "parameters": lambda net: AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
}


@pytest.mark.parametrize(("every", "before"), [(1, 0), (4, 7)])
@pytest.mark.parametrize("kind", AVERAGES)
def test_an_averaged_copy_evaluates_with_rotations(kind: str, every: int, before: int) -> None:
    net = Net(every)
    for step in range(before):
        random_step(net.rotations, 0.01, step)
        net.rotations.fold()
    average = AVERAGES[kind](net)
    weighted = torch.zeros(2, 6, 6)
    total = 0.0
    drawn = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=drawn) for p in net.parameters()]
    for _ in range(60):
        with torch.no_grad():
            for lie, way in zip(net.rotations.lie, direction, strict=True):
                lie.add_(0.02 * way + 0.01 * torch.randn(lie.shape, generator=drawn))
        net.rotations.fold()
        average.update(net) if kind == "timm" else average.update_parameters(net)
        weighted = 0.9 * weighted + 0.1 * net.rotations.matrices()
        total = 0.9 * total + 0.1
    copied = average.module.rotations.eval()
    if kind != "parameters":
        assert orthogonality_error(copied.base) > 0.1
    found = copied.fold()[:, 0]
    assert_rotations(found, 1e-5)
    left, _, right = torch.linalg.svd(weighted / total)
    middle, now = left @ right, net.rotations.matrices()
    assert (middle - now).abs().max() > 0.1, "the average is not where the training is"
    assert (found - middle).abs().max() < 0.35 * (middle - now).abs().max()
    restored = Rotations(2, 6, fold_every=every).eval()
    restored.load_state_dict(copied.state_dict())
    assert torch.equal(restored.fold()[:, 0], found)
    # and training may go on from the average
    copied.train().load_state_dict(copy.deepcopy(copied.state_dict()))
    random_step(copied, 0.01)
    assert_rotations(copied.fold()[:, 0], 1e-3)


def test_what_somebody_writes_is_projected_at_the_next_fold() -> None:
    module = turned()
    rotations = module.base.clone()
    module.base.mul_(0.7)
    assert torch.allclose(module.fold()[:, 0], rotations, atol=1e-5)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("moment", ["after the step", "after the forward", "before the step"])
def test_training_continues_bit_for_bit_from_a_state(moment: str, every: int) -> None:
    def train(module: Rotations, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            module.fold()
            rows = torch.randn(2, 1, 4, 6, generator=generator)
            gradients = module.gradients([0, 1], rows, rows.mean(0))
            for lie, gradient in zip(module.owned(), gradients, strict=True):
                lie.grad = gradient
            optimizer.step()

    one, other = Rotations(2, 6, fold_every=every), Rotations(2, 6, start="random", fold_every=every)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in (one, other)]
    train(one, optimizers[0], 0, 23)
    if moment != "after the step":
        one.fold()
    file = io.BytesIO()
    torch.save([one.state_dict(), optimizers[0].state_dict()], file)
    file.seek(0)
    state, moments = torch.load(file, weights_only=True)
    other.load_state_dict(state, strict=True)
    optimizers[1].load_state_dict(moments)
    twin = copy.deepcopy(one)
    optimizers.append(torch.optim.Adam(twin.parameters(), lr=0.02))
    optimizers[2].load_state_dict(copy.deepcopy(moments))
    for module, optimizer in zip((one, other, twin), optimizers, strict=True):
        if moment == "before the step":
            for lie in module.lie:
                lie.grad = torch.ones_like(lie)
            optimizer.step()
        train(module, optimizer, 23, 60)
    for copied in (other, twin):
        assert copied.folds == one.folds
        for key, value in one.state_dict().items():
            assert torch.equal(value, copied.state_dict()[key]), key


def test_state_is_two_matrices_per_task() -> None:
    module = Rotations(3, 16, blocks=2)
    tensors = [*module.parameters(), *module.buffers()]
    assert sum(t.numel() for t in tensors) == 3 * 2 * 2 * 8 * 8
    assert module.base.untyped_storage().nbytes() == 4 * module.base.numel()


# gradients and the reference


def run(module: Rotations | GeotorchRotations, steps: int, rate: float, move_base: bool) -> Tensor:
    """Turn fixed vectors toward others by gradient descent with the module's own gradients."""
    generator = torch.Generator().manual_seed(4)
    given = torch.randn(2, 1, 9, 6, generator=generator).to(torch.float64)
    target = torch.randn(1, 9, 6, generator=generator).to(torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(steps):
        if move_base:
            for frame in module.frames:
                frame.weight = frame.weight.detach()
        optimizer.zero_grad()
        rows = torch.matmul(given, module.fold())  # G = R' g
        torch.autograd.backward(module.owned(), module.gradients([0, 1], rows, -target))
        optimizer.step()
    return module.matrices()


@pytest.mark.parametrize("start", ["identity", "random"])
def test_rotations_are_those_of_geotorch_whose_base_point_moves(start: str) -> None:
    fast = run(Rotations(2, 6, start=start, seed=5).double(), 30, 0.01, move_base=False)
    reference = run(GeotorchRotations(2, 6, start=start, seed=5).double(), 30, 0.01, move_base=True)
    first = Rotations(2, 6, start=start, seed=5).matrices()
    assert (fast - first).abs().max() > 0.1
    assert (fast - reference).abs().max() < 1e-5


def test_the_gradient_lowers_the_product_and_absent_tasks_have_none() -> None:
    module = Rotations(3, 4, blocks=2).double()
    given, target = torch.randn(2, 2, 5, 2).double(), torch.randn(2, 5, 2).double()
    rows = torch.matmul(given, module.fold()[[0, 2]])
    gradients = module.gradients([0, 2], rows, target)
    assert gradients[1].count_nonzero() == 0
    size = 1e-6
    with torch.no_grad():
        for lie, gradient in zip(module.owned(), gradients, strict=True):
            lie.sub_(size * gradient)
    after = torch.matmul(given, module.fold()[[0, 2]])
    for k, task in enumerate((0, 2)):
        change = ((after[k] - rows[k]) * target).sum() / size
        assert change.item() == pytest.approx(-gradients[task].square().sum().item(), rel=1e-4)


def test_the_reference_can_be_copied_between_forward_and_backward() -> None:
    module = GeotorchRotations(2, 6)
    rotations = module.fold()
    twin = copy.deepcopy(module)
    assert torch.equal(twin.fold(), rotations)
    assert len(module.owned()) == 2
    assert all(r.requires_grad for r in module.owned())
    with torch.no_grad():
        module.fold()
    assert module.owned() == ()
    assert torch.equal(module.current(), rotations)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.matrices().shape == (2, 6, 6)


def _rotating_step(method, backbone, optimizer):
    features = method(backbone(torch.randn(4, 3)))
    method.total([view.pow(2 + k).sum() for k, view in enumerate(features)]).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_rotations_that_no_optimizer_moves_are_warned_of_once():
    torch.manual_seed(0)
    backbone = torch.nn.Linear(3, 4)
    method = mtlkit.create_method("rotograd", 2, feature_dim=4)
    forgotten = torch.optim.SGD(backbone.parameters(), lr=1e-4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            _rotating_step(method, backbone, forgotten)
    assert ["param_groups" in str(warning.message) for warning in caught] == [True]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("how", ["moved", "accumulated", "frozen"])
def test_rotations_that_move_or_should_not_are_not_complained_of(how):
    torch.manual_seed(0)
    backbone = torch.nn.Linear(3, 4)
    method = mtlkit.create_method("rotograd", 2, feature_dim=4)
    if how == "frozen":
        method.requires_grad_(False)
    everything = torch.optim.Adam([*backbone.parameters(), *method.parameters()], lr=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(130):
            features = method(backbone(torch.randn(4, 3)))
            method.total([view.pow(2 + k).sum() for k, view in enumerate(features)]).backward()
            if how != "accumulated" or step % 20 == 19:
                everything.step()
                everything.zero_grad()


def test_writes_through_data_are_seen_in_evaluation():
    method = mtlkit.create_method("rotograd", 2, feature_dim=4).eval()
    x = torch.randn(3, 4)
    for _ in range(2):
        before = method(x)[0].clone()
        for parameter in method.parameters():
            parameter.data.copy_(torch.randn_like(parameter))
        torch.testing.assert_close(method(x)[0], copy.deepcopy(method)(x)[0])
        assert (method(x)[0] - before).abs().max() > 1e-3
