"""mtlkit's methods as weightings of LibMTL: ``Trainer(weighting=weighting("rotograd"), ...)``.

LibMTL's model inherits from an architecture and a weighting. It hands every task's representation
through ``_prepare_rep`` on its way to the decoder, and the losses to ``backward``. A weighting made
here cuts the graph at the first and merges in the second: one walk through the decoders, then one
through the encoder (K with ``wrt=parameters``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.config.registry import methods
from mtlkit.config.spec import SpecLike
from mtlkit.engine.gradients import Gradients
from mtlkit.engine.parameter_rows import split_parameters
from mtlkit.engine.processes import ALONE
from mtlkit.engine.step import Step, measure, measure_rows
from mtlkit.errors import MtlkitError, SpecError, UsageError
from mtlkit.integrations.fitting import fitting_method
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.losses import align, weigh

Leaves = list[Tensor | None]


def weighting(spec: SpecLike, *, feature_dim: int | None = None, **overrides: Any) -> type[nn.Module]:
    """A class that LibMTL's Trainer takes as its ``weighting``.

    The string decides what is merged: ``wrt=features`` (the default) the gradients of the
    representations, ``wrt=parameters`` those of the parameters that the architecture calls shared.
    LibMTL's ``rep_grad`` has no say, and ``weight_args`` stays empty.

    Where every task has its own representation (MTAN, MMoE, CGC, PLE), these count as versions of one:
    their gradients are compared entry by entry, as with LibMTL's ``rep_grad``, and each goes back into
    its own representation with the task's weight. With ``multi_input`` the tasks have different samples,
    and their gradients are orthogonal at the representations: use ``wrt=parameters``.

    Args:
        spec: a config string such as ``"rotograd"`` or ``"cagrad(wrt=parameters)"``.
        feature_dim: size of the axis that is rotated; default that of the decoders' first layers.
        overrides: options that replace those of the string.
    """
    for part in methods.override(methods.expand(spec), overrides, of=str(spec)):
        methods.check(part)  # a wrong name is noticed here

    class MtlkitWeighting(_Weighting):
        def init_param(self) -> None:
            decoders = {task: self.decoders[task] for task in self.task_name}
            self.attach(fitting_method(spec, decoders, feature_dim, overrides))

    return MtlkitWeighting


def load_trainer(device: str | torch.device = "cpu") -> Any:
    """LibMTL's Trainer for ``device`` and today's PyTorch.

    LibMTL 1.1.5 imports a function from where torchvision no longer has it, asks data loaders for a
    method that they have lost, and trains on ``cuda:0`` only. Call this before LibMTL is imported.
    """
    _restore_torchvision()
    try:
        from LibMTL import Trainer
    except ModuleNotFoundError as error:
        raise MtlkitError(
            f"LibMTL cannot be imported ({error}); install it with: pip install --no-deps LibMTL==1.1.5"
        ) from error

    return type("DeviceTrainer", (_OnDevice, Trainer), {"chosen_device": torch.device(device)})


class _OnDevice:
    """What LibMTL's Trainer does differently on a device of choice and with today's data loaders."""

    chosen_device: torch.device
    device: torch.device

    def _prepare_model(self, *args: Any) -> None:
        self.device = self.chosen_device
        trainer: Any = super()
        trainer._prepare_model(*args)  # noqa: SLF001  (LibMTL names its hooks so)

    def _process_data(self, loader: list[Any]) -> tuple[Any, Any]:
        batch = next(loader[1], None)
        if batch is None:
            loader[1] = iter(loader[0])
            batch = next(loader[1])
        data, labels = batch
        if isinstance(labels, Mapping):
            return data.to(self.device), {k: v.to(self.device) for k, v in labels.items()}
        return data.to(self.device), labels.to(self.device)


def _restore_torchvision() -> None:
    import torchvision.models

    name = "torchvision.models.utils"
    if not hasattr(torchvision.models, "utils") and name not in sys.modules:
        stand_in = ModuleType(name, "What torchvision.models.utils held.")
        stand_in.load_state_dict_from_url = torch.hub.load_state_dict_from_url  # type: ignore[attr-defined]
        sys.modules[name] = stand_in


@dataclass
class _Cut:
    """What the decoders of one step were given, and what that was made from."""

    representations: dict[int, Tensor] = field(default_factory=dict)
    given: dict[int, Tensor] = field(default_factory=dict)
    views: list[Tensor] = field(default_factory=list)

    def gradients(self) -> dict[int, Leaves]:
        return {k: [leaf.grad] for k, leaf in sorted(self.given.items()) if leaf.grad is not None}


class _Weighting(nn.Module):
    """The part of LibMTL's model that merges; the other part is the architecture."""

    method: GradientAggregator
    task_name: list[str]
    decoders: Any
    multi_input: bool

    def attach(self, method: GradientAggregator) -> None:
        """Make the method a part of the model, which is complete and has no optimizer yet."""
        self.method = method
        self._cut = _Cut()
        # the architecture comes first in the order of the base classes
        self._prepare_rep = self._give_view

    def _give_view(self, rep: Tensor, task: str, same_rep: bool | None = None) -> Tensor:
        """What the decoder of ``task`` reads."""
        index = self.task_name.index(task)
        if not (self.training and torch.is_grad_enabled()):
            return _views(self.method, rep)[index]
        if index in self._cut.given:  # a forward pass that no backward followed
            self._cut = _Cut()
        cut = self._cut
        if not cut.given and self.method.fork_part is not None:
            self.method.fork_part.prepare()
        if not any(rep is other for other in cut.representations.values()):
            cut.views = _views(self.method, rep.detach())
        leaf = cut.views[index].detach().requires_grad_()
        cut.representations[index], cut.given[index] = rep, leaf
        return leaf.clone()  # which the decoder may change in place

    def backward(self, losses: Any, **options: Any) -> Any:
        """Give all parameters their gradients; returns the tasks' weights, as LibMTL records them."""
        if options:
            raise SpecError(
                f"weight_args ({', '.join(options)}) are options of LibMTL's own weightings; write "
                "those of mtlkit into the string, such as 'cagrad(c=0.4)', and leave weight_args empty"
            )
        cut, self._cut = self._cut, _Cut()
        if not cut.given:
            raise UsageError(
                "backward(losses) before a forward pass in training mode that prepared a "
                "representation; call model.train() and compute the predictions first"
            )
        method = self.method
        given = align([losses[k] for k in range(len(self.task_name))], method.tasks)
        device = next(iter(cut.given.values())).device
        weighed = weigh(given, method.parts, ALONE, device, recording=True)
        terms = list(weighed.terms.values())
        if weighed.extra is not None:
            terms.append(weighed.extra)
        torch.autograd.backward(sum(terms[1:], terms[0]))
        if method.wrt_parameters:
            shared: Any = self.get_share_params
            method.set_shared(shared())
        _merge(method, cut, weighed.values, own_samples=self.multi_input)
        return None if method.stats is None else method.stats.weights.cpu().numpy()


