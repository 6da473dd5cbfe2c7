"""Several data sets in one run: each sample has the number of its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, RandomSampler, Sampler

from mtlkit.data.mixing import MixedBatches
from mtlkit.errors import SpecError, unknown_name

TASK_IDS = "task_ids"
"""The key of the tasks' numbers in samples and batches."""
IGNORED = -100
"""The label that counts in no loss, as in PyTorch and Transformers."""


class TaskDataset(Dataset[dict[str, Any]]):
    """The samples of several data sets, one after the other, each with its task's number.

    Args:
        datasets: data sets by task; their samples are mappings, such as a tokenizer returns.
        tasks: names of all tasks of the method, in the order of their numbers; default: those of
            ``datasets``.

    >>> data = TaskDataset({"code": [{"input_ids": [1, 2]}], "news": [{"input_ids": [3]}]})
    >>> len(data), data[1]
    (2, {'input_ids': [3], 'task_ids': 1})
    """

    def __init__(self, datasets: Mapping[str, Any], tasks: Sequence[str] | None = None) -> None:
        names = list(datasets if tasks is None else tasks)
        for name, dataset in datasets.items():
            if name not in names:
                raise unknown_name("task of a data set", name, names)
            if not hasattr(dataset, "__len__"):
                raise SpecError(f"the data set of task {name!r} has no length, so it cannot be mixed")
        self.datasets = dict(datasets)
        self._numbers = [names.index(name) for name in datasets]

    def __len__(self) -> int:
        return sum(map(len, self.datasets.values()))

    def __getitem__(self, index: int) -> dict[str, Any]:
        rest = index
        for number, dataset in zip(self._numbers, self.datasets.values(), strict=True):
            if 0 <= rest < len(dataset):
                return {**dataset[rest], TASK_IDS: number}
            rest -= len(dataset)
        raise IndexError(f"sample {index} of a data set of {len(self)} samples")


class TaskSampler(Sampler[int]):
    """Indices of a :class:`TaskDataset`, mixed so that ``batch_size`` in a row hold every task.

    The order depends on the seed and the epoch. A data set that ends starts over in a new order; an
    epoch has as many samples as all data sets together, whatever the mixing.

    Args:
        dataset: the data set to sample from.
        batch_size: number of samples in an optimizer step, over all processes and micro-batches.
        mixing: ``uniform``, ``proportional`` to the numbers of samples, or ``temperature(T)``:
            proportional to size^(1/T).
        seed: seed of the order.

    >>> data = TaskDataset({"code": [{"id": i} for i in range(9)], "news": [{"id": 9}]})
    >>> [data[i]["task_ids"] for i in TaskSampler(data, 4, mixing="uniform")]
    [0, 1, 0, 1, 0, 1, 0, 1]
    """

    def __init__(
        self, dataset: TaskDataset, batch_size: int, *, mixing: str = "proportional", seed: int = 0
    ) -> None:
        samplers = {name: RandomSampler(source) for name, source in dataset.datasets.items()}
        self._batches = MixedBatches(samplers, batch_size, mixing=mixing, batches="all", seed=seed)
        self._batch_size = batch_size
        sizes = [len(source) for source in dataset.datasets.values()]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]

    def __len__(self) -> int:
        return len(self._batches) * self._batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the order."""
        self._batches.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches:
            for draw in batch:
                yield self._starts[draw.source] + draw.sample


class TaskCollator:
    """Stack samples into a batch with ``task_ids``, one per row.

    Args:
        collator: stacks the samples without their task, such as ``DataCollatorForSeq2Seq(tokenizer)``.
            By default lists of numbers are padded on the right; missing ``labels`` are the
            ``input_ids``, and a missing ``attention_mask`` marks what is not padding.
        pad_token_id: padding of ``input_ids`` by the default.

    >>> batch = TaskCollator()([{"input_ids": [5, 6], "task_ids": 1}, {"input_ids": [7], "task_ids": 0}])
    >>> batch["labels"], batch["task_ids"]
    (tensor([[   5,    6],
            [   7, -100]]), tensor([1, 0]))
    """

    def __init__(self, collator: Callable[[Any], Any] | None = None, *, pad_token_id: int = 0) -> None:
        self.collator = collator
        self.pad_token_id = pad_token_id

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch."""
        tasks = torch.tensor([int(sample[TASK_IDS]) for sample in samples])
        plain = [{key: value for key, value in s.items() if key != TASK_IDS} for s in samples]
        batch = self._pad(plain) if self.collator is None else self.collator(plain)
        return {**batch, TASK_IDS: tasks}

    def _pad(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        fillers = {"input_ids": self.pad_token_id, "labels": IGNORED}
        whole = [{"labels": sample["input_ids"], **sample} for sample in samples]
        for sample in whole:
            sample.setdefault("attention_mask", [1] * len(sample["input_ids"]))
        return {
            key: pad_sequence(
                [torch.as_tensor(sample[key]) for sample in whole],
                batch_first=True,
                padding_value=fillers.get(key, 0),
            )
            for key in whole[0]
        }


def label_counts(
    batch: Mapping[str, Any], tasks: int, *, shifted: bool
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Count the labels in the loss, by row and by task; None for a batch without task ids.

    Args:
        batch: batch of a :class:`TaskCollator`.
        tasks: number of tasks.
        shifted: whether the first label of a row is never predicted, as in causal language models.
    """
    if TASK_IDS not in batch or "labels" not in batch:
        return None, None
    labels = batch["labels"]
    counted = labels[:, 1:] if shifted else labels.reshape(len(labels), -1)
    rows = counted.ne(IGNORED).sum(dim=1).float()
    numbers = batch[TASK_IDS].to(rows.device)
    return rows, rows.new_zeros(tasks).index_add(0, numbers, rows)
