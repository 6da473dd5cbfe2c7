"""The laws that hold for every architecture."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.autograd import backward

from mtlkit.architectures import Architecture, create_architecture
from mtlkit.engine.features import flatten_features
from mtlkit.errors import UnknownNameError, UsageError
from mtlkit.method.method import Method
from mtlkit.testing.cases import require
from mtlkit.testing.networks import (
    FirstTask,
    NetworkCase,
    fitting_inputs,
    is_literal,
    leaves_of,
    listed,
    losses_of,
    merging_method,
    reached_by,
    same_gradients,
    same_predictions,
    size_of,
    total_of,
    train,
)


def check_architecture(
    architecture: str | type[Architecture], *, inputs: Any = None, tasks: Any = None, **options: Any
) -> None:
    """Check all laws of an architecture on a small example.

    The network is built, trained for some steps and copied, so choose options that make it small. If it
    needs a backbone, and neither that nor ``inputs`` is given, it gets a small MLP.

    Args:
        architecture: a registered name, a config string, or a class.
        inputs: a batch of at least four samples, or a function that returns one; by default noise in a
            shape that fits the first layer.
        tasks: at least two tasks, as for ``create_architecture``; default ``{"a": 3, "b": 1}``.
        options: options of the architecture.

    Raises:
        AssertionError: if a law does not hold; the message begins with the law's name.

    >>> from mtlkit.testing import check_architecture
    >>> check_architecture("hard_sharing", backbone="mlp(16, inputs=8)")
    """
    given = inputs() if callable(inputs) else inputs
    case = NetworkCase(architecture, given, {"a": 3, "b": 1} if tasks is None else tasks, options)
    if given is None and case.needs_backbone():
        case = replace(case, options={"backbone": "mlp(16, inputs=8)", **options})
    with torch.random.fork_rng(devices=[]):
        net = case.build()
        if len(net.tasks) < 2:
            raise UsageError(f"check_architecture needs two tasks or more, not {len(net.tasks)}")
        if given is None:
            case = replace(case, inputs=fitting_inputs(net))
        for law, check in LAWS.items():
            if law in net.waived_laws:
                continue
            try:
                check(case)
            except Exception as error:
                kind = "" if type(error) is AssertionError else f"{type(error).__name__}: "
                raise AssertionError(f"{law}: {kind}{error}") from error


def _predictions_by_task(case: NetworkCase) -> None:
    """``forward`` gives a prediction for every task, in task order, one row per sample."""
    rows = len(leaves_of(case.inputs)[0])
    net = case.build()
    for mode in (True, False):
        predictions = net.train(mode)(case.inputs)
        kind = type(predictions).__name__
        require(isinstance(predictions, dict), f"forward returned {kind}, not a dict")
        tasks = tuple(predictions)
        require(tasks == net.tasks, f"forward returned the tasks {tasks}, not {net.tasks}")
        for task, prediction in predictions.items():
            what = f"the prediction of {task!r}"
            for leaf in leaves_of(prediction):
                require(bool(torch.isfinite(leaf).all()), f"{what} is not finite")
                require(len(leaf) == rows, f"{what} has {len(leaf)} rows for {rows} samples")


def _one_fork(case: NetworkCase) -> None:
    """A forward pass calls the method once; never, if there are no shared features."""
    net = case.build()
    calls: list[int] = []
    net.method.register_forward_hook(lambda *_: calls.append(1))
    for mode in (True, False):
        calls.clear()
        net.train(mode)(case.inputs)
        expected = 1 if net.forks else 0
        require(len(calls) == expected, f"the method was called {len(calls)} times, not {expected}")


def _parameters_are_divided(case: NetworkCase) -> None:
    """Every parameter is either shared or of one task; predict uses only those of its task."""
    net = case.build()
    names = {id(p): name for name, p in net.named_parameters()}
    method = {names[id(p)] for p in net.method.parameters()}
    shared = {names[id(p)] for p in net.shared_parameters()}
    own = {task: {names[id(p)] for p in net.task_parameters(task)} for task in net.tasks}
    counts = Counter([*method, *shared, *(name for task in net.tasks for name in own[task])])
    several = {name for name, count in counts.items() if count > 1}
    require(not several, f"{listed(several)} belong to several of shared part, tasks and method")
    none = {*names.values()} - counts.keys()
    require(not none, f"{listed(none)} belong to none of shared part, tasks and method")
    require(bool(shared), "the tasks share no parameters")
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    with torch.no_grad():
        features = net.encode(case.inputs)
    for task in net.tasks:
        used = reached_by(net, net.predict(task, features, case.inputs))
        missing, unused = used - own[task], (own[task] & trained) - used
        require(not missing, f"predict({task!r}) uses {listed(missing)}, not given by task_modules")
        require(not unused, f"task_modules({task!r}) gives {listed(unused)}, not used by predict")
        reached = reached_by(net, net.forward_only(task, case.inputs))
        foreign = {name for other in net.tasks if other != task for name in own[other]} & reached
        require(not foreign, f"the loss of {task!r} reaches {listed(foreign)} of other tasks")


def _training(case: NetworkCase) -> None:
    """The loss falls, and every parameter of the network changes, whatever the method."""
    for method in {"sum": None, merging_method(case.build()): None}:
        net = case.build(method)
        before = {name: value.detach().clone() for name, value in net.named_parameters()}
        history = train(net, case.inputs, steps=20)
        change = f"the loss went from {history[0]:.4g} to {history[-1]:.4g}"
        require(sum(history[-3:]) / 3 < history[0], f"with {method} {change}")
        owned = {id(p) for p in net.method.parameters()}
        trained = [(k, p) for k, p in net.named_parameters() if p.requires_grad and id(p) not in owned]
        unchanged = {name for name, p in trained if torch.equal(p, before[name])}
        require(not unchanged, f"with {method}, {listed(unchanged)} did not change")


def _merging_touches_shared_parameters_alone(case: NetworkCase) -> None:
    """A weight per task reaches all shared parameters; a task's own get the gradient of its loss."""
    net = case.build("sum")
    alone, together = copy.deepcopy(net), copy.deepcopy(net)
    net.set_method(Method(FirstTask(net.tasks, wrt="features" if net.forks else "parameters")))
    for each in (net, together):
        backward(each.method.total(losses_of(each, case.inputs)))
    first = net.tasks[0]
    backward(3 * alone.method.total({first: losses_of(alone, case.inputs)[first]}))
    owners = {id(p) for task in net.tasks for p in net.task_parameters(task)}
    own = [(name, p) for name, p in net.named_parameters() if id(p) in owners]
    same_gradients(own, dict(together.named_parameters()))
    shared = [(name, p) for name, p in net.named_parameters() if id(p) not in owners]
    if not net.forks:  # what only one task reaches keeps that task's gradient
        reached = [reached_by(together, together.forward_only(t, case.inputs)) for t in net.tasks]
        shared = [(name, p) for name, p in shared if sum(name in names for names in reached) > 1]
    same_gradients(shared, dict(alone.named_parameters()))


