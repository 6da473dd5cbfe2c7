"""A small network with K heads, written as a user would write it, and its training steps."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import backward

from mtlkit.method.method import Method

INPUTS = 4
WIDTH = 6


class SmallNetwork(nn.Module):
    """A nonlinear backbone and one linear head per task; the forward pass returns the total loss.

    Args:
        method: method of the training step.
        targets: indices of the tasks' targets; by default the first ones.
        inputs: size of x.
        width: number of features.
    """

    def __init__(
        self,
        method: Method,
        targets: Sequence[int] | None = None,
        inputs: int = INPUTS,
        width: int = WIDTH,
    ) -> None:
        super().__init__()
        self.targets = tuple(targets or range(len(method.tasks)))
        self.backbone = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in method.tasks)
        self.method = method

    def losses_of(
        self, views: Sequence[Tensor], x: Tensor, labels: Tensor | None = None
    ) -> list[Tensor | None]:
        """Return masked squared errors of the heads; None for a task without labels."""
        losses: list[Tensor | None] = []
        for task, (head, view) in enumerate(zip(self.heads, views, strict=True)):
            frequency = self.targets[task] + 1
            target = torch.sin(x.sum(dim=1) * frequency) * frequency + 3
            errors = (head(view)[:, 0] - target) ** 2
            if labels is None:
                losses.append(errors.sum() / len(x))
            else:
                mask = labels[:, task].to(errors)
                losses.append((errors * mask).sum() / len(x) if mask.any() else None)
        return losses

    def losses(self, x: Tensor, labels: Tensor | None = None) -> list[Tensor | None]:
        """Return the losses with forked features."""
        return self.losses_of(self.method(self.backbone(x)), x, labels)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the total loss."""
        return self.method.total(self.losses(x, labels))


Network = TypeVar("Network", bound=SmallNetwork)


def train(
    net: Network,
    batches: Iterable[Tensor | tuple[Tensor, Tensor | None]],
    optimizer: torch.optim.Optimizer | None = None,
) -> Network:
    """Take one step per batch; a batch is x, or (x, labels)."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
    for batch in batches:
        x, labels = batch if isinstance(batch, tuple) else (batch, None)
        optimizer.zero_grad()
        backward(net(x, labels))
        optimizer.step()
    return net


def task_gradients(net: SmallNetwork, x: Tensor, *, parameters: bool) -> tuple[Tensor, Tensor]:
    """Return (K, N) gradients of the features or of the backbone's parameters, and (K,) losses.

    There is one backward per loss. In eval mode a method does not merge, but still gives every task its
    own view.
    """
    net.method.eval()
    features = net.backbone(x)
    losses = [loss for loss in net.losses_of(net.method(features), x) if loss is not None]
    net.method.train()
    targets = list(net.backbone.parameters()) if parameters else [features]
    rows = [torch.autograd.grad(loss, targets, retain_graph=True) for loss in losses]
    matrix = torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in rows])
    return matrix, torch.stack(losses).detach()
