"""Networks without shared features: which methods train them, and what the others are told."""

from __future__ import annotations

import re

import pytest

import mtlkit
from mtlkit.errors import SpecError
from tests.architectures.cases import CASES, TASKS, ids, train


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("pcgrad", "pcgrad(wrt=parameters)"),
        ("pcgrad(wrt=features)", "pcgrad(wrt=parameters)"),
        ("rotograd", "scale(wrt=parameters)"),
        ("rotate", "sum"),
        ("rotate+cagrad(c=0.3, wrt=parameters)", "cagrad(c=0.3, wrt=parameters)"),
        ("normalize+mgda", "normalize+mgda(wrt=parameters)"),
    ],
)
def test_methods_that_need_features_are_refused_where_there_are_none(case, method, remedy):
    message = rf"write '{re.escape(remedy)}'; or .*\(fork="
    with pytest.raises(SpecError, match=message):
        case.build(method)
    ready = mtlkit.create_method(method, TASKS, feature_dim=12)
    with pytest.raises(SpecError, match=message):
        case.build(ready)
    assert str(case.build(remedy).method) == remedy


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
@pytest.mark.parametrize("method", ["pcgrad(wrt=parameters)", "normalize+mgda(wrt=parameters)"])
def test_merges_of_parameter_gradients_train_networks_without_shared_features(case, method):
    history = train(case.build(method), case.inputs(), steps=20)
    assert history[-1] < 0.95 * history[0]


@pytest.mark.parametrize("case", [c for c in CASES if not c.forks], ids=ids)
def test_methods_that_weigh_losses_work_without_shared_features(case):
    net = case.build("normalize")
    history = train(net, case.inputs(), steps=10)
    assert history[-1] < history[0]
