"""Data loaders whose order depends on seed and epoch alone, split exactly over the processes.

Accelerate's own sharding repeats samples to fill the last batch, and draws the order from a generator
that a resumed run would have to replay. Here each batch of the given loader is one global batch; every
process takes its share of it, and the batches that a resumed run has seen are skipped unread.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, DataLoaderStateMixin
from accelerate.data_loader import prepare_data_loader as place
from accelerate.state import GradientState
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from mtlkit.errors import SpecError
from mtlkit.tasks import NO_LABEL

__all__ = ["ShardedBatches", "collate", "is_padded", "open_loader", "prepare_loader"]

_SEED_STRIDE = 1_000_003


class ShardedBatches:
    """Batches of another batch sampler, cut into one share per process.

    The shares of a batch together are the batch: nothing is repeated or dropped. A process whose share
    would be empty is given one sample whose labels must not count; ``padded`` holds the numbers of such
    batches.
    """

    def __init__(self, batches: Any, rank: int, world: int, seed: int) -> None:
        self.batches = copy.copy(batches)
        self.rank = rank
        self.world = world
        self.seed = seed
        self.padded: set[int] = set()
        # seeds of worker processes, so that opening the loader draws nothing from the global generator
        self.worker_generator = torch.Generator()
        self._sampler: Any = getattr(self.batches, "sampler", None)
        if self._sampler is not None:
            self._sampler = self.batches.sampler = copy.copy(self._sampler)
        self._skip = 0
        self.set_epoch(0)

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Put the samples into the order of this epoch."""
        self.epoch = epoch
        self.worker_generator.manual_seed(self.seed * _SEED_STRIDE + epoch)
        for holder in (self.batches, self._sampler):
            if hasattr(holder, "generator"):
                holder.generator = torch.Generator().manual_seed(self.seed * _SEED_STRIDE + epoch)
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)

    def start_at(self, batch: int) -> None:
        """Leave out this many batches the next time."""
        self._skip = batch

    def __iter__(self) -> Iterator[list[Any]]:
        skip, self._skip = self._skip, 0
        self.set_epoch(self.epoch)
        self.padded = set()
        for number, batch in enumerate(self.batches):
            if number < skip:
                continue
            samples = list(batch)
            share = samples
            if self.world > 1:
                size = len(samples)
                first, last = size * self.rank // self.world, size * (self.rank + 1) // self.world
                share = samples[first:last]
                if not share:
                    share = samples[:1]
                    self.padded.add(number)
            yield share


def prepare_loader(loader: Any, accelerator: Any, seed: int) -> Any:
    """The loader for this process: its share of every batch, on its device."""
    if isinstance(loader, DataLoaderShard | DataLoaderDispatcher):
        return loader
    if not isinstance(loader, DataLoader):
        if hasattr(loader, "__iter__"):
            return _Plain(loader, accelerator)
        raise SpecError(f"expected a torch DataLoader or another iterable of batches, not {loader!r}")
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return accelerator.prepare_data_loader(loader)
    split_already = isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler)
    batches = ShardedBatches(
        loader.batch_sampler,
        rank=0 if split_already else accelerator.process_index,
        world=1 if split_already else accelerator.num_processes,
        seed=seed,
    )
    options = {
        name: getattr(loader, name)
        for name in (
            "num_workers",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "multiprocessing_context",
            "prefetch_factor",
            "persistent_workers",
        )
    }
    own = DataLoader(
        loader.dataset,
        batch_sampler=batches,
        collate_fn=collate if loader.collate_fn is default_collate else loader.collate_fn,
        generator=batches.worker_generator,
        **options,
    )
    return place(own, accelerator.device, num_processes=1, process_index=0, put_on_device=True)


class _Plain(DataLoaderStateMixin):
    """Any iterable of batches, in one process."""

    _drop_last = True

    def __init__(self, batches: Any, accelerator: Any) -> None:
        self.batches = batches
        self.accelerator = accelerator
        self.gradient_state = GradientState()
        if accelerator.num_processes > 1:
            raise SpecError(
                f"{type(batches).__name__} cannot be split over {accelerator.num_processes} processes; "
                "give a torch DataLoader"
            )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        missing = object()
        batches = iter(self.batches)
        batch = next(batches, missing)
        while batch is not missing:
            following = next(batches, missing)  # one ahead: accumulation ends with the last batch
            self.end_of_dataloader = following is missing
            yield send_to_device(batch, self.accelerator.device)
            batch = following
        self.end()

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples ``(input, {task: target})``; targets may be None or absent in some samples.

    A missing target becomes NaN, or :data:`~mtlkit.tasks.NO_LABEL` among integers; a task without any
    label in the batch becomes None.
    """
    first = samples[0]
    if not (isinstance(first, tuple | list) and len(first) == 2 and isinstance(first[1], Mapping)):
        return default_collate(list(samples))
    inputs = default_collate([sample[0] for sample in samples])
    names = dict.fromkeys(name for sample in samples for name in sample[1])
    return inputs, {name: _stack([sample[1].get(name) for sample in samples]) for name in names}


def _stack(targets: Sequence[Any]) -> Any:
    known = next((target for target in targets if target is not None), None)
    if known is None:
        return None
    if any(target is None for target in targets):
        like = torch.as_tensor(known)
        if isinstance(known, float):
            like = like.float()
        if like.dtype == torch.bool:
            like = like.float()
            targets = [
                target if target is None else torch.as_tensor(target).float() for target in targets
            ]
        fill = torch.nan if like.is_floating_point() else NO_LABEL
        if like.dtype == torch.uint8:
            like = like.long()
            targets = [
                target if target is None else torch.as_tensor(target).long() for target in targets
            ]
        filler: Tensor = torch.full_like(like, fill)
        targets = [filler if target is None else torch.as_tensor(target) for target in targets]
        return torch.stack([target.to(like.dtype) for target in targets])
    return default_collate(list(targets))


def open_loader(loader: Any, epoch: int, batch: int, accelerator: Any) -> Any:
    """The loader at this epoch, without its first ``batch`` batches."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    if batch == 0:
        return loader
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, ShardedBatches):
        sampler.start_at(batch)
        return loader
    if hasattr(loader, "dataset"):
        return accelerator.skip_first_batches(loader, batch)
    return itertools.islice(loader, batch, None)


def is_padded(loader: Any, number: int) -> bool:
    """Whether this process has no share of the batch, and was given one sample to keep step."""
    sampler = getattr(loader, "batch_sampler", None)
    return isinstance(sampler, ShardedBatches) and number in sampler.padded
