"""Calls of the public contract that other tests do not make, as a user writes them."""

from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.config.registry import architectures, methods
from mtlkit.errors import SpecError, UnknownNameError, UsageError


def test_integrations_are_reached_from_the_package():
    method = mtlkit.integrations.libmtl
    assert callable(method.weighting)
    assert {"libmtl", "lightning"} <= set(dir(mtlkit.integrations))
    with pytest.raises(AttributeError, match="keras"):
        mtlkit.integrations.keras  # noqa: B018


def test_the_number_of_tasks_may_come_from_numpy():
    assert mtlkit.create_method("pcgrad", np.int64(2)).tasks == ("0", "1")


def test_the_names_of_tasks_may_come_from_a_dict_or_from_numpy():
    heads = {"seg": 3, "depth": 1}
    for given in (heads, heads.keys(), np.array(list(heads)), iter(heads)):
        names = mtlkit.create_method("pcgrad", given).tasks
        assert names == ("seg", "depth")
        assert {*map(type, names)} == {str}


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


def test_an_architecture_needs_the_interface_not_the_base_class():
    with architectures.temporary():
        mtlkit.register_architecture("plain_net")(Plain)
        mtlkit.register_architecture("half_net")(lambda tasks, *, method="sum": nn.Linear(2, 2))
        net = mtlkit.create_architecture("plain_net", ("a", "b"), method="pcgrad")
        shapes = {name: tuple(y.shape) for name, y in net(torch.randn(5, 4)).items()}
        assert shapes == {"a": (5, 1), "b": (5, 1)}
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


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (torch.tensor([[4, 0], [0, 1]]), r"of floats; got \(2, 2\) of torch.int64"),
        (torch.tensor([4.0, 1.0]), r"got \(2,\) of torch.float32"),
        (torch.ones(2, 3), r"got \(2, 3\)"),
        ([[1.0, 0.0], [0.0, 1.0]], "got list"),
        (torch.eye(3), r"one row per task; got \(3, 3\) for 2 tasks"),
    ],
)
@pytest.mark.parametrize("spec", ["mean", "mgda", "pcgrad", "uw", "uw+pcgrad", "scale"])
def test_weights_refuses_what_is_no_gram_matrix(spec, gram, message):
    with pytest.raises(SpecError, match=message):
        mtlkit.create_method(spec, 2).weights(gram)


def test_numbers_of_numpy_do_not_show_in_the_string():
    method = mtlkit.create_method("cagrad", 2, c=np.float64(0.3))
    assert str(method) == "cagrad(c=0.3)"
    weights = np.linspace(1, 2, 2)
    method = mtlkit.create_method("constant", 2, weights=list(weights))
    assert str(mtlkit.create_method(str(method), 2)) == str(method) == "constant(weights=[1.0, 2.0])"


@pytest.mark.parametrize(
    ("name", "options", "string"),
    [
        ("cagrad", {"c": np.float32(0.5)}, "cagrad(c=0.5)"),
        ("cagrad", {"c": torch.tensor(0.5)}, "cagrad(c=0.5)"),
        ("pcgrad", {"seed": np.arange(4)[3]}, "pcgrad(seed=3)"),
        ("upgrad", {"preference": torch.tensor([1.0, 2.0])}, "upgrad(preference=[1.0, 2.0])"),
        ("upgrad", {"preference": np.array([1, 2])}, "upgrad(preference=[1, 2])"),
        ("upgrad", {"preference": {"b": np.int64(2)}}, "upgrad(preference={b: 2})"),
        ({"constant": {"weights": tuple(np.array([1, 2]))}}, {}, "constant(weights=(1, 2))"),
    ],
)
def test_numbers_and_arrays_of_numpy_and_torch_are_options(name, options, string):
    method = mtlkit.create_method(name, ("a", "b"), **options)
    assert str(method) == str(mtlkit.create_method(string, ("a", "b"))) == string


