"""The preprocessing of image files, saved as JSON with a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from mtlkit.data.files import DataError
from mtlkit.data.images.files import (
    SUFFIXES,
    find_images,
    image_size,
    known_names,
    list_images,
    read_image,
)
from mtlkit.data.images.transforms import Sizing
from mtlkit.data.preprocessing import Preprocessing, register_preprocessing
from mtlkit.data.table.reading import Frame, Reading, import_pandas


@register_preprocessing("images")
@dataclass(frozen=True)
class ImagePreprocessing(Preprocessing):
    """Turns images into inputs.

    Attributes:
        sizing: size, fit and normalization.
        reading: how a table of files is read.
        file: the column of such a table with the names of the images.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> Image.new("RGB", (60, 40)).save(photo := f"{tempfile.mkdtemp()}/photo.png")
        >>> sizing = Sizing((32, 32), "crop", 3, mean=[0.5] * 3, std=[0.2] * 3)
        >>> ImagePreprocessing(sizing, Reading()).inputs([photo]).shape
        torch.Size([1, 3, 32, 32])
    """

    identity: ClassVar[tuple[str, ...]] = ("file",)

    sizing: Sizing
    reading: Reading
    file: str = "file"

    def read(self, path: str | Path) -> Frame:
        """Return the images of a folder, those that a CSV or Parquet file names, or one image.

        Names in a table are relative to the table's folder or the current one; its other columns are
        kept. Every file is checked.
        """
        pandas = import_pandas()
        source = Path(path)
        rows = pandas.DataFrame()
        if source.is_dir():
            names = list_images(source)
            files = [source / name for name in names]
        elif source.suffix.lower() in SUFFIXES:
            names, files = [source.name], [source]
        elif source.is_file():
            rows = self.reading.load(source, [self.file])
            if self.file not in rows.columns:
                raise DataError(
                    f"the table {source} has no column {self.file!r} with the images' names; its "
                    f"columns are: {', '.join(map(str, rows.columns))}"
                )
            names = known_names(rows[self.file])
            found = find_images(names, [source.parent, Path()])
            files = [found[name] for name in names]
        else:
            raise DataError(f"there is no file or folder {source}")
        sizes = {image_size(file) for file in files}
        if self.sizing.size is None and len(sizes) > 1:
            raise DataError(f"the images of {source} have {len(sizes)} sizes; the network needs one")
        own = {name: rows[name] for name in rows.columns}
        return pandas.DataFrame({"file": names, **own, "path": [str(file) for file in files]})

    def inputs(self, rows: Frame | Sequence[str | Path]) -> Tensor:
        """Return inputs (N, C, H, W) for rows of :meth:`read`, rows with names of images, or paths.

        The name of an image is in the column ``path``, in that of the training table, or in ``file``.
        """
        frame: Any = rows if hasattr(rows, "columns") else import_pandas().DataFrame({"path": rows})
        column = next((name for name in ("path", self.file, "file") if name in frame.columns), None)
        if column is None:
            raise DataError(
                f"these rows have no column {self.file!r}, 'path' or 'file' with the images' names; "
                f"given are: {', '.join(map(str, frame.columns))}"
            )
        names = known_names(frame[column])
        files = find_images(names, [Path()])
        read = (read_image(files[name], self.sizing.channels) for name in names)
        return torch.stack([self.sizing(image, {})[0] for image in read])
