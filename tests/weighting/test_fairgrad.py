import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_orthogonal_gradients_get_a_power_of_their_norms():
    gram = torch.diag(torch.tensor([1.0, 8.0], dtype=torch.float64))
    weights = mtlkit.create_method("fairgrad(alpha=0.5)", 2).weights(gram)
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5], dtype=torch.float64))  # 8 w = w^-2


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([0.3, 0.5, 1.0, 2.0, 10.0]))
def test_gram_matrix_times_weights_is_a_power_of_the_weights(seed, tasks, alpha):
    rows = drawn(seed, tasks, tasks + 2)
    gram = rows @ rows.T
    weights = mtlkit.create_method("fairgrad", tasks, alpha=alpha).weights(gram)
    torch.testing.assert_close(gram @ weights, weights ** (-1 / alpha), rtol=1e-7, atol=0)


@pytest.mark.parametrize("seed", range(10))
def test_alpha_of_one_is_nash_mtl(seed):
    rows = drawn(seed, 4, 6)
    nash = mtlkit.create_method("nash_mtl", 4).combine(rows)
    torch.testing.assert_close(mtlkit.create_method("fairgrad(alpha=1.0)", 4).combine(rows), nash)


def test_alpha_of_zero_is_the_sum_which_small_ones_tend_to():
    rows = drawn(0, 4, 6)
    method = mtlkit.create_method("fairgrad(alpha=0.0)", 4)
    torch.testing.assert_close(method.combine(rows), rows.sum(dim=0))
    near = mtlkit.create_method("fairgrad(alpha=0.05)", 4).combine(rows)
    torch.testing.assert_close(near, rows.sum(dim=0), rtol=0.3, atol=0.3)


def test_large_alpha_tends_to_the_direction_of_mgda():
    rows = drawn(1, 3, 6)
    fair = mtlkit.create_method("fairgrad(alpha=1e4)", 3).combine(rows)
    shortest = mtlkit.create_method("mgda", 3).combine(rows)
    assert torch.cosine_similarity(fair, shortest, dim=0) > 0.9999


def test_agrees_with_torchjd_on_drawn_matrices():
    from torchjd.aggregation import FairGrad

    close = 0
    for seed in range(200):
        tasks = 2 + seed % 5
        rows = drawn(seed, tasks, 12)
        alpha = (0.5, 1.0, 2.0)[seed % 3]
        ours = mtlkit.create_method("fairgrad", tasks, alpha=alpha).combine(rows)
        theirs = FairGrad(alpha)(rows)
        close += torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3)
    # its least squares descend a function that is not convex, and stop at a relative 1e-8 of it
    assert close >= 195
