"""Tune the settings of several methods with the same number of trials, on validation data only.

:func:`mtlkit.tune` needs Optuna; the names below do not.
"""

from mtlkit.experiments.tuning.config import TuneConfig
from mtlkit.experiments.tuning.winners import Winner, Winners

__all__ = ["TuneConfig", "Winner", "Winners"]
