"""Architectures: networks that fork shared features into tasks.

Every module of this package is imported, so a new architecture is one new file; packages such as timm
are imported only when a network is built.
"""

import importlib
import pkgutil

from mtlkit.architectures.base import Architecture, SingleTask
from mtlkit.architectures.create import create_architecture

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Architecture", "SingleTask", "create_architecture"]
