"""What holds for every solver on a Gram matrix."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtlkit.weighting import _solvers as solvers
from tests.weighting.solvers.drawn_gradients import draw, norms_of, seeds

SOLVERS = {
    "min_norm_point": solvers.min_norm_point,
    "dual_cone_projections": lambda gram: solvers.dual_cone_projections(gram).mean(axis=0),
    "dual_cone_weights": lambda gram: solvers.dual_cone_weights(gram, np.full(len(gram), 1 / len(gram))),
    "conflict_averse_weights": lambda gram: solvers.conflict_averse_weights(gram, 0.4),
    # in the units of the weights, which are not those of the others
    "bargaining_weights(1)": lambda gram: (
        solvers.bargaining_weights(gram, power=1.0) * np.trace(gram) ** 0.5
    ),
    "bargaining_weights(2)": lambda gram: (
        solvers.bargaining_weights(gram, power=2.0) * np.trace(gram) ** (1 / 3)
    ),
    "constrained_descent_weights": lambda gram: solvers.constrained_descent_weights(gram, 0.1),
}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


@each_solver
@given(seed=seeds, count=st.sampled_from([5, 40]), exponent=st.sampled_from([-12, -5, 5, 12]))
def test_scale_of_the_gradients_does_not_matter(solver, seed, count, exponent):
    rows = draw(seed, count, "plain")
    gram = rows @ rows.T
    scaled = gram * 10.0 ** (2 * exponent)
    np.testing.assert_allclose(solver(scaled), solver(gram), rtol=1e-9, atol=1e-12)


@each_solver
@given(seed=seeds, count=st.integers(2, 8), kind=st.sampled_from(["plain", "unequal_norms", "zero_row"]))
def test_order_of_the_tasks_does_not_matter(solver, seed, count, kind):
    rows = draw(seed, count, kind)
    gram = rows @ rows.T
    order = np.random.default_rng(seed).permutation(count)
    if solver is SOLVERS["constrained_descent_weights"]:  # its first gradient is another's role
        order = np.append(0, order[order > 0])
    found, permuted = solver(gram), solver(gram[np.ix_(order, order)])
    change = np.linalg.norm(permuted @ rows[order] - found @ rows)
    assert change <= 1e-12 * (found @ norms_of(rows))


@each_solver
def test_result_is_a_float64_array_and_the_matrix_is_unchanged(solver):
    rows = draw(0, 4, "plain")
    gram = rows @ rows.T
    before = gram.copy()
    gram.flags.writeable = False
    found = solver(gram)
    assert found.shape == (4,)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(gram, before)


@each_solver
@pytest.mark.parametrize("square", [0.0, 1e-20, 3.0])
def test_one_task_is_defined(solver, square):
    assert np.isfinite(solver(np.array([[square]]))).all()


def test_solvers_do_not_know_torch():
    for file in Path(solvers.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] == "torch" for module in modules), file
