import numpy as np
import torch
from hypothesis import given

import mtlkit
from tests.weighting.strategies import drawn, gradients


def test_worked_example():
    method = mtlkit.create_method("balancer(preference=[1, 3], norm=2.0, beta=0.5)", 2)
    rows = torch.tensor([[10.0, 0.0], [0.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(method.combine(rows).tolist(), [0.5, 1.5])
    # averages (10 / 2 + 40) / 1.5 = 30 and 0.5: the first gradient exceeds its average
    rows[0] *= 4
    torch.testing.assert_close(method.combine(rows).tolist(), [0.5 * 40 / 30, 1.5])


def test_thirty_steps_equal_a_plain_implementation():
    method = mtlkit.create_method("balancer(preference=[1, 2, 0.5])", 3)
    shares = np.array([1, 2, 0.5]) / 3.5
    total, counted = np.zeros(3), 0.0
    for seed in range(30):
        rows = drawn(seed, 3, 20).numpy() * np.array([[0.01], [1], [100]])
        total = 0.999 * total + np.linalg.norm(rows, axis=1)
        counted = 0.999 * counted + 1
        merged = method.combine(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(merged, (shares / (total / counted)) @ rows, rtol=1e-9)


@given(gradients())
def test_every_task_has_its_fraction_of_the_norm(rows):
    preference = list(range(1, len(rows) + 1))
    method = mtlkit.create_method("balancer", len(rows), preference=preference, norm=5.0)
    weights = method.weights(rows @ rows.T)
    expected = 5 * torch.tensor(preference, dtype=torch.float64) / sum(preference)
    torch.testing.assert_close(weights * rows.norm(dim=1), expected)


def test_a_task_that_has_had_no_gradient_takes_no_part():
    method = mtlkit.create_method("balancer", 2)
    assert method.combine(torch.tensor([[0.0, 0.0], [0.0, 4.0]])).tolist() == [0.0, 0.5]
