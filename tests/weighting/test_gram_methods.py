"""What the laws do not ask: steps without any label, half precision, and the length of the result."""

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


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("aligned_mtl", lambda count: count),
        ("aligned_mtl(scale_mode=median)", lambda count: count),
        ("aligned_mtl(scale_mode=rmse)", lambda count: count),
        ("cagrad(c=0.4)", lambda count: 1.4),
        ("config", lambda count: count),
        ("constant", lambda count: count),
        ("cr_mogm", lambda count: 1),
        ("cr_mogm(inner=pcgrad)", lambda count: count),
        ("db_mtl", lambda count: count),
        ("db_mtl(wrt=parameters)", lambda count: 0.1 * count),
        ("dualproj", lambda count: 1),
        ("excess_mtl", lambda count: 1),
        ("fairgrad", lambda count: count**0.5 / 5),
        ("fairgrad(alpha=2.0)", lambda count: count ** (1 / 3) * 5 ** (-4 / 3)),
        ("fairgrad(alpha=0.0)", lambda count: 1),
        ("graddrop(leak=0.3)", lambda count: count),
        ("gradnorm", lambda count: count),
        ("gradvac", lambda count: count),
    ],
)
def test_equal_gradients_give_the_length_of_the_docstring(name, length, count):
    gradient = torch.tensor([3.0, 0.0, -4.0], dtype=torch.float64)
    merged = mtlkit.create_method(name, count).combine(gradient.repeat(count, 1))
    torch.testing.assert_close(merged, length(count) * gradient)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("constant", 1), ("cosmos", 1 / 3), ("dwa", 1), ("famo", 1 / 3), ("gls", 1 / 3)],
)
def test_equal_losses_have_the_factor_of_the_docstring(name, factor):
    losses = [torch.tensor(2.5, requires_grad=True) for _ in range(3)]
    mtlkit.create_method(name, 3).total(losses).backward()
    assert [loss.grad.item() for loss in losses] == pytest.approx([factor] * 3)


def test_imtl_stands_for_both_of_its_halves():
    assert mtlkit.registry.methods.aliases()["imtl"] == "imtl_l+imtl_g"
    assert "imtl" in mtlkit.list_methods()


def test_all_names_of_the_gram_methods_are_listed():
    assert {name.partition("(")[0] for name in NAMES} <= set(mtlkit.list_methods())
