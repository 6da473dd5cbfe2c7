"""Several data sets as one: each sample has the inputs and targets of its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, default_collate

from mtlkit.data.base import Split
from mtlkit.data.collate import StackedSamples, collate, join_targets, stack_targets
from mtlkit.data.mixing import BatchesOf, Draw, InTurn, MixedBatches
from mtlkit.errors import SpecError, UsageError


class Mixture(Split):
    """The samples of several sources, one source after the other.

    Args:
        sources: data sets of ``(input, targets)`` by name. Targets are a mapping by task, or one target
            of the task that is named like the source.
        collates: the collate function of a source, if not :func:`~mtlkit.data.collate`.
        renamed: by source, new names of tasks.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        collates: Mapping[str, Callable[[Any], Any]] | None = None,
        renamed: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self.sources = dict(sources)
        self._names = tuple(sources)
        self._collates = dict(collates or {})
        self._renamed = dict(renamed or {})

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources.values())

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        draw = self._find(index)
        name = self._names[draw.source]
        inputs, targets = self.sources[name][draw.sample]
        return inputs, self._by_task(name, targets)

    def __getitems__(self, draws: Sequence[int | Draw]) -> StackedSamples:
        parts: dict[tuple[int, int], list[int]] = {}
        for draw in draws:
            source, index, turn = draw if isinstance(draw, Draw) else self._find(draw)
            parts.setdefault((source, turn), []).append(index)
        read = [self._read(source, indices, turn) for (source, turn), indices in parts.items()]
        inputs = [part for part, _ in read]
        if len(read) == 1:
            return StackedSamples(inputs[0], read[0][1])
        sizes = [len(indices) for indices in parts.values()]
        names = dict.fromkeys(name for _, targets in read for name in targets)
        targets: Any = {n: join_targets([t.get(n) for _, t in read], sizes) for n in names}
        names_of_parts = [self._names[source] for source, _ in parts]
        return StackedSamples(_join_inputs(inputs, names_of_parts), targets)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of all sources that have one."""
        super().set_epoch(epoch)
        for source in self.sources.values():
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)

    def _find(self, index: int) -> Draw:
        rest = index + len(self) if index < 0 else index
        for number, source in enumerate(self.sources.values()):
            if 0 <= rest < len(source):
                return Draw(number, rest, self.epoch)
            rest -= len(source)
        raise IndexError(f"there is no sample {index}; the sources have {len(self)}")

    def _read(self, number: int, indices: list[int], turn: int) -> tuple[Any, dict[str, Any]]:
        name = self._names[number]
        source: Any = self.sources[name]
        # a short source restarts within an epoch, with new augmentations
        epoch: AbstractContextManager[Any] = nullcontext()
        if isinstance(source, Split):
            epoch = source.at_epoch(turn)
        with epoch:
            if hasattr(source, "__getitems__"):
                samples = source.__getitems__(indices)
            else:
                samples = [source[index] for index in indices]
        stack: Any = self._collates.get(name, collate)
        batch = stack(samples)
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise UsageError(
                f"a batch of {name!r} must be (inputs, targets), not {type(batch).__name__}"
            )
        return batch[0], self._by_task(name, batch[1])

    def _by_task(self, name: str, targets: Any) -> dict[str, Any]:
        if not isinstance(targets, Mapping):
            return {name: stack_targets(targets) if isinstance(targets, list) else targets}
        renamed = self._renamed.get(name, {})
        return {renamed.get(task, task): target for task, target in targets.items()}


def mix(
    loaders: Mapping[str, DataLoader[Any]],
    *,
    mixing: str = "proportional",
    batches: BatchesOf = "all",
    seed: int = 0,
) -> DataLoader[Any]:
    """Make one loader for training from several, each with the data of its own tasks.

    Data set, sampler, collate function and batch size are those of the given loaders.

    Args:
        loaders: by task; or by any name, if their batches are ``(inputs, {task: target})``.
        mixing: ``uniform``, ``proportional`` to the numbers of samples, or ``temperature(T)``:
            proportional to size^(1/T).
        batches: ``all``: every batch has samples of all loaders, as many as their batches together;
            the inputs must have the same shape. ``one``: every batch is from one loader.
        seed: seed of the schedule and of the orders.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> ages = TensorDataset(torch.zeros(8, 3), torch.rand(8, 1))
        >>> jobs = TensorDataset(torch.ones(16, 3), torch.zeros(16, dtype=torch.long))
        >>> loaders = {"age": DataLoader(ages, batch_size=2), "job": DataLoader(jobs, batch_size=4)}
        >>> for inputs, targets in mix(loaders):
        ...     print(inputs.shape, [len(targets[task]) for task in ("age", "job")])
        ...     break
        torch.Size([6, 3]) [6, 6]
    """
    _check(loaders)
    samplers = {name: loader.sampler for name, loader in loaders.items()}
    sizes = [int(loader.batch_size or 1) for loader in loaders.values()]
    schedule = MixedBatches(samplers, sizes, mixing=mixing, batches=batches, seed=seed)
    return _loader(loaders, schedule, seed)


def in_turn(loaders: Mapping[str, DataLoader[Any]]) -> DataLoader[Any]:
    """Make one loader for evaluation: all samples of the first loader, then those of the next."""
    _check(loaders)
    sizes = [int(loader.batch_size or 1) for loader in loaders.values()]
    return _loader(loaders, InTurn([loader.sampler for loader in loaders.values()], sizes), 0)


def _loader(loaders: Mapping[str, DataLoader[Any]], schedule: Any, seed: int) -> DataLoader[Any]:
    workers = max(loader.num_workers for loader in loaders.values())
    return DataLoader(
        Mixture(
            {name: loader.dataset for name, loader in loaders.items()},
            {
                name: loader.collate_fn
                for name, loader in loaders.items()
                if loader.collate_fn is not default_collate
            },
        ),
        batch_sampler=schedule,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=any(loader.pin_memory for loader in loaders.values()),
        generator=torch.Generator().manual_seed(seed),
    )


def _check(loaders: Mapping[str, Any]) -> None:
    if not loaders:
        raise SpecError("no loaders; give a mapping such as {'sentiment': loader, 'topic': loader}")
    for name, loader in loaders.items():
        if not isinstance(loader, DataLoader):
            raise SpecError(f"source {name!r} must be a torch DataLoader, not {type(loader).__name__}")
        reason = ""
        if isinstance(loader.dataset, IterableDataset):
            reason = "its data set is iterable and has no length; use a map-style data set"
        elif loader.batch_size is None:
            reason = "it has its own batch sampler; use batch_size and, if needed, a sampler"
        elif isinstance(loader.sampler, DistributedSampler):
            reason = "it has a DistributedSampler; leave it out, because every batch is split already"
        if reason:
            raise SpecError(f"the loader of source {name!r} cannot be mixed: {reason}")


def _join_inputs(parts: Sequence[Any], names: Sequence[str]) -> Any:
    """Join the inputs of several sources, one after the other."""
    first = parts[0]
    if isinstance(first, Tensor):
        shapes = {name: tuple(part.shape[1:]) for name, part in zip(names, parts, strict=True)}
        if len(set(shapes.values())) > 1:
            listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise UsageError(
                f"inputs of different shapes cannot be in one batch: {listing}; set batches=one and "
                "use a network that accepts all shapes, or make the shapes equal"
            )
        return torch.cat(list(parts))
    if isinstance(first, Mapping) and all(part.keys() == first.keys() for part in parts):
        return {key: _join_inputs([part[key] for part in parts], names) for key in first}
    if isinstance(first, tuple | list) and all(len(part) == len(first) for part in parts):
        return [_join_inputs(list(leaves), names) for leaves in zip(*parts, strict=True)]
    raise UsageError(f"inputs of type {type(first).__name__} cannot be joined; set batches=one")
