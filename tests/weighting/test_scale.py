"""RotoGrad's scaling: section 3.1 and proposition A.1 of the paper."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import gradients


def test_two_steps_by_hand():
    method = mtlkit.create_method("scale", 2)
    # step 1: norms 5 and 10, both at their start: alpha = 1/2 each, C = 7.5
    first = method.combine(torch.tensor([[3.0, 4.0], [10.0, 0.0]]))
    torch.testing.assert_close(first, torch.tensor([0.6 + 1.0, 0.8]) * 7.5)
    # step 2: norms 5 and 2: ratios 1 and 1/5, alpha = 5/6 and 1/6, C = 25/6 + 2/6 = 4.5
    second = method.combine(torch.tensor([[5.0, 0.0], [0.0, 2.0]]))
    torch.testing.assert_close(second, torch.tensor([4.5, 4.5]))


def test_references_are_read_again_at_burn_in():
    method = mtlkit.create_method("scale(burn_in=3)", 2)
    for norms in ([1.0, 1.0], [2.0, 3.0], [4.0, 8.0], [2.0, 2.0]):
        merged = method.combine(torch.diag(torch.tensor(norms)))
    # references are now (4, 8): ratios 1/2 and 1/4, alpha = 2/3 and 1/3, C = 2
    torch.testing.assert_close(merged, torch.tensor([2.0, 2.0]))
    assert method.parts[0].initial_norms.tolist() == [4.0, 8.0]


def test_the_reference_of_a_task_that_starts_with_a_zero_gradient_is_its_first_other():
    method = mtlkit.create_method("scale", 2)
    method.combine(torch.diag(torch.tensor([2.0, 0.0])))
    assert method.parts[0].initial_norms.tolist() == [2.0, 0.0]
    method.combine(torch.diag(torch.tensor([1.0, 3.0])))
    assert method.parts[0].initial_norms.tolist() == [2.0, 3.0]


@settings(max_examples=100)
@given(gradients())
def test_all_tasks_get_one_norm_between_the_smallest_and_the_largest(rows):
    weights = mtlkit.create_method("scale", len(rows)).weights(rows @ rows.T)
    norms = rows.norm(dim=1)
    scaled = weights * norms
    torch.testing.assert_close(scaled, scaled[:1].expand_as(scaled))
    assert norms.min() * 0.999 <= scaled[0] <= norms.max() * 1.001


@settings(max_examples=100)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_without_strong_conflict_a_small_step_lowers_every_loss(count, seed):
    """Proposition A.1: cosines above -1/(K-1) suffice."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    optima = torch.randn(count, 3, 8, generator=generator, dtype=torch.float64)
    scales = torch.rand(count, generator=generator, dtype=torch.float64) * 10 + 0.1

    def losses(at):
        return [loss(k, at) for k in range(count)]

    def loss(k, at):
        return scales[k] * ((at - optima[k]) ** 2).sum() + torch.cosh(at[k % 3]).sum()

    method = mtlkit.create_method("scale", count)
    method.total([loss(k, view) for k, view in enumerate(method(z))]).backward()
    cosines = method.stats.cosines + 2 * torch.eye(count)
    if cosines.min() <= -1 / (count - 1) + 1e-3:
        return
    step = 1e-6 / float(z.grad.norm())
    after = losses(z.detach() - step * z.grad)
    assert all(b < a for a, b in zip(losses(z.detach()), after, strict=True))


def test_strong_conflict_can_raise_a_loss():
    """The proposition's condition is needed: here it fails, and so does its conclusion."""
    rows = torch.tensor([[1.0, 0.0], [-0.9, 0.43589], [-0.9, -0.43589]])
    merged = mtlkit.create_method("scale", 3).combine(rows)
    assert rows[0] @ merged < 0


def test_weights_and_new_state_are_a_function_of_gram_matrix_and_state():
    method = mtlkit.create_method("scale", 3)
    gram = torch.diag(torch.tensor([4.0, 9.0, 16.0], dtype=torch.float64))
    weights, new = method.parts[0].weigh(gram, method.parts[0].read((0, 1, 2)))
    torch.testing.assert_close(weights, 3 / torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
    assert new.initial_norms.tolist() == [2.0, 3.0, 4.0]
    assert method.parts[0].initial_norms.tolist() == [0.0, 0.0, 0.0]
