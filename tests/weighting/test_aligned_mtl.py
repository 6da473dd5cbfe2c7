import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from tests.weighting.strategies import drawn

MODES = ["min", "median", "rmse"]


@pytest.mark.parametrize(
    ("mode", "scale"), [("min", 1.0), ("median", 2.0), ("rmse", (1 + 4 + 16) ** 0.5 / 3**0.5)]
)
def test_orthogonal_gradients_get_one_length(mode, scale):
    gram = torch.diag(torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64))
    weights = mtlkit.create_method("aligned_mtl", 3, scale_mode=mode).weights(gram)
    expected = scale * torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    torch.testing.assert_close(weights, expected)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from(MODES))
def test_aligned_gradients_have_condition_number_one(seed, tasks, mode):
    rows = drawn(seed, tasks, tasks + 3)
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    scale = {
        "min": values.min(),
        "median": values.sort().values[(tasks - 1) // 2],
        "rmse": values.square().mean().sqrt(),
    }[mode]
    aligned = scale * left @ right
    assert torch.linalg.cond(aligned).item() == pytest.approx(1)
    merged = mtlkit.create_method("aligned_mtl", tasks, scale_mode=mode).combine(rows)
    torch.testing.assert_close(merged, aligned.sum(dim=0), rtol=1e-6, atol=1e-8)


def test_a_repeated_task_does_not_change_the_rank():
    rows = drawn(0, 2, 5)
    merged = mtlkit.create_method("aligned_mtl", 3).combine(torch.cat([rows, rows[:1]]))
    left, values, right = torch.linalg.svd(torch.cat([rows, rows[:1]]), full_matrices=False)
    expected = (values[1] * left[:, :2] @ right[:2]).sum(dim=0)
    torch.testing.assert_close(merged, expected)


@pytest.mark.parametrize("mode", MODES)
def test_is_the_number_of_tasks_times_torchjd_on_drawn_matrices(mode):
    from torchjd.aggregation import AlignedMTL

    for seed in range(200):
        tasks = 1 + seed % 7
        rows = drawn(seed, tasks, 10 if seed % 4 else 2)
        ours = mtlkit.create_method("aligned_mtl", tasks, scale_mode=mode).combine(rows)
        torch.testing.assert_close(ours, tasks * AlignedMTL(scale_mode=mode)(rows), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_a_preference_is_torchjd_s_vector(mode):
    from torchjd.aggregation import AlignedMTL

    for seed in range(100):
        tasks = 1 + seed % 7
        rows = drawn(seed, tasks, 10 if seed % 4 else 2)
        preference = drawn(seed + 1000, 1, tasks)[0].abs()
        theirs = AlignedMTL(pref_vector=preference, scale_mode=mode)(rows)
        options = {"scale_mode": mode, "preference": preference.tolist()}
        ours = mtlkit.create_method("aligned_mtl", tasks, **options).combine(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
