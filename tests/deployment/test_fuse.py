"""A fused model computes the same, faster, and has nothing of mtlkit in it."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.errors import UsageError


class Net(nn.Module):
    def __init__(self, backbone: nn.Module, heads: nn.Module, method: mtlkit.GradientAggregator):
        super().__init__()
        self.backbone, self.heads, self.method = backbone, heads, method

    def forward(self, x):
        views = self.method(self.backbone(x))
        heads = [self.heads[task] for task in self.tasks] if self.named else self.heads
        return [head(view) for head, view in zip(heads, views, strict=True)]

    @property
    def named(self) -> bool:
        return isinstance(self.heads, nn.ModuleDict)

    @property
    def tasks(self) -> tuple[str, ...]:
        return ("a", "b")


def turned(spec: str, feature_dim: int, tasks=("a", "b")) -> mtlkit.GradientAggregator:
    method = mtlkit.create_method(spec, tasks, feature_dim=feature_dim)
    with torch.no_grad():
        for lie in method.parameters():
            lie.copy_(torch.randn_like(lie))
    assert (method.rotations - torch.eye(method.rotations.shape[-1])).abs().max() > 0.1
    return method


def assert_fused(
    net: nn.Module, x: torch.Tensor, folded: bool | None = None, example=None, export: bool = True
):
    before = copy.deepcopy(net.state_dict())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fused = mtlkit.fuse(net, example)
    said = any("explicit products" in str(warning.message) for warning in caught)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), "fuse changed the model"
    net.eval()
    expected, found = net(x), fused(x)
    if isinstance(expected, dict):
        assert list(expected) == list(found)
        expected, found = list(expected.values()), list(found.values())
    for one, other in zip(expected, found, strict=True):
        assert (one - other).abs().max() < 1e-5 * max(1, one.abs().max())
    for module in fused.modules():
        assert not type(module).__module__.startswith("mtlkit"), type(module)
        assert not isinstance(module, mtlkit.GradientAggregator)
    assert not fused.training
    if folded is not None:
        assert (not any("rotation" in name for name, _ in fused.named_buffers())) == folded
        assert said == (not folded)
    if not export:
        return fused
    exported = torch.export.export(fused, (x,))
    for one, other in zip(found, torch.utils._pytree.tree_leaves(exported.module()(x)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    return fused


def linear_heads() -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(6, 3), nn.Sequential(nn.Dropout(), nn.Linear(6, 4), nn.ReLU())])


@pytest.mark.parametrize("spec", ["rotograd", "rotate(size=4)+pcgrad", "rotate(blocks=2)", "pcgrad"])
def test_linear_heads_take_up_their_rotations(spec):
    method = turned(spec, 6) if "rot" in spec else mtlkit.create_method(spec, ("a", "b"))
    net = Net(nn.Linear(5, 6), linear_heads(), method)
    assert_fused(net, torch.randn(7, 5), folded=True)


def test_heads_by_name_are_matched_to_their_tasks():
    heads = nn.ModuleDict({"b": nn.Linear(6, 2), "a": nn.Linear(6, 3)})
    assert_fused(Net(nn.Linear(5, 6), heads, turned("rotograd", 6)), torch.randn(7, 5), folded=True)


class NamedByMethod(Net):
    """The forward reads the task names off the method."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.method.tasks


def test_a_forward_may_read_the_task_names_of_its_method(tmp_path):
    heads = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 4)})
    net = NamedByMethod(nn.Linear(5, 6), heads, turned("rotograd", 6))
    x = torch.randn(7, 5)
    fused = assert_fused(net, x, folded=True)
    torch.save(fused, tmp_path / "fused.pt")
    assert torch.equal(torch.load(tmp_path / "fused.pt", weights_only=False)(x)[0], fused(x)[0])


