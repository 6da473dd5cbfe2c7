"""Everything that only raises or warns: calls that do not form a training step, and what to do.

A method calls its :class:`Guards` at the edges of a step. The nodes call what only ``wrt=parameters``
can do wrong. Nothing here changes a gradient.
"""

from mtlkit.engine.guards.steps import IN_PLACE, Fork, Guards, in_backward, refuse_features

__all__ = ["IN_PLACE", "Fork", "Guards", "in_backward", "refuse_features"]
