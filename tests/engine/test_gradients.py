"""Gradients of several tasks: Gram matrix, weighted sum, and the matrix itself."""

from __future__ import annotations

import weakref

import pytest
import torch

from mtlkit.engine import gradients
from mtlkit.engine.gradients import Gradients

SHAPES = [(4, 3, 5), (7,), ()]


def rows(dtype=torch.float32) -> dict[int, list[torch.Tensor]]:
    return {task: [torch.randn(shape).to(dtype) for shape in SHAPES] for task in (0, 2, 3)}


def flat(given: dict[int, list[torch.Tensor | None]]) -> torch.Tensor:
    return torch.stack(
        [
            torch.cat(
                [
                    (torch.zeros(shape) if g is None else g.float()).flatten()
                    for g, shape in zip(row, SHAPES, strict=True)
                ]
            )
            for row in given.values()
        ]
    )


@pytest.mark.parametrize(("chunk", "piece"), [(3, 2**12), (2**18, 2**12), (50, 4), (20, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pieces_are_merged_as_one_matrix_would_be(dtype, chunk, piece, monkeypatch):
    monkeypatch.setattr(gradients, "_CHUNK", chunk)
    monkeypatch.setattr(gradients, "_PIECE", piece)
    given = rows(dtype)
    matrix, pieces = flat(given), Gradients(given, torch.float32)
    assert pieces.tasks == (0, 2, 3)
    torch.testing.assert_close(pieces.matrix(), matrix)
    torch.testing.assert_close(pieces.gram(), matrix @ matrix.T, rtol=1e-5, atol=1e-5)
    weights = torch.tensor([0.5, -1.0, 2.0])
    merged = pieces.weighted(weights)
    assert [m.shape for m in merged] == [torch.Size(shape) for shape in SHAPES]
    torch.testing.assert_close(torch.cat([m.flatten() for m in merged]), weights @ matrix)
    again = pieces.split(weights @ matrix)
    for one, two in zip(merged, again, strict=True):
        torch.testing.assert_close(one, two)


def test_a_tensor_that_a_task_does_not_reach_counts_as_zero():
    given = rows()
    given[0][1] = None
    given[2][1] = None
    matrix, pieces = flat(given), Gradients(given, torch.float32)
    torch.testing.assert_close(pieces.gram(), matrix @ matrix.T)
    torch.testing.assert_close(pieces.matrix(), matrix)
    weights = torch.tensor([2.0, 3.0, -1.0])
    torch.testing.assert_close(pieces.weighted(weights)[1], -given[3][1])


def test_a_tensor_that_no_task_reaches_has_no_gradient():
    given = {task: [row[0], None, row[2]] for task, row in rows().items()}
    pieces = Gradients(given, torch.float32)
    assert pieces.weighted(torch.ones(3))[1] is None
    vector = pieces.matrix().sum(dim=0)
    assert vector.shape == (61,)
    assert pieces.split(vector)[1] is None


@pytest.mark.parametrize("merge", ["weighted", "matrix"])
def test_the_gradients_of_a_tensor_are_freed_before_those_of_the_next_are_merged(merge, monkeypatch):
    given, weights = rows(), torch.tensor([0.5, -1.0, 2.0])
    wanted, pieces = flat(given), Gradients(given, torch.float32)
    alive = [weakref.ref(given[2][place]) for place in range(len(SHAPES))]
    given.clear()
    counts = []
    seen = gradients.as_real

    def count(gradient):
        counts.append(sum(reference() is not None for reference in alive))
        return seen(gradient)

    monkeypatch.setattr(gradients, "as_real", count)
    if merge == "matrix":
        vector = weights @ pieces.matrix(free=True)
        merged = pieces.split(vector)
    else:
        merged = pieces.weighted(weights, free=True)
    assert sorted(set(counts), reverse=True) == [3, 2, 1]
    torch.testing.assert_close(torch.cat([m.flatten() for m in merged]), weights @ wanted)


def test_taken_tensors_keep_the_tasks_that_reach_them_and_leave_the_others():
    given = rows()
    given[0][1] = given[2][2] = None
    tensors = [torch.zeros(shape) for shape in SHAPES]
    pieces = Gradients(given, torch.float32, tensors)
    taken = pieces.take([1])
    assert taken.tasks == (2, 3)
    torch.testing.assert_close(taken.weighted(torch.ones(2))[0], given[2][1] + given[3][1])
    assert pieces.rows[3][1] is None
    assert pieces.rows[3][0] is given[3][0]
    assert pieces.take([0, 2]).tasks == (0, 2, 3)


def test_gradients_in_other_memory_layouts_are_read_by_position():
    given = rows()
    turned = {
        task: [g.transpose(0, 1).contiguous().transpose(0, 1) if g.dim() == 3 else g for g in row]
        for task, row in given.items()
    }
    mixed = {0: given[0], 2: turned[2], 3: given[3]}
    torch.testing.assert_close(
        Gradients(mixed, torch.float32).gram(), Gradients(given, torch.float32).gram()
    )


def test_the_gram_matrix_is_accumulated_in_the_wider_type():
    ones = torch.ones(4096, dtype=torch.float16)  # the sum of squares of 300 overflows float16
    gram = Gradients({0: [300 * ones]}, torch.float32).gram()
    assert gram.dtype == torch.float32
    assert float(gram) == pytest.approx(300.0**2 * 4096)


def test_products_of_even_and_odd_samples_leave_out_the_square_of_the_noise():
    mean, noise = torch.ones(1, 8), torch.randn(4000, 8)
    pieces = Gradients({0: [mean + noise]}, torch.float32)
    products, pairs = pieces.cross_gram()
    assert pairs == 2000
    signal = 4000 * 8
    assert abs(float(products) - signal) < 0.1 * signal
    assert float(pieces.gram()) > 1.8 * signal
