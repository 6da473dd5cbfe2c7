"""From a config string to a method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mtlkit.errors import SpecError
from mtlkit.registry import methods, takes_feature_dim
from mtlkit.spec import Part, SpecLike
from mtlkit.tasks import task_names
from mtlkit.weighting.base import Chain, GradientAggregator

__all__ = ["create_method"]


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
            or the same as a mapping or list (see :mod:`mtlkit.spec`).
        tasks: number of tasks, or their names.
        feature_dim: size of the axis that is rotated, for methods that rotate.
        shared: shared module or parameters, for ``wrt=parameters``; without it, these are all
            parameters that the features are computed from.
        overrides: options that replace those of the string, in every part that takes them.

    Raises:
        SpecError: for a string that cannot be read, an unknown name or option, or two merges.
    """
    names = task_names(tasks)
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
        if len(built) == 1:
            method.join(built)
    if shared is not None:
        method.set_shared(shared)
    return method


def _build(part: Part, tasks: tuple[str, ...], feature_dim: int | None) -> GradientAggregator:
    factory = methods.check(part)
    options = dict(part.options)
    if takes_feature_dim(factory):
        options["feature_dim"] = feature_dim
    method = factory(tasks, **options)
    if not isinstance(method, GradientAggregator):
        raise SpecError(
            f"method {part.name!r} is {type(method).__name__}; a method must be a GradientAggregator"
        )
    if not hasattr(type(method), "name"):
        type(method).name = part.name
    return method
