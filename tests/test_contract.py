"""Calls of the public contract that other tests do not make, as a user writes them."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.errors import SpecError, UnknownNameError


def test_integrations_are_reached_from_the_package():
    method = mtlkit.integrations.libmtl
    assert callable(method.weighting)
    assert {"libmtl", "lightning"} <= set(dir(mtlkit.integrations))
    with pytest.raises(AttributeError, match="keras"):
        mtlkit.integrations.keras  # noqa: B018


def test_the_number_of_tasks_may_come_from_numpy():
    assert mtlkit.create_method("pcgrad", np.int64(2)).tasks == ("0", "1")


def test_a_table_may_be_named_by_a_path(tmp_path):
    rows = pd.DataFrame(
        {"x": range(40), "z": [k % 7 for k in range(40)], "y": [k % 3 for k in range(40)]}
    )
    rows.to_csv(tmp_path / "rows.csv", index=False)
    data = mtlkit.load_dataset("table", file=tmp_path / "rows.csv", targets={"y": "regression"})
    assert data.task_names == ("y",)
    assert str(tmp_path) in data.spec


class Plain(nn.Module):
    """What the contract asks of an architecture, without the base class."""

    def __init__(self, tasks, *, method="sum"):
        super().__init__()
        self.method = mtlkit.create_method(method, tasks)
        self.backbone = nn.Linear(4, 3)
        self.heads = nn.ModuleDict({name: nn.Linear(3, 1) for name in tasks})

    def forward(self, x):
        views = self.method(self.backbone(x))
        return {name: head(z) for (name, head), z in zip(self.heads.items(), views, strict=True)}

    def shared_parameters(self):
        return self.backbone.parameters()

    def task_parameters(self, name):
        return self.heads[name].parameters()


def test_an_architecture_needs_the_interface_not_the_base_class(monkeypatch):
    monkeypatch.setattr(
        mtlkit.architectures.create.architectures,
        "_factories",
        dict(mtlkit.architectures.create.architectures._factories),
    )
    mtlkit.register_architecture("plain_net")(Plain)
    mtlkit.register_architecture("half_net")(lambda tasks, *, method="sum": nn.Linear(2, 2))
    net = mtlkit.create_architecture("plain_net", ("a", "b"), method="pcgrad")
    assert {name: tuple(y.shape) for name, y in net(torch.randn(5, 4)).items()} == {
        "a": (5, 1),
        "b": (5, 1),
    }
    with pytest.raises(SpecError, match="Linear; it must be an Architecture"):
        mtlkit.create_architecture("half_net", ("a", "b"))


def test_a_wrong_task_is_refused_before_its_parameters_are_asked_for():
    net = mtlkit.create_architecture("hard_sharing", ("a", "b"), backbone=nn.Linear(4, 3))
    with pytest.raises(UnknownNameError, match="'c'"):
        net.task_parameters("c")


def test_the_simplest_fit_says_nothing():
    """Warnings are errors here; without an output there is no checkpoint to speak of."""
    from tests.training.small_problem import TASKS, SmallNet, make_loader

    net = SmallNet("pcgrad")
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    mtlkit.Trainer(net, TASKS, optimizer, progress=False).fit(make_loader(), epochs=1)
