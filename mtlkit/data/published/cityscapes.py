"""Cityscapes: segmentation in 7 classes and depth of streets, seen from a car."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mtlkit.data.base import register_dataset
from mtlkit.data.published.mtan import MtanDataSet
from mtlkit.tasks import Task

STREET_CLASSES = ("flat", "construction", "object", "nature", "sky", "human", "vehicle")


@register_dataset("cityscapes")
class Cityscapes(MtanDataSet):
    """Street scenes (Cordts et al., 2016), in the preparation of MTAN (Liu et al., 2019).

    The 500 ``val`` images are the test set here; validation is drawn from the 2975 training images, so
    that no choice is made on the test set. Depth is inverse, the disparity of two cameras: larger is
    nearer, 0 is unknown.

    Args:
        data_dir: see :class:`~mtlkit.data.DataSet`.
        seed: decides the validation images and the augmentations.
        val_share: share of the training images kept for validation.
        augment: scale by 1, 1.2 or 1.5 and crop, inverse depth being multiplied by the scale, and flip
            the training images; the field's comparisons do not.
        size: (height, width) to resize to; None keeps the files' size (128 x 256 in MTAN's files).
        train: at most this many training images.
    """

    summary = "Cityscapes streets: segmentation (7 classes) and inverse depth"
    folder = "cityscapes"
    layout = "{train,val}/{image,label,depth}/N.npy (128 x 256 with 3, no and 1 channels)"
    source = "https://github.com/lorenmt/mtan (see its section on data sets)"
    default_architecture = "segnet(input_size=(128, 256))"
    kinds = {"image": ("image",), "label": ("label", "label_7"), "depth": ("depth",)}
    inverse_depth = True
    tasks = (Task.segmentation("segmentation", STREET_CLASSES), Task.depth("depth"))

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        val_share: float = 0.1,
        augment: bool = False,
        size: Sequence[int] | None = None,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed, val_share=val_share, augment=augment, size=size, train=train)
