"""Sum and mean."""

import torch
from hypothesis import given, settings
from torchjd import aggregation

import mtlkit
from tests.weighting.strategies import gradients


def test_sum_and_mean_by_hand():
    rows = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    assert mtlkit.create_method("sum", 2).combine(rows).tolist() == [4.0, -2.0]
    assert mtlkit.create_method("mean", 2).combine(rows).tolist() == [2.0, -1.0]


@settings(max_examples=200)
@given(gradients())
def test_they_equal_torchjd(rows):
    for name, peer in (("sum", aggregation.Sum()), ("mean", aggregation.Mean())):
        torch.testing.assert_close(mtlkit.create_method(name, len(rows)).combine(rows), peer(rows))
