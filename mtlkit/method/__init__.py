"""Methods: their parts, their state, and the training step over them."""

from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.aggregator import Tasks as Tasks
from mtlkit.method.host import on_host
from mtlkit.method.state import State

__all__ = ["GradientAggregator", "State", "on_host"]