def _views(method: GradientAggregator, representation: Tensor) -> list[Tensor]:
    """What each task is given of one representation."""
    if method.fork_part is None:
        return [representation] * len(method.tasks)
    return [view for (view,) in method.fork_part.fork([representation])]


def _merge(method: GradientAggregator, cut: _Cut, losses: Tensor, *, own_samples: bool) -> None:
    """Merge the gradients at the cut and send the result on, to encoder and method."""
    pulled = cut.gradients()
    if method.fork_part is not None:
        pulled = method.fork_part.pull_back(pulled)
    grads = {task: gradient for task, (gradient,) in pulled.items() if gradient is not None}
    sources = {task: cut.representations[task] for task in grads}
    several = len({id(source) for source in sources.values()}) > 1
    if method.wrt_parameters:
        targets, merged, owned = _merge_parameters(method, sources, grads, losses, own_samples)
    else:
        step = _measure(method, grads, losses, own_samples and several)
        targets = [next(iter(sources.values()))]
        if several and own_samples:
            targets = [torch.cat(list(sources.values()))]
        elif several:
            _refuse_whole_merge(method)
            targets = list(sources.values())
            apart = {k: [grads[k] if k == other else None for other in grads] for k in grads}
            step = replace(step, delivered=Gradients(apart, step.features.dtype))
        owned = method.own_gradients(step)
        merged = method.merge_step(step)
    pairs = [
        (tensor, gradient.to(tensor.dtype))
        for tensor, gradient in zip([*targets, *method.owned()], [*merged, *owned], strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])


