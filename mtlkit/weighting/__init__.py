"""Methods: weigh the losses, fork the features, merge the gradients.

Every module of this package is imported, so a new method is one new file.
"""

import importlib
import pkgutil

from mtlkit.config.registry import methods as _methods
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.create import create_method
from mtlkit.method.stats import Stats

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_methods.alias("vanilla", "sum")
_methods.alias("scale_only", "scale")
_methods.alias("rotograd", "rotate+scale")
_methods.alias("rotate_only", "rotate+sum")

__all__ = ["GradientAggregator", "Stats", "create_method"]
