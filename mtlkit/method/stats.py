"""Statistics of the last step, read off its Gram matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mtlkit.engine.gram import cosine_matrix, norms_of, safe_divide
from mtlkit.engine.step import Step, scatter

_NAMES = ("losses", "norms", "cosines", "weights", "update_cosines")


class Stats(Mapping[str, Tensor]):
    """Statistics of one step; NaN for a task that was absent.

    Norms, cosines and weights are those of the gradients that were merged. What weighed the losses
    before, such as ``uw``, is part of these gradients; the losses are given as they came. Values are
    computed on the device when they are read: what is not read costs nothing.

    Args:
        step: inner products and losses of the present tasks.
        weights: (P,) weights of the gradients; None for a merge that has none.
        products: (P + 1,) inner products of the merged gradient with the task gradients and with
            itself; None if they follow from the weights.

    Example:
        >>> import mtlkit
        >>> method = mtlkit.create_method("mgda", tasks=2)
        >>> update = method.combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> method.stats.norms, method.stats.weights
        (tensor([2., 1.]), tensor([0.2000, 0.8000]))
    """

    groups: Mapping[str, Stats] = {}
    """The statistics of each group of parameters, where a method has several."""

    def __init__(self, step: Step, weights: Tensor | None, products: Tensor | None) -> None:
        self._gram, self._losses = step.gram, step.losses
        self._present, self._tasks = step.present, step.tasks
        self._weights, self._products = weights, products

    def spread_gram(self) -> Tensor:
        """(K, K) inner products; NaN for absent tasks."""
        half = scatter(self._gram.double(), self._present, self._tasks)
        return scatter(half.T, self._present, self._tasks).T

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
        """Fraction of the pairs of tasks whose gradients have a negative cosine."""
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

    def spread_products(self) -> Tensor:
        """(K,) inner products of the merged gradient with the task gradients."""
        return scatter(self.products()[:-1].double(), self._present, self._tasks)

    def _spread(self, values: Tensor | None) -> Tensor:
        if values is None:
            values = torch.full_like(self._gram[0], torch.nan)
        return scatter(values.float(), self._present, self._tasks)

    def __getitem__(self, name: str) -> Tensor:
        if name not in _NAMES:
            raise KeyError(f"stats has no {name!r}; it has {', '.join(_NAMES)}")
        value: Tensor = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.items())


def over_groups(groups: Mapping[str, Stats]) -> Stats:
    """Statistics over all parameters: inner products are the sums of those of the groups."""
    several = list(groups.values())
    gram = torch.stack([stats.spread_gram() for stats in several])
    known = ~torch.isnan(gram).all(dim=0)
    gram = torch.where(known, gram.nansum(dim=0), torch.nan)
    tasks = len(gram)
    inner = torch.stack([torch.cat([s.spread_products(), s.products()[-1:]]) for s in several])
    present = tuple(known.diagonal().nonzero().flatten().tolist())
    index = list(present)
    losses = torch.stack([stats.losses for stats in several]).nanmean(dim=0)
    step = Step(
        tasks, present, gram[index][:, index], gram.new_ones(()).bool(), gram.new_ones(()), losses[index]
    )
    whole = Stats(step, None, inner.nansum(dim=0)[[*index, tasks]])
    whole.groups = dict(groups)
    return whole
