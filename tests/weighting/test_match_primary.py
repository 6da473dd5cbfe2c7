import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import mtlkit
from tests.weighting.strategies import drawn, gradients


def test_worked_example():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.5], [20.0, 0.0]], dtype=torch.float64)
    merged = mtlkit.create_method("match_primary", 3).combine(rows)
    assert merged.tolist() == pytest.approx([3 + 5, 4 + 5])
    # 0.8 (0.6 * 10 + 0.4) = 5.12 and 0.8 (0.6 / 4 + 0.4) = 0.44
    merged = mtlkit.create_method("match_primary(strength=0.8, relax=0.6)", 3).combine(rows)
    assert merged.tolist() == pytest.approx([3 + 0.44 * 20, 4 + 5.12 * 0.5])


def test_thirty_steps_equal_a_plain_implementation_of_metabalance():
    method = mtlkit.create_method("match_primary(relax=0.7, beta=0.9, primary=2)", 3)
    averages = np.zeros(3)
    for seed in range(30):
        rows = drawn(seed, 3, 20).numpy() * np.array([[0.1], [1], [100]])
        averages = 0.9 * averages + 0.1 * np.linalg.norm(rows, axis=1)
        expected = sum(
            rows[k] * (0.7 * averages[2] / averages[k] + 0.3) if k != 2 else rows[k] for k in range(3)
        )
        merged = method.combine(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(merged, expected, rtol=1e-9)


@given(gradients(), st.integers(0, 5))
def test_all_gradients_get_the_norm_of_the_main_one(rows, primary):
    primary %= len(rows)
    weights = mtlkit.create_method("match_primary", len(rows), primary=primary).weights(rows @ rows.T)
    norms = rows.norm(dim=1)
    torch.testing.assert_close(weights * norms, norms[primary].expand(len(rows)))


@given(gradients())
def test_without_strength_or_relaxed_to_nothing_it_is_the_main_gradient_or_the_sum(rows):
    count = len(rows)
    alone = mtlkit.create_method("match_primary(strength=0.0)", count).combine(rows)
    torch.testing.assert_close(alone, rows[0])
    plain = mtlkit.create_method("match_primary(relax=0.0)", count).combine(rows)
    torch.testing.assert_close(plain, rows.sum(dim=0))


def test_ratios_are_limited():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1e-6]], dtype=torch.float64)
    merged = mtlkit.create_method("match_primary", 2).combine(rows)
    assert merged.tolist() == pytest.approx([1.0, 1e-2])


def test_the_main_task_has_a_name_or_an_index():
    rows = drawn(0, 3, 5)
    tasks = ("seg", "normals", "depth")
    expected = mtlkit.create_method("match_primary(primary=depth)", tasks).combine(rows)
    for index in (2, -1):
        found = mtlkit.create_method("match_primary", tasks, primary=index).combine(rows)
        torch.testing.assert_close(found, expected)


def test_without_the_main_task_gradients_are_added():
    method = mtlkit.create_method("match_primary", 3)
    z = torch.ones(1, 2, requires_grad=True)
    views = method(z * 1)
    method.total([None, 2 * views[1][0, 0], 5 * views[2][0, 1]]).backward()
    assert z.grad.tolist() == [[2.0, 5.0]]


def test_with_a_group_per_tensor_every_tensor_has_its_own_weights():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    heads = [nn.Linear(4, 1).double() for _ in range(3)]
    method = mtlkit.create_method("match_primary(wrt=parameters, groups=tensor)", 3, shared=backbone)

    def losses(views, x):
        return [(10**k * head(v) - x.sum()).square().mean() for k, (head, v) in enumerate(views)]

    x = torch.randn(8, 3, dtype=torch.float64)
    parameters = list(backbone.parameters())
    features = backbone(x)
    rows = [
        torch.autograd.grad(loss, parameters, retain_graph=True)
        for loss in losses([(head, features) for head in heads], x)
    ]
    method.total(losses(list(zip(heads, method(backbone(x)), strict=True)), x)).backward()
    for parameter, *tensors in zip(parameters, *rows, strict=True):
        main, *others = tensors
        expected = main + sum(main.norm() / other.norm() * other for other in others)
        torch.testing.assert_close(parameter.grad, expected)
