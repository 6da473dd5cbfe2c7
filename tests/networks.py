"""A small network with K heads, as a user would write it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mtlkit


class SmallNet(nn.Module):
    """Linear backbone, linear heads; the forward returns the total loss."""

    def __init__(self, spec: str, tasks: int = 3, width: int = 6, inputs: int = 4, **options):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(inputs, width), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))
        self.method = mtlkit.create_method(spec, tasks, feature_dim=width, **options)

    def losses(self, x: Tensor, labels: Tensor | None = None) -> list[Tensor | None]:
        """Masked squared errors; a task without any label has no loss."""
        features = self.method(self.backbone(x))
        results: list[Tensor | None] = []
        for k, (head, feature) in enumerate(zip(self.heads, features, strict=True)):
            target = torch.sin(x.sum(dim=1) * (k + 1)) * (k + 1) + 3
            errors = (head(feature)[:, 0] - target) ** 2
            if labels is None:
                results.append(errors.sum() / len(x))
            else:
                mask = labels[:, k].to(errors)
                results.append((errors * mask).sum() / len(x) if mask.any() else None)
        return results

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.method.total(self.losses(x, labels))


def train(net: SmallNet, batches, optimizer=None) -> SmallNet:
    """One step per batch; a batch is x, or (x, labels)."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
    for batch in batches:
        x, labels = batch if isinstance(batch, tuple) else (batch, None)
        optimizer.zero_grad()
        net(x, labels).backward()
        optimizer.step()
    return net
