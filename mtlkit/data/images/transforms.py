"""Resize, augment and normalize an image together with its maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor

from mtlkit.config.annotations import Ge, Gt, Le
from mtlkit.config.extras import import_extra
from mtlkit.config.registry import check_names, check_options
from mtlkit.config.spec import Part, parse_call, parse_spec, refuse_arguments
from mtlkit.errors import SpecError, unknown_name

Fit: TypeAlias = Literal["stretch", "crop", "pad"]
Sample: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Sample], Sample]

IMAGENET = {3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), 1: ((0.449,), (0.226,))}
"""Mean and standard deviation of ImageNet's pixels, by the number of channels."""

_IMAGE = ""  # key of the image among the maps of tasks, whose names are not empty
_WITH_GEOMETRY = ("none", "flip", "color")


def import_v2() -> Any:
    """Import torchvision's transforms, or raise an error that names the extra."""
    return import_extra("torchvision.transforms.v2", "transforming images")


def check_size(size: Any, dataset: str) -> tuple[int, int] | None:
    """Return (height, width) of ``size=224`` or ``size=[192, 256]``; None keeps the files' size."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise SpecError(f"size of {dataset} must be an integer, [height, width] or None, not {size!r}")
    return sides


@dataclass(frozen=True)
class Sizing:
    """Turns pixels into inputs; saved with a run, for new images.

    Attributes:
        size: (height, width) of the inputs; None keeps the size of the files.
        fit: ``stretch`` changes the aspect ratio, ``crop`` cuts off both ends of the longer side, and
            ``pad`` adds borders.
        channels: 3 for colors, 1 for gray.
        mean: mean of every channel, for values in [0, 1].
        std: standard deviation of every channel.
    """

    size: tuple[int, int] | None
    fit: Fit
    channels: int
    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != self.channels:
                raise SpecError(f"{name} has {len(values)} numbers for {self.channels} channel(s)")

    def resize(self, sample: Sample) -> Sample:
        """Resize an image and its maps."""
        height, width = sample[_IMAGE].shape[-2:]
        if self.size is None or (height, width) == self.size:
            return sample
        v2 = import_v2()
        wanted = list(self.size)
        if self.fit == "stretch":
            return dict(v2.Resize(wanted)(sample))
        factors = (wanted[0] / height, wanted[1] / width)
        factor = max(factors) if self.fit == "crop" else min(factors)
        scaled = [max(1, round(height * factor)), max(1, round(width * factor))]
        sample = v2.Resize(scaled)(sample)
        if self.fit == "crop":
            return dict(v2.CenterCrop(wanted)(sample))
        left, top = (wanted[1] - scaled[1]) // 2, (wanted[0] - scaled[0]) // 2
        border = [left, top, wanted[1] - scaled[1] - left, wanted[0] - scaled[0] - top]
        gray = [round(255 * value) for value in self.mean]  # 0 after normalization
        fill = {type(part): gray if key == _IMAGE else 0 for key, part in sample.items()}
        return dict(v2.Pad(border, fill=fill)(sample))

    def __call__(
        self,
        image: Tensor,
        maps: Mapping[str, Tensor],
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the input and the maps of a uint8 image (C, H, W), augmented with this seed."""
        v2 = import_v2()
        from torchvision import tv_tensors

        sample: Sample = {key: tv_tensors.Mask(part) for key, part in maps.items()}
        sample[_IMAGE] = tv_tensors.Image(image)
        if augmentation is not None:
            sample = augmentation.apply(sample, self, seed)
        sample = self.resize(sample)
        pixels = v2.functional.to_dtype(sample.pop(_IMAGE), torch.float32, scale=True)
        inputs = v2.functional.normalize(pixels, list(self.mean), list(self.std))
        return inputs.as_subclass(Tensor), {k: part.as_subclass(Tensor) for k, part in sample.items()}