def test_a_tensor_stays_one_for_an_option_of_a_plugin_that_is_one():
    with methods.temporary():

        @mtlkit.register_method("matrix_merge")
        class MatrixMerge(mtlkit.GradientAggregator):
            def __init__(self, tasks, *, matrix: torch.Tensor, **common):
                super().__init__(tasks, **common)
                self.matrix = matrix

            def weigh(self, gram, state):
                return self.matrix.sum(dim=0), state

        method = mtlkit.create_method("matrix_merge", 2, matrix=torch.eye(2))
        assert torch.equal(method.parts[0].matrix, torch.eye(2))


def test_the_parts_of_a_method_make_a_method():
    method = mtlkit.create_method("uw+cagrad(c=0.2)", 2)
    assert str(mtlkit.create_method(method.parts, 2)) == "uw+cagrad(c=0.2)"


@pytest.mark.parametrize("resume", [True, False])
def test_resuming_from_a_bool_says_what_is_accepted(resume, tmp_path):
    from tests.training.small_problem import TASKS, SmallNet, make_loader

    net = SmallNet("pcgrad")
    trainer = mtlkit.Trainer(net, TASKS, torch.optim.Adam(net.parameters()), output=tmp_path)
    with pytest.raises(mtlkit.MtlkitError, match="resume must be 'auto', the path"):
        trainer.fit(make_loader(), epochs=1, resume=resume)
    with pytest.raises(mtlkit.MtlkitError, match="resume must be 'auto', the path"):
        mtlkit.train(data="multidigits", output=tmp_path / "run", resume=resume)


def test_tasks_need_an_order():
    with pytest.raises(SpecError, match="must have an order, which a set has not"):
        mtlkit.create_method("pcgrad", {"seg", "depth"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mtlkit.create_method("rotograd", 2, feature_dim="4"), "feature_dim must be an integer"),
        (lambda: mtlkit.create_method("rotograd", 2, feature_dim=4.0), "feature_dim must be an integer"),
        (
            lambda: mtlkit.create_method("uw", 2).total(None),
            "losses must be 2 separate scalars.*not NoneType",
        ),
        (lambda: mtlkit.create_method("pcgrad", 2, seed=10**23), "seed.*must be an integer"),
        (lambda: mtlkit.param_groups(3, lr=0.1), "a module or a list of modules, not 3"),
        (lambda: mtlkit.param_groups(nn.Linear(2, 2), lr="a"), "lr must be a number, not 'a'"),
        (lambda: mtlkit.create_method("pcgrad", 2, shared=["encoder"]), "groups, not list of str"),
        (lambda: mtlkit.create_method("pcgrad", 2, shared=nn.ReLU()), "not ReLU without any"),
        (lambda: mtlkit.register_method("lambda"), "name must be a word"),
        (
            lambda: mtlkit.create_architecture("hard_sharing(backbone='mlp(4)')", {"a": "3"}),
            "outputs of task 'a' must be an integer, 1 or more, not '3'",
        ),
    ],
)
def test_a_plausible_mistake_is_named(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def test_an_option_that_is_not_kept_is_named():
    class Loses(mtlkit.GradientAggregator):
        name = "loses"

        def __init__(self, tasks, *, alpha: float = 1.0, **common):
            super().__init__(tasks, **common)

        def weigh(self, gram, state):
            return torch.ones_like(gram[0]), state

    with pytest.raises(UsageError, match="keep every option in __init__"):
        str(Loses(2))


@pytest.mark.parametrize("spec", ["pcgrad", "rotograd", "pcgrad(wrt=parameters)"])
def test_a_second_total_of_one_fork_is_named(spec):
    method = mtlkit.create_method(spec, 2, feature_dim=4)
    views = method(nn.Linear(3, 4)(torch.randn(5, 3)))
    losses = [view.sum() for view in views]
    method.total(losses)
    with pytest.raises(UsageError, match="called twice for one method"):
        method.total(losses)


def test_ordered_features_stay_ordered():
    features = OrderedDict(a=torch.randn(2, 3, requires_grad=True), b=torch.randn(2, 3))
    for view in mtlkit.create_method("pcgrad", 2)(features):
        assert type(view) is OrderedDict
