"""Spec strings, registries, settings, search ranges, plugins and files.

The file of a method or an architecture imports what it needs from here.
"""

from mtlkit.config.annotations import Count as Count
from mtlkit.config.annotations import Ge, Gt, Le, Lt
from mtlkit.config.registry import methods as methods
from mtlkit.config.registry import register_architecture, register_method
from mtlkit.config.search import LR_RATIO as LR_RATIO
from mtlkit.config.search import Choice, FeatureShare, LogUniform, Simplex, Uniform

__all__ = [
    "Choice",
    "FeatureShare",
    "Ge",
    "Gt",
    "Le",
    "LogUniform",
    "Lt",
    "Simplex",
    "Uniform",
    "register_architecture",
    "register_method",
]