class Augmentation:
    """Random changes of training images, the same for an image and its maps.

    Args:
        spec: parts joined by ``+``: ``flip`` (horizontal), ``crop(scale=0.5)`` (at least this fraction
            of the image), ``color(strength=0.4)`` (brightness, contrast and saturation), or any
            transform of ``torchvision.transforms.v2``.
        sizing: sizing of the data set.
        kinds: kind of the maps by task.
    """

    def __init__(self, spec: str, sizing: Sizing, kinds: Mapping[str, str]) -> None:
        self.spec = spec
        self._kinds = dict(kinds)
        parts = [parse_call(str(part)) for part in parse_spec(spec)]
        named = [part for part in parts if part.name != "none"]
        geometric = {"depth", "normals"} & set(kinds.values())
        for part in named:
            if geometric and part.name not in _WITH_GEOMETRY:
                raise SpecError(
                    f"augment={part.name} changes what depth and normals mean; use "
                    f"{', '.join(_WITH_GEOMETRY)} with such targets"
                )
        # crops come first, so that the image is resized only once
        self._first = [self._step(part, sizing) for part in named if part.name == "crop"]
        self._then = [self._step(part, sizing) for part in named if part.name != "crop"]

    def apply(self, sample: Sample, sizing: Sizing, seed: int) -> Sample:
        """Augment a sample; the state of torch's generator does not change."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for step in self._first:
                sample = step(sample)
            sample = sizing.resize(sample)
            for step in self._then:
                sample = step(sample)
        return sample

    def check(self, sizing: Sizing, channels_of: Mapping[str, int]) -> None:
        """Apply it to an empty image, so that wrong options raise before training."""
        maps = {key: torch.zeros(n, 64, 64) for key, n in channels_of.items()}
        try:
            sizing(torch.zeros(sizing.channels, 64, 64, dtype=torch.uint8), maps, self)
        except Exception as error:  # torchvision raises many kinds
            reason = " ".join(str(error).split())
            raise SpecError(f"augment={self.spec!r} cannot be applied to this data: {reason}") from None

    def _step(self, part: Part, sizing: Sizing) -> Change:
        owner = f"augment={part.name}"
        refuse_arguments(part, of=owner)
        if part.name not in _OWN:
            return _torchvision(part)
        check_names(_OWN[part.name], part.options, of=owner)
        check_options(_OWN[part.name], part.options, of=owner)
        return _OWN[part.name](sizing, self._kinds, **part.options)


def _flip(sizing: Sizing, kinds: Mapping[str, str]) -> Change:
    return partial(_mirror_half, kinds)  # worker processes need something that can be pickled


def _mirror_half(kinds: Mapping[str, str], sample: Sample) -> Sample:
    if torch.rand(()) < 0.5:
        return sample
    flip = import_v2().functional.horizontal_flip
    flipped = {key: flip(part) for key, part in sample.items()}
    for key, kind in kinds.items():
        if kind == "normals":  # the x component changes its sign
            flipped[key][0] *= -1
    return flipped


def _crop(
    sizing: Sizing, kinds: Mapping[str, str], *, scale: Annotated[float, Gt(0), Le(1)] = 0.5
) -> Change:
    if sizing.size is None:
        raise SpecError("augment=crop needs a size")
    window = {"size": list(sizing.size), "scale": (float(scale), 1.0)}
    return _torchvision(Part("RandomResizedCrop", window))


def _color(
    sizing: Sizing, kinds: Mapping[str, str], *, strength: Annotated[float, Ge(0)] = 0.4
) -> Change:
    changes = dict.fromkeys(("brightness", "contrast", "saturation"), strength)
    return _torchvision(Part("ColorJitter", changes))


_OWN: dict[str, Callable[..., Change]] = {"flip": _flip, "crop": _crop, "color": _color}


def _torchvision(part: Part) -> Change:
    v2 = import_v2()
    classes = {name: item for name, item in vars(v2).items() if isinstance(item, type)}
    known = [name for name, item in classes.items() if issubclass(item, v2.Transform)]
    if part.name not in known:
        raise unknown_name("augmentation", part.name, ["none", *_OWN, *known])
    try:
        made: Change = classes[part.name](**part.options)
    except Exception as error:
        raise SpecError(f"augment={part}: torchvision rejects it: {error}") from None
    return made
