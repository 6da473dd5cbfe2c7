"""Matrices along an axis, and rows along it."""

import pytest
import torch
from torch import Tensor, fx

from mtlkit.errors import UsageError
from mtlkit.rotations import Axis

CASES = [
    (-1, (5, 8)),
    (-1, (5, 3, 8)),
    (1, (5, 8, 3)),
    (-2, (5, 8, 3)),
    ("channel", (5, 8, 2, 3)),
    ("channel", (5, 8)),
    ("flat", (5, 2, 2, 2)),
]


def expected(dim: int | str, matrix: Tensor, features: Tensor) -> Tensor:
    """A loop over the axis, with the identity where the matrix is too small."""
    flat = features.flatten(1) if dim == "flat" else features
    axis = 1 if isinstance(dim, str) else dim
    whole = torch.eye(flat.shape[axis])
    whole[: len(matrix), : len(matrix)] = matrix
    moved = flat.movedim(axis, 0)
    found = torch.stack([sum(w * m for w, m in zip(row, moved, strict=True)) for row in whole])
    return found.movedim(0, axis).reshape(features.shape)


@pytest.mark.parametrize(("dim", "shape"), CASES)
@pytest.mark.parametrize(("side", "blocks"), [(8, 1), (8, 2), (6, 1), (6, 3)])
@pytest.mark.parametrize("shared", [True, False])
def test_each_matrix_acts_along_the_axis(dim, shape, side: int, blocks: int, shared: bool) -> None:
    matrices = torch.randn(3, blocks, side // blocks, side // blocks)
    stack = torch.randn(1 if shared else 3, *shape)
    axis = Axis(dim, side, whole=side == 8)
    found = axis.apply(matrices, stack)
    assert found.shape == (3, *shape)
    for k, given in enumerate(stack.expand(3, *shape)):
        dense = torch.block_diag(*matrices[k])
        assert torch.allclose(found[k], expected(dim, dense, given), atol=1e-5)
        assert torch.allclose(found[k], axis.apply_one(dense, given), atol=1e-5)


@pytest.mark.parametrize(("dim", "shape"), CASES)
@pytest.mark.parametrize(("side", "blocks"), [(8, 2), (6, 3)])
def test_rows_are_what_the_matrices_act_on(dim, shape, side: int, blocks: int) -> None:
    matrices = torch.randn(3, blocks, side // blocks, side // blocks)
    stack = torch.randn(3, *shape)
    axis = Axis(dim, side)
    rows = axis.rows(stack, blocks)  # (P, b, N, n)
    assert rows.shape == (3, blocks, 5 * stack[0].numel() // 40, side // blocks)
    after = axis.rows(axis.apply(matrices, stack), blocks)
    assert torch.allclose(after, torch.matmul(rows, matrices.mT), atol=1e-5)


@pytest.mark.parametrize(("dim", "shape"), CASES)
@pytest.mark.parametrize("side", [8, 6])
def test_one_matrix_can_be_traced_without_shapes(dim, shape, side: int) -> None:
    axis = Axis(dim, side, whole=side == 8)
    graph = fx.symbolic_trace(lambda matrix, features: axis.apply_one(matrix, features))
    matrix, features = torch.randn(side, side), torch.randn(shape)
    assert torch.equal(graph(matrix, features), axis.apply_one(matrix, features))


def test_products_are_in_the_dtype_of_the_features() -> None:
    matrices, features = torch.eye(4).repeat(2, 1, 1, 1), torch.randn(1, 3, 4)
    for dtype in (torch.bfloat16, torch.float64):
        given = features.to(dtype)
        assert torch.equal(Axis(-1, 4).apply(matrices, given), given.expand(2, 3, 4))
        assert torch.equal(Axis(-1, 4).apply_one(matrices[0, 0], given[0]), given[0])


@pytest.mark.parametrize(
    ("axis", "features", "message"),
    [
        (Axis(-1, 4, whole=True), torch.randn(3, 5), "feature_dim=5"),
        (Axis(-1, 4), torch.randn(3, 2), "has 2"),
        (Axis("channel", 4), torch.randn(4), "cannot rotate"),
        (Axis("channel", 4, whole=True), torch.randn(3, 5, 2, 2), "has 5"),
        (Axis(-1, 8, whole=True), torch.randn(2, 8, 3, 5), r"rotate\(dim=channel\) .*feature_dim=8"),
        (Axis(-1, 4, whole=True), torch.randn(2, 7, 5), "feature_dim=5"),
        (Axis("flat", 9), torch.randn(3, 2, 4), "has 8"),
        (Axis(3, 4), torch.randn(3, 4), "dim=3"),
        (Axis(-1, 4), torch.ones(3, 4, dtype=torch.long), "int64"),
    ],
)
def test_features_that_do_not_fit_are_refused_with_their_shape(axis, features, message) -> None:
    with pytest.raises(UsageError, match=message):
        axis.check(features, "rotate")


def test_features_that_fit_pass() -> None:
    Axis(-1, 4, whole=True).check(torch.randn(3, 4), "rotate")
    Axis("flat", 7).check(torch.randn(3, 2, 4), "rotate")
