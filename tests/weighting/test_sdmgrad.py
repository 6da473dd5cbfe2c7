import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit


def test_first_step_is_that_worked_by_hand():
    gram = torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))
    weights = mtlkit.create_method("sdmgrad(n_iter=1, lam=0.0, lr=0.1)", 2).weights(gram)
    # products are divided by the mean norm 1.5 squared: (0.5, 0.5) - 0.1 * (0.5, 2) / 2.25
    torch.testing.assert_close(weights, torch.tensor([0.5 + 1 / 30, 0.5 - 1 / 30]).double())
    pulled = mtlkit.create_method("sdmgrad(n_iter=1, lam=1.0, lr=0.1)", 2).weights(gram)
    # the gradient is that of w + u = (1, 1); half of the result is u
    torch.testing.assert_close(pulled, torch.tensor([0.5 + 1 / 30, 0.5 - 1 / 30]).double())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_without_pull_the_weights_tend_to_those_of_mgda(seed, tasks):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tasks, 12, dtype=torch.float64, generator=generator)
    method = mtlkit.create_method("sdmgrad(lam=0.0)", tasks)
    for _ in range(30):
        merged = method.combine(rows)
    shortest = mtlkit.create_method("mgda", tasks).combine(rows)
    assert merged.norm() <= shortest.norm() * 1.01


def test_a_strong_pull_gives_the_mean():
    rows = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    merged = mtlkit.create_method("sdmgrad(lam=1e6)", 3).combine(rows)
    torch.testing.assert_close(merged, rows.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_features_are_compared_between_even_and_odd_samples():
    method = mtlkit.create_method("sdmgrad(n_iter=1, lam=0.0, lr=0.1)", 2)
    slopes = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    method.total([(v * s).sum() for v, s in zip(method(z), slopes, strict=True)]).backward()
    # two pairs stand for four samples
    products = slopes[:, 0::2].flatten(1) @ slopes[:, 1::2].flatten(1).T * 2
    products = products / slopes.flatten(1).norm(dim=1).mean().square()
    moved = 0.5 - 0.1 * products @ torch.full((2,), 0.5, dtype=torch.float64)
    expected = moved - (moved.sum() - 1) / 2
    assert (expected > 0).all()
    torch.testing.assert_close(method.parts[0].w, expected)


def test_agrees_with_torchjd_on_drawn_matrices():
    from torchjd.aggregation import SDMGradWeighting

    generator = torch.Generator().manual_seed(0)
    ours = mtlkit.create_method("sdmgrad(lr=0.5)", 4)
    theirs = SDMGradWeighting(lr=0.5)
    for _ in range(200):
        rows = torch.randn(4, 6, dtype=torch.float64, generator=generator)
        # it adds 1e-8 to the divisor of the products
        torch.testing.assert_close(
            ours.combine(rows), theirs(rows @ rows.T) @ rows, rtol=1e-5, atol=1e-6
        )
