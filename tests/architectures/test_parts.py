"""Backbones, heads, output sizes, inputs of several kinds, single networks against their description."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mtlkit
from mtlkit.architectures.base import task_outputs
from mtlkit.architectures.dselect_k import DSelectGate, DSelectK
from mtlkit.architectures.features import measure_features
from mtlkit.architectures.ltb import LearningToBranch
from mtlkit.architectures.ple import Ple
from mtlkit.architectures.segnet import SegNet
from mtlkit.errors import MtlkitError, SpecError, UnknownNameError, UsageError
from tests.architectures.cases import TASKS, losses_of, targets_for, train

MLP = "hard_sharing(backbone=mlp(16, inputs=8))"


def create(spec, tasks=TASKS, **options):
    return mtlkit.create_architecture(spec, tasks, **options)


def count(parameters):
    return sum(p.numel() for p in parameters)


class Labeled:
    def __init__(self, name, outputs=None):
        self.name, self.outputs = name, outputs


# sizes of the tasks


@pytest.mark.parametrize(
    ("tasks", "outputs", "expected"),
    [
        (2, None, {"0": 1, "1": 1}),
        (2, 4, {"0": 4, "1": 4}),
        (("x", "y"), None, {"x": 1, "y": 1}),
        (("x", "y"), [2, 3], {"x": 2, "y": 3}),
        (("x", "y"), {"y": 3}, {"x": 1, "y": 3}),
        ({"x": 5, "y": None}, 2, {"x": 5, "y": 2}),
        ({"x": Labeled("x", 7), "y": Labeled("y")}, 2, {"x": 7, "y": 2}),
        ([Labeled("x", 7), Labeled("y")], None, {"x": 7, "y": 1}),
    ],
)
def test_output_sizes_come_from_the_task_first_and_from_the_option_else(tasks, outputs, expected):
    assert task_outputs(tasks, outputs) == expected
    predictions = create(MLP, tasks, outputs=outputs)(torch.randn(2, 8))
    assert {name: p.shape[1] for name, p in predictions.items()} == expected


@pytest.mark.parametrize(
    ("tasks", "outputs"),
    [({"x": 0}, None), ({"x": True}, None), (2, [1]), (2, {"7": 1}), ({"x": 1.5}, None)],
)
def test_wrong_output_sizes_are_refused(tasks, outputs):
    with pytest.raises(SpecError):
        task_outputs(tasks, outputs)


def test_task_names_need_not_be_identifiers():
    names = ("seg.fine", "type", "keys", "seg_fine", "a b")
    net = create(MLP, names, method="pcgrad")
    assert tuple(net(torch.randn(3, 8))) == names
    assert all(list(net.task_parameters(name)) for name in names)
    net.load_state_dict(net.state_dict())


# specs


def test_nested_calls_with_positional_values_are_read():
    net = create("hard_sharing(backbone=mlp(16, 12, inputs=8), heads=mlp(5, norm=batch))")
    shapes = [
        tuple(layer.weight.shape) for layer in net.head("a").layers if isinstance(layer, nn.Linear)
    ]
    assert shapes == [(5, 12), (3, 5)]
    again = create(net.spec)
    assert again.state_dict().keys() == net.state_dict().keys()


def test_a_mapping_means_the_same_as_a_string():
    spec = {
        "name": "hard_sharing",
        "backbone": {"name": "mlp", "hidden": 16, "inputs": 8},
        "heads": {"name": "mlp", "hidden": [5]},
    }
    text = "hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(5))"
    assert create(spec).state_dict().keys() == create(text).state_dict().keys()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hard_sharin(backbone=mlp(1, inputs=1))", "did you mean 'hard_sharing'"),
        ("hard_sharing(backbon=mlp(1, inputs=1))", "did you mean 'backbone'"),
        ("hard_sharing(backbone=timm.resnet81)", "unknown timm model 'resnet81'.*did you mean"),
        ("hard_sharing(backbone=mlpp(1, inputs=1))", "unknown backbone.*mlp"),
        ("hard_sharing(backbone=mlp(1, inputz=1))", "unknown option of backbone mlp"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=liner)", "did you mean 'linear'"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=mlp)", "hidden layer"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=linear(3))", "by name only"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=mlp(hidden=0))", "1 or more, not"),
        ("hard_sharing(backbone=mlp(-8, inputs=8))", "1 or more, not"),
        ("hard_sharing(backbone=mlp(8, inputs=8, dropout=2))", "below 1, not 2"),
        ("mmoe(input_size=8, expert=mlp(0))", "1 or more, not"),
        ("mmoe(input_size=8, expert=mlp(6, inputs=7))", "inputs of size .* do not fit"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads={c: linear})", "unknown task in heads"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=linear(output=sigmod))", "one of .*'sigmoid'"),
        ("hard_sharing(backbone=mlp(8, inputs=8), heads=conv(8, upsample=a))", "upsample of head conv"),
        ("hard_sharing(backbone=mlp(8, inputs=0))", "inputs of backbone mlp must be .*1 or more"),
        ("hard_sharing(backbone=mlp(8, inputs=8), features=-1)", "features of hard_sharing"),
        ("hard_sharing(backbone=mlp(8, inputs=8), input_size=7)", "inputs of size .* do not fit"),
        ("hard_sharing(backbone=table(8, numbers=2, embedding=0))", "embedding of backbone table"),
        ("mmoe(input_size=[a])", "each an integer, 1 or more"),
        ("paper_mnist(input_size=[a])", "each an integer"),
        ("paper_cifar10(width=0)", "above 0, not 0"),
        ("smp(decoder=unett)", "did you mean 'unet'"),
        ("smp(encoder=resnet81)", "unknown encoder"),
        ("smp(split=middle)", "one of 'encoder', 'decoder'"),
        ("mtan(backbone=mlp(8, inputs=8))", "list of maps"),
        ("mmoe(experts=3)", "input_size"),
        ("mmoe(input_size=8, experts=0)", "1 or more"),
        ("cross_stitch(backbone=resnet18_flat)", "input_size"),
        ("hard_sharing(backbone=mlp(8, inputs=8))+segnet", "one part, not 2"),
    ],
)
def test_mistakes_are_named_with_what_to_do(spec, message):
    with pytest.raises(SpecError, match=message):
        create(spec)


def test_rows_of_another_width_are_refused_by_the_backbone_table():
    net = create("hard_sharing(backbone=table(8, numbers=3, categories=[4]))")
    with pytest.raises(UsageError, match=r"3 numbers and 1 codes .* a row has 8 values"):
        net(torch.zeros(2, 8))


def test_a_missing_option_is_named():
    with pytest.raises(SpecError, match="backbone"):
        create("hard_sharing")


# modules


def test_modules_and_factories_can_be_given():
    backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
    net = create("hard_sharing", backbone=backbone, heads=nn.Linear)
    assert net.backbone is backbone
    assert net.head("a").out_features == 3
    own = nn.Linear(16, 3)
    net = create("hard_sharing", backbone=backbone, heads={"a": own, "b": "mlp(4)"})
    assert net.head("a") is own
    net = create("hard_sharing", {"a": 3, "b": 3}, backbone=backbone, heads=own)
    assert net.head("a") is not own
    assert net.head("a").weight is not net.head("b").weight


@pytest.mark.parametrize("name", ["mmoe", "ple", "cgc", "dselect_k", "cross_stitch", "ltb"])
def test_a_head_module_is_copied_for_the_tasks_and_is_not_itself_in_the_network(name):
    size = {"backbone": "mlp(64, inputs=8)"} if name in ("cross_stitch", "ltb") else {"input_size": 8}
    net = create(name, {"a": 3, "b": 3}, heads=nn.Linear(64, 3), **size)
    assert sum(getattr(layer, "out_features", 0) == 3 for layer in net.modules()) == 2


def test_a_backbone_that_tells_nothing_needs_its_size():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 5)
            self.dropout = nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(self.layer(x))

    with pytest.raises(SpecError, match="features=d"):
        create("hard_sharing", backbone=Opaque())
    assert create("hard_sharing", backbone=Opaque(), features=5).features.dim == 5
    assert create("hard_sharing", backbone=Opaque(), input_size=8, method="rotograd").features.dim == 5


def test_measuring_a_backbone_leaves_no_trace():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    net[1].eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    generator = torch.get_rng_state()
    assert measure_features(net, 4).dim == 6
    assert net.training
    assert not net[1].training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


class TwoInputs(nn.Module):
    num_features = 6

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)

    def forward(self, x):
        left, right = (x["left"], x["right"]) if isinstance(x, dict) else x
        return self.left(left) + self.right(right)


@pytest.mark.parametrize("kind", [dict, tuple])
def test_dict_and_tuple_inputs_reach_the_backbone(kind):
    net = create("hard_sharing", backbone=TwoInputs(), method="pcgrad")
    left, right = torch.randn(5, 4), torch.randn(5, 3)
    given = {"left": left, "right": right} if kind is dict else (left, right)
    expected = net.head("a")(net.backbone.left(left) + net.backbone.right(right))
    assert torch.allclose(net(given)["a"], expected)
    assert torch.allclose(net.only("a")(given), expected)


# every task has its own batch


@pytest.mark.parametrize("method", ["sum", "pcgrad", "rotograd", "mgda(wrt=parameters)"])
def test_own_batches_give_what_each_batch_gives_alone(method):
    net = create(MLP, method=method, multi_input=True)
    train_inputs = {"a": torch.randn(5, 8), "b": torch.randn(3, 8)}
    predictions = net(train_inputs)
    for task, x in train_inputs.items():
        assert torch.allclose(predictions[task], net.only(task)(x), atol=1e-6)
    net.method.total(losses_of(predictions, targets_for(predictions))).backward()
    assert all(p.grad is not None for p in net.shared_parameters())
    assert list(net({"b": train_inputs["b"]})) == ["b"]


@pytest.mark.parametrize(
    "spec", ["mmoe(input_size=8)", "ple(input_size=8)", "cgc(backbone=mlp(6, inputs=8))"]
)
def test_own_batches_work_for_mixtures_of_experts(spec):
    net = create(spec, method="pcgrad", multi_input=True).eval()
    inputs = {"b": torch.randn(2, 8), "a": torch.randn(4, 8)}
    for task, prediction in net(inputs).items():
        assert torch.allclose(prediction, net.only(task)(inputs[task]), atol=1e-6)


def test_own_batches_may_be_dicts():
    net = create("hard_sharing", backbone=TwoInputs(), multi_input=True)
    inputs = {
        "a": {"left": torch.randn(5, 4), "right": torch.randn(5, 3)},
        "b": {"left": torch.randn(2, 4), "right": torch.randn(2, 3)},
    }
    assert {task: len(p) for task, p in net(inputs).items()} == {"a": 5, "b": 2}


def test_wrong_own_batches_are_refused():
    net = create(MLP, multi_input=True)
    with pytest.raises(UsageError, match="mapping from task"):
        net(torch.randn(2, 8))
    with pytest.raises(UnknownNameError, match="unknown task"):
        net({"c": torch.randn(2, 8)})
    with pytest.raises(UsageError, match="same shape"):
        net({"a": torch.randn(2, 8), "b": torch.randn(2, 9)})


def test_an_unknown_task_is_named():
    net = create(MLP)
    for call in (net.only, net.head, lambda name: list(net.task_parameters(name))):
        with pytest.raises(UnknownNameError, match="known: a, b"):
            call("c")


# timm


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 512),
        ("efficientnet_b0", 1280),
        ("convnext_atto", 320),
        ("vit_tiny_patch16_224", 192),
        ("mobilenetv3_small_100", 1024),
    ],
)
def test_timm_backbones_tell_their_features(name, size):
    pixels = 224 if "224" in name else 64
    x = torch.randn(2, 1, pixels, pixels)
    net = create(f"hard_sharing(backbone=timm.{name}(pretrained=False, in_chans=1))", method="rotograd")
    assert (net.features.kind, net.features.dim) == ("vector", size)
    predictions = net(x)
    assert predictions["a"].shape == (2, 3)
    net.method.total(losses_of(predictions, targets_for(predictions))).backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    ("model", "kind", "size"),
    [
        ("timm.mobilenetv3_small_050(global_pool='')", "map", 1024),
        ("timm.mobilenetv3_small_050(features_only=True)", "map", 288),
        ("timm.vit_tiny_patch16_224(global_pool='', img_size=32, depth=2)", "tokens", 192),
        ("timm.swin_tiny_patch4_window7_224(global_pool='', img_size=64, depths=[1, 1])", "map", 192),
    ],
)
def test_maps_tokens_and_pyramids_are_rotated_along_their_features(model, kind, size):
    pixels = 32 if "vit" in model else 64
    net = create(f"hard_sharing(backbone={model}, heads={{a: linear, b: mlp(4)}})", method="rotograd")
    assert (net.features.kind, net.features.dim) == (kind, size)
    assert net.method.rotations.shape == (2, size, size)
    predictions = net(torch.randn(2, 3, pixels, pixels))
    net.method.total(losses_of(predictions, targets_for(predictions))).backward()
    assert net.method.stats is not None


def test_dense_heads_predict_per_pixel():
    spec = (
        "hard_sharing(backbone=timm.mobilenetv3_small_050(global_pool=''), heads=conv(8, upsample=32))"
    )
    assert create(spec)(torch.randn(2, 3, 64, 64))["a"].shape == (2, 3, 64, 64)


def test_the_user_s_axis_of_rotation_is_kept():
    net = create("segnet(width=0.1, input_size=[32, 32])", method="rotograd(dim=flat, size=16)")
    assert "dim=flat" in str(net.method)
    assert net.method.rotations.shape == (2, 16, 16)
    assert create("segnet(width=0.1)", method="rotograd").method.rotations.shape == (2, 6, 6)


@pytest.mark.parametrize(
    "backbone", ["resnet18", "convnext_atto", "vit_tiny_patch16_224", "efficientnet_b0"]
)
@pytest.mark.parametrize("architecture", ["mtan", "cross_stitch(fork=streams)", "ltb(fork=nodes)"])
@pytest.mark.slow
def test_pyramids_of_every_family_can_be_attended_stitched_and_branched(architecture, backbone):
    options = "(img_size=64)" if backbone.startswith("vit") else ""
    net = create(architecture, method="pcgrad", backbone=f"timm.{backbone}{options}")
    train(net, torch.randn(4, 3, 64, 64), steps=2, lr=1e-4)
    assert net.method.stats.norms.min() > 0
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_stages_of_a_backbone_make_the_backbone():
    from mtlkit.architectures.backbones import build_backbone
    from mtlkit.architectures.stages import build_stages

    x = torch.randn(2, 3, 64, 64)
    for spec in ("timm.resnet10t", "timm.mobilenetv3_small_050", "timm.convnext_atto"):
        torch.manual_seed(4)
        whole, _ = build_backbone(spec, features_only=True)
        torch.manual_seed(4)
        nets, found = build_stages(spec, 1)
        expected = whole.eval()(x)[-1]
        assert len(nets[0]) >= 4
        assert torch.allclose(nn.Sequential(*nets[0]).eval()(x), expected, atol=1e-5)
        assert found.dim == expected.shape[1]


# weights from outside


def test_without_a_network_the_error_says_so(monkeypatch):
    import timm.models._builder as builder

    def fail(*args, **kwargs):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(builder, "load_state_dict_from_hf", fail)
    monkeypatch.setattr(builder, "load_state_dict_from_url", fail)
    with pytest.raises(MtlkitError, match=r"could not be downloaded.*checkpoint_path.*pretrained=False"):
        create("hard_sharing(backbone=timm.resnet18(pretrained=True))")


def test_without_a_network_the_error_of_smp_says_so(monkeypatch):
    import segmentation_models_pytorch as smp

    def fail(*args, **kwargs):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(smp.encoders, "hf_hub_download", fail)
    with pytest.raises(MtlkitError, match=r"could not be downloaded.*checkpoint_path.*pretrained=False"):
        create("smp(encoder=resnet18, pretrained=True)")


@pytest.mark.parametrize("features_only", [False, True])
def test_a_timm_checkpoint_with_classifier_is_loaded_and_adapted(tmp_path, features_only):
    import timm

    path = tmp_path / "weights.pth"
    source = timm.create_model("resnet10t")
    torch.save(source.state_dict(), path)
    spec = f"timm.resnet10t(in_chans=1, checkpoint_path='{path}', features_only={features_only})"
    net = create(f"hard_sharing(backbone={spec})")
    loaded, original = net.backbone.state_dict(), source.state_dict()
    assert torch.equal(loaded["layer4.0.conv1.weight"], original["layer4.0.conv1.weight"])
    assert loaded["conv1.0.weight"].shape[1] == 1


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    torch.save({"unrelated": torch.zeros(2)}, path)
    with pytest.raises(SpecError, match="has no weights"):
        create(f"hard_sharing(backbone=timm.resnet10t(checkpoint_path='{path}'))")
    with pytest.raises(SpecError, match="no file"):
        create("hard_sharing(backbone=timm.resnet10t(checkpoint_path='missing.pth'))")


def test_an_smp_checkpoint_is_loaded(tmp_path):
    import segmentation_models_pytorch as smp

    path = tmp_path / "weights.pth"
    source = smp.encoders.get_encoder("resnet18")
    torch.save(source.state_dict(), path)
    net = create("smp(encoder=resnet18)", checkpoint_path=str(path))
    for key, value in source.state_dict().items():
        assert torch.equal(net.encoder.state_dict()[key], value)
    with pytest.raises(SpecError, match="could not be read"):
        create("smp(encoder=resnet34)", checkpoint_path=str(path))


# dense prediction


DECODERS = (
    "unet", "unetplusplus", "manet", "linknet", "fpn", "pspnet", "pan", "deeplabv3", "deeplabv3plus",
    "upernet", "segformer",
)  # fmt: skip
QUICK = {("unet", "encoder"), ("deeplabv3plus", "encoder"), ("fpn", "encoder"), ("fpn", "decoder")}


@pytest.mark.parametrize(
    ("decoder", "split"),
    [
        pytest.param(decoder, split, marks=[] if (decoder, split) in QUICK else pytest.mark.slow)
        for decoder in DECODERS
        for split in ("encoder", "decoder")
    ],
)
def test_every_decoder_takes_a_step_at_the_size_of_the_image(decoder, split):
    net = create(
        "smp(encoder=timm.mobilenetv3_small_050)"
        if decoder in ("unet", "fpn")
        else "smp(encoder=resnet18)",
        decoder=decoder,
        split=split,
        method="rotograd",
    )
    pixels = 128 if decoder == "pan" else 64
    predictions = net(torch.randn(2, 3, pixels, pixels))
    assert {task: tuple(p.shape) for task, p in predictions.items()} == {
        "a": (2, 3, pixels, pixels),
        "b": (2, 1, pixels, pixels),
    }
    net.method.total(losses_of(predictions, targets_for(predictions))).backward()
    assert net.method.stats is not None


def test_all_scales_of_the_encoder_enter_the_merge():
    net = create("smp(encoder=timm.mobilenetv3_small_050, decoder=unet)", method="pcgrad")
    x = torch.randn(2, 3, 64, 64)
    shared = net.encode(x)
    assert len(shared) == 5
    predictions = net(x)
    losses = losses_of(predictions, targets_for(predictions))
    net.method.total(losses).backward()
    expected = torch.stack([
        sum(g.square().sum() for g in torch.autograd.grad(loss, leaves))
        for loss, leaves in _plain_losses(net, x)
    ])  # fmt: skip
    assert torch.allclose(net.method.stats.norms.square(), expected, rtol=1e-3)


def _plain_losses(net, x):
    for task in net.tasks:
        leaves = [leaf.detach().requires_grad_() for leaf in net.encode(x)]
        prediction = net.predict(task, leaves, x)
        targets = targets_for({name: net.predict(name, leaves, x) for name in net.tasks})
        yield F.mse_loss(prediction, targets[task]), leaves


def test_images_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match="multiples of 32"):
        create("smp(encoder=resnet18, decoder=linknet)")(torch.randn(1, 3, 50, 64))


def test_segnet_has_the_shapes_and_parameters_of_its_description():
    net = create("segnet", {"seg": 13, "depth": 1, "normal": 3}).eval()
    widths, depths = (64, 128, 256, 512, 512), (2, 2, 3, 3, 3)
    expected = 0
    for level, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        below = 3 if level == 0 else widths[level - 1]
        expected += _convs(below, width, depth)
        expected += _convs(width, widths[max(level - 1, 0)], depth)
    assert count(net.shared_parameters()) == expected == 24_943_296
    for task, outputs in net.outputs.items():
        assert count(net.task_parameters(task)) == 64 * 64 * 9 + 64 + 64 * outputs + outputs
    with torch.no_grad():
        predictions = net(torch.randn(1, 3, 288, 384))
    assert {task: tuple(p.shape) for task, p in predictions.items()} == {
        "seg": (1, 13, 288, 384),
        "depth": (1, 1, 288, 384),
        "normal": (1, 3, 288, 384),
    }


def _convs(inputs, outputs, depth):
    """Parameters of ``depth`` 3x3 convolutions with bias, each with batch normalization."""
    first = inputs * outputs * 9 + 3 * outputs
    return first + (depth - 1) * (outputs * outputs * 9 + 3 * outputs)


def test_segnet_takes_images_of_odd_size():
    assert create("segnet(width=0.05)")(torch.randn(2, 3, 37, 45))["a"].shape == (2, 3, 37, 45)


# the paper's nets


def test_the_nets_of_the_paper_have_the_layers_of_its_appendix():
    tasks = {"left": 10, "right": 10, "parity": 1, "sum": 1, "active": 1}
    net = create("paper_mnist(binary=[parity])", tasks, method="rotograd")
    layers = [type(layer).__name__ for layer in net.backbone]
    assert layers == [
        "Conv2d", "MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "Flatten", "Linear", "ReLU", "BatchNorm1d",
    ]  # fmt: skip
    assert net.backbone[6].in_features == 320
    out = net(torch.randn(4, 1, 28, 28))
    assert torch.allclose(out["left"].exp().sum(1), torch.ones(4), atol=1e-5)
    assert ((out["parity"] > 0) & (out["parity"] < 1)).all()
    assert count(net.task_parameters("left")) == 50 * 50 + 50 + 50 * 10 + 10
    assert count(net.task_parameters("parity")) == 51
    assert net.method.rotations.shape == (5, 50, 50)

    svhn = create("paper_svhn", tasks)
    assert [type(layer).__name__ for layer in svhn.backbone][3:7] == [
        "Conv2d", "MaxPool2d", "Conv2d", "Flatten",
    ]  # fmt: skip
    assert svhn.backbone[7].in_features == 180


@pytest.mark.parametrize(("pixels", "size"), [(32, 512), (64, 2048)])
def test_the_residual_net_of_the_paper_has_the_paper_s_number_of_features(pixels, size):
    net = create("paper_cifar10", 2, input_size=(3, pixels, pixels))
    assert net.features.dim == size
    assert isinstance(net.backbone[-1], nn.BatchNorm1d)
    out = net(torch.randn(2, 3, pixels, pixels))
    assert ((out["0"] > 0) & (out["0"] < 1)).all()


def test_the_residual_net_of_the_paper_can_be_made_smaller():
    net = create("paper_cifar10(width=0.25, logits=True)", 2)
    assert net.features.dim == 128
    assert net(torch.randn(2, 3, 32, 32))["0"].shape == (2, 1)


def test_the_convolutional_net_of_the_paper_has_512_features():
    net = create("paper_celeba", 40)
    convolutions = [layer for layer in net.backbone if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [64, 128, 128, 256, 256, 512]
    assert not any(isinstance(layer, nn.ReLU) for layer in net.backbone)
    assert net.features.dim == 512
    assert net(torch.randn(2, 3, 64, 64))["39"].shape == (2, 1)


def test_the_illustrative_net_of_the_paper_has_no_heads():
    net = create(
        "hard_sharing(backbone=mlp(10, 2, inputs=2, activate_last=False), heads=identity)",
        2,
        method="rotograd",
    )
    assert not list(net.task_parameters("0"))
    assert net(torch.randn(1, 2))["0"].shape == (1, 2)


# mixtures of experts


def test_mmoe_mixes_the_experts_by_the_task_s_gate():
    net, x = create("mmoe(input_size=8, experts=3)"), torch.randn(4, 8)
    outputs = torch.stack([expert(x) for expert in net.experts], dim=1)
    weights = (x @ net.gates["a"].weight.T).softmax(1)
    expected = net.head("a")((weights[:, :, None] * outputs).sum(1))
    assert torch.allclose(net(x)["a"], expected, atol=1e-6)


def test_rotating_the_experts_is_rotating_the_mixture():
    net, x = create("mmoe(input_size=8, experts=3, expert=mlp(6))", method="rotograd"), torch.randn(4, 8)
    with torch.no_grad():
        for lie in net.method.parameters():
            lie.normal_()
    net.eval()
    rotation = net.method.rotations[0]
    outputs = torch.stack([expert(x) for expert in net.experts], dim=1)
    mixture = ((x @ net.gates["a"].weight.T).softmax(1)[:, :, None] * outputs).sum(1)
    assert torch.allclose(net(x)["a"], net.head("a")(mixture @ rotation.T), atol=1e-5)


def test_experts_may_be_whole_backbones():
    net = create("mmoe(expert=lenet, input_size=[1, 28, 28], experts=2)", method="pcgrad")
    assert net(torch.randn(3, 1, 28, 28))["a"].shape == (3, 3)


def test_the_shared_gate_of_ple_mixes_the_experts_of_all_tasks():
    net, x = create("ple(input_size=8, levels=2, shared_experts=1, task_experts=1)"), torch.randn(4, 8)
    assert net.shared_gates[0].out_features == 3
    with torch.no_grad():
        before = net(x)["a"]
        for parameter in net.task_experts[0]["b"].parameters():
            parameter.add_(1.0)
        assert not torch.allclose(net(x)["a"], before)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (SegNet, {"width": 0.0}),
        (Ple, {"levels": 0, "input_size": 8}),
        (DSelectK, {"gamma": -1.0, "input_size": 8}),
        (LearningToBranch, {"decay": 2.0, "backbone": "mlp(4, inputs=8)"}),
    ],
)
def test_a_class_refuses_the_options_that_its_config_string_refuses(kind, option):
    name = next(iter(option))
    with pytest.raises(SpecError, match=f"{name} of {kind.name} must be"):
        kind(2, **option)
    with pytest.raises(SpecError, match=f"{name} of {kind.name} must be"):
        create(kind.name, 2, **option)


def test_cgc_is_one_level_of_ple_and_has_no_shared_gate():
    net = create("cgc(input_size=8)")
    assert len(net.shared_gates) == 0
    with pytest.raises(SpecError, match="unknown option of cgc 'levels'"):
        create("cgc(input_size=8, levels=2)")


# DSelect-k


def test_the_entropy_term_reaches_the_gate_and_acts():
    net = create("dselect_k(input_size=8, entropy=0.5, experts=4)")
    net(torch.randn(4, 8))
    term = net.auxiliary_loss()
    term.backward()
    gates = [p for name, p in net.named_parameters() if name.endswith(".z")]
    assert all(float(z.grad.abs().sum()) > 0 for z in gates)
    optimizer = torch.optim.SGD(gates, lr=0.05)
    first = float(term.detach())
    for _ in range(200):
        optimizer.zero_grad()
        net(torch.randn(2, 8))
        term = net.auxiliary_loss()
        term.backward()
        optimizer.step()
    assert float(term.detach()) < 0.05 * first
    for gate in net.gates.values():
        weights, _ = gate(None)
        assert (weights > 1e-6).sum() <= 2
        assert torch.allclose(weights.sum(), torch.tensor(1.0), atol=1e-5)


def test_the_auxiliary_loss_is_handed_out_once_and_only_in_training():
    net, x = create("dselect_k(input_size=8)"), torch.randn(4, 8)
    net(x)
    assert net.auxiliary_loss() is not None
    assert net.auxiliary_loss() is None
    with torch.no_grad():
        net(x)
    assert net.auxiliary_loss() is None
    net.eval()(x)
    assert net.auxiliary_loss() is None
    assert create(MLP).auxiliary_loss() is None


@pytest.mark.parametrize("experts", [1, 2, 3, 4, 5, 8])
def test_gate_weights_are_a_distribution_where_codes_are_complete(experts):
    gate = DSelectGate(experts, 1, 1.0, None)
    weights, selected = gate(None)
    weights, penalty = weights.detach(), gate.penalty(selected)
    assert weights.shape == (experts,)
    assert (weights >= 0).all()
    assert float(weights.sum()) <= 1 + 1e-6
    if experts in (2, 4, 8):
        assert torch.allclose(weights.sum(), torch.tensor(1.0))
    assert torch.isfinite(penalty)


def test_saturated_gates_have_finite_gradients():
    gate = DSelectGate(4, 2, 1.0, None)
    with torch.no_grad():
        gate.z.copy_(torch.tensor([[3.0, -3.0], [0.5, 0.1]]))
    weights, selected = gate(None)
    (weights[0] + gate.penalty(selected)).backward()
    assert torch.isfinite(gate.z.grad).all()


# streams and branches


def test_cross_stitch_mixes_by_its_units():
    net, x = create("cross_stitch(backbone=mlp(6, 5, inputs=8), same=0.8)"), torch.randn(4, 8)
    first, second = net.nets["a"], net.nets["b"]
    u, v = first[0](x), second[0](x)
    u, v = first[1](0.8 * u + 0.2 * v), second[1](0.2 * u + 0.8 * v)
    assert torch.allclose(net(x)["a"], net.head("a")(0.8 * u + 0.2 * v), atol=1e-6)


def test_branches_tell_the_path_and_evaluation_follows_it():
    net, x = create("ltb(backbone=mlp(6, 6, 5, inputs=8))"), torch.randn(4, 8)
    with torch.no_grad():
        net.task_choices["a"].logits[1] = 2.0
        net.choices[1][1].logits[1] = 3.0
    assert net.branches() == {"a": (0, 1, 1), "b": (0, 0, 0)}
    net.eval()
    expected = net.head("a")(net.levels[2][1](net.levels[1][1](net.levels[0][0](x))))
    assert torch.equal(net(x)["a"], expected)
    ran = []
    for level in net.levels:
        for node in level:
            node.register_forward_hook(lambda module, *_: ran.append(module))
    net(x)
    assert len(ran) == 5


def test_draws_of_branches_differ_by_step_and_cool_down():
    net, x = create("ltb(backbone=mlp(6, 5, inputs=8), temperature=1.0)"), torch.randn(4, 8)
    assert not torch.equal(net(x)["a"], net(x)["a"])
    warm = create("ltb(backbone=mlp(6, 5, inputs=8), warmup=5)")
    assert torch.equal(warm(x)["a"], warm(x)["a"])
