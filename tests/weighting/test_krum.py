import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit


def weights_of(values: list[float], **options: int) -> list[float]:
    rows = torch.tensor(values, dtype=torch.float64)[:, None]
    return mtlkit.create_method("krum", len(values), **options).weights(rows @ rows.T).tolist()


def test_the_gradient_in_the_middle_is_chosen():
    # squared distances to the two nearest: 1 + 4, 1 + 1, 1 + 4, 64 + 81
    assert weights_of([0.0, 1.0, 2.0, 10.0]) == [0, 1, 0, 0]


def test_several_are_averaged_and_those_that_tie_share():
    assert weights_of([0.0, 1.0, 2.0, 10.0], n_selected=3) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert weights_of([0.0, 1.0, 2.0, 10.0], n_selected=2) == pytest.approx([0.25, 0.5, 0.25, 0])


def test_of_three_tasks_the_nearest_two_are_averaged():
    assert weights_of([0.0, 1.0, 10.0]) == [0.5, 0.5, 0]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_outliers_up_to_the_given_number_are_never_chosen(seed, liars):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    rows[:liars] += 1e3 * torch.randn(liars, 4, generator=generator, dtype=torch.float64)
    weights = mtlkit.create_method("krum", 7, n_byzantine=2).weights(rows @ rows.T)
    assert weights.sum().item() == pytest.approx(1)
    assert (weights[:liars] == 0).all()


def test_agrees_with_torchjd_where_squares_make_no_difference():
    from torchjd.aggregation import Krum

    for seed in range(200):
        rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        # one neighbor: the score is one distance, and the order is that of its square; of the
        # pair that ties, TorchJD takes the first, unless both are wanted
        ours = mtlkit.create_method("krum(n_byzantine=3, n_selected=2)", 6)
        torch.testing.assert_close(ours.combine(rows), Krum(n_byzantine=3, n_selected=2)(rows))
