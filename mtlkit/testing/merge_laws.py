"""Laws of the merge alone: ``combine(grads)`` and ``weights(gram)``. A function's name is the law's."""

import copy
import math

import torch
from torch import Tensor

from mtlkit.errors import UsageError
from mtlkit.testing.cases import MethodCase, require, require_equal_state
from mtlkit.testing.small_network import train


def permutation(case: MethodCase) -> None:
    """The order of the tasks does not change the merged gradient."""
    for rows in case.gradients():
        losses = torch.rand(len(rows), dtype=torch.float64).to(rows) + 0.1
        order = torch.randperm(len(rows), device=rows.device)
        found = case.create().combine(rows[order], losses[order])
        case.require_same(found, case.create().combine(rows, losses), "the tasks were permuted")


def scale(case: MethodCase) -> None:
    """Scaling all gradients by one factor, 1e-12 to 1e12, does not change the merged direction."""
    for rows in case.gradients():
        factor = 10 ** float(24 * torch.rand(()) - 12)
        _require_same_direction(case, rows, factor)
    single = next(case.gradients()).float()
    for factor in (1e-12, 1e12):
        _require_same_direction(case, single, factor, tolerance=1e-3)


def _require_same_direction(
    case: MethodCase, rows: Tensor, factor: float, tolerance: float | None = None
) -> None:
    plain, scaled = case.combine(case.create(), rows), case.combine(case.create(), rows * factor)
    require(bool(plain.norm() > 0) and bool(scaled.norm() > 0), "the merged gradient is zero")
    what = f"{rows.dtype} gradients were scaled by {factor:.0e}"
    case.require_same(scaled / scaled.norm(), plain / plain.norm(), what, tolerance)


def single_task(case: MethodCase) -> None:
    """The gradient of a single task is unchanged."""
    if not case.allows(1):
        return
    for rows in case.gradients(tasks=1):
        case.require_same(case.combine(case.create(1), rows), rows[0], "there is one task")


def zero_rows(case: MethodCase) -> None:
    """Zero gradients give a finite result, and zero if all of them are zero."""
    for example, rows in enumerate(case.gradients()):
        zeros = len(rows) - example % len(rows)
        rows[:zeros] = 0
        method = case.create()
        for step in range(2):
            merged = case.combine(method, rows)
            what = f"{zeros} of {len(rows)} gradients are zero, step {step}"
            require(bool(torch.isfinite(merged).all()), f"{what}: the merged gradient is not finite")
            require(zeros < len(rows) or not merged.any(), f"{what}: the merged gradient is not zero")


def identical_rows(case: MethodCase) -> None:
    """Identical gradients merge to one of the same direction."""
    for rows in case.gradients():
        merged = case.combine(case.create(), rows[:1].repeat(len(rows), 1))
        require(bool(merged @ rows[0] > 0), "the merged gradient is zero, reversed or not finite")
        factor = merged.norm() / rows[0].norm()
        case.require_same(merged, factor * rows[0], "all gradients are the same")


def nonfinite(case: MethodCase) -> None:
    """NaN or infinity in a gradient is in the merge; neither it nor such a loss changes the state."""
    for bad in (math.nan, math.inf, -math.inf):
        rows = next(case.gradients())
        method, twin = case.create(), case.create()
        case.combine(method, rows)
        before = copy.deepcopy(method.state_dict())
        twin.load_state_dict(before)
        poisoned = rows.clone()
        poisoned[-1, 1] = bad
        merged = case.combine(method, poisoned)
        require(not torch.isfinite(merged).all(), f"a gradient holds {bad}: the merged one is finite")
        require_equal_state(method.state_dict(), before, f"a gradient holds {bad}")
        after = torch.equal(case.combine(method, rows), case.combine(twin, rows))
        require(after, f"a gradient held {bad}: the next step differs")
    for bad in (math.nan, math.inf):
        net = case.network()
        (x,) = case.batches(1)
        torch.autograd.backward(net(x))
        net.method(net.backbone(x))  # a forward may apply the optimizer's last update
        before = copy.deepcopy(net.method.state_dict())
        first, *others = net.losses(x)
        assert first is not None
        total = net.method.total([first * bad, *others])
        require(not torch.isfinite(total).any(), f"a loss is {bad}: the total is finite")
        torch.autograd.backward(total)
        require_equal_state(net.method.state_dict(), before, f"a loss is {bad}")


def gram_path(case: MethodCase) -> None:
    """``combine(grads)`` is the sum weighted by ``weights(gram)``, or there are no such weights."""
    for rows in case.gradients():
        method = case.create()
        merge = method.merging
        whole = merge is not None and merge.needs_whole_gradients
        gram = rows @ rows.T
        given = gram.clone()
        for _ in range(2):
            try:
                weights = method.weights(gram)
            except UsageError:
                if whole or (merge is not None and merge.uses_losses):
                    return
                raise
            require(not whole, "a merge of whole gradients has weights")
            require(torch.equal(gram, given), "weights changed the Gram matrix that it was given")
            shape = tuple(weights.shape)
            require(shape == (len(rows),), f"weights has shape {shape}, not ({len(rows)},)")
            case.require_same(method.combine(rows), weights @ rows, "combine and weights differ")


def half_precision(case: MethodCase) -> None:
    """A model in bfloat16 or float32 trains, with the method's state in float32 or better."""
    rows = next(case.gradients())
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 1e-2)):
        given = rows.to(dtype)
        method, exact = case.create().to(dtype), case.create()
        for _ in range(2):
            merged = case.combine(method, given)
            require(merged.dtype == dtype, f"{dtype} gradients gave {merged.dtype}")
            expected = case.combine(exact, given.double())
            case.require_same(merged, expected, f"the gradients are {dtype}", tolerance)
        net = case.network().to(dtype)
        train(net, [x.to(dtype) for x in case.batches(2)])
        for name, value in net.method.state_dict().items():
            wide = not value.is_floating_point() or value.dtype in (torch.float32, torch.float64)
            require(wide, f"the model is {dtype}: {name} became {value.dtype}")
        for name, value in net.state_dict().items():
            require(bool(torch.isfinite(value).all()), f"the model is {dtype}: {name} is not finite")


def spec(case: MethodCase) -> None:
    """The config string of a method creates the same method, options included."""
    method = case.create()
    again = case.create_again(method)
    kinds = [[type(part).__name__ for part in each.parts] for each in (method, again)]
    require(kinds[0] == kinds[1], f"{kinds[0]} came back as {kinds[1]}")
    require(again.spec == method.spec, f"{method} came back as {again}")
