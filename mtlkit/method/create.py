"""From a config string to a method, which may be a chain of parts: ``normalize+rotate+scale``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from mtlkit.config.names import task_names
from mtlkit.config.registry import methods, takes_feature_dim
from mtlkit.config.spec import Part, SpecLike, format_spec
from mtlkit.engine.step import Step
from mtlkit.errors import SpecError
from mtlkit.method.aggregator import GradientAggregator


def create_method(
    spec: SpecLike | GradientAggregator,
    tasks: int | Sequence[Any] | Mapping[str, Any],
    *,
    feature_dim: int | None = None,
    shared: nn.Module | Iterable[Tensor] | None = None,
    **overrides: Any,
) -> GradientAggregator:
    """Make a method from its config string.

    Args:
        spec: for example ``"rotograd"``, ``"cagrad(c=0.4)"``, ``"normalize+rotate(size=512)+imtl_g"``,
            or the same as a mapping or list (see :mod:`mtlkit.config.spec`).
        tasks: number of tasks, or their names.
        feature_dim: size of the axis that is rotated, for methods that rotate.
        shared: shared module or parameters, for ``wrt=parameters``; without it, these are all
            parameters that the features are computed from, or that several losses reach.
        overrides: options that replace those of the string, in every part that takes them.

    Raises:
        SpecError: for a string that cannot be read, an unknown name or option, or two merges.
    """
    names = task_names(tasks)
    if feature_dim is not None and not (isinstance(feature_dim, Integral) and feature_dim >= 1):
        raise SpecError(f"feature_dim must be a whole number, 1 or more, not {feature_dim!r}")
    if isinstance(spec, GradientAggregator):
        if overrides or spec.tasks != names:
            raise SpecError(
                f"a method that is made already ({spec}, tasks {', '.join(spec.tasks)}) cannot be "
                f"changed (tasks {', '.join(names)}, options {sorted(overrides)}); give its string"
            )
        method = spec
    else:
        parts = methods.override(methods.expand(spec), overrides, of=str(spec))
        built = [_build(part, names, feature_dim) for part in parts]
        method = built[0] if len(built) == 1 else Chain(built)
        for part in built:
            part.join(built)
    if shared is not None:
        method.set_shared(shared)
    return method


def _build(part: Part, tasks: tuple[str, ...], feature_dim: int | None) -> GradientAggregator:
    factory = methods.check(part)
    options = dict(part.options)
    if takes_feature_dim(factory):
        options["feature_dim"] = None if feature_dim is None else int(feature_dim)
    method = factory(tasks, **options)
    if not isinstance(method, GradientAggregator):
        raise SpecError(
            f"method {part.name!r} is {type(method).__name__}; a method must be a GradientAggregator"
        )
    if not hasattr(type(method), "name"):
        type(method).name = part.name
    return method


class Chain(GradientAggregator):
    """Several parts as one method: each hook is that of the part which plays the role."""

    name = "chain"

    def __init__(self, parts: Sequence[GradientAggregator]) -> None:
        self.roles = frozenset(role for part in parts for role in part.roles)
        super().__init__(parts[0].tasks)
        for role, verb in (("fork", "fork the features"), ("merge", "merge the gradients")):
            rivals = [part.name for part in parts if role in part.roles]
            if len(rivals) > 1:
                raise SpecError(
                    f"{' and '.join(map(repr, rivals))} both {verb}; a method has one part that "
                    f"does: keep one of them in {format_spec([p.own_spec() for p in parts])!r}"
                )
        self.stages = nn.ModuleDict()
        for part in parts:
            key = part.name.replace(".", "_")
            while key in self.stages:
                key += "_"
            self.stages[key] = part
        self.assemble(tuple(parts))
        self.traceable = all(part.traceable for part in parts)
        self.uses_losses = any(part.uses_losses for part in parts)
        self.needs_whole_gradients = any(part.needs_whole_gradients for part in parts)

    def owned(self) -> tuple[Tensor, ...]:
        """Those of all parts."""
        return tuple(tensor for part in self.parts for tensor in part.owned())

    def own_gradients(self, step: Step) -> tuple[Tensor | None, ...]:
        """Those of all parts."""
        return tuple(gradient for part in self.parts for gradient in part.own_gradients(step))
