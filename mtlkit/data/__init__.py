"""Data sets: your own files, published data sets, and ones that need no download.

Every module of this package is imported, so a new data set is one new file; packages such as
scikit-learn are imported only when a data set needs them.
"""

import importlib
import pkgutil

from mtlkit.data.base import (
    DataError,
    DataSet,
    Split,
    TensorSplit,
    list_datasets,
    load_dataset,
    register_dataset,
)
from mtlkit.data.collate import collate
from mtlkit.data.mixture import mix

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DataError",
    "DataSet",
    "Split",
    "TensorSplit",
    "collate",
    "list_datasets",
    "load_dataset",
    "mix",
    "register_dataset",
]
