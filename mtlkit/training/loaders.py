"""Data loaders whose order depends on seed and epoch alone, split exactly over the processes.

Accelerate's own sharding repeats samples to fill the last batch, and draws the order from a generator
that a resumed run would have to replay. Here each batch of the given loader is one global batch; every
process takes its share of it. A resumed run skips the batches that it has used without reading them.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, DataLoaderStateMixin
from accelerate.data_loader import prepare_data_loader as place
from accelerate.state import GradientState
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from mtlkit.data.collate import collate, stack_targets
from mtlkit.data.mixture import in_turn, mix
from mtlkit.errors import SpecError, UsageError
from mtlkit.tasks import LabelCount, Task
from mtlkit.tasks.overlap import LabelOverlap, join_overlaps, overlap_advice
from mtlkit.training.accelerators import gather

_SEED_STRIDE = 1_000_003


class ShardedBatches:
    """Batches of another batch sampler, split into one share per process.

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
        """Skip this many batches in the next iteration."""
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


class Batch(NamedTuple):
    """A batch on the device, and what is known on the host about its labels."""

    inputs: Any
    targets: dict[str, Tensor | None]
    labels: dict[str, LabelCount]


class Batches:
    """A loader's batches for this process, sent to its device with their labels counted before.

    Whether a task has labels decides what is computed. That is read off the targets while they are on
    the host, so that no step waits for the device. A loader whose batches are on the device already has
    its targets read there, which makes every step wait.

    Args:
        source: gives ``(inputs, targets)``.
        tasks: whose labels are counted.
        accelerator: says which device.
        training: whether to look for tasks that are labeled on different samples.
    """

    def __init__(
        self, source: Any, tasks: Sequence[Task], accelerator: Any, *, training: bool = False
    ) -> None:
        self.source = source
        self.tasks = tasks
        self.accelerator = accelerator
        self._overlap = LabelOverlap(tasks) if training else None
        self._named: set[str] = set()  # the targets that batches have had

    def advice(self, method: Any) -> str | None:
        """What the labels of the first batches mean for the method; said once, None otherwise.

        Every process must call this after every batch.
        """
        if self._overlap is None or not self._overlap.is_due():
            return None
        return overlap_advice(method, join_overlaps(gather(self._overlap.seen, self.accelerator)))

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Batch]:
        return self._read(self.source, 0)

    def start(self, epoch: int, first: int = 0) -> Generator[Batch, None, None]:
        """The batches of this epoch without the first ones; close it if it is left early."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        return self._read(self._skip(first), first)

    def _skip(self, count: int) -> Any:
        sampler = getattr(self.source, "batch_sampler", None)
        if count == 0:
            return self.source
        if isinstance(sampler, ShardedBatches):
            sampler.start_at(count)
            return self.source
        if hasattr(self.source, "dataset"):
            return self.accelerator.skip_first_batches(self.source, count)
        return itertools.islice(self.source, count, None)

    def _read(self, source: Any, first: int) -> Generator[Batch, None, None]:
        device = self.accelerator.device
        try:
            for number, batch in enumerate(source, start=first):
                inputs, targets = unpack(batch, self.tasks)
                own = {task.name: targets.get(task.name) for task in self.tasks}
                padded = self._is_padded(number)
                labels = {
                    task.name: LabelCount(0) if padded else task.count_labels(own[task.name])
                    for task in self.tasks
                }
                self._named.update(targets)
                if self._overlap is not None:
                    self._overlap.observe(inputs, own, labels)
                # a copy to CUDA need not be awaited, since the stream keeps the order
                yield send_to_device(
                    Batch(inputs, own, labels), device, non_blocking=device.type == "cuda"
                )
            self._warn_of_names()
        finally:
            if hasattr(source, "end"):
                source.end()  # otherwise Accelerate keeps treating an abandoned loader as active

    def _warn_of_names(self) -> None:
        """Warn at the end of an epoch of tasks that no target is named after."""
        missing = [task.name for task in self.tasks if task.name not in self._named]
        if self._overlap is not None and missing:
            warnings.warn(
                f"no batch of the epoch has a target named {' or '.join(map(repr, missing))}, so that "
                f"is not trained; the targets are named {', '.join(sorted(map(str, self._named)))}",
                UserWarning,
                stacklevel=2,
            )

    def _is_padded(self, number: int) -> bool:
        sampler = getattr(self.source, "batch_sampler", None)
        return isinstance(sampler, ShardedBatches) and number in sampler.padded


def unpack(batch: Any, tasks: Sequence[Task]) -> tuple[Any, Mapping[str, Tensor | None]]:
    """Inputs, and targets by task name, of a batch."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(
            f"a batch must be (inputs, targets), not {type(batch).__name__}; targets by task name"
        )
    inputs, targets = batch
    if isinstance(targets, Mapping):
        return inputs, {name: _as_tensor(target) for name, target in targets.items()}
    if isinstance(targets, Tensor):
        targets = [targets]
    if isinstance(targets, tuple | list) and len(targets) == len(tasks):
        pairs = zip(tasks, targets, strict=True)
        return inputs, {task.name: _as_tensor(target) for task, target in pairs}
    raise UsageError(
        "targets must be a mapping by task name, or one per task in the order "
        f"{', '.join(task.name for task in tasks)}"
    )


def _as_tensor(target: Any) -> Tensor | None:
    """A batch's target; one that is a list of numbers and None comes from a loader of the user's own."""
    return stack_targets(target) if isinstance(target, list) else target


def prepare_loader(
    loader: Any, tasks: Sequence[Task], accelerator: Any, seed: int, *, training: bool = False
) -> Batches:
    """The loader for this process: its share of every batch, on its device.

    Loaders by task are mixed in training, and read one after the other elsewhere.
    """
    if isinstance(loader, Batches):
        return loader
    if isinstance(loader, Mapping):
        loader = mix(loader, seed=seed) if training else in_turn(loader)
    return Batches(_source(loader, accelerator, seed), tasks, accelerator, training=training)


def _source(loader: Any, accelerator: Any, seed: int) -> Any:
    """A loader that Accelerate knows and that leaves the batches on the host, where it can."""
    if isinstance(loader, DataLoaderShard | DataLoaderDispatcher):
        return loader
    if not isinstance(loader, DataLoader):
        if hasattr(loader, "__iter__"):
            return _Plain(loader, accelerator)
        raise SpecError(f"expected a torch DataLoader or another iterable of batches, not {loader!r}")
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        # on several processes the first one may read for all, which goes through the devices
        on_device = None if accelerator.num_processes > 1 else False
        return accelerator.prepare_data_loader(loader, device_placement=on_device)
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
    return place(own, accelerator.device, num_processes=1, process_index=0, put_on_device=False)


class _Plain(DataLoaderStateMixin):  # type: ignore[misc]
    """Any iterable of batches, in one process."""

    _drop_last = True

    def __init__(self, batches: Any, accelerator: Any) -> None:
        self.batches = batches
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
            following = next(batches, missing)  # accumulation must end with the last batch
            self.end_of_dataloader = following is missing
            yield batch
            batch = following
        self.end()

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)
