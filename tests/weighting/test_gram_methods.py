"""What the laws do not ask: steps without any label, and half precision."""

import pytest
import torch

import mtlkit

NAMES = [
    "cagrad", "nash_mtl", "nash_mtl(update_every=2)", "fairgrad", "aligned_mtl", "upgrad", "dualproj",
    "gradvac", "pcd", "krum", "random", "moco", "modo", "sdmgrad", "excess_mtl", "cr_mogm", "db_mtl",
    "mgda",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_step_without_any_label_changes_nothing(name):
    method = mtlkit.create_method(name, 3)
    method.combine(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    kept = {key: value.clone() for key, value in method.state_dict().items()}
    z = torch.randn(2, 4, requires_grad=True)
    method(z)
    method.total([None, None, None]).backward()
    assert z.grad is None or not z.grad.any()
    for key, value in kept.items():
        assert torch.equal(method.state_dict()[key], value), key


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gradients_are_merged_in_float32(name):
    rows = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    merged = mtlkit.create_method(name, 4).combine(rows)
    assert merged.dtype == torch.bfloat16
    exact = mtlkit.create_method(name, 4).combine(rows.float())
    torch.testing.assert_close(merged.float(), exact, rtol=0.01, atol=0.01 * exact.abs().max().item())


def test_imtl_stands_for_both_of_its_halves():
    assert mtlkit.config.registry.methods.aliases()["imtl"] == "imtl_l+imtl_g"
    assert "imtl" in mtlkit.list_methods()


def test_all_names_of_the_gram_methods_are_listed():
    assert {name.partition("(")[0] for name in NAMES} <= set(mtlkit.list_methods())
