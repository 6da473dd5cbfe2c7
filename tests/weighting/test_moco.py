import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import SpecError


def test_first_steps_are_those_worked_by_hand():
    method = mtlkit.create_method("moco(gamma_sigma=0.0, beta_sigma=0.0)", 2)
    rows = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    # Y / mean = diag(0.4, 1.6); w = (0.5, 0.5) - 0.1 * (0.2, 0.8), brought back to sum one
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.53, 2 * 0.47], dtype=torch.float64))
    other = torch.diag(torch.tensor([3.0, 2.0], dtype=torch.float64))
    # Y = diag(5, 4), Y / mean = diag(5, 4) / 4.5
    moved = torch.tensor([0.53 * (1 - 0.1 * 5 / 4.5), 0.47 * (1 - 0.1 * 4 / 4.5)], dtype=torch.float64)
    moved = moved + (1 - moved.sum()) / 2
    torch.testing.assert_close(method.combine(other), moved * torch.tensor([3.0, 2.0]).double())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_on_one_matrix_the_weights_tend_to_those_of_mgda(seed, tasks):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tasks, 12, dtype=torch.float64, generator=generator)
    method = mtlkit.create_method("moco(gamma=0.5, gamma_sigma=0.0)", tasks)
    for _ in range(150):
        merged = method.combine(rows)
    shortest = mtlkit.create_method("mgda", tasks).combine(rows)
    assert merged.norm() <= shortest.norm() * 1.01


def test_share_of_an_absent_task_is_kept():
    method = mtlkit.create_method("moco(gamma=0.5)", 3)
    method.combine(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
    before = method.shares.clone()
    z = torch.randn(4, 3, requires_grad=True)
    views = method(z)
    method.total([views[0].square().sum(), None, (views[2] - 1).square().sum()]).backward()
    assert method.shares[1] == before[1]
    assert method.shares[0] != before[0]
    torch.testing.assert_close(method.shares.sum().item(), 1.0)


def test_options_out_of_range_are_refused():
    with pytest.raises(SpecError, match="beta of moco"):
        mtlkit.create_method("moco(beta=0.0)", 2)
    with pytest.raises(SpecError, match="rho of moco"):
        mtlkit.create_method("moco(rho=-1.0)", 2)
