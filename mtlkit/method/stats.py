"""What the last step looked like, read off its Gram matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mtlkit.engine.gram import cosine_matrix, norms_of, safe_divide
from mtlkit.engine.step import Step, spread

_NAMES = ("losses", "norms", "cosines", "weights", "update_cosines")


class Stats(Mapping[str, Tensor]):
    """What one step looked like; NaN for a task that was absent.

    Norms, cosines and weights are those of the gradients that were merged. What weighed the losses
    before, such as ``uw``, is part of these gradients; the losses are given as they came.
    Figures are computed on the device when they are read: what is not read costs nothing.

    Args:
        gram: (P, P) inner products of the gradients of the present tasks.
        losses: (P,) their losses, or None.
        present: their numbers.
        tasks: K, how many tasks there are.
        weights: (P,) weights of the gradients; None for a merge that has none.
        products: (P + 1,) inner products of the merged gradient with the task gradients and with
            itself; None if they follow from the weights.
    """

    def __init__(
        self,
        gram: Tensor,
        losses: Tensor | None,
        present: tuple[int, ...],
        tasks: int,
        weights: Tensor | None,
        products: Tensor | None,
    ) -> None:
        self._gram, self._losses, self._present, self._tasks = gram, losses, present, tasks
        self._weights, self._products = weights, products

    @property
    def losses(self) -> Tensor:
        """(K,) losses."""
        return self._spread(self._losses)

    @property
    def norms(self) -> Tensor:
        """(K,) norms of the task gradients."""
        return self._spread(norms_of(self._gram))

    @property
    def cosines(self) -> Tensor:
        """(K, K) cosines between the task gradients."""
        return self._spread(self._spread(cosine_matrix(self._gram).clamp(-1, 1)).T).T

    @property
    def weights(self) -> Tensor:
        """(K,) weights of the task gradients; NaN for a merge that has none."""
        return self._spread(self._weights)

    @property
    def update_cosines(self) -> Tensor:
        """(K,) cosines of the task gradients with the merged one."""
        products = self.products()
        lengths = norms_of(self._gram) * products[-1].sqrt()
        return self._spread(safe_divide(products[:-1], lengths).clamp(-1, 1))

    @property
    def conflict(self) -> float:
        """Share of the pairs of tasks whose gradients have a negative cosine."""
        upper = torch.triu_indices(self._tasks, self._tasks, offset=1)
        cosines = self.cosines[upper[0], upper[1]]
        cosines = cosines[~torch.isnan(cosines)]
        return float((cosines < 0).float().mean()) if len(cosines) else 0.0

    def products(self) -> Tensor:
        """(P + 1,) inner products of the merged gradient, from the weights where they tell them."""
        if self._products is not None:
            return self._products
        assert self._weights is not None
        weights = self._weights.double()
        inner = self._gram.double() @ weights
        return torch.cat([inner, (weights @ inner).clamp(min=0).reshape(1)])

    def _spread(self, values: Tensor | None) -> Tensor:
        if values is None:
            values = torch.full_like(self._gram[0], torch.nan)
        return spread(values.float(), self._present, self._tasks)

    def __getitem__(self, name: str) -> Tensor:
        if name not in _NAMES:
            raise KeyError(f"stats has no {name!r}; it has {', '.join(_NAMES)}")
        figure: Tensor = getattr(self, name)
        return figure

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.items())


class LastStep(nn.Module):
    """The last step of a method. Under torch.compile it is kept in buffers."""

    gram: Tensor
    weights: Tensor
    products: Tensor
    losses: Tensor

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
        self._eager: tuple[Any, ...] | None = None
        self._compiled = False

    def keep(self, step: Step, weights: Tensor | None, products: Tensor | None = None) -> None:
        """Keep a step: its Gram matrix and losses, without the gradients; see :class:`Stats`."""
        kept = (step.gram, step.losses, step.present, self.tasks, weights, products)
        if not torch.compiler.is_compiling():
            self._eager = kept
            return
        stats = Stats(*kept)
        gram = step.gram.double()
        self.gram.copy_(spread(spread(gram, step.present, self.tasks).T, step.present, self.tasks).T)
        self.weights.copy_(stats.weights)
        found = stats.products()
        self.products.copy_(torch.cat([spread(found[:-1], step.present, self.tasks), found[-1:]]))
        self.losses.copy_(stats.losses)

    def forget(self) -> None:
        """Forget the step: the next one merges nothing, or is compiled."""
        self._eager = None

    def expect_compiled(self) -> None:
        """Say that a compiled step follows."""
        self.forget()
        self._compiled = True

    def stats(self) -> Stats | None:
        """The last step; None before the first, and after one that merged nothing."""
        if self._eager is not None:
            return Stats(*self._eager)
        if not self._compiled:
            return None
        kept = (self.gram.clone(), self.losses.clone(), self.weights.clone(), self.products.clone())
        gram, losses, weights, products = kept
        return Stats(gram, losses, tuple(range(self.tasks)), self.tasks, weights, products)
