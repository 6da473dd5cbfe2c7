"""The rotations' training in the authors' package, rotograd 0.1.6, from its formulas.

It differs from Algorithm 1 of the paper in the scale of the loss: with the gradients G_k of the shared
features, M their mean and W = |M| mean_k G_k / |G_k|, a rotation minimizes sum_n |R_k w_n - g_{n,k}|^2,
where g_k = R_k G_k is held constant. On rotations this is a constant less 2 |M| <R_k v, g_k>. The base
point of geotorch's exponential stays where it began, and burn-in is one step later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import geotorch
import torch
from torch import Tensor, nn


class AuthorsRotoGrad(nn.Module):
    def __init__(self, starts: Sequence[Tensor], burn_in: int) -> None:
        super().__init__()
        self.frames = nn.ModuleList()
        for start in starts:
            frame = nn.Module()
            frame.weight = nn.Parameter(torch.eye(len(start), dtype=start.dtype))
            geotorch.orthogonal(frame, "weight", triv="expm")
            frame.weight = start  # the package leaves what geotorch has drawn
            self.frames.append(frame)
        self.burn_in, self.calls = burn_in, 0
        self.first_norms: Tensor | None = None

    @property
    def rotations(self) -> Tensor:
        return torch.stack([frame.weight.detach() for frame in self.frames])

    def backward(self, features: Tensor, losses: Sequence[Callable[[Tensor], Tensor]]) -> None:
        """Gradients of everything below (B, d) ``features``, of the rotations, and of the heads."""
        rotated, unrotated = [], []
        for R, loss in zip(self.rotations, losses, strict=True):
            own = features.detach().requires_grad_()
            turned = own @ R.T
            turned.retain_grad()
            loss(turned).backward()
            rotated.append(turned.grad)
            unrotated.append(own.grad)
        G = torch.stack(unrotated)  # (K, B, d)
        norms = torch.linalg.vector_norm(G, dim=(1, 2))
        directions = (G / norms[:, None, None]).mean(0)
        self.mean_norm = G.mean(0).norm()
        target = self.mean_norm * directions
        for frame, gradient in zip(self.frames, rotated, strict=True):
            (target @ frame.weight.T - gradient).square().sum().backward()
        if self.first_norms is None or self.calls == self.burn_in:
            self.first_norms = norms
        self.calls += 1
        shares = norms / self.first_norms
        features.backward((shares / shares.sum() * norms).sum() * len(G) * directions)
