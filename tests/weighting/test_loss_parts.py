"""What holds for every part that weighs the losses, beside the laws of mtlkit.testing."""

import copy
import math

import pytest
import torch

import mtlkit
from mtlkit import GradientAggregator
from mtlkit.errors import SpecError, UsageError
from mtlkit.weighting.si import SI
from tests.weighting import loss_steps

SPECS = [
    "uw",
    "imtl_l",
    "gls",
    "si",
    "rlw",
    "rlw(dist=bernoulli)",
    "dwa",
    "dwa(window=2)",
    "stch(warmup=3)",
    "stch(warmup=0, transform=none)",
    "famo",
    "cosmos",
    "pbi",
    "normalize(burn_in=2)",
    "constant",
    "normalize(burn_in=2)+uw",
    "go4align",
    "recap(window=1)",
    "relobralo(rho=0.5)",
    "softadapt",
    "igb(window=2)",
    "uw_so",
    "ldc",
]


def sequence(tasks, steps=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(steps, tasks, generator=generator, dtype=torch.float64) + 0.05).tolist()


def step(method, values):
    """Total and gradient of one step; own parameters learn."""
    method.zero_grad()
    found = loss_steps.step(method, values)
    with torch.no_grad():
        for parameter in method.parameters():
            if torch.isfinite(parameter.grad).all():
                parameter -= 0.1 * parameter.grad
    return found


@pytest.mark.parametrize("spec", SPECS)
def test_a_task_may_come_and_go(spec):
    method = mtlkit.create_method(spec, 3)
    for index, row in enumerate(sequence(3, steps=9)):
        row[index % 3] = None
        total, weights = step(method, row)
        assert math.isfinite(total)
        assert all(w is None or abs(w) < 1e3 for w in weights)


@pytest.mark.parametrize("spec", ["gls", "si", "stch", "stch(warmup=3)", "cosmos", "pbi"])
def test_derivatives_of_a_scalarization_are_those_of_its_value(spec):
    method = mtlkit.create_method(spec, 4)
    for row in sequence(4):
        losses = torch.tensor(row, dtype=torch.float64)
        state = method.parts[0].read((0, 1, 2, 3))
        value, slopes = method.parts[0].scalarize(losses, state)
        for k in range(4):
            nudge = torch.zeros(4, dtype=torch.float64)
            nudge[k] = 1e-6 * losses[k]
            above, _ = method.parts[0].scalarize(losses + nudge, state)
            below, _ = method.parts[0].scalarize(losses - nudge, state)
            slope = ((above - below) / (2 * nudge[k])).item()
            assert slopes[k].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)
        total, weights = step(method, row)
        assert total == pytest.approx(value.item(), abs=1e-12)
        assert weights == pytest.approx(slopes.tolist())


# the weights of uw, imtl_l and ldc are learned, which combine does not do
@pytest.mark.parametrize("spec", [s for s in SPECS if not s.endswith(("uw", "imtl_l", "ldc"))])
def test_combine_weighs_the_gradients_as_training_weighs_the_losses(spec):
    trained, combined = (mtlkit.create_method(spec, 3) for _ in range(2))
    rows = torch.eye(3, dtype=torch.float64)
    for row in sequence(3):
        _, factors = step(trained, row)
        merged = combined.combine(rows, torch.tensor(row, dtype=torch.float64))
        assert merged.tolist() == pytest.approx(factors)
    for key, value in trained.state_dict().items():
        assert torch.equal(combined.state_dict()[key], value), key


