"""Laws of a training step of a small network. A function's name is the law's."""

import copy
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward

from mtlkit.testing.cases import BATCH, MethodCase, require, require_equal_state
from mtlkit.testing.small_network import SmallNetwork, task_gradients, train

STEPS = 3


def junction(case: MethodCase) -> None:
    """The gradient of one backward is ``combine(grads, losses)`` of the task gradients."""
    _require_combination(case, case.network())


def wrt_parameters(case: MethodCase) -> None:
    """With ``wrt=parameters``, the merged gradients are those of one backward per loss."""
    if case.takes_wrt():
        _require_combination(case, case.network(case.create(wrt="parameters")))


def no_fork(case: MethodCase) -> None:
    """With ``wrt=parameters`` and no fork, shared gradients are merged and heads keep their own."""
    if not case.takes_wrt():
        return
    method = case.create(wrt="parameters")
    if not method.needs_fork:
        _require_combination(case, case.network(method), fork=False)


def accumulation(case: MethodCase) -> None:
    """With ``merge=False``, micro-batches are merged once: the step is that of the whole batch."""
    if not case.takes_wrt() or case.create(wrt="parameters").weighs_losses:
        return
    for fork in (True, False):
        method = case.create(wrt="parameters")
        if not fork and method.needs_fork:
            return
        whole, parts = case.network(method), case.network(case.create(wrt="parameters"))
        for step, x in enumerate(case.batches(STEPS)):
            halves = x.chunk(2)
            for net, micro in ((whole, [x]), (parts, halves)):
                net.zero_grad()
                for index, batch in enumerate(micro):
                    features = net.backbone(batch)
                    views = net.method(features) if fork else [features] * len(net.heads)
                    losses, last = net.losses_of(views, batch), index == len(micro) - 1
                    if not fork:  # callers divide the losses or the total
                        losses = [loss / len(micro) for loss in losses if loss is not None]
                    total = net.method.total(losses, merge=last)
                    backward(total / len(micro) if fork else total)
            # rotations learn from every micro-batch
            what = f"step {step}, {'a' if fork else 'no'} fork"
            _step_together(case, whole, parts, what, skip="method.")


def _require_combination(case: MethodCase, net: SmallNetwork, *, fork: bool = True) -> None:
    over_parameters = net.method.wrt_parameters
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for step, x in enumerate(case.batches(STEPS)):
        optimizer.zero_grad()
        rows, losses = task_gradients(net, x, parameters=over_parameters)
        own = _head_gradients(net, x)
        expected = copy.deepcopy(net.method).combine(rows, losses)
        features = net.backbone(x)
        features.retain_grad()
        views = net.method(features) if fork else [features] * len(net.heads)
        backward(net.method.total(net.losses_of(views, x)))
        targets = list(net.backbone.parameters()) if over_parameters else [features]
        found = torch.cat([_gradient(target).flatten() for target in targets])
        case.require_same(found, expected, f"step {step}: backward and combine differ")
        if not fork:
            _require_head_gradients(case, net, own)
        optimizer.step()


def heads(case: MethodCase) -> None:
    """A head gets the gradient of its own loss, times its weight where losses are weighted."""
    net = case.network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for x in case.batches(STEPS):
        own = _head_gradients(net, x)
        optimizer.zero_grad()
        backward(net(x))
        _require_head_gradients(case, net, own)
        optimizer.step()


def _head_gradients(net: SmallNetwork, x: Tensor) -> list[Tensor]:
    net.method.eval()
    losses = [loss for loss in net.losses(x) if loss is not None]
    net.method.train()
    values = torch.stack(losses).detach()
    factors = net.method.loss_factors(values)
    return [
        factor * torch.autograd.grad(loss, next(head.parameters()), retain_graph=True)[0]
        for factor, loss, head in zip(factors, losses, net.heads, strict=True)
    ]


def _require_head_gradients(case: MethodCase, net: SmallNetwork, own: list[Tensor]) -> None:
    for task, (head, expected) in enumerate(zip(net.heads, own, strict=True)):
        case.require_same(_gradient(next(head.parameters())), expected, f"head {task}")


def scaled_loss(case: MethodCase) -> None:
    """A scaled loss (GradScaler, accumulation) gives the scaled gradient and the same state."""
    factor = 1024.0
    plain, scaled = case.network(), case.network()
    for step, x in enumerate(case.batches(STEPS)):
        for net, size in ((plain, 1.0), (scaled, factor)):
            net.zero_grad()
            backward(net(x) * size)
        _step_together(case, plain, scaled, f"step {step}, loss times {factor:g}", factor=factor)
    kept = scaled.method.state_dict()
    for name, value in plain.method.state_dict().items():
        case.require_same(kept[name], value, f"loss times {factor:g}: state {name}")


def absent_task(case: MethodCase) -> None:
    """A step without a task's loss is that of a method created without that task."""
    here = [task for task in range(case.tasks) if task != 1]
    if case.tasks < 2 or not case.allows(len(here)):
        return
    full, smaller = case.network(), case.network(case.create(len(here)), targets=here)
    smaller.backbone.load_state_dict(full.backbone.state_dict())
    for head, task in zip(smaller.heads, here, strict=True):
        head.load_state_dict(full.heads[task].state_dict())
    for step, x in enumerate(case.batches(STEPS)):
        labels = torch.ones(len(x), case.tasks, device=x.device)
        labels[:, 1] = 0
        full.zero_grad()
        smaller.zero_grad()
        backward(full(x, labels))
        backward(smaller(x))
        _step_together(case, smaller.backbone, full.backbone, f"step {step}, without task 1")