def _merge_parameters(
    method: GradientAggregator,
    sources: dict[int, Tensor],
    grads: dict[int, Tensor],
    losses: Tensor,
    own_samples: bool,
) -> tuple[list[Tensor], Leaves, tuple[Tensor | None, ...]]:
    """The parameters below the representations, their gradients, and those of the method's own."""
    parameters = split_parameters(list(sources.values()), method.shared, ALONE)
    last = max(grads)
    walks = {
        task: torch.autograd.grad(
            sources[task],
            parameters.all,
            gradient.to(sources[task].dtype),
            retain_graph=task != last,
            allow_unused=True,
        )
        for task, gradient in grads.items()
    }
    columns = list(zip(*walks.values(), strict=True))
    merged = [
        place
        for place, column in enumerate(columns[: len(parameters.candidates)])
        if sum(gradient is not None for gradient in column) > 1
    ]
    rows = {task: [walk[place] for place in merged] for task, walk in walks.items()}
    rows = {task: row for task, row in rows.items() if any(gradient is not None for gradient in row)}
    double = any(parameter.dtype == torch.float64 for parameter in parameters.candidates)
    step = measure_rows(
        Gradients(rows, torch.float64 if double else torch.float32),
        tasks=len(method.tasks),
        scale=torch.ones((), device=losses.device),
        losses=losses,
    )
    if method.fork_part is not None:  # rotations learn from the gradients of the features
        seen = _measure(method, grads, losses, own_samples)
        step = replace(step, features=seen.features, feature_gram=seen.feature_gram)
    owned = method.own_gradients(step)
    chosen = dict(zip(merged, method.merge_step(step), strict=True))
    delivered = [
        chosen[place] if place in chosen else _sum(column) for place, column in enumerate(columns)
    ]
    return parameters.all, delivered, owned


def _sum(gradients: Iterable[Tensor | None]) -> Tensor | None:
    terms = [gradient for gradient in gradients if gradient is not None]
    return sum(terms[1:], terms[0]) if terms else None


def _measure(
    method: GradientAggregator, grads: dict[int, Tensor], losses: Tensor, own_samples: bool
) -> Step:
    """The step at the representations, as if they were one."""
    if own_samples:
        grads = _with_others_samples(grads)
    shapes = {method.tasks[task]: tuple(gradient.shape) for task, gradient in grads.items()}
    if len(set(shapes.values())) > 1:
        raise UsageError(
            "the tasks' representations must have one shape for their gradients to be compared; "
            f"given: {shapes}"
        )
    double = any(gradient.dtype == torch.float64 for gradient in grads.values())
    rows = Gradients({k: [g] for k, g in grads.items()}, torch.float64 if double else torch.float32)
    scale = torch.ones((), device=losses.device)
    return measure(rows, tasks=len(method.tasks), scale=scale, losses=losses)


def _with_others_samples(grads: dict[int, Tensor]) -> dict[int, Tensor]:
    """Gradients over the samples of all tasks: zero where a sample is another task's."""
    return {
        task: torch.cat([g if other == task else torch.zeros_like(g) for other, g in grads.items()])
        for task in grads
    }


def _refuse_whole_merge(method: GradientAggregator) -> None:
    if method.needs_whole_gradients:
        raise UsageError(
            f"{method} has no weight per task, and this architecture gives every task a representation "
            "of its own; write the same with wrt=parameters, or take HPS"
        )