def test_tokens_fold_into_linear_layers():
    net = Net(nn.Linear(5, 6), linear_heads(), turned("rotograd", 6))
    assert_fused(net, torch.randn(2, 3, 5), folded=True)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_channel_rotations_fold_into_any_ungrouped_convolution(size, kernel, mode):
    heads = nn.ModuleList(
        [
            nn.Conv2d(6, 3, kernel, padding=kernel // 2, padding_mode=mode),
            nn.Sequential(nn.Conv2d(6, 2, kernel, stride=2), nn.ReLU(), nn.Conv2d(2, 1, 1)),
        ]
    )
    spec = "rotate(dim=channel)+scale" if size is None else f"rotate(dim=channel, size={size})"
    net = Net(nn.Conv2d(3, 6, 3), heads, turned(spec, 6))
    assert_fused(net, torch.randn(2, 3, 9, 8), folded=True)


@pytest.mark.parametrize(
    "first", [nn.Conv2d(6, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU()], ids=["groups", "norm", "relu"]
)
def test_a_layer_that_mixes_no_channels_leaves_an_explicit_rotation(first):
    heads = nn.ModuleList([nn.Sequential(copy.deepcopy(first), nn.Flatten()) for _ in range(2)])
    net = Net(nn.Conv2d(3, 6, 3), heads, turned("rotate(dim=channel)+scale", 6))
    assert_fused(net, torch.randn(2, 3, 9, 8), folded=False)


def test_a_flattened_map_is_rotated_explicitly():
    heads = nn.ModuleList([nn.Conv2d(6, 3, 1), nn.Conv2d(6, 3, 1)])
    net = Net(nn.Conv2d(3, 6, 3), heads, turned("rotate(size=20, dim=flat)", None))
    assert_fused(net, torch.randn(2, 3, 6, 6), folded=False)


def test_a_flat_rotation_of_plain_features_folds_when_an_example_shows_them():
    x = torch.randn(4, 5)
    net = Net(nn.Linear(5, 6), linear_heads(), turned("rotate(dim=flat)", 6))
    assert_fused(net, x, folded=False)
    assert_fused(net, x, folded=True, example=x)


def test_heads_that_share_a_layer_are_not_folded():
    shared = nn.Linear(6, 3)
    heads = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)])
    assert_fused(Net(nn.Linear(5, 6), heads, turned("rotograd", 6)), torch.randn(7, 5), folded=False)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.layer(x)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(4, 2), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def test_a_residual_head_needs_its_rotation():
    heads = nn.ModuleList([Residual(), Residual()])
    assert_fused(Net(nn.Linear(5, 6), heads, turned("rotograd", 6)), torch.randn(7, 5), folded=False)


def test_the_first_layer_is_the_first_that_runs_and_not_the_first_that_is_declared():
    heads = nn.ModuleList([Custom(), Custom()])
    fused = assert_fused(
        Net(nn.Linear(5, 6), heads, turned("rotograd", 6)), torch.randn(7, 5), folded=True
    )
    assert torch.equal(fused.heads[0].last.weight, heads[0].last.weight)


class Swapped(Net):
    """Heads in another order than the tasks: the rule does not hold."""

    def forward(self, x):
        first, second = self.method(self.backbone(x))
        return [self.heads[1](first), self.heads[0](second)]


def test_with_an_example_heads_are_found_by_what_they_read():
    x = torch.randn(7, 5)
    heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
    net = Swapped(nn.Linear(5, 6), heads, turned("rotograd", 6))
    assert_fused(net, x, folded=True, example=x)


class Attributes(nn.Module):
    """Heads that are plain attributes."""

    def __init__(self, pattern: str, method: mtlkit.GradientAggregator):
        super().__init__()
        self.backbone, self.method, self.pattern = nn.Linear(5, 6), method, pattern
        for task in method.tasks:
            setattr(self, pattern.format(task), nn.Linear(6, 2))

    def forward(self, x):
        views = self.method(self.backbone(x))
        names = [self.pattern.format(task) for task in ("a", "b")]
        return [getattr(self, name)(view) for name, view in zip(names, views, strict=True)]


@pytest.mark.parametrize("pattern", ["{}", "{}_head", "head_{}", "to_{}"])
def test_heads_that_are_plain_attributes_are_folded(pattern):
    x = torch.randn(7, 5)
    net = Attributes(pattern, turned("rotograd", 6))
    assert_fused(net, x, folded=True, example=x)
    assert_fused(net, x, folded=True)


