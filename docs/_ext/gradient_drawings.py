"""Draw what a method makes of two and of three conflicting gradients, for the method's page.

The features are a point of the plane, and the losses are linear in it, so that the tasks' gradients stay
the same. The drawing shows the merged gradient after some steps of the method itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mtlkit

STEPS = 60
RATE = 0.03
_COLORS = ("#3b82f6", "#f59e0b", "#10b981")
_MERGED = "#dc2626"
_TEXT = "#6f7782"  # 4.5 to 1 on white and on black
# of norm 1 and at angles in degrees, then times these norms
_PROBLEMS: Sequence[tuple[str, tuple[tuple[float, float], ...]]] = (
    ("two tasks", ((20, 1.0), (140, 0.6))),
    ("three tasks, one of them large", ((10, 0.5), (80, 0.6), (152, 1.4))),
)
_LOSSES = (1.0, 0.5, 2.0)
_LONGEST = 1.5


def draw(spec: str, path: Path) -> bool:
    """Write the drawing; False for a method that cannot take such a step."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    results = []
    for title, polar in _PROBLEMS:
        gradients = torch.tensor(
            [(r * math.cos(math.radians(a)), r * math.sin(math.radians(a))) for a, r in polar]
        )
        try:
            results.append((title, gradients, *merged_gradient(spec, gradients)))
        except mtlkit.MtlkitError:
            return False
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": spec, "font.size": 9}):
        figure = Figure(figsize=(4.8, 2.1), layout="constrained")  # readable on a phone too
        for axes, (title, gradients, turned, merged) in zip(figure.subplots(1, 2), results, strict=True):
            _panel(axes, title, gradients, turned, merged)
        figure.savefig(path, transparent=True, metadata={"Date": None})
    return True


def merged_gradient(spec: str, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tasks' gradients at the features, turned back where the method rotates, and the merged one."""
    number = len(gradients)
    torch.manual_seed(0)
    method = mtlkit.create_method(spec, number, feature_dim=2)
    owned = list(method.parameters())
    optimizer = torch.optim.Adam(owned, lr=RATE) if owned else None
    point = torch.zeros(1, 2, requires_grad=True)
    for _ in range(STEPS if method.state_dict() else 1):
        point.grad = None
        views = method(point)
        losses = [
            start + ((view - view.detach()) * gradient).sum()
            for start, view, gradient in zip(_LOSSES, views, gradients, strict=False)
        ]
        if optimizer is not None:
            optimizer.zero_grad()
        method.total(losses).backward()
        if optimizer is not None:
            optimizer.step()
    assert point.grad is not None
    turned = gradients
    if method.forking is not None:
        turned = torch.stack([R.T @ g for R, g in zip(method.rotations, gradients, strict=True)])
    return turned.detach(), point.grad[0].detach()


def _panel(axes: Any, title: str, gradients: Tensor, turned: Tensor, merged: Tensor) -> None:
    length = float(merged.norm())
    shown = _shortened(merged)
    rotates = not torch.allclose(gradients, turned, atol=1e-3)
    for index, (gradient, back) in enumerate(zip(gradients, turned, strict=True)):
        _arrow(axes, gradient, _COLORS[index], alpha=0.35 if rotates else 1.0)
        if rotates:
            _arrow(axes, back, _COLORS[index])
        axes.annotate(f"$g_{index + 1}$", gradient.tolist(), color=_COLORS[index], fontsize=10)
    _arrow(axes, _shortened(gradients.sum(dim=0)), _TEXT, width=1.2, linestyle="dashed")
    _arrow(axes, shown, _MERGED, width=2.4)
    note = "" if length <= _LONGEST else f", length {length:.1f}, drawn shorter"
    axes.set_title(title, color=_TEXT, fontsize=9)
    axes.set_xlabel(
        f"red: merged{note}" if length > 1e-6 else "merged: zero",
        color=_TEXT,
        fontsize=8,
    )
    axes.set_xlim(-1.75, 1.75)
    axes.set_ylim(-0.6, 1.6)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(_TEXT)
        spine.set_alpha(0.3)


def _shortened(arrow: Tensor) -> Tensor:
    return arrow * min(1.0, _LONGEST / max(float(arrow.norm()), 1e-12))


def _arrow(
    axes: Any, tip: Tensor, color: str, width: float = 1.6, alpha: float = 1.0, linestyle: str = "solid"
) -> None:
    style = {
        "arrowstyle": "-|>",
        "linestyle": linestyle,
        "color": color,
        "linewidth": width,
        "alpha": alpha,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", xy=tip.tolist(), xytext=(0, 0), arrowprops=style, annotation_clip=False)
