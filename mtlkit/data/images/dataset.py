"""The data set ``images``: own images, without a line of code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from mtlkit.config.spec import SpecLike
from mtlkit.data.base import DataError, DataSet, SplitName, find_path, register_dataset
from mtlkit.data.images.checking import check_files, check_packages
from mtlkit.data.images.files import ImageFiles
from mtlkit.data.images.maps import MAP_SUFFIXES, MapTarget, find_map_target
from mtlkit.data.images.networks import complete_for_images, default_network
from mtlkit.data.images.preprocessing import Preprocessing
from mtlkit.data.images.rows import frame_of_folder, guess_file_column, known_names, wanted_targets
from mtlkit.data.images.samples import ImageSplit
from mtlkit.data.images.transforms import IMAGENET, Augmentation, Fit, Sizing, check_size
from mtlkit.data.notes import Notices
from mtlkit.data.table.reading import (
    MISSING,
    ColumnFinder,
    Frame,
    Reading,
    find_file,
    name_of,
)
from mtlkit.data.table.splitting import Splitting
from mtlkit.data.table.targets import find_targets, fit_targets
from mtlkit.errors import SpecError


@register_dataset("images")
class Images(DataSet):
    """A folder of images; labels are in a table, in the names of folders, or in files of their own.

    With ``labels``, a table names the images and holds the targets. Without, each class has a folder
    of its own, below ``train``, ``val`` and ``test`` or not, and the task is called ``label``. A target
    of kind ``segmentation``, ``depth``, ``normals`` or ``dense_regression`` is a file per image, which a
    column of the table names, or which has the image's name in the ``folder`` of the target. What is
    missing is a missing label. Images are read when they are needed; their sizes are checked before.

    Args:
        data_dir: folder that ``folder`` and ``labels`` may also be given from; None means
            ``$MTLKIT_DATA``.
        seed: decides which images go where, and the augmentations.
        folder: with the images, in folders below it or not.
        labels: CSV or Parquet file with a row per image; in Python also a pandas DataFrame.
        file: its column with the images' names; None looks for it.
        targets: ``{task: kind}`` as for the data set ``table``; for maps
            ``segmentation(classes=3, column=mask)`` or ``segmentation(classes=3, folder=masks)``, PNG or
            .npy with the number of a class per pixel, ``missing=255`` where it is not known;
            ``depth(unit=0.001)`` for PNG in millimeters; ``normals`` as .npy or as colors.
        size: of the inputs: a number, [height, width], or None for the files' own.
        fit: how an image of other proportions gets there: ``stretch``, ``crop`` or ``pad``.
        augment: of training images: ``none``, ``flip``, ``crop``, ``color``, joined by ``+``, or
            transforms of torchvision such as ``RandAugment(num_ops=2)``.
        channels: 3, or 1 for gray images.
        mean: of the channels, in the unit interval; None means ImageNet's.
        std: of the channels; None means ImageNet's.
        check: before training, read the first bytes of all files (``headers``), all ``pixels``, or
            ``none``.
        test_labels: a second table, with the images to test on.
        header: whether the first line names the columns.
        separator: between columns; None finds it.
        missing: words that mean that a value is missing.
        encoding: of the table.
        split: column that says train, val or test.
        time: column to split by: the last rows are for test, those before them for validation.
        val_share: share of the images for validation.
        test_share: share of the images for test.
        split_seed: decides which images go where, instead of the seed of the run.
        test_seed: keeps the images for test that this seed has, where they are drawn.
        train: at most this many training images.

    Example:
        >>> import mtlkit, tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> photos = Path(tempfile.mkdtemp())
        >>> for number, color in enumerate(["red", "blue"] * 10):
        ...     (photos / color).mkdir(exist_ok=True)
        ...     Image.new("RGB", (40, 30), color).save(photos / color / f"{number}.png")
        >>> data = mtlkit.load_dataset("images(size=32)", folder=photos)
        >>> data.task_names, data.tasks[0].classes, data.train[0][0].shape
        (('label',), ('blue', 'red'), torch.Size([3, 32, 32]))
    """

    summary = "your own images"
    origin = "your files"

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        folder: str,
        labels: Any = None,
        file: str | int | None = None,
        targets: Mapping[Any, Any] | Sequence[Any] | str | int | None = None,
        size: int | Sequence[int] | None = 224,
        fit: Fit = "stretch",
        augment: str = "none",
        channels: Literal[1, 3] = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        check: Literal["headers", "pixels", "none"] = "headers",
        test_labels: Any = None,
        header: bool = True,
        separator: str | None = None,
        missing: Sequence[str] = MISSING,
        encoding: str = "utf-8",
        split: str | int | None = None,
        time: str | int | None = None,
        val_share: float = 0.2,
        test_share: float = 0.2,
        split_seed: int | None = None,
        test_seed: int | None = None,
        train: int | None = None,
    ) -> None:
        super().__init__(data_dir, seed)
        check_packages()
        self.check_counts(train=train)
        first = seed if split_seed is None else split_seed
        splitting = Splitting(self.name, first, split, time, val_share, test_share, train, test_seed)
        default_mean, default_std = IMAGENET[channels]
        self._sizing = Sizing(
            check_size(size, self.name),
            fit,
            channels,
            tuple(default_mean if mean is None else mean),
            tuple(default_std if std is None else std),
        )
        self.images = find_path(folder, data_dir, folder=True)
        notices = Notices(self.name)
        reading = Reading(header, separator, tuple(missing), encoding)
        if labels is None:
            if test_labels is not None:
                raise SpecError("test_labels of images is given without labels")
            frame, test, source = frame_of_folder(self.images, targets), None, self.images
            beside = self.images.parent
            if "split" in frame.columns and split is None and time is None:
                splitting = replace(splitting, split="split")
            file = "file"
        else:
            source = find_file(labels, data_dir)
            beside = source.parent if isinstance(source, Path) else Path()
            kinds = targets if isinstance(targets, Mapping) else {}
            maps = [m for key, kind in kinds.items() if (m := find_map_target(key, kind)) is not None]
            frame = reading.read(source, [str(file), *(str(target.column) for target in maps)])
            test = None
            if test_labels is not None:
                test = reading.read_like(find_file(test_labels, data_dir), frame)
        find = ColumnFinder(Path(name_of(source)).name, list(frame.columns), header)
        self._file = guess_file_column(frame, name_of(source), notices) if file is None else find(file)
        wanted = wanted_targets(targets, frame, labels)
        self._maps = [m for key, kind in wanted.items() if (m := find_map_target(key, kind)) is not None]
        other = {k: v for k, v in wanted.items() if find_map_target(k, v) is None}
        found = find_targets(other, frame, find, notices, test) if other else []
        places = [self.images, beside]
        self._columns = {
            m: find(m.column) for m in self._maps if m.folder is None and m.column is not None
        }
        self._folders = {
            m: find_path(m.folder, data_dir, folder=True) for m in self._maps if m.folder is not None
        }
        frames = splitting.apply(frame, find, test)
        self._targets = fit_targets(found, frames["train"], name_of(source), notices)
        self._parts = {part: self._files(rows, places) for part, rows in frames.items()}
        self._labels = {
            part: {target.task: target.labels(rows) for target in self._targets}
            for part, rows in frames.items()
        }
        self._note_repeated(notices)
        notices.say()
        sizes = check_files(self._parts, self._sizing, check)
        made = {target.task: target.make_task() for target in self._targets}
        made |= {target.task: target.make_task() for target in self._maps}
        names = [f"column_{key}" if isinstance(key, int) else str(key) for key in wanted]
        self.tasks = tuple(made[name] for name in names)
        self.input_shape = (channels, *(self._sizing.size or sizes))
        kinds = {m.task: made[m.task].kind for m in self._maps}
        self._augmentation = None
        if str(augment).strip() not in ("none", ""):
            self._augmentation = Augmentation(str(augment), self._sizing, kinds)
            self._augmentation.check(self._sizing, {m.task: len(m.nothing((1, 1))) for m in self._maps})
        self.preprocessing = Preprocessing(self._sizing, reading, self._file)

    @property
    def title(self) -> str:
        """The folder's name and the number of targets."""
        return f"{self.images.name}, {len(self.tasks)} target{'s' if len(self.tasks) > 1 else ''}"

    @property
    def default_architecture(self) -> str:  # type: ignore[override]  # not every size fits
        """A ResNet18 with a head or a decoder per task."""
        return self.complete_architecture(default_network(self.tasks))

    def make_split(self, split: SplitName) -> ImageSplit:
        """One part of the images."""
        paths, maps = self._parts[split]
        return ImageSplit(
            paths,
            self._labels[split],
            self._sizing,
            maps=maps,
            augmentation=self._augmentation if split == "train" else None,
            seed=self.seed,
        )

    def complete_architecture(self, spec: SpecLike) -> str:
        """The architecture on a backbone that reads these images, where it names none."""
        return complete_for_images(spec, self.input_shape, self.tasks)

    def _files(
        self, rows: Frame, places: Sequence[Path]
    ) -> tuple[list[Path], dict[MapTarget, list[Path | None]]]:
        """The files of the images, and of the maps that belong to them."""
        names = known_names(rows[self._file])
        paths = ImageFiles(places[0], places[1:]).find_all(names, "images")
        maps: dict[MapTarget, list[Path | None]] = {}
        for target, column in self._columns.items():
            cells = [None if cell != cell or cell is None else str(cell) for cell in rows[column]]
            held = ImageFiles(places[0], places[1:], MAP_SUFFIXES)
            known = [cell for cell in cells if cell is not None]
            found = dict(zip(known, held.find_all(known, f"maps of {target.task!r}"), strict=True))
            maps[target] = [None if cell is None else found[cell] for cell in cells]
        for target, folder in self._folders.items():
            held = ImageFiles(folder, suffixes=MAP_SUFFIXES)
            maps[target] = [held.find(Path(name).with_suffix("").as_posix()) for name in names]
            if not any(maps[target]):
                raise DataError(
                    f"target {target.task!r}: the folder {folder} has no file for any image; expected "
                    f"for example {Path(names[0]).with_suffix('.png')}"
                )
        return paths, {target: maps[target] for target in self._maps}

    def _note_repeated(self, notices: Notices) -> None:
        every = [path for paths, _ in self._parts.values() for path in set(paths)]
        shared = len(every) - len(set(every))
        if shared:
            notices.note(
                f"{shared} images are in more than one of train, val and test, since several rows "
                "name them; let a column say where they belong: split=..."
            )
