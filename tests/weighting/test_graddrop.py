import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mtlkit
from mtlkit.engine.randomness import uniform


@given(
    st.lists(st.floats(-10, 10).filter(lambda x: abs(x) > 0.1), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_a_sign_is_kept_as_often_as_it_is_pure(column, seed):
    size = 4000
    rows = torch.tensor(column)[:, None].expand(-1, size)
    merged = mtlkit.create_method(f"graddrop(seed={seed})", len(column)).combine(rows)
    positive = sum(x for x in column if x > 0)
    negative = sum(x for x in column if x < 0)
    purity = 0.5 * (1 + sum(column) / sum(map(abs, column)))
    kept = merged > 0
    torch.testing.assert_close(merged[kept], torch.full_like(merged[kept], positive))
    torch.testing.assert_close(merged[~kept], torch.full_like(merged[~kept], negative))
    # five standard errors
    assert kept.float().mean().item() == pytest.approx(purity, abs=5 * 0.5 / size**0.5)


def test_worked_example():
    """Purity 0.75: 3 is kept three times out of four, -1 else."""
    rows = torch.tensor([[3.0], [-1.0]]).expand(2, 20_000)
    merged = mtlkit.create_method("graddrop", 2).combine(rows)
    assert set(merged.tolist()) == {3.0, -1.0}
    assert merged.mean().item() == pytest.approx(0.75 * 3 - 0.25, abs=0.07)


def test_pure_coordinates_are_added_as_they_are():
    rows = torch.tensor([[1.0, -2.0, 0.0], [3.0, -4.0, 0.0]])
    assert mtlkit.create_method("graddrop", 2).combine(rows).tolist() == [4.0, -6.0, 0.0]


def test_a_leak_keeps_its_fraction():
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    whole = mtlkit.create_method("graddrop(leak=1.0)", 3).combine(rows)
    torch.testing.assert_close(whole, rows.sum(dim=0))
    none = mtlkit.create_method("graddrop(leak=0.0)", 3).combine(rows)
    half = mtlkit.create_method("graddrop(leak=0.5)", 3).combine(rows)
    torch.testing.assert_close(half, 0.5 * whole + 0.5 * none)
    first = mtlkit.create_method("graddrop(leak=[1.0, 0.0, 0.0])", 3).combine(rows)
    kept = torch.where((none > 0)[None], rows.clamp(min=0), rows.clamp(max=0))
    torch.testing.assert_close(first, rows[0] + kept[1:].sum(dim=0))
    named = mtlkit.create_method("graddrop(leak={a: 1.0})", ["a", "b", "c"]).combine(rows)
    assert torch.equal(named, first)


def test_given_the_same_random_numbers_it_equals_torchjd(monkeypatch):
    from torchjd.aggregation import GradDrop

    for case in range(200):
        generator = torch.Generator().manual_seed(case)
        tasks = 1 + case % 6
        rows = torch.randn(tasks, 40, generator=generator)
        leak = torch.rand(tasks, generator=generator)
        method = mtlkit.create_method(f"graddrop(seed={case})", tasks, leak=leak.tolist())
        numbers = uniform(case, method.parts[0].draws, 40)
        monkeypatch.setattr(torch, "rand", lambda *shape, numbers=numbers, **options: numbers)
        expected = GradDrop(leak=leak)(rows)
        monkeypatch.undo()
        torch.testing.assert_close(method.combine(rows), expected)


def test_choices_change_from_step_to_step_and_repeat_with_the_seed():
    rows = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    first, again = (mtlkit.create_method("graddrop(seed=5)", 2) for _ in range(2))
    one, two = first.combine(rows), first.combine(rows)
    assert not torch.equal(one, two)
    assert torch.equal(again.combine(rows), one)
    assert torch.equal(again.combine(rows), two)


def test_a_process_draws_for_its_own_columns_what_one_process_would():
    rows = torch.randn(2, 60, generator=torch.Generator().manual_seed(0))
    method = mtlkit.create_method("graddrop", 2)
    halves = [
        method.parts[0].merge(half, method.parts[0].read((0, 1), rank=rank))[0]
        for rank, half in enumerate(rows.split(30, dim=1))
    ]
    torch.testing.assert_close(torch.cat(halves), method.combine(rows))
