"""Tasks that are labeled on different samples are noticed, and nothing else is."""

import pytest
import torch

import mtlkit
from mtlkit import Task
from mtlkit.tasks.overlap import Overlap, join_overlaps, label_overlap, overlap_advice

TASKS = (Task.binary("yes"), Task.classification("class", 3), Task.regression("number", 2))
NAN = torch.nan


def overlap(yes, classes, numbers, **options) -> Overlap:
    targets = {
        "yes": None if yes is None else torch.tensor(yes),
        "class": None if classes is None else torch.tensor(classes),
        "number": None if numbers is None else torch.tensor(numbers),
    }
    return label_overlap(TASKS, targets, **options)


def test_a_sample_with_labels_of_two_tasks_is_found():
    half = [[NAN, 1.0], [NAN, NAN], [NAN, NAN]]
    assert overlap([1.0, NAN, NAN], [-1, 2, -100], [[NAN, NAN]] * 3) == Overlap(False, 0b011)
    assert overlap([1.0, NAN, NAN], [-1, 2, -100], half) == Overlap(True, 0b111)
    assert overlap(None, [0, 1, 2], None) == Overlap(False, 0b010)
    assert overlap([0.0, 1.0], [0, 1], None) == Overlap(True, 0b011)
    assert overlap(None, None, None) == Overlap(False, 0)


def test_inputs_by_task_mean_that_tasks_have_samples_of_their_own():
    inputs = {"yes": torch.zeros(2, 4), "class": torch.zeros(3, 4)}
    assert overlap([0.0, 1.0], [0, 1, 2], None, inputs=inputs) == Overlap(False, 0b011)


def test_the_shares_of_processes_are_joined_batch_by_batch():
    first, second = Overlap(False, 0b01), Overlap(False, 0b10)
    assert join_overlaps([[first, first], [second, first]]) == [Overlap(False, 0b11), first]
    assert join_overlaps([[first], [Overlap(True, 0b11)]]) == [Overlap(True, 0b11)]


APART, ONE, SHARED, NONE = (Overlap(False, 3), Overlap(False, 1), Overlap(True, 3), Overlap(False, 0))


@pytest.mark.parametrize(
    ("method", "overlaps", "said"),
    [
        ("pcgrad", [APART, ONE], "never overlap"),
        ("uw+mgda", [APART], "never overlap"),
        ("rotate+scale", [APART], "without rotate"),
        ("pcgrad", [ONE, Overlap(False, 2), NONE], "nothing to merge"),
        ("gradnorm", [ONE], "nothing to merge"),
        ("pcgrad", [APART, SHARED], None),
        ("pcgrad", [NONE], None),
        ("pcgrad", [], None),
        ("pcgrad(wrt=parameters)", [APART], None),
        ("gradnorm", [APART], None),
        ("uw", [APART], None),
        ("sum", [ONE], None),
        ("mean", [ONE], None),
    ],
)
def test_the_advice_is_for_methods_that_work_in_vain(method, overlaps, said):
    advice = overlap_advice(mtlkit.create_method(method, 2, feature_dim=4), overlaps)
    assert advice is None if said is None else said in advice


def test_one_task_alone_needs_no_advice():
    assert overlap_advice(mtlkit.create_method("pcgrad", 1), [ONE]) is None


@pytest.mark.parametrize("name", ["scale", "gradnorm", "excess_mtl", "db_mtl"])
def test_merges_that_do_not_read_angles_are_those_that_say_so(name):
    turned = torch.tensor([[1.0, -0.9], [-0.9, 4.0]])
    straight = torch.diag(turned.diagonal())
    weights = [mtlkit.create_method(name, 2).weights(gram) for gram in (turned, straight)]
    assert not mtlkit.create_method(name, 2).merging.reads_angles
    assert torch.equal(*weights)