@pytest.mark.parametrize("merge", ["pcgrad", "scale", "config", "graddrop", "trimmed_mean"])
@pytest.mark.parametrize("spec", ["uw", "gls", "famo", "rlw", "dwa"])
def test_it_goes_before_a_merge(spec, merge):
    """The merge sees each task's gradient times its weight, and so do the heads."""
    method = mtlkit.create_method(f"{spec}+{merge}", 3)
    plain = mtlkit.create_method(merge, 3)
    slopes = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    features = torch.ones(4, 5, requires_grad=True)
    losses = [(view * s).sum().exp() for view, s in zip(method(features), slopes / 9, strict=True)]
    values = [loss.item() for loss in losses]
    (weigher,) = mtlkit.create_method(spec, 3).parts
    weights, _ = weigher.weigh_losses(torch.tensor(values), weigher.read((0, 1, 2)))
    weights = weights.detach().float()
    method.total(losses).backward()
    rows = torch.stack([w * v * s / 9 for w, v, s in zip(weights, values, slopes, strict=True)])
    expected = plain.combine(rows.flatten(1)).reshape(4, 5)
    torch.testing.assert_close(features.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", ["famo", "stch", "si", "gls", "go4align", "igb", "uw_so"])
def test_a_negative_loss_takes_no_step(spec):
    method = mtlkit.create_method(spec, 2)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    z = torch.ones(2, requires_grad=True)
    total = method.total([-z[0], z[1]])
    total.backward()
    assert torch.isnan(total)
    assert torch.isnan(z.grad).any()
    for name, value in before.items():
        assert torch.equal(method.state_dict()[name], value)


def test_factors_of_half_precision_do_not_overflow():
    half = torch.ones(2, 3, dtype=torch.float16)
    merged = mtlkit.create_method("constant(weights=[1e5, 1])", 2).combine(half * 1e-3)
    torch.testing.assert_close(merged, torch.full((3,), 100.0, dtype=torch.float16))


class _Doubling(GradientAggregator):
    """Uses the state's numbers, then doubles them."""

    def __init__(self, tasks, **common):
        super().__init__(tasks, **common)
        self.add_state("factors", 2.0)


class DoublingMerge(_Doubling):
    def weigh(self, gram, state):
        return state.factors, state.replace(factors=2 * state.factors)


class DoublingLosses(_Doubling):
    def weigh_losses(self, losses, state):
        return state.factors, state.replace(factors=2 * state.factors)


@pytest.mark.parametrize("kind", [DoublingMerge, DoublingLosses])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hook_may_return_its_state_and_replace_it(kind, dtype):
    method, rows = mtlkit.Method(kind(2)), torch.eye(2, dtype=dtype)
    for expected in (2.0, 4.0):
        merged = method.combine(rows, torch.ones(2, dtype=dtype))
        torch.testing.assert_close(merged, torch.full((2,), expected, dtype=dtype))
    z = torch.ones(2, dtype=dtype, requires_grad=True)
    first, second = method(z)
    method.total([first[0], second[1]]).backward()
    torch.testing.assert_close(z.grad, torch.full((2,), 8.0, dtype=dtype))


class MergingSI(SI):
    def weigh(self, gram, state):
        return torch.ones_like(gram[0]), state


def test_a_merge_made_of_a_loss_part_has_the_options_of_a_merge():
    assert {"wrt", "sync"} <= SI.hidden_options
    assert mtlkit.Method(MergingSI(2, wrt="parameters")).wrt_parameters
    assert not {"wrt", "sync"} & MergingSI.hidden_options


def test_losses_are_checked_and_no_graph_is_kept():
    method = mtlkit.create_method("mgda(normalize=loss)", 2)
    with pytest.raises(UsageError, match=r"method.combine\(grads, losses\)"):
        method.combine(torch.eye(2))
    for wrong in ([1.0, 2.0], torch.ones(3), {"0": 1.0}):
        with pytest.raises(SpecError, match=r"one per task, \(2,\)"):
            method.combine(torch.eye(2), wrong)
    method.combine(torch.eye(2), torch.ones(2, requires_grad=True) * 2)
    copy.deepcopy(method)
    z = torch.ones(2, requires_grad=True)
    mtlkit.create_method("uw", 2).total({0: z[0], 1: z[1]}).backward()
    assert z.grad is not None
