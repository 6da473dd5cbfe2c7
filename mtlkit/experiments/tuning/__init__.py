"""Search settings for several methods with the same effort, on validation only.

:func:`mtlkit.tune` needs Optuna; what is here does not.
"""

from mtlkit.experiments.tuning.config import TuneConfig
from mtlkit.experiments.tuning.winners import Winner, Winners

__all__ = ["TuneConfig", "Winner", "Winners"]
