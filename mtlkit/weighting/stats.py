"""What the last step looked like, read off its Gram matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.gram import cosine_matrix, norms_of, safe_divide
from mtlkit.step import Step, spread

__all__ = ["LastStep", "Stats"]


class Stats(dict[str, Tensor]):
    """What the last step looked like; NaN for a task that was absent.

    ``losses``, ``norms`` and ``weights`` are (K,); ``cosines`` is the (K, K) matrix of cosines between
    the task gradients, ``update_cosines`` (K,) the cosine of each with the merged gradient.
    """

    losses: Tensor
    norms: Tensor
    cosines: Tensor
    weights: Tensor
    update_cosines: Tensor

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"stats has no {name!r}; it has {', '.join(self)}") from None

    @property
    def conflict(self) -> float:
        """Share of the pairs of tasks whose gradients have a negative cosine."""
        upper = torch.triu_indices(len(self.norms), len(self.norms), offset=1)
        cosines = self.cosines[upper[0], upper[1]]
        cosines = cosines[~torch.isnan(cosines)]
        return float((cosines < 0).float().mean()) if len(cosines) else 0.0


class LastStep(nn.Module):
    """The figures of the last step. A compiled graph can keep them in buffers alone."""

    gram: Tensor
    weights: Tensor
    products: Tensor
    losses: Tensor
    steps: Tensor

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.tasks = tasks
        shapes = {
            "gram": (tasks, tasks),
            "weights": (tasks,),
            "products": (tasks + 1,),
            "losses": (tasks,),
        }
        for name, shape in shapes.items():
            self.register_buffer(
                name, torch.full(shape, torch.nan, dtype=torch.float64), persistent=False
            )
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self._unwritten: tuple[Any, ...] | None = None

    def keep(self, step: Step, weights: Tensor | None, products: Tensor | None = None) -> None:
        """Keep a step. Its figures are worked out when they are read, except in a compiled graph.

        Args:
            step: what was merged.
            weights: (P,) weights; None for a merge that has none.
            products: (P + 1,) inner products of the merged gradient with the task gradients and with
                itself, for such a merge.
        """
        kept = (step.gram, step.losses, step.present, weights, products)
        if torch.compiler.is_compiling():
            self._write(*kept)
        else:
            self._unwritten = kept  # without the gradients, whose memory is needed

    def _write(
        self,
        gram: Tensor,
        losses: Tensor | None,
        present: tuple[int, ...],
        weights: Tensor | None,
        products: Tensor | None,
    ) -> None:
        gram, tasks = gram.double(), self.tasks
        if weights is None:
            weights = torch.full_like(gram[0], torch.nan)
        if products is None:  # merged = sum_k w_k g_k
            inner = gram @ weights.double()
            products = torch.cat([inner, (weights.double() @ inner).clamp(min=0).reshape(1)])
        self.gram.copy_(spread(spread(gram, present, tasks).T, present, tasks).T)
        self.weights.copy_(spread(weights, present, tasks))
        self.products.copy_(torch.cat([spread(products[:-1], present, tasks), products[-1:]]))
        if losses is not None:
            self.losses.copy_(spread(losses, present, tasks))
        self.steps.add_(1)

    def stats(self) -> Stats | None:
        """The figures; None before the first step."""
        if self._unwritten is not None:
            self._write(*self._unwritten)
            self._unwritten = None
        if int(self.steps) == 0:
            return None
        norms = norms_of(self.gram)
        update = safe_divide(self.products[:-1], norms * self.products[-1].sqrt())
        found = {
            "losses": self.losses,
            "norms": norms,
            "cosines": cosine_matrix(self.gram).clamp(-1, 1),
            "weights": self.weights,
            "update_cosines": update.clamp(-1, 1),
        }
        return Stats({name: value.float() for name, value in found.items()})
