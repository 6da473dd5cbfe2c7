import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import SpecError


def test_weights_are_averaged_over_the_steps():
    method = mtlkit.create_method("cr_mogm(inner=mgda, alpha=0.9)", 2)
    first = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))  # mgda: (0.8, 0.2)
    torch.testing.assert_close(method.combine(first), torch.tensor([0.8, 0.4]).double())
    second = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))  # mgda: (0.2, 0.8)
    torch.testing.assert_close(method.combine(second), torch.tensor([2 * 0.74, 0.26]).double())


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["mgda", "cagrad(c=0.3)", "gradvac", "modo", "sdmgrad", "scale"]),
)
def test_alpha_of_zero_is_the_inner_method(seed, inner):
    generator = torch.Generator().manual_seed(seed)
    smooth = mtlkit.create_method({"name": "cr_mogm", "inner": inner, "alpha": 0.0}, 3)
    plain = mtlkit.create_method(inner, 3)
    for _ in range(3):
        rows = torch.randn(3, 5, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(smooth.combine(rows), plain.combine(rows))


@pytest.mark.parametrize("inner", ["gradvac", "modo", "sdmgrad", "mgda(normalize=loss)"])
def test_alpha_of_zero_is_the_inner_method_in_training(inner):
    """Losses, and products of independent samples, reach the inner method."""
    gradients = []
    for spec in (inner, {"name": "cr_mogm", "inner": inner, "alpha": 0.0}):
        method = mtlkit.create_method(spec, 2)
        z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        for _ in range(3):
            views = method(z)
            method.total([views[0].square().mean(), (3 * views[1] - 1).square().mean()]).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_parameters_of_the_inner_method_are_trained():
    method = mtlkit.create_method("cr_mogm(inner=gradnorm)", 2)
    z = torch.zeros(3, 2, requires_grad=True)
    views = method(z)
    method.total([(views[0] + 1).square().mean(), (3 * views[1] - 1).square().mean()]).backward()
    (weights,) = method.parameters()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0


def test_agrees_with_torchjd_on_drawn_matrices():
    from torchjd.aggregation import AlignedMTLWeighting, CRMOGMWeighting, GramianWeightedAggregator

    tasks = 4
    ours = mtlkit.create_method("cr_mogm(inner=aligned_mtl, alpha=0.7)", tasks)
    theirs = GramianWeightedAggregator(CRMOGMWeighting(AlignedMTLWeighting(), alpha=0.7))
    for seed in range(200):
        rows = torch.randn(tasks, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        # Aligned-MTL adds the aligned gradients here, and averages them there
        torch.testing.assert_close(ours.combine(rows), tasks * theirs(rows), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("inner", ["graddrop", "normalize", "normalize+mgda", "db_mtl"])
def test_an_inner_method_without_weights_of_gradients_alone_is_refused(inner):
    with pytest.raises(SpecError, match="weight per task"):
        mtlkit.create_method({"name": "cr_mogm", "inner": inner}, 2)


def test_common_options_belong_outside():
    with pytest.raises(SpecError, match="give wrt and sync to cr_mogm"):
        mtlkit.create_method("cr_mogm(inner=mgda(wrt=parameters))", 2)
