"""Own images: a folder with a table of labels, folders of classes, or files with maps."""

from mtlkit.data.images.dataset import Images
from mtlkit.data.images.preprocessing import Preprocessing

__all__ = ["Images", "Preprocessing"]
