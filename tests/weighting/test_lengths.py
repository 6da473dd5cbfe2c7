"""The docstrings say what becomes of K equal gradients, or of equal losses: this is that."""

import math

import pytest
import torch

import mtlkit
from mtlkit.registry import methods

SUMS = ["sum", "vanilla", "scale", "pcgrad"]
MEANS = [
    "imtl_g", "imtl", "krum", "krum(n_selected=2)", "mean", "mgda", "mgda(normalize=l2)", "moco", "modo",
    "pcd", "random", "sdmgrad", "torchjd", "trimmed_mean", "upgrad",
]  # fmt: skip


def length(spec: str, tasks: int, norm: float) -> float:
    """Norm of the merged gradient, which has the direction of the equal ones."""
    row = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = (row * norm / row.norm()).expand(tasks, -1)
    merged = mtlkit.create_method(spec, tasks).combine(rows)
    assert torch.cosine_similarity(merged, row, dim=0).item() == pytest.approx(1)
    return merged.norm().item()


@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("norm", [0.01, 3.0])
class TestKEqualGradients:
    @pytest.mark.parametrize("spec", SUMS)
    def test_are_added(self, spec, tasks, norm):
        assert length(spec, tasks, norm) == pytest.approx(tasks * norm)

    @pytest.mark.parametrize("spec", MEANS)
    def test_are_averaged(self, spec, tasks, norm):
        assert length(spec, tasks, norm) == pytest.approx(norm)

    def test_get_half_their_length_at_moco_s_first_step_on_parameters(self, tasks, norm):
        assert length("moco(wrt=parameters)", tasks, norm) == pytest.approx(norm / 2)

    def test_get_the_root_of_k_from_bargaining(self, tasks, norm):
        assert length("nash_mtl", tasks, norm) == pytest.approx(math.sqrt(tasks))


FACTORS = {
    "imtl_l": lambda tasks, loss: 1,
    "normalize": lambda tasks, loss: 1 / loss,
    "pbi": lambda tasks, loss: 1 / math.sqrt(tasks),
    "si": lambda tasks, loss: 1 / loss,
    "stch": lambda tasks, loss: 1 / (tasks * loss),
    "uw": lambda tasks, loss: 0.5,
}


@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("loss", [0.02, 7.0])
@pytest.mark.parametrize("spec", FACTORS)
def test_equal_losses_have_the_factor_that_is_said(spec, tasks, loss):
    method = mtlkit.create_method(spec, tasks)
    losses = [torch.tensor(loss, dtype=torch.float64, requires_grad=True) for _ in range(tasks)]
    method.total(losses).backward()
    expected = FACTORS[spec](tasks, loss)
    assert [x.grad.item() for x in losses] == pytest.approx([expected] * tasks)


@pytest.mark.parametrize(
    "name", [*sorted({spec.partition("(")[0] for spec in SUMS + MEANS}), *FACTORS, "nash_mtl"]
)
def test_the_docstring_has_a_line_on_it(name):
    for part in methods.expand(name):
        assert "Length:" in (methods.get(part.name).__doc__ or ""), part.name