def owned_parameters(case: MethodCase) -> None:
    """Every parameter that the method owns gets a gradient, so that an optimizer moves it."""
    net = case.network()
    for x in case.batches(STEPS):
        backward(net(x))
    owned = net.method.named_parameters()
    without = [name for name, p in owned if p.requires_grad and p.grad is None]
    advice = "declare it with add_learned, and give it a gradient in learn or in the losses' weights"
    require(not without, f"no gradient for {', '.join(without)}; {advice}")


def no_labels(case: MethodCase) -> None:
    """A step without any loss changes neither shared parameters nor the state."""
    net = case.network()
    first, second = case.batches(2)
    train(net, [first])
    net.method(net.backbone(second))  # a forward may apply the optimizer's last update
    before = copy.deepcopy(net.method.state_dict())
    net.zero_grad()
    backward(net(second, torch.zeros(len(second), case.tasks, device=second.device)))
    moved = [p for p in net.backbone.parameters() if p.grad is not None and p.grad.any()]
    require(not moved, "no task has a loss: the backbone got a gradient")
    require_equal_state(net.method.state_dict(), before, "no task has a loss")


def state_dict(case: MethodCase) -> None:
    """Training continues bit for bit from a state dict that is loaded strictly."""
    batches = case.batches(6)
    net, other = case.network(), case.network()
    first, second = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (net, other))
    train(net, batches[:4], first)
    saved, saved_optimizer = copy.deepcopy(net.state_dict()), copy.deepcopy(first.state_dict())
    train(net, batches[4:], first)
    other.load_state_dict(saved, strict=True)
    second.load_state_dict(saved_optimizer)
    train(other, batches[4:], second)
    what = "resumed from a state dict (is all memory declared by add_state?)"
    require_equal_state(other.state_dict(), net.state_dict(), what)


def evaluation(case: MethodCase) -> None:
    """In eval mode losses have ordinary gradients; neither it nor ``no_grad`` changes later steps."""
    *batches, between, after = case.batches(4)
    net, twin = case.network(), case.network()
    train(net, batches)
    train(twin, batches)
    with torch.no_grad():
        net(between)
    net.eval()
    for loss in net.losses(between):
        assert loss is not None
        torch.autograd.grad(loss, list(net.backbone.parameters()), retain_graph=True)
    net(between)
    net.train()
    same = str(net.method.stats) == str(twin.method.stats)
    require(same, "stats changed")
    require_equal_state(net.method.state_dict(), twin.method.state_dict(), "after an evaluation")
    train(net, [after])
    train(twin, [after])
    require_equal_state(net.state_dict(), twin.state_dict(), "a step after an evaluation")


def copies(case: MethodCase) -> None:
    """Deep copies and unpickled methods continue as the method itself does, also within a step."""
    first, second, third = case.batches(3)
    net = case.network()
    train(net, [first])
    forked = net.method(net.backbone(second))
    twins = {"a deep copy": copy.deepcopy(net)}
    if all(_importable(type(part)) for part in net.method.parts):
        twins["a pickled copy"] = pickle.loads(pickle.dumps(net))
    del forked
    train(net, [second, third])
    for what, twin in twins.items():
        train(twin, [second, third])
        require_equal_state(twin.state_dict(), net.state_dict(), what)


def _importable(kind: type) -> bool:
    """Return whether pickle can find the class, unlike one that a function defines."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def compiled(
    case: MethodCase, backends: Sequence[str] = ("inductor", "aot_eager"), absent: bool = True
) -> None:
    """A compiled network takes the steps of eager mode, also if a task has no labels."""
    labels = torch.ones(BATCH, case.tasks, device=case.device)
    labels[:, -1] = 0
    lacks = 1 if absent else -1  # the step in which the last task has no labels: a second graph
    batches = [(x, labels if step == lacks else None) for step, x in enumerate(case.batches(STEPS))]
    eager = case.network()
    # no momentum: compiled graphs give unused heads zeros, where eager mode gives None
    expected = train(eager, batches, torch.optim.SGD(eager.parameters(), lr=0.02)).state_dict()
    for backend in backends:
        torch.compiler.reset()
        net = case.network()
        train(_Compiled(net, backend), batches, torch.optim.SGD(net.parameters(), lr=0.02))
        found = net.state_dict()
        for name, value in expected.items():
            if not name.endswith("_extra_state"):  # counters of checks that compiled graphs do not have
                case.require_same(found[name], value, f"{name} of the network compiled by {backend}")


class _Compiled(SmallNetwork):
    """The compiled twin of a small network: the same parameters, and a compiled forward."""

    def __init__(self, net: SmallNetwork, backend: str) -> None:
        nn.Module.__init__(self)
        self.net = net
        self.graphs = {
            has_labels: torch.compile(self._step(has_labels), backend=backend)
            for has_labels in (False, True)
        }

    def _step(self, has_labels: bool) -> Callable[[Tensor], Tensor]:
        net, present = self.net, len(self.net.heads) - has_labels

        def step(x: Tensor) -> Tensor:
            losses = net.losses(x)
            return net.method.total([*losses[:present], *[None] * (len(losses) - present)])

        return step

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the total loss; with labels, the last task has none."""
        total: Tensor = self.graphs[labels is not None](x)
        return total


def _step_together(
    case: MethodCase, one: nn.Module, other: nn.Module, what: str, factor: float = 1.0, skip: str = "-"
) -> None:
    """Require that the other's gradients are those of one, times a factor; take one's step with both."""
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        if not name.startswith(skip):
            case.require_same(_gradient(q) / factor, _gradient(p), f"{what}: gradient of {name}")
        with torch.no_grad():
            p.sub_(_gradient(p), alpha=0.01)
            q.copy_(p)


def _gradient(tensor: Tensor) -> Tensor:
    """Return the gradient; zero where there is none."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
