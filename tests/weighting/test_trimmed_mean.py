import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def test_worked_example():
    rows = torch.tensor([[1.0, -9.0], [2.0, 5.0], [3.0, 5.0], [100.0, 6.0]])
    assert mtlkit.create_method("trimmed_mean", 4).combine(rows).tolist() == [2.5, 5.0]


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 4))
def test_it_equals_a_numpy_version(seed, tasks, trim):
    rows = torch.randn(tasks, 17, generator=torch.Generator().manual_seed(seed))
    merged = mtlkit.create_method(f"trimmed_mean(trim={trim})", tasks).combine(rows)
    dropped = min(trim, (tasks - 1) // 2)
    middle = np.sort(rows.double().numpy(), axis=0)[dropped : tasks - dropped]
    np.testing.assert_allclose(merged.numpy(), middle.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_it_equals_torchjd():
    from torchjd.aggregation import TrimmedMean

    for case in range(200):
        tasks = 3 + case % 7
        trim = case % ((tasks + 1) // 2)
        rows = torch.randn(tasks, 11, generator=torch.Generator().manual_seed(case))
        merged = mtlkit.create_method(f"trimmed_mean(trim={trim})", tasks).combine(rows)
        torch.testing.assert_close(merged, TrimmedMean(trim)(rows))


@pytest.mark.parametrize("trim", [1, 2])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("liar", range(5))
def test_an_outlier_has_no_influence(trim, sign, liar):
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    method = mtlkit.create_method("trimmed_mean", 5, trim=trim)
    rows[liar] = sign * 1e3
    merged = method.combine(rows)
    rows[liar] = sign * 1e12
    assert torch.equal(method.combine(rows), merged)


def test_too_few_tasks_give_the_median():
    rows = torch.tensor([[1.0], [2.0], [9.0]])
    assert mtlkit.create_method("trimmed_mean(trim=5)", 3).combine(rows).item() == 2.0


def test_at_the_junction_the_tasks_with_labels_are_trimmed():
    method = mtlkit.create_method("trimmed_mean", 4)
    features = torch.zeros(2, 3, requires_grad=True)
    views = method(features)
    slopes = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    losses = [(view * slope).sum() for view, slope in zip(views, slopes, strict=True)]
    losses[1] = None
    method.total(losses).backward()
    torch.testing.assert_close(features.grad, slopes[[0, 2, 3]].median(dim=0).values)
