"""Numbers on the host are read as torch reads them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.host import all_finite, as_array, as_tensor, cast, is_finite, ones


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(values=st.lists(st.floats(width=16), min_size=1, max_size=9))
def test_finite_is_what_torch_calls_so(values, dtype):
    tensor = torch.tensor(values, dtype=dtype)
    assert bool(all_finite(tensor)) == bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 3e38), (np.float64, 1e308)])
def test_numbers_whose_squares_are_too_large_are_finite(dtype, largest):
    assert is_finite(np.array([largest, -largest], dtype))
    assert not is_finite(np.array([largest, np.inf], dtype))
    assert not is_finite(np.array([largest, np.nan], dtype))


@pytest.mark.filterwarnings("error")
def test_to_ask_about_what_is_not_finite_warns_of_nothing():
    assert not is_finite(np.array([np.inf, -np.inf, np.nan], np.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_arrays_and_back(dtype):
    tensor = torch.tensor([[1.0, -2.5], [0.25, 3.0]], dtype=dtype, requires_grad=True)
    array = as_array(tensor)
    assert array.dtype == np.float64
    assert torch.equal(as_tensor(array, tensor), tensor.detach())
    assert as_tensor(array, tensor).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ones_have_the_type_of_the_matrix(dtype):
    found = ones(torch.zeros(3, 3, dtype=dtype))
    assert found.tolist() == [1.0, 1.0, 1.0]
    assert found.dtype == dtype


def test_a_cast_to_the_own_type_is_the_tensor_itself():
    tensor = torch.zeros(2)
    assert cast(tensor, torch.float32) is tensor
    assert cast(tensor, torch.float64).dtype == torch.float64
