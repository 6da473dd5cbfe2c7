"""Compiled networks take the steps that eager ones take."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.architectures.cases import CASES, ids, train

QUICK = (
    "hard_sharing(backbone=mlp",
    "mmoe(backbone",
    "cross_stitch(backbone=mlp(16, 12, inputs=8), fork",
)
COMPILED = [
    pytest.param(case, marks=[] if case.spec.startswith(QUICK) else pytest.mark.slow, id=ids(case))
    for case in CASES
    if len(case.shape) == 1 or case.architecture == "segnet"
]


@pytest.mark.parametrize("case", COMPILED)
def test_a_compiled_network_takes_the_steps_of_the_eager_one(case):
    torch.compiler.reset()
    eager, x = case.build("pcgrad" if case.forks else "sum"), case.inputs()
    compiled = copy.deepcopy(eager)
    compiled.compile(backend="aot_eager")
    expected = train(eager, x, steps=3)
    assert train(compiled, x, steps=3) == pytest.approx(expected, rel=1e-4)
    for parameter, other in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(parameter, other, atol=2e-4)


# ltb reads its path from the weights, which breaks the graph
@pytest.mark.parametrize("case", [c for c in COMPILED if c.values[0].architecture != "ltb"])
def test_inference_is_one_graph(case):
    torch.compiler.reset()
    net, x = case.build("rotograd" if case.forks else "sum").eval(), case.inputs()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected, found = net(x), compiled(x)
    for task, prediction in expected.items():
        assert torch.allclose(found[task], prediction, atol=1e-6)
