"""Create a method from a config string: ``normalize+rotate+scale``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from torch import Tensor, nn

from mtlkit.config.annotations import fits
from mtlkit.config.names import task_names
from mtlkit.config.registry import methods, option_types, takes_feature_dim
from mtlkit.config.spec import Part, SpecLike
from mtlkit.errors import SpecError
from mtlkit.method.aggregator import GradientAggregator, Tasks
from mtlkit.method.groups import Shared
from mtlkit.method.method import Method


def create_method(
    spec: SpecLike | Method | GradientAggregator | Sequence[GradientAggregator],
    tasks: Tasks,
    *,
    feature_dim: int | None = None,
    shared: Shared = None,
    **overrides: Any,
) -> Method:
    """Make a method from its config string.

    Args:
        spec: for example ``"rotograd"``, ``"cagrad(c=0.4)"``, ``"normalize+rotate(size=512)+imtl_g"``,
            the same as a mapping or list (see :mod:`mtlkit.config.spec`), or parts.
        tasks: number of tasks, or their names.
        feature_dim: size of the axis that is rotated, for methods that rotate.
        shared: shared modules or parameters, for ``wrt=parameters``; without it, these are all
            parameters that the features are computed from, or that several losses reach. A mapping from
            names to such groups gives each group a merge of its own.
        overrides: options that replace those of the string, in every part that takes them.

    Raises:
        SpecError: for a string that cannot be read, an unknown name or option, or two merges.

    Example:
        >>> method = create_method("uw+cagrad(c=0.4)", tasks=("seg", "depth"))
        >>> method
        <Method 'uw+cagrad', tasks: seg, depth>
        >>> create_method("cagrad", 2, c=0.2)
        <Method 'cagrad(c=0.2)', tasks: 0, 1>
    """
    names = task_names(tasks)
    if feature_dim is not None and not (isinstance(feature_dim, Integral) and feature_dim >= 1):
        raise SpecError(f"feature_dim must be an integer, 1 or more, not {feature_dim!r}")
    given = _parts_of(spec)
    if given is None:
        parts = methods.override(methods.expand(spec), overrides, of=str(spec))  # type: ignore[arg-type]
        method = Method([_build(part, names, feature_dim) for part in parts])
    else:
        method = spec if isinstance(spec, Method) else Method(given)
        if overrides or method.tasks != names:
            raise SpecError(
                f"a method that is made already ({method}, tasks {', '.join(method.tasks)}) cannot be "
                f"changed (tasks {', '.join(names)}, options {sorted(overrides)}); give its string"
            )
    if shared is not None:
        method.set_shared(shared)
    return method


def _parts_of(spec: Any) -> list[GradientAggregator] | None:
    """The parts, where they are made already."""
    if isinstance(spec, Method):
        return [*spec.parts]
    if isinstance(spec, GradientAggregator):
        return [spec]
    if isinstance(spec, list | tuple | nn.ModuleList) and any(
        isinstance(part, GradientAggregator) for part in spec
    ):
        return list(spec)
    return None


def _build(part: Part, tasks: tuple[str, ...], feature_dim: int | None) -> GradientAggregator:
    types = option_types(methods.get(part.name))
    options = {key: _plain(value, types.get(key, Any)) for key, value in part.options.items()}
    factory = methods.check(Part(part.name, options, part.arguments))
    if takes_feature_dim(factory):
        options["feature_dim"] = None if feature_dim is None else int(feature_dim)
    built = factory(tasks, **options)
    if not isinstance(built, GradientAggregator):
        raise SpecError(
            f"method {part.name!r} is {type(built).__name__}; a method must be a GradientAggregator"
        )
    if not hasattr(type(built), "name"):
        type(built).name = part.name
    return built


def _plain(value: Any, annotation: Any = Any) -> Any:
    """Return numbers of NumPy and PyTorch as Python's, and an array as a list where it does not fit."""
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    is_array = isinstance(value, np.ndarray | Tensor) and not fits(value, annotation)
    return value.tolist() if is_array or isinstance(value, np.generic) else value
