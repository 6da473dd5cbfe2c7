"""What would train nothing, or something else, is noticed before or in the first step."""

import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.errors import SpecError, UsageError
from tests.training.small_problem import TASKS, SmallNet, make_loader


def trainer_of(model, parameters=None):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.1)
    return mtlkit.Trainer(model, TASKS, optimizer, progress=False)


def test_rotations_outside_the_optimizer_are_warned_of():
    model = SmallNet("rotograd")
    with pytest.warns(UserWarning, match="no optimizer holds .* parameters of rot.*param_groups"):
        trainer_of(model, [*model.backbone.parameters(), *model.heads.parameters()])


def test_a_method_under_another_name_is_refused_with_its_name():
    model = SmallNet("pcgrad")
    model.merge, model.method = model.method, None
    with pytest.raises(SpecError, match=r"under the name 'merge'.*name it 'method'"):
        trainer_of(model)


def test_a_method_that_stays_in_evaluation_mode_is_warned_of():
    class Frozen(SmallNet):
        def train(self, mode=True):
            super().train(mode)
            self.method.eval()
            return self

    with pytest.warns(UserWarning, match="method is in evaluation mode"):
        trainer_of(Frozen("pcgrad")).fit(make_loader(), steps=1)


def test_the_loss_of_a_detached_prediction_is_refused_with_its_task():
    class Detached(SmallNet):
        def forward(self, x):
            predictions = super().forward(x)
            return {**predictions, "value": predictions["value"].detach()}

    with pytest.raises(UsageError, match="the loss of 'value' does not depend on any parameter"):
        trainer_of(Detached("pcgrad")).fit(make_loader(), steps=1)


def test_one_hot_labels_are_refused_with_what_to_give_instead():
    batches = [(x, {**y, "label": nn.functional.one_hot(y["label"], 3)}) for x, y in make_loader()]
    with pytest.raises(UsageError, match=r"'label' has shape \(8, 3\), like one-hot.*argmax"):
        trainer_of(SmallNet()).fit(batches, steps=1)
