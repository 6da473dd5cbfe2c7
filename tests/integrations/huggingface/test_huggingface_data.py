"""Data sets by task: their samples, their order and their batches; Transformers is not needed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from mtlkit.errors import SpecError
from mtlkit.integrations.huggingface import TaskCollator, TaskDataset, TaskSampler

SIZES = {"code": 64, "news": 16}


def data(sizes=SIZES):
    return TaskDataset({task: [{"input_ids": [i]} for i in range(n)] for task, n in sizes.items()})


def test_a_sample_has_the_number_of_its_task_among_all_tasks():
    found = TaskDataset({"news": [{"input_ids": [4]}]}, tasks=("code", "news"))
    assert found[0] == {"input_ids": [4], "task_ids": 1}
    with pytest.raises(IndexError):
        found[1]


def test_a_data_set_of_an_unknown_task_is_refused():
    with pytest.raises(SpecError, match="did you mean 'news'"):
        TaskDataset({"nwes": []}, tasks=("code", "news"))


@pytest.mark.parametrize(
    ("mixing", "expected"), [("uniform", (6, 6)), ("proportional", (10, 2)), ("temperature(2)", (8, 4))]
)
def test_every_step_has_the_tasks_in_the_proportions_of_the_mixing(mixing, expected):
    dataset = data()
    order = list(TaskSampler(dataset, 12, mixing=mixing))
    assert len(order) == len(TaskSampler(dataset, 12, mixing=mixing)) == 72
    for start in range(0, len(order), 12):
        found = Counter(dataset[i]["task_ids"] for i in order[start : start + 12])
        assert (found[0], found[1]) == expected


def test_the_order_follows_from_seed_and_epoch_alone():
    first, again, other = (TaskSampler(data(), 10, seed=seed) for seed in (3, 3, 4))
    assert list(first) == list(again) != list(other)
    again.set_epoch(1)
    assert list(first) != list(again)
    assert (
        sorted(first) == sorted(again) == list(range(80))
    )  # each sample once, as every step has 8 and 2


def test_the_default_collator_pads_and_another_one_is_given_samples_without_their_task():
    samples = [
        {"input_ids": [5, 6], "labels": [-100, 6], "task_ids": 1},
        {"input_ids": [7], "task_ids": 0},
    ]
    batch = TaskCollator(pad_token_id=9)(samples)
    assert batch["input_ids"].tolist() == [[5, 6], [7, 9]]
    assert batch["labels"].tolist() == [[-100, 6], [7, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    seen = TaskCollator(lambda given: {"keys": [sorted(sample) for sample in given]})(samples)
    assert seen["keys"] == [["input_ids", "labels"], ["input_ids"]]
    assert torch.equal(seen["task_ids"], torch.tensor([1, 0]))
