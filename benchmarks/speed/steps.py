"""A training step with each method, as a ratio to the plain sum of losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import mtlkit
from benchmarks.speed.timing import Row, interleave, ratio, set_threads

FEATURE_LEVEL = ("pcgrad", "mgda", "imtl_g", "gradnorm", "scale")
PARAMETER_LEVEL = ("pcgrad", "mgda")
TASKS = 10


class Net(nn.Module):
    """ResNet18 on 3 x 32 x 32 with K linear heads; without a spec, written without mtlkit."""

    def __init__(self, spec: str | None, tasks: int = TASKS) -> None:
        super().__init__()
        import timm

        torch.manual_seed(0)
        self.backbone = timm.create_model("resnet18", num_classes=0)
        self.heads = nn.ModuleList(nn.Linear(512, 1) for _ in range(tasks))
        shared = self.backbone if spec is not None and "wrt=parameters" in spec else None
        self.method = (
            None if spec is None else mtlkit.create_method(spec, tasks, feature_dim=512, shared=shared)
        )

    def losses(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return self.head_losses(self.backbone(x), y)

    def head_losses(self, z: Tensor, y: Tensor) -> list[Tensor]:
        views = [z] * len(self.heads) if self.method is None else self.method(z)
        loss = nn.functional.binary_cross_entropy_with_logits
        return [
            loss(head(v)[:, 0], y[:, k])
            for k, (head, v) in enumerate(zip(self.heads, views, strict=True))
        ]


class Candidate:
    """A step with SGD."""

    def __init__(self, spec: str | None, batch: tuple[Tensor, Tensor]) -> None:
        self.net, self.batch = Net(spec, batch[1].shape[1]), batch
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.period = 1 if self.net.method is None else self.net.method.cost_period

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        losses = self.net.losses(*self.batch)
        method = self.net.method
        total = sum(losses) if method is None else method.total(losses)
        total.backward()
        self.optimizer.step()


class _SeparateBackwards(Candidate):
    """K calls of ``autograd.grad`` and the sum of their rows: the least time of ``wrt=parameters``."""

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        losses = self.net.losses(*self.batch)
        shared = list(self.net.backbone.parameters())
        for k, loss in enumerate(losses):
            own = list(self.net.heads[k].parameters())
            found = torch.autograd.grad(loss, [*shared, *own], retain_graph=k + 1 < TASKS)
            for parameter, gradient in zip([*shared, *own], found, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.optimizer.step()


def run(rounds: int = 15) -> list[Row]:
    """Time feature level against the plain sum, and parameter level against K separate backwards."""
    set_threads(2)
    torch.manual_seed(0)
    batch = (torch.randn(64, 3, 32, 32), torch.randint(0, 2, (64, TASKS)).float())
    candidates = {"plain": Candidate(None, batch)}
    candidates |= {name: Candidate(name, batch) for name in ("sum", *FEATURE_LEVEL)}
    seconds = interleave(candidates, rounds)
    group = f"step, ResNet18, K={TASKS}, features / plain sum"
    rows = [Row(group, name, ratio(seconds, name, "plain"), limit=1.05) for name in FEATURE_LEVEL]
    rows.append(Row(group, "sum", ratio(seconds, "sum", "plain")))
    heavy: dict[str, Candidate] = {"K backwards": _SeparateBackwards(None, batch)}
    heavy |= {name: Candidate(f"{name}(wrt=parameters)", batch) for name in PARAMETER_LEVEL}
    seconds = interleave(heavy, max(3, 2 * rounds // 3), warmup=1)
    group = f"step, ResNet18, K={TASKS}, parameters / K autograd.grad calls and a sum"
    return rows + [Row(group, n, ratio(seconds, n, "K backwards"), limit=1.05) for n in PARAMETER_LEVEL]
