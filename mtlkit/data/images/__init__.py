"""Your own images: a folder with a table of labels, class folders, or files with maps."""

from mtlkit.data.images.dataset import Images
from mtlkit.data.images.preprocessing import ImagePreprocessing

__all__ = ["ImagePreprocessing", "Images"]
