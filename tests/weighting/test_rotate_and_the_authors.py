"""RotoGrad beside the authors' package: what is equal, and where each difference comes from."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import mtlkit
from mtlkit.rotations.manifold import orthogonalize
from tests.weighting.authors_rotograd import AuthorsRotoGrad


class Comparison:
    """Equal networks, one trained with ``rotograd``, one as in the authors' code, by Adam with eps 1e-30."""

    def __init__(self, rate: float, dtype: torch.dtype, burn_in: int, equal_scales: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        tasks, inputs, features, ours = 3, 4, 6, "rotate(start=random, fold_every=1)"
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, features)).to(dtype)
        heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(tasks)).to(dtype)
        ours += f"+scale(burn_in={burn_in})"
        method = mtlkit.create_method(ours, tasks, feature_dim=features).to(dtype)
        method.forking.rotation.base.copy_(orthogonalize(method.rotations, iterations=2))
        self.start = method.rotations
        authors = AuthorsRotoGrad(self.start, burn_in=5)
        nets = [(backbone, heads, method), (copy.deepcopy(backbone), copy.deepcopy(heads), authors)]
        optimizers = [
            torch.optim.Adam(
                [
                    {"params": [*net[0].parameters(), *net[1].parameters()], "lr": 0.01},
                    {"params": list(net[2].parameters()), "lr": rate},
                ],
                eps=1e-30,
            )
            for net in nets
        ]
        self.rotations, self.backbones, self.ratios = [], [], []
        for _ in range(21):
            x = torch.randn(8, inputs, generator=generator).to(dtype)
            y = torch.sin(x @ torch.randn(inputs, tasks, generator=generator).to(dtype))
            for optimizer in optimizers:
                optimizer.zero_grad()
            views = method(backbone(x))
            losses = [self.loss(*of)(z) for *of, z in zip(heads, y.T, views, strict=True)]
            method.total(losses).backward()
            authors.backward(nets[1][0](x), [self.loss(*of) for of in zip(nets[1][1], y.T, strict=True)])
            factor = 2 * authors.mean_norm
            gradients = [torch.cat([p.grad.flatten() for p in net[2].parameters()]) for net in nets]
            self.ratios.append((gradients[1].norm() / gradients[0].norm() / factor).item())
            if equal_scales:
                for parameter in method.parameters():
                    parameter.grad *= factor
            for optimizer in optimizers:
                optimizer.step()
            self.rotations.append(largest_difference([method.rotations], [authors.rotations]))
            self.backbones.append(largest_difference(backbone.parameters(), nets[1][0].parameters()))
        self.moved = largest_difference([method.rotations], [self.start])

    @staticmethod
    def loss(head: nn.Module, target: Tensor):
        return lambda features: (head(features)[:, 0] - target).square().mean()


def largest_difference(some, others) -> float:
    return max((a - b).detach().abs().max().item() for a, b in zip(some, others, strict=True))


def test_from_equal_starts_the_authors_code_takes_nearly_the_same_steps() -> None:
    """Measured: 1.8e-7 apart after one step and 8.9e-5 after 21, in which the rotations move by 1.3e-2."""
    found = Comparison(1e-3, torch.float32, burn_in=6, equal_scales=True)
    assert found.moved > 1e-2
    assert found.rotations[0] < 3e-7
    assert found.rotations[-1] < 1e-4
    assert found.backbones[-1] < 1e-5


def test_the_authors_gradient_is_larger_by_twice_the_norm_of_the_mean_gradient() -> None:
    found = Comparison(1e-3, torch.float64, burn_in=6, equal_scales=False)
    assert abs(found.ratios[0] - 1) < 1e-12
    assert found.rotations[0] < 1e-14
    # that norm varies from step to step, so Adam's averages differ: 1.6e-3 after 21 steps
    assert found.rotations[-1] < 2e-3
    equal = Comparison(1e-3, torch.float64, burn_in=6, equal_scales=True)
    assert found.rotations[-1] > 10 * equal.rotations[-1]


def test_the_authors_fixed_base_point_makes_a_difference_of_second_order() -> None:
    slow, fast = (Comparison(rate, torch.float64, 6, equal_scales=True) for rate in (1e-3, 2e-3))
    assert 3.5 < fast.rotations[-1] / slow.rotations[-1] < 4.5


def test_the_authors_burn_in_is_one_step_later() -> None:
    same, early = (Comparison(1e-3, torch.float64, b, equal_scales=True) for b in (6, 5))
    assert same.backbones[-1] < 1e-5
    assert early.backbones[-1] > 1e-3
