"""Architectures without their method: ordinary modules, rotations folded into the heads if possible."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import mtlkit
from tests.architectures.cases import CASES, MOBILENET, TASKS, ids, light

# architectures whose heads alone read one shared tensor
FOLDED = (
    "hard_sharing(backbone=mlp",
    "smp(encoder=timm.mobilenetv3_small_050, split",
    "segnet",
    "paper",
)


def turned(spec: str, method: str) -> mtlkit.Architecture:
    torch.manual_seed(0)
    net = mtlkit.create_architecture(spec, TASKS, method=method).eval()
    with torch.no_grad():
        for parameter in net.method.parameters():
            parameter.normal_(0, 0.2)
    return net


def assert_same(fused: nn.Module, net: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        found, wanted = fused(x), net(x)
    assert list(found) == list(wanted)
    for task, prediction in wanted.items():
        scale = max(1.0, float(prediction.abs().max()))
        assert (found[task] - prediction).abs().max() < 1e-5 * scale


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_a_fused_architecture_is_an_ordinary_module_that_predicts_the_same(case):
    net, x = turned(case.spec, "rotograd" if case.forks else "sum"), case.inputs()
    folded = not case.forks or case.spec.startswith(FOLDED)
    net(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fused = mtlkit.fuse(net)  # the network has seen an input
    assert any("explicit products (a: " in str(w.message) for w in caught) == (not folded)
    assert any("rotation" in name for name, _ in fused.named_buffers()) == (not folded)
    assert isinstance(fused, torch.fx.GraphModule)
    assert not fused.eval().training
    assert not any(type(module).__module__.startswith("mtlkit") for module in fused.modules())
    for batch in (x, torch.cat([x, x])):
        assert_same(fused, net, batch)


@pytest.mark.parametrize("method", ["rotograd(size=8)", "pcgrad"])
def test_a_fused_architecture_can_be_exported(method):
    net, x = turned("hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(6))", method), torch.randn(3, 8)
    fused = mtlkit.fuse(net, x)
    assert_same(torch.export.export(fused, (x,)).module(), net, x)


@pytest.mark.parametrize(
    "spec",
    [
        "segnet(width=0.08)",
        "smp(encoder=timm.mobilenetv3_small_050, split=decoder)",
        f"hard_sharing(backbone={MOBILENET}(global_pool=''), heads=conv(8))",
        f"hard_sharing(backbone={MOBILENET}(global_pool=''), heads=linear)",
        f"mtan(backbone={MOBILENET}(out_indices=[2, 3, 4]))",
    ],
)
@pytest.mark.filterwarnings("ignore:fuse leaves")
def test_a_fused_architecture_takes_images_of_other_sizes(spec):
    net = turned(spec, "rotograd")
    fused = mtlkit.fuse(net, torch.randn(2, 3, 32, 32))
    assert_same(fused, net, torch.randn(3, 3, 64, 96))


def test_a_saved_fused_architecture_is_loaded_without_mtlkit(tmp_path):
    net, x = (
        turned("hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(6))", "rotograd"),
        torch.randn(3, 8),
    )
    torch.save(mtlkit.fuse(net, x), tmp_path / "fused.pt")
    with torch.no_grad():
        torch.save((x, net(x)), tmp_path / "expected.pt")
    code = (
        "import sys, torch; sys.modules['mtlkit'] = None\n"
        "fused = torch.load('fused.pt', weights_only=False)\n"
        "x, expected = torch.load('expected.pt')\n"
        "assert all(torch.allclose(fused(x)[task], expected[task], atol=1e-5) for task in expected)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)


def test_an_architecture_inside_another_network_is_fused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = turned("hard_sharing(backbone=mlp(16, inputs=8))", "rotograd")

        def forward(self, x):
            return {task: 2 * prediction for task, prediction in self.net(x).items()}

    model, x = Scaled().eval(), torch.randn(3, 8)
    fused = mtlkit.fuse(model, x)
    assert_same(fused, model, x)
    assert not any(type(module).__module__.startswith("mtlkit") for module in fused.modules())
    assert not any("rotation" in name for name, _ in fused.named_buffers())


def test_an_architecture_that_never_ran_asks_for_an_example():
    net, x = turned("hard_sharing(backbone=mlp(16, inputs=8))", "rotograd"), torch.randn(2, 8)
    with pytest.raises(mtlkit.MtlkitError, match="run the model once"):
        mtlkit.fuse(net)
    assert_same(mtlkit.fuse(net, x), net, x)


def test_batches_of_each_task_s_own_may_have_other_sizes(tmp_path):
    net = mtlkit.create_architecture(
        "hard_sharing(backbone=mlp(16, inputs=8))", TASKS, method="rotograd", multi_input=True
    ).eval()
    x = {"a": torch.randn(4, 8), "b": torch.randn(3, 8)}
    with pytest.warns(UserWarning, match="explicit products"):
        fused = mtlkit.fuse(net, x)
    torch.save(fused.eval(), tmp_path / "fused.pt")
    again = torch.load(tmp_path / "fused.pt", weights_only=False)
    assert_same(again, net, {"a": torch.randn(1, 8), "b": torch.randn(6, 8)})
