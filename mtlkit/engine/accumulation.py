"""Gradients of several micro-batches that are merged once, for ``total(losses, merge=False)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Row = Sequence[Tensor | None]


class Kept:
    """Rows of earlier micro-batches: gradients of the shared parameters, as they arrived."""

    def __init__(self) -> None:
        self.batches = 0
        self._rows: dict[int, dict[int, Tensor]] = {}  # by task and identity of the parameter
        self._tensors: dict[int, Tensor] = {}
        self._scale: Tensor | None = None
        self._unscaled: Tensor | None = None
        self._losses: Tensor | None = None
        self._seen: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters that the kept rows are gradients of."""
        return list(self._tensors.values())

    def add(
        self, tensors: Sequence[Tensor], rows: Mapping[int, Row], scale: Tensor, losses: Tensor | None
    ) -> None:
        """Add the rows of a micro-batch to those that are kept.

        Args:
            tensors: the parameters.
            rows: one list of their gradients per task.
            scale: factor of this micro-batch's losses.
            losses: (K,) its losses, NaN for absent tasks.
        """
        self.batches += 1
        for task, row in rows.items():
            kept = self._rows.setdefault(task, {})
            for tensor, gradient in zip(tensors, row, strict=True):
                if gradient is not None:
                    self._tensors[id(tensor)] = tensor
                    known = kept.get(id(tensor))
                    kept[id(tensor)] = gradient if known is None else known + gradient
        self._scale = scale if self._scale is None else self._scale + scale
        unscaled = scale == 1
        self._unscaled = unscaled if self._unscaled is None else self._unscaled & unscaled
        if losses is not None:
            seen = ~torch.isnan(losses)
            terms = torch.where(seen, losses, 0.0) * scale
            self._losses = terms if self._losses is None else self._losses + terms
            self._seen = seen if self._seen is None else self._seen | seen

    def take(self, tensors: Sequence[Tensor]) -> tuple[dict[int, Row], Tensor, Tensor | None]:
        """Take the sums over the micro-batches: rows by task, scale, and (K,) losses; then forget them.

        Where the caller divided each total by the number of micro-batches, the scales add up to the
        factor that remains, such as that of a ``GradScaler``. Where no total was scaled, the losses were
        divided or are sums over samples, so the rows and losses of the whole batch are plain sums.
        """
        in_order = sorted(self._rows.items())  # a task may have come after later ones
        rows: dict[int, Row] = {k: [kept.get(id(t)) for t in tensors] for k, kept in in_order}
        assert self._scale is not None
        assert self._unscaled is not None
        scale, losses = torch.where(self._unscaled, 1.0, self._scale), self._losses
        if losses is not None and self._seen is not None:
            # as its gradient, a loss counts as zero in the micro-batches without it
            losses = torch.where(self._seen, losses / scale, torch.nan)
        self.__init__()  # type: ignore[misc]
        return rows, scale, losses
