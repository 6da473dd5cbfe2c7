"""An image of some samples with their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataSet, Split
from mtlkit.data.collate import Targets
from mtlkit.errors import MissingExtraError, SpecError
from mtlkit.tasks import Task


def write_preview(dataset: DataSet, split: Split, path: Path, count: int = 8) -> None:
    """Draw the first samples of ``split``: images, dense targets below them, other targets as text."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "bench", "a preview") from None
    if path.suffix.lower() not in (".png", ".pdf", ".svg", ".jpg"):
        raise SpecError(f"a preview is a .png, .pdf, .svg or .jpg file, not {path}")
    if len(dataset.input_shape) != 3:
        raise SpecError(f"data set {dataset.name} has no images to show; a preview needs (C, H, W)")
    dense = [task for task in dataset.tasks if task.dense]
    other = [task for task in dataset.tasks if not task.dense]
    count = min(count, len(split))
    columns = min(count, 8)
    bands = -(-count // columns)
    rows = 1 + len(dense)
    figure = Figure(figsize=(2.0 * columns, (1.9 * rows + 0.16 * min(len(other), 6)) * bands))
    FigureCanvasAgg(figure)
    axes = figure.subplots(bands * rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for index in range(count):
        image, targets = split[index]
        band, column = divmod(index, columns)
        axis = axes[band * rows, column]
        _show_image(axis, image)
        axis.set_title("\n".join(_texts(other, targets)), fontsize=7, loc="left")
        for row, task in enumerate(dense, start=1):
            if targets.get(task.name) is not None:  # a source has targets only for its own tasks
                task.draw(axes[band * rows + row, column], targets[task.name])
    figure.tight_layout(pad=0.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _show_image(axis: Any, image: Tensor) -> None:
    pixels: NDArray[np.float32] = image.permute(1, 2, 0).numpy()
    # standardized images are rescaled to the unit interval for display
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        pixels = (pixels - low) / max(high - low, 1e-6)
    if pixels.shape[2] == 1:
        axis.imshow(pixels[..., 0], cmap="gray", vmin=0, vmax=1)
    else:
        axis.imshow(pixels)


def _texts(tasks: list[Task], targets: Targets) -> list[str]:
    """Return one line per task; for many binary tasks, only the positive ones."""
    known = [task for task in tasks if targets.get(task.name) is not None]
    if len(tasks) > 6 and all(task.kind == "binary" for task in tasks):
        positive = [task.name for task in known if float(targets[task.name]) > 0.5]
        return positive[:5] + ([f"and {len(positive) - 5} more"] if len(positive) > 5 else [])
    return [f"{task.name}: {task.text(targets[task.name])}" for task in known]
