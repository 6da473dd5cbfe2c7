"""The data set ``images``: your own images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor

from mtlkit.config import Count, Gt
from mtlkit.config.spec import SpecLike
from mtlkit.data.base import DataError, Split, SplitName, find_path, register_dataset
from mtlkit.data.collate import Targets
from mtlkit.data.files import DataDir
from mtlkit.data.images.files import (
    SUFFIXES,
    check_files,
    check_packages,
    find_image,
    find_images,
    known_names,
    list_images,
    read_image,
)
from mtlkit.data.images.maps import MAP_SUFFIXES, MapTarget, find_map_target
from mtlkit.data.images.networks import complete_for_images, default_network
from mtlkit.data.images.preprocessing import ImagePreprocessing
from mtlkit.data.images.transforms import IMAGENET, Augmentation, Fit, Sizing, check_size
from mtlkit.data.notes import Notices
from mtlkit.data.table.reading import ColumnFinder, Frame, find_file, import_pandas, name_of
from mtlkit.data.table.splitting import SPLIT_NAMES, RowData
from mtlkit.data.table.targets import expand_targets, find_targets, fit_targets
from mtlkit.errors import SpecError


@register_dataset("images")
class Images(RowData):
    """A folder of images, with labels in a table, in the names of folders, or in image files.

    With ``labels``, a table has the names of the images and the targets. Without it, each class has a
    folder, optionally inside folders ``train``, ``val`` and ``test``, and the task is named ``label``. A
    target of kind ``segmentation``, ``depth``, ``normals`` or ``dense_regression`` is a file per image,
    which a column of the table names, or which has the image's name in the ``folder`` of the target.
    Missing files are missing labels. Images are read on demand; their sizes are checked at the start.

    Args:
        data_dir: folder to which ``folder`` and ``labels`` may also be relative; None means
            ``$MTLKIT_DATA``.
        seed: seed of the splits and the augmentations.
        folder: folder with the images; they may be in subfolders.
        labels: CSV or Parquet file with a row per image; in Python also a pandas DataFrame.
        file: column with the names of the images; None finds it.
        targets: ``{task: kind}`` as for the data set ``table``; for maps
            ``segmentation(classes=3, column=mask)`` or ``segmentation(classes=3, folder=masks)``, PNG or
            .npy with the number of a class per pixel, ``missing=255`` for unknown pixels;
            ``depth(unit=0.001)`` for PNG in millimeters; ``normals`` as .npy or as colors.
        size: size of the inputs: an integer, [height, width], or None for the size of the files.
        fit: how the aspect ratio of an image is changed: ``stretch``, ``crop`` or ``pad``.
        augment: augmentation of training images: ``none``, ``flip``, ``crop``, ``color``, joined by
            ``+``, or transforms of torchvision such as ``RandAugment(num_ops=2)``.
        channels: 3, or 1 for gray images.
        mean: means of the channels, for values in [0, 1]; None means ImageNet's.
        std: standard deviations of the channels; None means ImageNet's.
        check: before training, read the ``headers`` of all files, all ``pixels``, or ``none``.
        test_labels: a second table, with the test images.
        options: those of :class:`~mtlkit.data.table.splitting.RowData`.

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
        data_dir: DataDir = None,
        seed: int = 0,
        *,
        folder: str,
        labels: Any = None,
        file: str | int | None = None,
        targets: Mapping[Any, Any] | Sequence[str | int] | str | int | None = None,
        size: Count | Sequence[Count] | None = 224,
        fit: Fit = "stretch",
        augment: str = "none",
        channels: Literal[1, 3] = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[Annotated[float, Gt(0)]] | None = None,
        check: Literal["headers", "pixels", "none"] = "headers",
        test_labels: Any = None,
        **options: Any,
    ) -> None:
        check_packages()
        super().__init__(data_dir, seed, **options)
        default_mean, default_std = IMAGENET[channels]
        self._sizing = Sizing(
            check_size(size, self.name),
            fit,
            channels,
            tuple(default_mean if mean is None else mean),
            tuple(default_std if std is None else std),
        )
        images = find_path(folder, data_dir, folder=True)
        self.file_name = images.name
        test = None
        if labels is None:
            if test_labels is not None:
                raise SpecError("test_labels of images is given without labels")
            source, beside, file = images, images.parent, "file"
            frame = _rows_of_folder(images, targets)
            find = ColumnFinder(images.name, list(frame.columns))
            if "split" in frame.columns and self.time_column is None:
                self.split_column = self.split_column or "split"
        else:
            source = find_file(labels, data_dir)
            beside = source.parent if isinstance(source, Path) else Path()
            named = _map_targets(targets if isinstance(targets, Mapping) else {})
            text = [str(file), *(str(target.column) for target in named)]
            frame, test, find = self.read_rows(source, text, test_labels)
        self._file = (
            _guess_file_column(frame, name_of(source), self.notices) if file is None else find(file)
        )
        wanted = _wanted_targets(targets, frame, labels)
        self._maps = _map_targets(wanted)
        dense = {target.task for target in self._maps}
        other = {key: kind for key, kind in wanted.items() if str(key) not in dense}
        found = find_targets(other, frame, find, self.notices, test) if other else []
        self._maps = [m.located(find, data_dir) for m in self._maps]
        frames = self.split_rows(frame, find, test)
        fitted = fit_targets(found, frames["train"], name_of(source), self.notices)
        places = [images, beside]
        self._parts = {part: self._files(rows, places) for part, rows in frames.items()}
        self._labels = {
            part: {target.task: target.labels(rows) for target in fitted}
            for part, rows in frames.items()
        }
        self._note_repeated()
        self.notices.print()
        first_size = check_files(self._parts.values(), channels, check, self._sizing.size is None)
        if self._sizing.size is not None and 2 * max(first_size) < min(self._sizing.size):
            (height, width), (high, wide) = first_size, self._sizing.size
            self.notices.note(
                f"the images are {height} x {width} pixels and are enlarged to {high} x {wide}, which "
                "takes long; size=None leaves them as they are, size=64 enlarges them less"
            )
            self.notices.print()
        made = {target.task: target.make_task() for target in fitted}
        made |= {target.task: target.made for target in self._maps}
        names = [f"column_{key}" if isinstance(key, int) else str(key) for key in wanted]
        self.tasks = tuple(made[name] for name in names)
        self.input_shape = (channels, *(self._sizing.size or first_size))
        self._augmentation = None
        if str(augment).strip() not in ("none", ""):
            kinds = {m.task: m.made.kind for m in self._maps}
            self._augmentation = Augmentation(str(augment), self._sizing, kinds)
            self._augmentation.check(self._sizing, {m.task: len(m.nothing((1, 1))) for m in self._maps})
        self.preprocessing = ImagePreprocessing(self._sizing, self.reading, self._file)

    @property
    def default_architecture(self) -> str:  # type: ignore[override]  # not every size fits
        """ResNet18 with a head or a decoder per task."""
        return self.complete_architecture(default_network(self.tasks))

    def make_split(self, split: SplitName) -> ImageSplit:
        """Return the images of one split."""
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
        """Return the architecture with a backbone for these images, unless it names one."""
        return complete_for_images(spec, self.input_shape, self.tasks)

    def _files(
        self, rows: Frame, places: Sequence[Path]
    ) -> tuple[list[Path], dict[MapTarget, list[Path | None]]]:
        """Return the files of the images and of their maps."""
        names = known_names(rows[self._file])
        images = find_images(names, places)
        maps: dict[MapTarget, list[Path | None]] = {}
        for target in self._maps:
            if target.folder is None:
                cells = rows[target.column]
                known = [str(cell) for cell in cells.dropna()]
                found = find_images(known, places, MAP_SUFFIXES, f"maps of {target.task!r}")
                maps[target] = [found.get(str(cell)) for cell in cells]  # None for an empty cell
                continue
            stems = [Path(name).with_suffix("").as_posix() for name in names]
            maps[target] = [find_image(stem, [Path(target.folder)], MAP_SUFFIXES) for stem in stems]
            if not any(maps[target]):
                raise DataError(
                    f"target {target.task!r}: the folder {target.folder} has no file for any image; "
                    f"expected, for example, {Path(names[0]).with_suffix('.png')}"
                )
        return [images[name] for name in names], maps

    def _note_repeated(self) -> None:
        every = [path for paths, _ in self._parts.values() for path in set(paths)]
        shared = len(every) - len(set(every))
        if shared:
            self.notices.note(
                f"{shared} images are in more than one of train, val and test, because several rows "
                "name them; name a column with the split of each row: split=..."
            )


