"""A method, an architecture and a kind of task that are not part of mtlkit."""

import torch
from torch import nn

import mtlkit


class LastTaskOnly(mtlkit.GradientAggregator):
    """Follow the last task."""

    waived_laws = {"permutation": "the last task is another one when tasks are permuted"}

    def __init__(self, tasks, *, factor: float = 1.0, **common):
        super().__init__(tasks, **common)
        self.factor = factor

    def weigh(self, gram, state):
        weights = torch.zeros_like(gram[0])
        weights[-1] = self.factor
        return weights, state


def sample_net(tasks, *, method, width: int = 3):
    """A network that is no use."""
    return nn.Linear(width, len(tasks))


class SampleTask(mtlkit.Task):
    """A number, by its absolute error."""

    def __init__(self, name, *, factor: float = 1.0):
        super().__init__(name, lambda p, t: factor * (p - t).abs().mean(), outputs=1)
