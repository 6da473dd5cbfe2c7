"""Data loaders whose order only depends on seed and epoch, split exactly over the processes.

Accelerate's sharding repeats samples to fill the last batch, and draws the order from a generator that a
resumed run would have to replay. Here, each batch of the given loader is one global batch, and every
process takes a part of it. A resumed run skips used batches without reading them. A stream (an
``IterableDataset``, or any iterable of batches) is read by the first process for all.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, DataLoaderStateMixin
from accelerate.data_loader import prepare_data_loader as place
from accelerate.state import GradientState
from accelerate.utils import broadcast_object_list, gather_object, recursively_apply, send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from mtlkit.config.launching import warn_first
from mtlkit.data.collate import collate, stack_targets
from mtlkit.data.mixture import in_turn, mix
from mtlkit.errors import SpecError, UsageError
from mtlkit.tasks import LabelCount, Task
from mtlkit.tasks.overlap import LabelOverlap, join_overlaps, overlap_advice
from mtlkit.training.own_samples import OwnSamples, Rows

_SEED_STRIDE = 1_000_003


class ShardedBatches:
    """The batches of another batch sampler, split into one part per process.

    No sample is repeated or dropped. A process whose part would be empty gets one sample whose labels do
    not count; ``padded`` has the numbers of these batches.
    """

    def __init__(self, batches: Any, rank: int, world: int, seed: int) -> None:
        self.batches = copy.copy(batches)
        self.rank = rank
        self.world = world
        self.seed = seed
        self.padded: set[int] = set()
        # for the seeds of workers, so that the loader draws nothing from the global generator
        self.worker_generator = torch.Generator()
        self._sampler: Any = getattr(self.batches, "sampler", None)
        if self._sampler is not None:
            self._sampler = self.batches.sampler = copy.copy(self._sampler)
        self._skip = 0
        self.set_epoch(0)

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Set the order of the samples to that of this epoch."""
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
            share = samples[_share(len(samples), self.rank, self.world)]
            if not share:
                share = samples[:1]
                self.padded.add(number)
            yield share


def _share(size: int, rank: int, world: int) -> slice:
    """Return the part of a batch for a process; it may be empty."""
    return slice(size * rank // world, size * (rank + 1) // world)


class Batch(NamedTuple):
    """A batch on the device, with the counts of its labels on the host."""

    inputs: Any
    targets: dict[str, Tensor | None]
    labels: dict[str, LabelCount]
    rows: Rows | None = None
    """The samples of each task, for one forward pass per task; None for a single pass."""


class Batches:
    """The batches of a loader for this process, on its device, with their label counts.

    Labels are counted on the host, so that no step waits for the device, unless the batches of the
    loader are already there.

    Args:
        source: iterable of ``(inputs, targets)``.
        tasks: tasks whose labels are counted.
        accelerator: accelerator of the run.
        training: whether to check for tasks that are labeled on different samples.
        own_samples: finds the samples of each task, if needed.
    """

    def __init__(
        self,
        source: Any,
        tasks: Sequence[Task],
        accelerator: Any,
        *,
        training: bool = False,
        own_samples: OwnSamples | None = None,
    ) -> None:
        self.source = source
        self.tasks = tasks
        self.accelerator = accelerator
        self._overlap = LabelOverlap(tasks) if training else None
        self._own_samples = own_samples
        split = source if isinstance(source, Stream) else getattr(source, "batch_sampler", None)
        self._split = split if isinstance(split, Stream | ShardedBatches) else None
        self.target_names: set[str] = set()
        """Names of all targets so far."""

    def advice(self, method: Any) -> str | None:
        """Return advice on the method from the labels of the first batches, once; None otherwise.

        Every process must call this after every batch.
        """
        if self._overlap is None or not self._overlap.is_due():
            return None
        return overlap_advice(method, join_overlaps(gather_object([self._overlap.seen])))

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Batch]:
        return self._read(self.source, 0)

    def start(self, epoch: int, first: int = 0) -> Generator[Batch, None, None]:
        """Return the batches of this epoch from number ``first``; close it to stop early."""
        source = self.source
        if hasattr(source, "set_epoch"):
            source.set_epoch(epoch)
        if self._split is not None:
            self._split.start_at(first)
        elif first:
            source = self.accelerator.skip_first_batches(source, first)
        return self._read(source, first)

    def _read(self, source: Any, first: int) -> Generator[Batch, None, None]:
        device = self.accelerator.device
        try:
            for number, batch in enumerate(source, start=first):
                inputs, targets = unpack(batch, self.tasks)
                own = {task.name: targets.get(task.name) for task in self.tasks}
                padded = self._split is not None and number in self._split.padded
                labels = {
                    task.name: LabelCount(0) if padded else task.count_labels(own[task.name])
                    for task in self.tasks
                }
                self.target_names.update(map(str, targets))
                if self._overlap is not None:
                    self._overlap.observe(inputs, own, labels)
                split = self._own_samples
                rows = None if split is None else split.find(inputs, own, labels)
                found = Batch(inputs, own, labels, rows)
                if device.type != "cpu":
                    # no need to wait for a copy to CUDA: the stream keeps the order
                    found = send_to_device(found, device, non_blocking=device.type == "cuda")
                yield found
        finally:
            if hasattr(source, "end"):
                source.end()  # else Accelerate treats the loader as active