class ImageSplit(Split):
    """Images with their labels and maps, read on demand.

    Args:
        paths: the images.
        labels: (N, ...) by task, for tasks whose targets are not maps.
        sizing: turns pixels into inputs.
        maps: the file of every image, or None, by target.
        augmentation: random changes of the images, with this ``seed``.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Targets,
        sizing: Sizing,
        *,
        maps: Mapping[MapTarget, Sequence[Path | None]] | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.paths = paths
        self.labels = labels
        self._maps = dict(maps or {})
        self._sizing = sizing
        self._augmentation = augmentation

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        index = self.position(index)
        image = read_image(self.paths[index], self._sizing.channels)
        size = (image.shape[1], image.shape[2])
        maps = {}
        for target, files in self._maps.items():
            path = files[index]
            maps[target.task] = target.nothing(size) if path is None else target.read(path)
        seed = 0 if self._augmentation is None else int(self.uniform([index], 1)[0, 0] * 2**53)
        inputs, changed = self._sizing(image, maps, self._augmentation, seed)
        targets = {task: label[index] for task, label in self.labels.items()}
        targets |= {target.task: target.finish(changed[target.task]) for target in self._maps}
        return inputs, targets


def _map_targets(targets: Mapping[Any, Any]) -> list[MapTarget]:
    found = (find_map_target(key, kind) for key, kind in targets.items())
    return [target for target in found if target is not None]


def _rows_of_folder(folder: Path, targets: Any) -> Frame:
    """Return columns ``file``, ``label`` for class folders, and ``split`` for folders of splits."""
    names = list_images(folder)
    above = [Path(name).parts[:-1] for name in names]
    rows: dict[str, Sequence[str]] = {"file": names}
    tops = {parts[0].lower() if parts else "" for parts in above}
    if "train" in {SPLIT_NAMES.get(top) for top in tops} and tops <= set(SPLIT_NAMES):
        rows["split"] = [parts[0] for parts in above]
        above = [parts[1:] for parts in above]
    if all(above):
        rows["label"] = [parts[0] for parts in above]
    elif any(above):
        flat = next(name for name, parts in zip(names, above, strict=True) if not parts)
        raise DataError(
            f"some images of {folder} are in class folders and some are not, such as {flat}; move each "
            "to the folder of its class, or give a table: labels=labels.csv"
        )
    elif targets is None:
        raise DataError(
            f"the images of {folder} have no labels: give a table with labels=labels.csv and "
            "targets={...}, or move each image to the folder of its class"
        )
    return import_pandas().DataFrame(rows)


def _wanted_targets(targets: Any, frame: Frame, labels: Any) -> dict[Any, Any]:
    """Return the kind by task; None for a kind to be guessed."""
    if targets is None and labels is None:
        return {"label": "classification"}
    if targets is None:
        raise SpecError(
            "images needs targets=..., the columns of its table to predict, from: "
            f"{', '.join(frame.columns)}"
        )
    return expand_targets(targets, list(frame.columns))


def _guess_file_column(frame: Frame, source: str, notices: Notices) -> str:
    """Return the first column whose values look like names of images."""
    for name in frame.columns:
        known = frame[name].dropna()
        if len(known) and all(str(value).lower().endswith(SUFFIXES) for value in known.unique()[:50]):
            notices.note(f"column {name!r} names the images, guessed from its values")
            return str(name)
    raise DataError(
        f"no column of {source} looks like names of images; name it with file=..., one of: "
        f"{', '.join(frame.columns)}"
    )
