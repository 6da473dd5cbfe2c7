"""Architectures without their method: rotations folded into the heads, or kept as a product."""

from __future__ import annotations

import pytest
import torch

import mtlkit

TASKS = {"a": 3, "b": 1}
NETS = [
    ("hard_sharing(backbone=mlp(16, inputs=8), heads=linear)", (8,), "rotograd", True),
    ("hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(6))", (8,), "rotograd(size=8)", True),
    ("paper_mnist", (1, 28, 28), "rotograd", True),
    ("smp(encoder=resnet18, decoder=unet, split=decoder)", (3, 32, 32), "rotograd", None),
    ("smp(encoder=resnet18, decoder=unet, split=encoder)", (3, 32, 32), "rotograd", None),
    ("hard_sharing(backbone=mlp(16, inputs=8), heads=linear)", (8,), "pcgrad", True),
]


@pytest.mark.parametrize(("spec", "shape", "method", "folded"), NETS)
def test_a_fused_architecture_gives_the_same_predictions_without_mtlkit(spec, shape, method, folded):
    net = mtlkit.create_architecture(spec, TASKS, method=method)
    with torch.no_grad():
        for parameter in net.method.parameters():
            parameter.normal_(0, 0.2)
    net.eval()
    x = torch.randn(3, *shape)
    with torch.no_grad():
        expected = net(x)
        fused = mtlkit.fuse(net)  # the network has seen an input
        for batch in (x, torch.cat([x, x])):
            found, wanted = fused(batch), net(batch)
            assert list(found) == list(expected)
            for task in expected:
                scale = max(1.0, float(wanted[task].abs().max()))
                assert (found[task] - wanted[task]).abs().max() < 1e-5 * scale
    assert not any(type(module).__module__.startswith("mtlkit") for module in fused.modules())
    if folded is not None:
        assert (not any("rotation" in name for name, _ in fused.named_buffers())) == folded
    torch.export.export(fused, (x,))


def test_an_architecture_that_never_ran_asks_for_an_example():
    net = mtlkit.create_architecture(NETS[0][0], TASKS, method="rotograd")
    with pytest.raises(mtlkit.MtlkitError, match="run the model once"):
        mtlkit.fuse(net)
    assert mtlkit.fuse(net, torch.randn(2, 8)) is not None
