"""Everything that only raises or warns: calls that do not form a training step, and what to do.

A method calls its :class:`~mtlkit.engine.guards.steps.Guards` at the edges of a step. The nodes call
what only ``wrt=parameters`` can do wrong. Nothing here changes a gradient.
"""
