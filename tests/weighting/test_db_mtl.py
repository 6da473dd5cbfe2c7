import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import SpecError


def diagonal(*norms: float) -> torch.Tensor:
    return torch.diag(torch.tensor(norms, dtype=torch.float64))


def test_gradients_get_the_largest_average_norm():
    method = mtlkit.create_method("db_mtl(beta=0.9)", 2)
    torch.testing.assert_close(method.combine(diagonal(1, 2)), torch.tensor([2.0, 2.0]).double())
    # the averages are 1 and 0.9 * 2 + 0.1 * 1
    torch.testing.assert_close(method.combine(diagonal(1, 1)), torch.tensor([1.9, 1.9]).double())


def test_beta_may_fall_with_the_steps():
    method = mtlkit.create_method("db_mtl(beta=0.8, beta_sigma=1.0)", 2)
    method.combine(diagonal(1, 2))
    # beta is 0.8 / 2 at the second step
    torch.testing.assert_close(
        method.combine(diagonal(1, 1)), torch.full((2,), 0.4 * 2 + 0.6, dtype=torch.float64)
    )


def test_heads_and_features_follow_the_logarithms_of_the_losses():
    method = mtlkit.create_method("db_mtl", 2)
    z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    head = torch.tensor(3.0, requires_grad=True)
    first, second = method(z)
    losses = [head * first[0, 0] + 1, 10 * second[0, 1]]  # 4 and 20
    method.total(losses).backward()
    torch.testing.assert_close(head.grad, torch.tensor(1 / 4))
    # gradients of the logarithms: 3 / 4 and 10 / 20; both get the larger norm
    torch.testing.assert_close(z.grad, torch.tensor([[0.75, 0.75]]))


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_the_scale_of_a_loss_does_not_matter(seed, factor):
    gradients = []
    for scale in (1.0, factor):
        method = mtlkit.create_method("db_mtl", 2)
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_()
        views = method(z)
        method.total([views[0].square().mean(), scale * (views[1] - 1).square().mean()]).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_all_tasks_contribute_with_one_length(seed, tasks):
    rows = torch.randn(tasks, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weights = mtlkit.create_method("db_mtl", tasks).weights(rows @ rows.T)
    lengths = weights * rows.norm(dim=1)
    torch.testing.assert_close(lengths, rows.norm(dim=1).max().expand(tasks))


def test_options_out_of_range_are_refused():
    with pytest.raises(SpecError, match="beta of db_mtl"):
        mtlkit.create_method("db_mtl(beta=1.0)", 2)