def unpack(batch: Any, tasks: Sequence[Task]) -> tuple[Any, Mapping[str, Tensor | None]]:
    """Return the inputs of a batch, and its targets by task name."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(f"a batch must be (inputs, targets by task name), not {type(batch).__name__}")
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
    """Stack a target that is a list of numbers and None, from a user's loader."""
    return stack_targets(target) if isinstance(target, list) else target


def prepare_loader(
    loader: Any,
    tasks: Sequence[Task],
    accelerator: Any,
    seed: int,
    *,
    training: bool = False,
    own_samples: OwnSamples | None = None,
) -> Batches:
    """Return the batches of a loader for this process: its part of each, on its device.

    A mapping of loaders by task is mixed in training, and read one after the other otherwise.
    """
    if isinstance(loader, Batches):
        return loader
    if isinstance(loader, Mapping):
        loader = mix(loader, seed=seed) if training else in_turn(loader)
    source = _source(loader, tasks, accelerator, seed)
    return Batches(source, tasks, accelerator, training=training, own_samples=own_samples)


def _source(loader: Any, tasks: Sequence[Task], accelerator: Any, seed: int) -> Any:
    """Return a loader that Accelerate tracks and that leaves batches on the host, if possible."""
    if isinstance(loader, DataLoaderShard | DataLoaderDispatcher):
        if accelerator.num_processes > 1:
            warn_first(
                "a loader prepared by Accelerate repeats samples to fill the last batch, so several "
                "processes count them twice; give the Trainer the original loader",
                stacklevel=4,
            )
        return loader
    if not hasattr(loader, "__iter__"):
        raise SpecError(f"expected a torch DataLoader or another iterable of batches, not {loader!r}")
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
        return Stream(loader, tasks, accelerator)
    split_already = isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler)
    batches = ShardedBatches(
        loader.batch_sampler,
        rank=0 if split_already else accelerator.process_index,
        world=1 if split_already else accelerator.num_processes,
        seed=seed,
    )
    kept = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    options = {name: getattr(loader, name) for name in (*kept, "prefetch_factor", "persistent_workers")}
    own = DataLoader(
        loader.dataset,
        batch_sampler=batches,
        collate_fn=collate if loader.collate_fn is default_collate else loader.collate_fn,
        generator=batches.worker_generator,
        **options,
    )
    return place(own, accelerator.device, num_processes=1, process_index=0, put_on_device=False)


class Stream(DataLoaderStateMixin):  # type: ignore[misc]
    """The batches of an iterable, which can only be read in order.

    With several processes, the first one reads and every process takes a part of each batch, so that
    each sample is used once. The stream itself must not be split by rank.
    """

    _drop_last = True

    def __init__(self, batches: Any, tasks: Sequence[Task], accelerator: Any) -> None:
        if getattr(batches, "collate_fn", None) is default_collate:
            batches = copy.copy(batches)
            batches.collate_fn = collate
        self.batches = batches
        self.tasks = tasks
        self.accelerator = accelerator
        self.gradient_state = GradientState()
        self.padded: set[int] = set()
        self._skip = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        skip, self._skip = self._skip, 0
        self.padded = set()
        several = self.accelerator.num_processes > 1
        end = object()
        batches = itertools.chain(self._receive() if several else self._open(), [end])
        pairs = enumerate(itertools.pairwise(batches))
        for number, (batch, following) in itertools.islice(pairs, skip, None):
            self.end_of_dataloader = following is end  # accumulation must end with the last batch
            yield self._take_share(number, batch) if several else batch
        self.end()

    def start_at(self, batch: int) -> None:
        """Skip this many batches in the next iteration."""
        self._skip = batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader and its data set, if they have one."""
        holder: Any
        for holder in (self.batches, getattr(self.batches, "dataset", None)):
            if hasattr(holder, "set_epoch"):
                holder.set_epoch(epoch)

    def _open(self) -> Iterator[Any]:
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed for its workers
            return iter(self.batches)

    def _receive(self) -> Iterator[Any]:
        """Yield the batches that the first process reads; its errors end all processes."""
        reads = self.accelerator.is_main_process
        batches = self._open() if reads else None
        while True:
            message: tuple[Any, ...] = ()
            failure: Exception | None = None
            if batches is not None:
                try:
                    message = (unpack(next(batches), self.tasks), None)
                except StopIteration:
                    message = (None, None)
                except Exception as error:  # of the user's data set
                    message, failure = (None, repr(error)), error
            batch, problem = broadcast_object_list([message])[0]
            if failure is not None:
                raise failure
            if problem is not None:
                raise UsageError(f"the first process could not read a batch: {problem}")
            if batch is None:
                return
            yield batch

    def _take_share(self, number: int, batch: Any) -> Any:
        """Return this process's part of every tensor; one sample if it is empty."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        sizes: list[int] = []
        recursively_apply(lambda tensor: sizes.append(len(tensor)), batch)
        if any(size > 0 and not range(size)[_share(size, rank, world)] for size in sizes):
            self.padded.add(number)
            return recursively_apply(lambda tensor: tensor[:1], batch)
        return recursively_apply(lambda tensor: tensor[_share(len(tensor), rank, world)], batch)
