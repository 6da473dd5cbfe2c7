"""Methods: weigh the losses, fork the features, merge the gradients.

Every module of this package is imported, so a new method is one new file.
"""

import importlib
import pkgutil

from mtlkit.registry import methods as _methods
from mtlkit.weighting.base import Chain, GradientAggregator, Stats
from mtlkit.weighting.create import create_method

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_methods.alias("vanilla", "sum")
_methods.alias("scale_only", "scale")
_methods.alias("rotograd", "rotate+scale")
_methods.alias("rotate_only", "rotate+sum")

__all__ = ["Chain", "GradientAggregator", "Stats", "create_method"]
