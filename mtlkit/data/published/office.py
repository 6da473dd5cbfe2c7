"""Office-31 and Office-Home: the same classes in images of several domains, one task per domain."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from mtlkit.config.spec import SpecLike
from mtlkit.data.base import SPLITS, Count, DataError, DataSet, Seed, Share, SplitName, register_dataset
from mtlkit.data.files import DataDir, find_first
from mtlkit.data.images.dataset import ImageSplit
from mtlkit.data.images.files import list_images
from mtlkit.data.images.networks import complete_for_images, default_network
from mtlkit.data.images.preprocessing import ImagePreprocessing
from mtlkit.data.images.transforms import IMAGENET, Augmentation, Fit, Sizing, check_size
from mtlkit.data.randomness import generator, generator_or_none, split_indices
from mtlkit.data.table.reading import Reading
from mtlkit.errors import SpecError, unknown_name
from mtlkit.tasks import NO_LABEL, Task

_CLASSES_31 = (
    "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer "
    "file_cabinet headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug "
    "paper_notebook pen phone printer projector punchers ring_binder ruler scissors speaker stapler "
    "tape_dispenser trash_can"
)
_CLASSES_65 = (
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards "
    "Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder "
    "Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug "
    "Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler "
    "Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys "
    "Trash_Can Webcam"
)


class _Domains(DataSet):
    """A folder of class folders per domain; each domain is a task with its own images.

    Args:
        domains: one domain, or a list; None means all.
        size: size of the inputs: an integer or [height, width].
        fit: how the aspect ratio of an image is changed: ``stretch``, ``crop`` or ``pad``.
        augment: augmentation of training images, as for the data set ``images``.
        val_share: fraction of the images for validation.
        test_share: fraction of the images for test.
        train: largest number of training images per domain.
        test_seed: seed of the test images; None means that of the data set.
    """

    folders: ClassVar[Mapping[str, Sequence[str]]]
    """Folders that may hold the images of a domain."""
    classes: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        domains: str | Sequence[str] | None = None,
        size: Count | Sequence[Count] = 224,
        fit: Fit = "stretch",
        augment: str = "none",
        val_share: Share = 0.2,
        test_share: Share = 0.2,
        train: Count | None = None,
        test_seed: Seed | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        if test_share >= 1 - val_share:
            raise SpecError(f"option test_share of {self.name} leaves nothing to train on: {test_share}")
        chosen = [domains] if isinstance(domains, str) else list(domains or self.folders)
        for domain in chosen:
            if domain not in self.folders:
                raise unknown_name(f"domain of {self.name}", str(domain), self.folders)
        self._shares = (val_share, test_share)
        self._train = train
        self._test_seed = test_seed
        sides = check_size(size, self.name) or (224, 224)
        self._sizing = Sizing(sides, fit, 3, *IMAGENET[3])
        self._augmentation = None if augment == "none" else Augmentation(augment, self._sizing, {})
        self.tasks = tuple(
            Task.classification(name, self.classes) for name in self.folders if name in chosen
        )
        self.input_shape = (3, *sides)
        self.preprocessing = ImagePreprocessing(self._sizing, Reading())
        self.default_architecture = self.complete_architecture(default_network(self.tasks))

    def make_split(self, split: SplitName) -> ImageSplit:
        """Return the images of all domains, one domain after the other."""
        rows = self._rows[split]
        labels = {
            task: torch.tensor([label if own == task else NO_LABEL for _, own, label in rows])
            for task in self.task_names
        }
        return ImageSplit(
            [path for path, _, _ in rows],
            labels,
            self._sizing,
            augmentation=self._augmentation if split == "train" else None,
            seed=self.seed,
        )

    def complete_architecture(self, spec: SpecLike) -> str:
        """Return the architecture with a backbone for these images, unless it names one."""
        return complete_for_images(spec, self.input_shape, self.tasks)

    def only(self, tasks: Sequence[str]) -> DataSet:
        """Return the domains of these tasks only, for a single-task network."""
        chosen = copy.copy(self)
        chosen.tasks = tuple(task for task in self.tasks if task.name in tasks)
        for cached in (*SPLITS, "_rows"):
            vars(chosen).pop(cached, None)
        return chosen

    @cached_property
    def _rows(self) -> dict[SplitName, list[tuple[Path, str, int]]]:
        """Image, task and label of all samples of every split."""
        folder = self.open_folder()
        rows: dict[SplitName, list[tuple[Path, str, int]]] = {part: [] for part in SPLITS}
        for task in self.task_names:
            found = self._read_domain(find_first(folder, self.folders[task]) or folder)
            for part, chosen in self._split_domain(task, [label for _, label in found]).items():
                rows[part] += [(found[index][0], task, found[index][1]) for index in chosen]
        return rows

    def _read_domain(self, folder: Path) -> list[tuple[Path, int]]:
        """Return images and their classes."""
        folders = {path.name for path in folder.iterdir() if path.is_dir()}
        absent = [name for name in self.classes if name not in folders]
        if absent:
            raise self.missing(*(folder / name for name in absent[:3]))
        invalid = sorted(folders - set(self.classes))
        if invalid:
            raise DataError(
                f"{folder} has folders that are no class of {self.name}: {', '.join(invalid[:5])}; "
                "it is another data set or version"
            )
        places = {name: index for index, name in enumerate(self.classes)}
        return [(folder / name, places[name.split("/")[0]]) for name in list_images(folder)]

    def _split_domain(self, task: str, labels: Sequence[int]) -> dict[SplitName, list[int]]:
        """Return stratified indices by split."""
        random = generator(self.seed, self.name, task)
        test_random = generator_or_none(self._test_seed, self.name, task)
        parts: dict[SplitName, list[int]] = {"train": [], "val": [], "test": []}
        for label in range(len(self.classes)):
            own = np.flatnonzero(np.asarray(labels) == label)
            try:
                drawn = split_indices(len(own), self._shares, random, test_random)
            except SpecError as error:
                raise DataError(f"{self.name}, {task}, {self.classes[label]}: {error}") from None
            for part, chosen in zip(parts, drawn, strict=True):
                parts[part] += own[chosen].tolist()
        if self._train is not None:
            order = random.permutation(len(parts["train"]))[: self._train]
            parts["train"] = sorted(parts["train"][index] for index in order)
        return parts


@register_dataset("office31")
class Office31(_Domains):
    """Office-31 (Saenko et al., 2010): 31 classes of office objects, in three domains.

    An image has a label for the task of its domain only. Tasks that are labeled on different samples
    have orthogonal gradients at the features, so methods that resolve conflicts need
    ``wrt=parameters``. With ``domains=amazon`` it can be a source of the data set ``sources``, which
    mixes domains evenly. The splits are stratified by class and domain.
    """

    summary = "Office-31: 31 classes in images of 3 domains, one task each"
    folder = "office31"
    layout = "{amazon,dslr,webcam}/images/CLASS/*.jpg (4110 images), with or without images/"
    source = "https://faculty.cc.gatech.edu/~judy/domainadapt/"
    classes = tuple(_CLASSES_31.split())
    folders = {name: (f"{name}/images", name) for name in ("amazon", "dslr", "webcam")}
    needed = tuple(folders.values())


@register_dataset("office_home")
class OfficeHome(_Domains):
    """Office-Home (Venkateswara et al., 2017): 65 classes of office and home objects, in four domains.

    Tasks, splits and options are as for :class:`Office31`.
    """

    summary = "Office-Home: 65 classes in images of 4 domains, one task each"
    folder = "office_home"
    layout = "{Art,Clipart,Product,Real World}/CLASS/*.jpg (15588 images); or Real_World"
    source = "https://www.hemanthdv.org/officeHomeDataset.html"
    classes = tuple(_CLASSES_65.split())
    folders = {
        "art": ("Art",),
        "clipart": ("Clipart", "Clip Art"),
        "product": ("Product",),
        "real_world": ("Real World", "Real_World", "RealWorld"),
    }
    needed = tuple(folders.values())
