"""Methods of mtlkit as weightings of LibMTL: ``Trainer(weighting=weighting("rotograd"), ...)``.

LibMTL's model inherits from an architecture and a weighting. It passes every task's representation
through ``_prepare_rep`` to the decoder, and the losses to ``backward``. A weighting made here forks the
features in the first and calls ``method.total(losses).backward()`` in the second.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.config.extras import import_extra
from mtlkit.config.registry import methods
from mtlkit.config.spec import SpecLike
from mtlkit.errors import MtlkitError, SpecError, UsageError
from mtlkit.integrations.fitting import fitting_method


def weighting(spec: SpecLike, *, feature_dim: int | None = None, **overrides: Any) -> type[nn.Module]:
    """Create a class for the ``weighting`` of LibMTL's Trainer.

    With ``wrt=features`` (the default) it merges the gradients of the representations, with
    ``wrt=parameters`` those of the architecture's shared parameters. LibMTL's ``rep_grad`` is ignored,
    and ``weight_args`` must be empty.

    If every task has its own representation (MTAN, MMoE, CGC, PLE), these are treated as versions of
    one: their gradients are compared entry by entry, as with LibMTL's ``rep_grad``, and each flows back
    into its own representation with the task's weight. With ``multi_input`` the tasks have different
    samples, and their gradients are orthogonal at the representations: use ``wrt=parameters``.

    Args:
        spec: a config string such as ``"rotograd"`` or ``"cagrad(wrt=parameters)"``.
        feature_dim: size of the rotated axis; default: the input size of the decoders' first layers.
        overrides: options that replace those of the string.

    >>> from mtlkit.integrations.libmtl import weighting
    >>> trainer = Trainer(task_dict, weighting=weighting("rotograd"), ...)  # doctest: +SKIP
    """
    parts = methods.override(methods.expand(spec), overrides, of=str(spec))
    for part in parts:
        methods.check(part)  # raises for wrong names
    rotates = any(part.name == "rotate" for part in parts)
    over_parameters = any(part.options.get("wrt") == "parameters" for part in parts)

    class MtlkitWeighting(_Weighting):
        def init_param(self) -> None:
            decoders = {task: self.decoders[task] for task in self.task_name}
            shared: Any = self.get_share_params
            method = fitting_method(
                spec, decoders, feature_dim, overrides, list(shared()) if over_parameters else None
            )
            self.attach(method, rotates=rotates, over_parameters=over_parameters)

    return MtlkitWeighting


def load_trainer(device: str | torch.device = "cpu") -> Any:
    """Return LibMTL's Trainer for ``device`` and current versions of PyTorch.

    LibMTL 1.1.5 imports a function that torchvision has moved, calls a method that data loaders no
    longer have, and trains on ``cuda:0`` only. Call this before LibMTL is imported.

    >>> from mtlkit.integrations.libmtl import load_trainer
    >>> Trainer = load_trainer("cpu")  # doctest: +SKIP
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
    """The changes to LibMTL's Trainer for another device and current data loaders."""

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
    models = import_extra("torchvision.models", "LibMTL")
    name = "torchvision.models.utils"
    if not hasattr(models, "utils") and name not in sys.modules:
        stand_in = ModuleType(name, "What torchvision.models.utils held.")
        stand_in.load_state_dict_from_url = torch.hub.load_state_dict_from_url  # type: ignore[attr-defined]
        sys.modules[name] = stand_in


