import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn


def test_the_mean_is_moved_until_the_first_task_does_not_lose():
    rows = torch.tensor([[1.0, 0.0], [-2.0, 1.0]])  # mean (-0.5, 0.5)
    method = mtlkit.create_method("dualproj", 2)
    torch.testing.assert_close(method.combine(rows), torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(method.weights(rows @ rows.T), torch.tensor([1.0, 0.5]))


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_no_vector_without_conflict_is_nearer_to_the_mean(seed, tasks):
    rows = drawn(seed, tasks, 5)
    mean = rows.mean(dim=0)
    merged = mtlkit.create_method("dualproj", tasks).combine(rows)
    # the projection onto a cone: what was added is orthogonal to the result
    assert ((merged - mean) @ merged).abs() <= 1e-12 * rows.square().sum()
    candidates = mtlkit.create_method("upgrad", tasks).combine(rows)
    assert (merged - mean).norm() <= (candidates - mean).norm() + 1e-12
