import pytest
import scipy.linalg  # noqa: F401  its BLAS is there before threads are counted
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from mtlkit.method.host import on_host


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("finite", [True, False])
def test_solvers_run_on_one_thread_and_the_threads_come_back(finite):
    seen = []
    gram = torch.eye(40) if finite else torch.full((40, 40), torch.nan)
    with threadpool_limits(2, user_api="blas"):
        on_host(lambda matrix: seen.append(blas_threads()) or matrix[0], gram)
        assert len(seen[0]) >= 2  # NumPy's and SciPy's
        assert set(seen[0]) == {1}
        assert set(blas_threads()) == {2}
