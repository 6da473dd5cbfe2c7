"""Every architecture obeys the laws, and every law notices a network that breaks it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.config.registry import architectures
from mtlkit.testing import check_architecture
from mtlkit.testing.architectures import LAWS
from tests.architectures.cases import CASES, TASKS, ids, light


def test_every_registered_architecture_is_tested_here():
    tested = {case.architecture for case in CASES}
    own = {
        n for n in mtlkit.list_architectures() if architectures.get(n).__module__.startswith("mtlkit.")
    }
    assert own == tested


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_every_architecture_obeys_the_laws(case):
    check_architecture(case.spec, inputs=case.inputs, tasks=TASKS)


@pytest.mark.parametrize("name", ["hard_sharing", "mmoe", "cgc", "ple", "dselect_k"])
def test_a_name_alone_is_enough_where_a_backbone_is_needed(name):
    check_architecture(name)


class Net(mtlkit.Architecture):
    """Obeys all laws; each class below breaks one."""

    def __init__(self, tasks, *, width: int = 6, method="sum", **common):
        super().__init__(tasks, **common)
        self.trunk = nn.Linear(8, width)
        self.heads = self.by_task({task: nn.Linear(width, n) for task, n in self.outputs.items()})
        self.features = self.vector_features(width)
        self.set_method(method)

    def encode(self, inputs):
        return self.trunk(inputs).tanh()

    def predict(self, task, shared, inputs):
        return self.head(task)(shared)

    def other_head(self, task):
        return self.head(self.tasks[self.tasks.index(task) - 1])


class NoPredictionOfTheLastTask(Net):
    def forward(self, inputs):
        predictions = super().forward(inputs)
        del predictions[self.tasks[-1]]
        return predictions


class ForksTwice(Net):
    def forward(self, inputs):
        with torch.no_grad():
            self.method(self.encode(inputs))
        return super().forward(inputs)


class ForgetsItsHeads(Net):
    def task_modules(self, task):
        return []


class DetachesItsFeatures(Net):
    def encode(self, inputs):
        return super().encode(inputs).detach()


class PassesByTheFork(Net):
    waived_laws = {"parameters are divided": "to see that another law notices too"}

    def predict(self, task, shared, inputs):
        return super().predict(task, shared + self.encode(inputs), inputs)


class ReadsTheOtherHead(Net):
    waived_laws = {
        "parameters are divided": "to see that another law notices too",
        "merging touches shared parameters alone": "likewise",
    }

    def predict(self, task, shared, inputs):
        return super().predict(task, shared, inputs) + self.other_head(task)(shared).mean()


class CountsOutsideItsState(Net):
    shift = 0.0

    def encode(self, inputs):
        self.shift += 1e-3 if self.training else 0.0
        return super().encode(inputs) + self.shift


class KeepsTheGraph(Net):
    def encode(self, inputs):
        self.last = super().encode(inputs)
        return self.last


class DrawsInEvaluation(Net):
    def encode(self, inputs):
        return super().encode(inputs) + torch.rand(1)


class RunsTheOtherHead(Net):
    def predict(self, task, shared, inputs):
        with torch.no_grad():
            self.other_head(task)(shared)
        return super().predict(task, shared, inputs)


class TakesAnyTask(Net):
    def check_task(self, task):
        return task if task in self.tasks else self.tasks[0]


class MixesSamples(Net):
    def encode(self, inputs):
        features = super().encode(inputs)
        return features - features.mean(dim=0)


class ChangesItsOptions(Net):
    def __init__(self, tasks, *, sizes=(), **common):
        super().__init__(tasks, **common)
        sizes.append(1)


BROKEN = [
    ("predictions by task", NoPredictionOfTheLastTask),
    ("one fork", ForksTwice),
    ("parameters are divided", ForgetsItsHeads),
    ("training", DetachesItsFeatures),
    ("merging touches shared parameters alone", PassesByTheFork),
    ("missing task", ReadsTheOtherHead),
    ("evaluation", DrawsInEvaluation),
    ("state dict", CountsOutsideItsState),
    ("deepcopy", KeepsTheGraph),
    ("one task alone", RunsTheOtherHead),
    ("unknown task", TakesAnyTask),
    ("own batches", MixesSamples),
    ("config string", "changes_its_options(sizes=[2])"),
]


def test_a_network_that_obeys_the_laws_passes_as_a_class():
    check_architecture(Net, inputs=torch.randn(6, 8), tasks=("x.y", "type", "keys"), width=5)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("hard_sharing", {"backbone": "mlp(16, inputs=8)"}),
        ("mmoe(input_size=[2, 4], expert=mlp(6))", {}),
        ("paper_svhn", {"logits": True}),
    ],
)
def test_inputs_are_found_for_the_first_layer(spec, options):
    check_architecture(spec, **options)


def test_a_network_whose_inputs_are_not_found_asks_for_them():
    class TakesMappings(Net):
        def encode(self, inputs):
            return super().encode(inputs.get("x"))

    with pytest.raises(mtlkit.MtlkitError, match="inputs="):
        check_architecture(TakesMappings)
    check_architecture(TakesMappings, inputs=lambda: {"x": torch.randn(6, 8)})
    with pytest.raises(mtlkit.MtlkitError, match="two tasks"):
        check_architecture(Net, tasks=1)


@pytest.mark.parametrize(("law", "broken"), BROKEN)
def test_a_broken_law_is_named_first(law, broken):
    with architectures.temporary(), pytest.raises(AssertionError, match=rf"^{law}: "):
        architectures.register("changes_its_options")(ChangesItsOptions)
        check_architecture(broken, inputs=torch.randn(6, 8))


def test_every_law_is_seen_broken():
    assert [law for law, _ in BROKEN] == list(LAWS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda self, task: [self.trunk, self.head(task)], "belong to several"),
        (lambda self, task: [], r"predict\('a'\) uses heads\.a\.bias, heads\.a\.weight"),
        (lambda self, task: [self.head(task), *self.heads.values()], "belong to several"),
    ],
    ids=["trunk", "nothing", "all heads"],
)
def test_wrong_task_modules_are_reported_by_parameter(given, message):
    broken = type("Broken", (Net,), {"task_modules": given})
    with pytest.raises(AssertionError, match=message):
        check_architecture(broken, inputs=torch.randn(6, 8))


def test_checking_does_not_change_the_random_state():
    before = torch.get_rng_state()
    check_architecture(Net, inputs=torch.ones(6, 8))
    assert torch.equal(torch.get_rng_state(), before)
