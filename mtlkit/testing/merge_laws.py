"""Laws of the merge alone: ``combine(grads)`` and ``weights(gram)``. A function's name is the law's."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from mtlkit.engine.step import step_of
from mtlkit.errors import UsageError
from mtlkit.method.composition import state_of
from mtlkit.method.state import State
from mtlkit.testing.cases import MethodCase, require, require_equal_state
from mtlkit.testing.small_network import WIDTH, train


def hooks(case: MethodCase) -> None:
    """Hooks return finite values of the right shape and a state, and change nothing they are given."""
    for rows in case.gradients():
        method = case.create()
        losses = torch.linspace(1, 2, len(rows)).to(rows)
        everyone = tuple(range(len(rows)))
        step = step_of(rows @ rows.T, everyone, tasks=len(rows), losses=losses)
        parts: list[Any] = [*method.parts]
        for part in parts:
            state = state_of(part, step)
            if "loss" in part.roles:
                _require_result(part, "weigh_losses", losses, state, losses.shape)
            if "fork" in part.roles:
                _require_views(part, rows.new_ones(2, WIDTH), len(rows))
            if "merge" in part.roles and part.needs_whole_gradients:
                state = part.fit_coordinates(state, rows)
                _require_result(part, "merge", rows, state, rows[0].shape)
            elif "merge" in part.roles:
                _require_result(part, "weigh", step.gram, state, losses.shape)


def _require_result(part: Any, hook: str, given: Tensor, state: State, shape: torch.Size) -> None:
    replaced: list[str] = []

    def replace(self: State, **values: Any) -> State:
        replaced.extend(values)
        return State.replace(self, **values)

    state = type("State", (State,), {"replace": replace})(**vars(state))
    before = copy.deepcopy((given, vars(state)))
    found = getattr(part, hook)(given, state)
    is_pair = isinstance(found, tuple) and len(found) == 2
    fits = is_pair and isinstance(found[0], Tensor) and isinstance(found[1], State)
    kinds = ", ".join(type(value).__name__ for value in found) if is_pair else type(found).__name__
    require(fits, f"{hook} must return a tensor and the state, not {kinds}")
    lost = ", ".join(replaced)
    require(not replaced or found[1] is not state, f"{hook} replaced {lost}, but returned the old state")
    result = found[0].detach()
    shapes = tuple(result.shape), tuple(shape)
    require(shapes[0] == shapes[1], f"{hook} returned a tensor of shape {shapes[0]}, not {shapes[1]}")
    require(bool(torch.isfinite(result).all()), f"{hook} returned values that are not finite")
    require(torch.equal(given, before[0]), f"{hook} changed the tensor that it was given")
    tensors = {name: value for name, value in vars(state).items() if isinstance(value, Tensor)}
    saved = {name: before[1][name] for name in tensors}
    require_equal_state(tensors, saved, f"{hook} changed the state that it was given: use state.replace")


def _require_views(part: Any, features: Tensor, tasks: int) -> None:
    views = part.fork([features], *part.held())
    fits = isinstance(views, list) and all(isinstance(view, list) and len(view) == 1 for view in views)
    require(fits and len(views) == tasks, f"fork must return {tasks} lists of as many features as given")
    require(bool((features == 1).all()), "fork changed the features that it was given")


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
        for _ in range(2):
            try:
                weights = method.weights(gram)
            except UsageError:
                if whole or (merge is not None and merge.uses_losses):
                    return
                raise
            require(not whole, "a merge of whole gradients has weights")
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
