import pytest
import torch

import mtlkit


def test_first_step_is_that_worked_by_hand():
    gram = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    absolute = mtlkit.create_method("modo(gamma=0.1, rho=0.0, normalize=False)", 2).weights(gram)
    # (0.5, 0.5) - 0.1 * (0.5, 2) = (0.45, 0.3), brought back to sum one
    torch.testing.assert_close(absolute, torch.tensor([0.575, 0.425], dtype=torch.float64))
    relative = mtlkit.create_method("modo(gamma=0.1, rho=0.0)", 2).weights(gram)
    torch.testing.assert_close(relative, torch.tensor([0.53, 0.47], dtype=torch.float64))


def test_features_are_compared_between_even_and_odd_samples():
    method = mtlkit.create_method("modo(gamma=0.1, rho=0.0, normalize=False)", 2)
    first = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]).double()
    second = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0], [5.0, 0.0], [9.0, 9.0]]).double()
    z = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    views = method(z)
    method.total([(views[0] * first).sum(), (views[1] * second).sum()]).backward()
    even, odd = slice(0, 4, 2), slice(1, 4, 2)
    rows = torch.stack([first, second])
    # the fifth sample has no partner; two pairs stand for five samples
    products = torch.einsum("ibd,jbd->ij", rows[:, even], rows[:, odd]) * 5 / 2
    moved = 0.5 - 0.1 * (products @ torch.full((2,), 0.5, dtype=torch.float64))
    share = moved[0] - (moved.sum() - 1) / 2
    share = share.clamp(0, 1)
    torch.testing.assert_close(method.parts[0].w, torch.stack([share, 1 - share]))


def test_noise_that_differs_between_samples_does_not_move_the_weights_on_average():
    # a task of pure noise has a long gradient, but its samples do not agree on a direction
    moved = []
    for seed in range(200):
        method = mtlkit.create_method("modo(gamma=0.1, rho=0.0, normalize=False)", 2)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(16, 4, generator=generator)
        z = torch.zeros(16, 4, requires_grad=True)
        views = method(z)
        method.total([(views[0] * 0.01).sum(), (views[1] * noise * 0.1).sum()]).backward()
        moved.append(method.parts[0].w[1] - 0.5)
    sample = torch.stack(moved)
    assert sample.mean().abs() < 4 * sample.std() / 200**0.5
    # on the Gram matrix the same task would lose weight at every step
    assert sample.mean() > -0.1 * 0.5 * 0.5 * 0.01 * 64 / 4


def test_one_sample_and_parameter_gradients_use_the_gram_matrix():
    rows = torch.tensor([[1.0, 2.0], [-1.0, 0.5]])
    expected = mtlkit.create_method("modo", 2).combine(rows)
    method = mtlkit.create_method("modo", 2)
    z = torch.zeros(1, 2, requires_grad=True)
    views = method(z)
    method.total([(views[0] * rows[0]).sum(), (views[1] * rows[1]).sum()]).backward()
    torch.testing.assert_close(z.grad[0], expected)

    method = mtlkit.create_method("modo(wrt=parameters)", 2)
    shift = torch.nn.Parameter(torch.zeros(2))
    views = method(torch.zeros(4, 2) + shift)
    method.total([(v * row).mean(dim=0).sum() for v, row in zip(views, rows, strict=True)]).backward()
    torch.testing.assert_close(shift.grad, expected)


@pytest.mark.parametrize(("gamma", "rho"), [(0.1, 0.1), (0.05, 0.1)])
def test_agrees_with_torchjd_over_many_steps(gamma, rho):
    from torchjd.aggregation import MoDoWeighting

    generator = torch.Generator().manual_seed(0)
    ours = mtlkit.create_method("modo(normalize=False)", 5, gamma=gamma, rho=rho)
    theirs = MoDoWeighting(gamma=gamma, rho=rho)
    for _ in range(200):
        rows = torch.randn(5, 6, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(ours.combine(rows), theirs(rows @ rows.T) @ rows)
