"""Networks for images of a given size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtlkit.config.registry import architectures, option_names
from mtlkit.config.spec import Part, SpecLike, format_spec, parse_call
from mtlkit.errors import SpecError
from mtlkit.tasks import Task

_BACKBONE = "timm.resnet18"
_STRIDE = 32  # of SMP's encoders


def default_network(tasks: Sequence[Task]) -> str:
    """Return ResNet18 with a head per task, or with a decoder per task that predicts maps."""
    if any(task.dense for task in tasks):
        return f"smp(encoder={_BACKBONE})"
    return f"hard_sharing(backbone={_BACKBONE})"


def complete_for_images(spec: SpecLike, shape: Sequence[int], tasks: Sequence[Task]) -> str:
    """Return the architecture with options for images (channels, height, width).

    Raises:
        SpecError: if the network does not accept the size, or does not predict the maps.
    """
    parts = architectures.expand(spec)
    if len(parts) != 1:
        return format_spec(parts)
    known = option_names(architectures.get(parts[0].name))
    options: dict[str, Any] = dict(parts[0].options)
    channels, height, width = shape
    if "backbone" in known:
        backbone = options.setdefault("backbone", _BACKBONE)
        if isinstance(backbone, str) and parse_call(backbone).name.split(".")[0] == "timm":
            options["backbone"] = _complete_timm(parse_call(backbone), shape)
        elif "input_size" in known:
            options.setdefault("input_size", tuple(shape))
    if "in_channels" in known and channels != 3:
        options.setdefault("in_channels", channels)
    if parts[0].name == "segnet":
        options.setdefault("input_size", (height, width))
    maps = [task.name for task in tasks if task.dense]
    if maps and "heads" in known and "heads" not in options:
        raise SpecError(
            f"{parts[0].name} predicts one vector per image, but {', '.join(maps)} is a map; use smp "
            f"or segnet, or heads={{{maps[0]}: conv(64, upsample=32)}} and a backbone that returns maps"
        )
    if parts[0].name == "smp":
        vectors = [task.name for task in tasks if not task.dense]
        if vectors:
            options.setdefault("vectors", vectors)
        if height % _STRIDE or width % _STRIDE:
            near = [max(_STRIDE, round(side / _STRIDE) * _STRIDE) for side in (height, width)]
            raise SpecError(
                f"images of {height} x {width} do not fit the network smp: both sides must be "
                f"multiples of {_STRIDE}; set size={near}"
            )
    return format_spec([Part(parts[0].name, options)])


def _complete_timm(part: Part, shape: Sequence[int]) -> str:
    """Return a timm model for these channels, and for this size if the model has a fixed one."""
    options = dict(part.options)
    if shape[0] != 3:
        options.setdefault("in_chans", shape[0])
    if "img_size" not in options and _has_fixed_size(part):
        options["img_size"] = tuple(shape[1:])
    return str(Part(part.name, options, part.arguments))


def _has_fixed_size(part: Part) -> bool:
    try:
        from timm.models import get_pretrained_cfg
    except ImportError:
        return False  # building the network raises the error that names the extra
    name = part.name.partition(".")[2] or str(part.options.get("name", ""))
    found = None if ":" in name else get_pretrained_cfg(name)
    return bool(found is not None and found.fixed_input_size)
