import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.errors import SpecError, UnknownNameError
from tests.weighting.strategies import drawn, gradients


def make(spec, tasks, scores):
    method = mtlkit.create_method(spec, tasks)
    method.parts[-1].set_scores(scores)
    return method


def test_worked_example():
    # T = max(20 / log 2, 10): w = 2 softmax(log 2, 0) = 4/3 and 2/3; x^1.5 = w^0.5 / n^2
    method = make("pivrg", ("seg", "depth"), {"seg": 20.0})
    weights = method.weights(torch.diag(torch.tensor([1.0, 8.0], dtype=torch.float64)))
    assert weights.tolist() == pytest.approx([(4 / 3) ** (1 / 3), (2 / 3) ** (1 / 3) / 4])


@given(gradients(), st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.floats(0.3, 4))
def test_the_weights_solve_the_equation(rows, scores, alpha):
    scores = scores[: len(rows)]
    gram = rows @ rows.T
    x = make(f"pivrg(alpha={alpha})", len(rows), scores).weights(gram).numpy()
    s = np.array(scores)
    temperature = max((s.max() - s.min()) / math.log(2), 10)
    w = len(s) * np.exp(s / temperature) / np.exp(s / temperature).sum()
    assert w.max() / w.min() <= 2.0001
    np.testing.assert_allclose(gram.numpy() @ x, (w / x) ** (1 / alpha), rtol=1e-5)


@given(gradients())
def test_before_any_score_and_with_equal_scores_it_is_fairgrad(rows):
    gram = rows @ rows.T
    expected = mtlkit.create_method("fairgrad(alpha=2.0)", len(rows)).weights(gram)
    torch.testing.assert_close(mtlkit.create_method("pivrg", len(rows)).weights(gram), expected)
    torch.testing.assert_close(make("pivrg", len(rows), [7.0] * len(rows)).weights(gram), expected)


def test_a_task_that_is_behind_makes_more_progress():
    rows = drawn(0, 3, 6)
    before = rows @ mtlkit.create_method("pivrg", 3).combine(rows)
    after = rows @ make("pivrg", 3, torch.tensor([0.0, 30.0, 0.0])).combine(rows)
    assert after[1] > before[1]
    assert after[0] < before[0]


def test_scores_are_saved_and_a_step_leaves_them():
    method = make("pivrg", 3, [1.0, -2.0, 3.0])
    method.combine(drawn(0, 3, 6))
    other = mtlkit.create_method("pivrg", 3)
    other.load_state_dict(copy.deepcopy(method.state_dict()), strict=True)
    rows = drawn(1, 3, 6)
    assert torch.equal(method.combine(rows), other.combine(rows))
    assert other.parts[0].state_dict()["scores"].tolist() == [1.0, -2.0, 3.0]


def test_wrong_scores_are_refused():
    with pytest.raises(SpecError, match="scores of pivrg"):
        make("pivrg", 2, [1.0, math.nan])
    with pytest.raises(UnknownNameError, match="depht"):
        make("pivrg", ("seg", "depth"), {"depht": 1.0})
