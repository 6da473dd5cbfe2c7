"""A data set's tasks fit the ready-made tasks of the Trainer, and its network fits its images."""

import pytest
import torch

import mtlkit
from mtlkit import Task
from mtlkit.data import load_dataset
from mtlkit.data.published.celeba import CelebA
from mtlkit.data.published.cifar10 import Cifar10
from mtlkit.data.published.digit_pairs import MultiSvhn
from mtlkit.data.published.mtan import NyuV2

MADE = {
    "multidigits": lambda: load_dataset("multidigits"),
    "multisvhn": lambda: MultiSvhn(),
    "cifar10": lambda: Cifar10(),
    "celeba": lambda: CelebA(),
    "nyuv2": lambda: NyuV2(size=(64, 96)),
}


@pytest.mark.parametrize("name", MADE)
def test_the_network_of_a_data_set_predicts_what_its_tasks_need(name):
    data = MADE[name]()
    outputs = {task.name: task.outputs for task in data.tasks}
    network = mtlkit.create_architecture(data.default_architecture, outputs, method="sum")
    predictions = network(torch.rand(2, *data.input_shape))
    assert list(predictions) == list(outputs)
    for task in data.tasks:
        dense = task.kind in ("segmentation", "depth", "normals")
        expected = (2, task.outputs, *data.input_shape[1:]) if dense else (2, task.outputs)
        assert predictions[task.name].shape == expected


@pytest.mark.parametrize("name", MADE)
def test_the_tasks_of_a_data_set_have_metrics_with_directions(name):
    described = MADE[name]().tasks
    assert described
    for task in described:
        assert isinstance(task, Task)
        assert set(task.compared) <= set(task.higher_is_better)
        assert task.main_metric in task.higher_is_better