class _Weighting(nn.Module):
    """The weighting part of LibMTL's model; the other part is the architecture.

    Where all tasks read one representation, it is forked when the first decoder reads it. Otherwise
    the graph is cut at the representations, and ``backward`` forks one tensor for all of them.
    """

    method: Any
    task_name: list[str]
    decoders: Any
    multi_input: bool

    def attach(self, method: Any, *, rotates: bool, over_parameters: bool) -> None:
        """Add the method to the model, which is complete and has no optimizer yet."""
        self.method = method
        self._rotates, self._over_parameters = rotates, over_parameters
        self._step = _Step()
        # set on the instance, because the architecture comes first among the base classes
        self._prepare_rep = self._give_view
        encoder: Any = getattr(self, "encoder", None)
        if encoder is not None and not self.multi_input:
            encoder.register_forward_hook(self._begin)

    def _begin(self, encoder: nn.Module, inputs: Any, representation: Any) -> None:
        """Begin a step: a tensor from the encoder is what all tasks read."""
        self._step = _Step(representation)

    def _give_view(self, rep: Tensor, task: str, same_rep: bool | None = None) -> Tensor:
        """Return what the decoder of ``task`` reads."""
        index = self.task_name.index(task)
        if not (self.training and torch.is_grad_enabled()):
            view: Tensor = self.method(rep)[index]
            return view
        if index in self._step.given:  # a forward pass without a backward pass
            self._step = _Step()
        step = self._step
        if rep is step.shared:  # LibMTL's same_rep is True for lists of representations
            step.views = step.views or self.method(rep)
            given = step.views[index]
        elif self._over_parameters and not self._rotates:
            given = rep
        else:
            step.versions[index] = (rep, self._rotated(rep, index))
            given = step.versions[index][1].detach().requires_grad_()
        step.given[index] = given
        return given.clone()  # a decoder may change it in place

    def _rotated(self, rep: Tensor, index: int) -> Tensor:
        """Return a task's view with ordinary gradients."""
        self.method.training = False
        try:
            view: Tensor = self.method(rep)[index] if self._rotates else rep
            return view
        finally:
            self.method.training = True

    def backward(self, losses: Any, **options: Any) -> Any:
        """Compute the gradients of all parameters, and return the task weights for LibMTL's records."""
        if options:
            raise SpecError(
                f"weight_args ({', '.join(options)}) are options of LibMTL's own weightings; write "
                "those of mtlkit into the string, such as 'cagrad(c=0.4)', and leave weight_args empty"
            )
        step, self._step = self._step, _Step()
        if not step.given:
            raise UsageError(
                "backward(losses) before a forward pass in training mode that prepared a "
                "representation; call model.train() and compute the predictions first"
            )
        given = [losses[k] for k in range(len(self.task_name))]
        if not step.versions:
            self.method.total(given).backward()
        elif self.multi_input:
            self._merge_samples(given, step)
        else:
            self._merge_versions(given, step)
        weights = None if self.method.stats is None else self.method.stats.weights
        return None if weights is None else weights.cpu().numpy()

    def _merge_samples(self, losses: list[Tensor], step: _Step) -> None:
        """Merge where every task has samples of its own: fork all of them as one batch."""
        reps = [step.versions[k][0] for k in sorted(step.versions)]
        views = self.method(torch.cat(reps))
        parts = [view.split([len(rep) for rep in reps])[k] for k, view in enumerate(views)]
        self.method.total(_moved(losses, step, parts)).backward()

    def _merge_versions(self, losses: list[Tensor], step: _Step) -> None:
        """Merge where every task has a version of the representation: compare them entry by entry."""
        if self._over_parameters:
            raise UsageError(
                f"{self.method} rotates and merges gradients of parameters, and this architecture gives "
                "every task a representation of its own; leave out rotate or wrt=parameters, or take HPS"
            )
        shapes = {task: tuple(step.given[k].shape) for k, task in enumerate(self.task_name)}
        if len(set(shapes.values())) > 1:
            raise UsageError(
                "the tasks' representations must have one shape for their gradients to be compared; "
                f"given: {shapes}"
            )
        views = self.method(torch.zeros_like(step.given[0]).requires_grad_())
        for view in views:
            view.retain_grad()
        self.method.total(_moved(losses, step, views)).backward()
        weights = self.method.stats.weights
        if weights is None or not weights.isfinite().all():
            raise UsageError(
                f"{self.method} has no weight per task, and this architecture gives every task a "
                "representation of its own; write the same with wrt=parameters, or take HPS"
            )
        versions = [step.versions[k][1] for k in range(len(views))]
        gradients = [w.to(view.dtype) * view.grad for w, view in zip(weights, views, strict=True)]
        torch.autograd.backward(versions, gradients)


@dataclass
class _Step:
    """Inputs of the decoders in one step, and the tensors that these were made from."""

    shared: Any = None
    given: dict[int, Tensor] = field(default_factory=dict)
    views: list[Tensor] = field(default_factory=list)
    versions: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The representation and its view, by task, if tasks have their own."""


def _moved(losses: list[Tensor], step: _Step, views: Sequence[Tensor]) -> list[Tensor]:
    """Return the same losses with the gradients that arrived at the cut moved to ``views``."""
    moved = []
    for task, (loss, view) in enumerate(zip(losses, views, strict=True)):
        (gradient,) = torch.autograd.grad(loss, step.given[task], retain_graph=True)
        term = (view * gradient).sum()
        moved.append(loss + term - term.detach())
    return moved
