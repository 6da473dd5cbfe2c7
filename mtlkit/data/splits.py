"""Splits: the samples of a data set that a run trains, validates or tests on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from mtlkit.data.collate import StackedSamples, Targets
from mtlkit.data.files import DataError
from mtlkit.data.randomness import sample_uniform

Augment: TypeAlias = Callable[[Tensor, Targets, NDArray[np.float64]], tuple[Tensor, Targets]]
Transform: TypeAlias = Callable[[Tensor], Tensor]


class Split(Dataset[tuple[Tensor, Targets]], ABC):
    """Samples ``(input, {task: target})``; augmentation depends on seed, epoch and sample only.

    Example:
        >>> class Noisy(Split):
        ...     def __len__(self):
        ...         return 3
        ...
        ...     def __getitem__(self, index):
        ...         noise = torch.from_numpy(self.uniform([index], 1)[0])
        ...         return index + noise, {"y": torch.tensor([2.0 * index])}
        >>> split = Noisy(seed=1)
        >>> first = split[2][0]
        >>> split.set_epoch(1)
        >>> bool(split[2][0] == first)
        False
        >>> split.set_epoch(0)
        >>> bool(split[2][0] == first)
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        # in shared memory, so that persistent workers see changes
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # type: ignore[no-untyped-call]
        self._own_epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the augmentations."""
        return int(self._epoch) if self._own_epoch is None else self._own_epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the augmentations; Accelerate's loaders call this."""
        self._epoch.fill_(epoch)

    @contextmanager
    def at_epoch(self, epoch: int) -> Iterator[None]:
        """Draw augmentations for this epoch inside a ``with`` block, in this process only."""
        before, self._own_epoch = self._own_epoch, epoch
        try:
            yield
        finally:
            self._own_epoch = before

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Tensor, Targets]: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Targets]]:
        for index in range(len(self)):
            yield self[index]

    def position(self, index: int) -> int:
        """Return the index of a sample counted from 0, for one that may be negative."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sample {index}; the split has {len(self)}")
        return index % len(self)

    def uniform(self, indices: Sequence[int] | NDArray[np.integer], count: int) -> NDArray[np.float64]:
        """Draw numbers in [0, 1), (len(indices), count), that depend on seed, epoch and sample only."""
        return sample_uniform(self.seed, self.epoch, indices, count)


class TensorSplit(Split):
    """A split in memory, indexed a whole batch at a time.

    Args:
        inputs: (N, ...) of any dtype; uint8 images become floats in [0, 1].
        targets: (N, ...) by task.
        augment: called as ``augment(inputs, targets, uniform)`` on a batch; ``uniform`` is
            (B, ``draws``) numbers in [0, 1).
        draws: how many random numbers the augmentation of a sample needs.
        transform: applied to the inputs last, for standardization.
        seed: seed of the augmentation.

    Example:
        >>> split = TensorSplit(torch.zeros(6, 4), {"age": torch.arange(6.0)[:, None]})
        >>> inputs, targets = split.batch([1, 3])
        >>> inputs.shape, targets["age"].flatten().tolist()
        (torch.Size([2, 4]), [1.0, 3.0])
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Targets,
        *,
        augment: Augment | None = None,
        draws: int = 0,
        transform: Transform | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        for name, target in targets.items():
            if len(target) != len(inputs):
                raise DataError(f"{len(inputs)} inputs, but {len(target)} targets of task {name!r}")
        self.inputs = inputs
        self.targets = targets
        self._augment = augment
        self._draws = draws
        self._transform = transform

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Targets]:
        inputs, targets = self.batch([self.position(index)])
        return inputs[0], {name: target[0] for name, target in targets.items()}

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        return StackedSamples(*self.batch(indices))

    def batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Targets]:
        """Return inputs and targets of these samples, with one indexing operation per tensor."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        inputs = self.inputs[chosen]
        targets = {name: target[chosen] for name, target in self.targets.items()}
        if inputs.dtype == torch.uint8:
            inputs = inputs.float().div_(255)
        if self._augment is not None:
            inputs, targets = self._augment(inputs, targets, self.uniform(chosen.numpy(), self._draws))
        if self._transform is not None:
            inputs = self._transform(inputs)
        return inputs, targets