def _missing_task(case: NetworkCase) -> None:
    """A batch without labels of one task trains the others and none of that task's parameters."""
    method = merging_method(case.build())
    for absent in case.build().tasks:
        net = case.build(method)
        losses = losses_of(net, case.inputs)
        del losses[absent]
        backward(net.method.total(losses))
        grads = {id(p): p.grad for p in net.parameters() if p.grad is not None}
        finite = all(bool(torch.isfinite(grad).all()) for grad in grads.values())
        require(finite, f"without {absent!r} a gradient is not finite")
        moved = {key for key, grad in grads.items() if bool(grad.any())}
        for task in net.tasks:
            own = {id(p) for p in net.task_parameters(task) if p.requires_grad}
            if task == absent:
                require(not own & moved, f"without {absent!r}, its parameters got a gradient")
            elif own:
                require(bool(own & moved), f"without {absent!r}, {task!r} got no gradient")


def _evaluation(case: NetworkCase) -> None:
    """In eval mode nothing is random or stored, and each prediction has an ordinary backward."""
    net = case.build(merging_method(case.build()))
    train(net, case.inputs, steps=1)
    net.eval()
    before = copy.deepcopy(net.state_dict())
    predictions = net(case.inputs)
    same_predictions(net(case.inputs), predictions)
    for name, value in net.state_dict().items():
        if not name.startswith("method."):  # a method may normalize its own parameters
            require(torch.equal(value, before[name]), f"a forward in eval mode changed {name}")
    require(net.auxiliary_loss() is None, "a forward in eval mode left an auxiliary loss")
    for task, prediction in predictions.items():
        net.zero_grad(set_to_none=True)
        if any(leaf.requires_grad for leaf in leaves_of(prediction)):
            # a junction would refuse one task alone
            backward(size_of(prediction), retain_graph=True)
        shared = [p for p in net.shared_parameters() if p.requires_grad]
        reached = not shared or any(p.grad is not None for p in shared)
        require(reached, f"in eval mode no gradient of {task!r} reaches the shared parameters")


