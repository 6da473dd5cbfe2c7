"""K identical gradients, or equal losses, have the update scale that the docstrings state."""

import math

import pytest
import torch

import mtlkit
from mtlkit.config.registry import methods

SUMS = [
    "aligned_mtl", "aligned_mtl(scale_mode=median)", "aligned_mtl(scale_mode=rmse)", "config", "constant",
    "cr_mogm(inner=pcgrad)", "db_mtl", "fairgrad(alpha=0.0)", "graddrop", "graddrop(leak=0.3)", "gradnorm", "gradvac", "pcgrad",
    "lr_annealing", "match_primary", "scale", "sum", "vanilla",
]  # fmt: skip
MEANS = [
    "cr_mogm", "dualproj", "excess_mtl", "imtl_g", "imtl", "krum", "krum(n_selected=2)", "mean", "mgda", "mgda(normalize=l2)", "moco", "modo",
    "pcd", "random", "sdmgrad", "trimmed_mean", "upgrad",
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

    def test_get_a_tenth_of_their_sum_at_db_mtl_s_first_step_on_parameters(self, tasks, norm):
        assert length("db_mtl(wrt=parameters)", tasks, norm) == pytest.approx(0.1 * tasks * norm)

    def test_get_the_radius_of_the_ball_more_than_the_mean_from_cagrad(self, tasks, norm):
        assert length("cagrad(c=0.4)", tasks, norm) == pytest.approx(1.4 * norm)

    @pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
    def test_get_a_power_of_k_and_of_their_norm_from_fairgrad(self, alpha, tasks, norm):
        expected = tasks ** (1 / (1 + alpha)) * norm ** ((1 - alpha) / (1 + alpha))
        assert length(f"fairgrad(alpha={alpha})", tasks, norm) == pytest.approx(expected)

    def test_get_the_norm_of_the_balancer(self, tasks, norm):
        assert length("balancer(norm=3.0)", tasks, norm) == pytest.approx(3)

    def test_get_a_power_of_k_and_of_their_norm_from_pivrg(self, tasks, norm):
        assert length("pivrg", tasks, norm) == pytest.approx((tasks / norm) ** (1 / 3))

    def test_get_the_root_of_k_from_bargaining(self, tasks, norm):
        assert length("nash_mtl", tasks, norm) == pytest.approx(math.sqrt(tasks))


FACTORS = {
    "constant": lambda tasks, loss: 1,
    "cosmos": lambda tasks, loss: 1 / tasks,
    "dwa": lambda tasks, loss: 1,
    "famo": lambda tasks, loss: 1 / tasks,
    "gls": lambda tasks, loss: 1 / tasks,
    "go4align": lambda tasks, loss: 1,
    "igb": lambda tasks, loss: 1 / loss,
    "imtl_l": lambda tasks, loss: 1,
    "ldc": lambda tasks, loss: 1 / (tasks * loss),
    "normalize": lambda tasks, loss: 1 / loss,
    "pbi": lambda tasks, loss: 1 / math.sqrt(tasks),
    "recap": lambda tasks, loss: 1,
    "relobralo": lambda tasks, loss: 1,
    "si": lambda tasks, loss: 1 / loss,
    "softadapt": lambda tasks, loss: 1 / tasks,
    "stch": lambda tasks, loss: 1 / (tasks * loss),
    "uw": lambda tasks, loss: 0.5,
    "uw_so": lambda tasks, loss: 1 / tasks,
}


@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("loss", [0.02, 7.0])
@pytest.mark.parametrize("spec", FACTORS)
def test_equal_losses_have_the_documented_factor(spec, tasks, loss):
    method = mtlkit.create_method(spec, tasks)
    losses = [torch.tensor(loss, dtype=torch.float64, requires_grad=True) for _ in range(tasks)]
    method.total(losses).backward()
    expected = FACTORS[spec](tasks, loss)
    assert [x.grad.item() for x in losses] == pytest.approx([expected] * tasks)


@pytest.mark.parametrize("name", mtlkit.list_methods())
def test_the_docstring_has_a_line_on_it(name):
    for part in methods.expand(name):
        text = methods.get(part.name).__doc__ or ""
        assert "Update scale:" in text, part.name