def between(how: str) -> nn.Module:
    """A network that does something to the views before, or instead of, giving them to the heads."""

    class Between(Net):
        def __init__(self, *parts) -> None:
            super().__init__(*parts)
            self.relu, self.norm = nn.ReLU(), nn.LayerNorm(6)

        def forward(self, x):
            a, b = self.method(self.backbone(x))
            if how == "function":
                a, b = torch.relu(a), b.relu()
            elif how == "module":
                a, b = self.relu(a), self.norm(b)
            elif how == "swapped":
                a, b = b, a
            elif how == "in place":
                a.relu_(), b.relu_()
            elif how == "mixed":
                return [self.heads[0](a + b), self.heads[1](a)]
            elif how == "reused":
                return [self.heads[0](a), self.heads[1](b), self.heads[0](self.backbone(x))]
            elif how == "branching":
                a, b = (a, b) if x.sum() > 0 else (a.relu(), b.relu())
            return [self.heads[0](a), self.heads[1](b)]

    heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
    return Between(nn.Linear(5, 6), heads, turned("rotograd", 6))


@pytest.mark.parametrize(
    ("how", "folded"),
    [
        ("nothing", True),
        ("swapped", True),  # the head that reads a view is its head, whatever its name
        ("function", False),
        ("module", False),
        ("in place", False),
        ("mixed", False),
        ("branching", False),
    ],
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_without_an_example_only_heads_that_read_their_view_itself_are_folded(how, folded, sign):
    with torch.no_grad():
        assert_fused(between(how), sign * torch.rand(50, 5), folded=folded, export=how != "branching")


def test_a_head_that_also_reads_something_else_keeps_its_rotation_outside():
    fused = assert_fused(between("reused"), torch.randn(7, 5))
    assert [name for name, _ in fused.named_buffers()] == ["method.rotation_0"]


class ReadsTwice(Net):
    """Head b is not the only one that reads its features."""

    def forward(self, x):
        first, second = self.method(self.backbone(x))
        return [self.heads[0](first), self.heads[1](second) + second.sum()]


class Compiled(nn.Module):
    """A network some part of which is compiled, or all of it from outside."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.backbone, self.method = nn.Linear(5, 6), turned("rotograd", 6)
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 4)
        if part:
            setattr(self, part, torch.compile(getattr(self, part), backend="eager"))

    def forward(self, x):
        first, second = self.method(self.backbone(x))
        return self.a(first), self.b(second)


@pytest.mark.parametrize("part", ["", "backbone", "a"])
@pytest.mark.parametrize("with_example", [False, True])
def test_a_compiled_model_is_fused_to_an_ordinary_module(part, with_example, tmp_path):
    model = Compiled(part) if part else torch.compile(Compiled(""), backend="eager")
    x = torch.randn(4, 5)
    model(x)
    fused = assert_fused(model, x, folded=True, example=x if with_example else None)
    assert type(fused) is Compiled
    assert all(type(module).__module__ != "torch._dynamo.eval_frame" for module in fused.modules())
    torch.save(fused, tmp_path / "fused.pt")
    read = torch.load(tmp_path / "fused.pt", weights_only=False)
    assert torch.equal(read(x)[0], fused(x)[0])


def test_only_heads_that_can_be_folded_are_and_the_reason_is_reported():
    x = torch.randn(7, 5)
    net = ReadsTwice(nn.Linear(5, 6), linear_heads(), turned("rotograd", 6))
    with pytest.warns(UserWarning, match=r"1 rotation\(s\) as .* \(b: folding it changes the output\)"):
        fused = mtlkit.fuse(net, x)
    assert [name for name, _ in fused.named_buffers()] == ["method.rotation_1"]
    for found, wanted in zip(fused(x), net.eval()(x), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_a_view_with_two_readers_is_not_folded():
    class Pair(Net):
        def forward(self, x):
            first, second = self.method(self.backbone(x))
            return [self.heads[0](first), self.heads[1](second), self.heads[2](second)]

    x, heads = torch.randn(7, 5), nn.ModuleList(nn.Linear(6, 2) for _ in range(3))
    net = Pair(nn.Linear(5, 6), heads, turned("rotograd", 6))
    with pytest.warns(
        UserWarning, match=r"\(b: no module was found that alone reads its features directly"
    ):
        fused = mtlkit.fuse(net, x)
    for found, wanted in zip(fused(x), net.eval()(x), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_a_fork_that_is_no_rotation_is_refused():
    class Doubled(mtlkit.GradientAggregator):
        name = "doubled"

        def fork(self, features, *held):
            return [[2 * leaf for leaf in features] for _ in self.tasks]

    net = Net(nn.Linear(5, 6), linear_heads(), mtlkit.Method(Doubled(("a", "b"))))
    with pytest.raises(UsageError, match="'rotate' only, and doubled"):
        mtlkit.fuse(net)


class Skips(Net):
    def forward(self, x):
        z = self.backbone(x)
        views = self.method({"skip": [x, 2 * x], "top": z})
        return [
            head(view["top"]) + view["skip"][1].sum()
            for head, view in zip(self.heads, views, strict=True)
        ]


def test_nested_features_are_rotated_in_place_given_an_example():
    x = torch.randn(7, 5)
    net = Skips(nn.Linear(5, 6), linear_heads(), turned("rotograd", 6))
    assert_fused(net, x, folded=False, example=x)


def test_a_network_of_mtlkits_own_class_becomes_a_graph_of_torch_modules(monkeypatch):
    class Architecture(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(5, 6)
            self.heads = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 2)})
            self.method = turned("rotograd", 6)

        def forward(self, x):
            views = self.method(self.backbone(x))
            return {name: head(v) for (name, head), v in zip(self.heads.items(), views, strict=True)}

    Architecture.__module__ = "mtlkit.architectures.sample"
    assert_fused(Architecture(), torch.randn(4, 5), folded=True)


def test_a_trained_net_is_fused_after_the_last_step():
    method = mtlkit.create_method("rotograd", ("a", "b"), feature_dim=6)
    net = Net(nn.Linear(5, 6), linear_heads(), method)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(5):
        optimizer.zero_grad()
        method.total([out.square().mean() + out.sum() for out in net(torch.randn(8, 5))]).backward()
        optimizer.step()
    assert_fused(net, torch.randn(7, 5), folded=True)


def test_a_model_without_a_method_is_refused():
    with pytest.raises(UsageError, match="no method"):
        mtlkit.fuse(nn.Linear(2, 2))


def test_a_random_forward_is_refused_given_an_example():
    class Noisy(Net):
        def forward(self, x):
            return [out + torch.randn(1) for out in super().forward(x)]

    net = Noisy(nn.Linear(5, 6), linear_heads(), turned("rotograd", 6))
    with pytest.raises(UsageError, match="differ"):
        mtlkit.fuse(net, torch.randn(7, 5))


class TwiceReadViews(Net):
    """Its heads read a view twice, so no rotation can be folded; it returns classes."""

    def forward(self, x):
        views = self.method(self.backbone(x))
        return [(head(view) + view[:, :3]).argmax(1) for head, view in zip(self.heads, views)]  # noqa: B905


@pytest.mark.parametrize("lost", [False, True])
def test_classes_are_compared_too_and_a_nan_hides_nothing(lost):
    heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
    net = TwiceReadViews(nn.Linear(5, 6), heads, turned("rotograd", 6)).eval()
    example = torch.randn(200, 5)
    if lost:
        example[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="explicit products"):
        fused = mtlkit.fuse(net, example)
    x = torch.randn(300, 5)
    for one, other in zip(net(x), fused(x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_folds_within_its_own_rounding(dtype):
    net = Net(nn.Linear(5, 6), linear_heads(), turned("rotograd", 6)).to(dtype).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mtlkit.fuse(net, torch.randn(7, 5).to(dtype))


def test_a_network_that_reads_ids_is_fused_without_an_example():
    model = mtlkit.create_architecture(
        "hard_sharing", {"a": 2, "b": 3}, method="rotograd", backbone=nn.EmbeddingBag(20, 8), features=8
    )
    ids = torch.randint(20, (4, 5))
    model.eval()(ids)
    fused = mtlkit.fuse(model)
    for task, found in fused(ids).items():
        torch.testing.assert_close(found, model(ids)[task], rtol=1e-4, atol=1e-5)