def _state_dict(case: NetworkCase) -> None:
    """``load_state_dict(state_dict())`` gives the same predictions and the same next steps."""
    method = merging_method(case.build())
    net, other = case.build(method), case.build(method)
    train(net, case.inputs, steps=2)
    other.load_state_dict(net.state_dict(), strict=True)
    same_predictions(other.eval()(case.inputs), net.eval()(case.inputs))
    expected, found = (train(each, case.inputs, steps=2) for each in (net, other))
    require(expected == found, f"the next losses were {found}, not {expected}")


def _deepcopy(case: NetworkCase) -> None:
    """A copy made between forward and backward predicts the same and is independent."""
    net = case.build(merging_method(case.build()))
    train(net, case.inputs, steps=1)
    alive = net(case.inputs)
    twin = copy.deepcopy(net)
    del alive
    expected = net.eval()(case.inputs)
    same_predictions(twin.eval()(case.inputs), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    same_predictions(net(case.inputs), expected)


def _one_task_alone(case: NetworkCase) -> None:
    """``only(task)`` predicts what ``forward`` does and runs no module of another task."""
    net = case.build(merging_method(case.build()))
    train(net, case.inputs, steps=1)
    together = net.eval()(case.inputs)
    ran: list[str] = []
    for task in net.tasks:
        for module in net.task_modules(task):
            if isinstance(module, nn.Module):
                module.register_forward_hook(lambda *_, task=task: ran.append(task))
    for task in net.tasks:
        ran.clear()
        same_predictions({task: net.only(task)(case.inputs)}, {task: together[task]})
        others = set(ran) - {task}
        require(not others, f"only({task!r}) ran modules of {listed(others)}")


def _unknown_task(case: NetworkCase) -> None:
    """Unknown task names are errors that list the known ones."""
    net = case.build()
    calls: list[Callable[[str], Any]] = [net.only, lambda name: list(net.task_parameters(name))]
    for call in calls:
        try:
            call("no such task")
        except UnknownNameError:
            continue
        raise AssertionError("an unknown task was accepted")


def _own_batches(case: NetworkCase) -> None:
    """With ``multi_input``, every task's prediction is that of its own batch."""
    if not case.takes("multi_input"):
        return
    try:
        leaves, rebuild = flatten_features(case.inputs)
    except UsageError:
        return  # inputs that cannot be concatenated
    net = case.build(merging_method(case.build()), multi_input=True)
    half = max(2, len(leaves[0]) // 2)
    batches = {
        task: rebuild([leaf[half * (index % 2) :] for leaf in leaves])
        for index, task in enumerate(net.tasks)
    }
    backward(total_of(net, losses_of(net, batches)))
    predictions = net.eval()(batches)
    for task, batch in batches.items():
        same_predictions({task: predictions[task]}, {task: net.only(task)(batch)})
    last = net.tasks[-1]
    found = net({last: batches[last]})
    require(tuple(found) == (last,), f"given a batch of {last!r} alone, forward returned {tuple(found)}")


def _config_string(case: NetworkCase) -> None:
    """``spec`` is a config string that builds the same network."""
    if not isinstance(case.architecture, str) or not is_literal(case.options):
        return
    net = case.build()
    again = create_architecture(net.spec, case.tasks)
    require(again.spec == net.spec, f"{net.spec!r} came back as {again.spec!r}")
    shapes = [{k: v.shape for k, v in each.state_dict().items()} for each in (net, again)]
    require(shapes[0] == shapes[1], f"{net.spec!r} builds another network")


LAWS: dict[str, Callable[[NetworkCase], None]] = {
    "predictions by task": _predictions_by_task,
    "one fork": _one_fork,
    "parameters are divided": _parameters_are_divided,
    "training": _training,
    "merging touches shared parameters alone": _merging_touches_shared_parameters_alone,
    "missing task": _missing_task,
    "evaluation": _evaluation,
    "state dict": _state_dict,
    "deepcopy": _deepcopy,
    "one task alone": _one_task_alone,
    "unknown task": _unknown_task,
    "own batches": _own_batches,
    "config string": _config_string,
}
"""The laws by name, in the order in which they are checked."""
