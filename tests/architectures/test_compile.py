"""Compiled networks take the steps that eager ones take."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.architectures.cases import CASES, ids, train

COMPILED = [
    case
    for case in CASES
    if case.architecture in ("hard_sharing", "mmoe", "ple", "dselect_k", "cross_stitch", "ltb", "segnet")
    and len(case.shape) == 1
] + [case for case in CASES if case.architecture == "segnet"]


@pytest.mark.parametrize("case", COMPILED, ids=ids)
@pytest.mark.parametrize("method", ["sum", "pcgrad"])
def test_a_compiled_network_takes_the_steps_of_the_eager_one(case, method):
    if not case.forks and method != "sum":
        pytest.skip("no shared features")
    torch._dynamo.reset()
    eager, x = case.build(method), case.inputs()
    compiled = copy.deepcopy(eager)
    compiled.compile(backend="aot_eager")
    expected = train(eager, x, steps=3)
    assert train(compiled, x, steps=3) == pytest.approx(expected, rel=1e-4)
    for parameter, other in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(parameter, other, atol=2e-4)


@pytest.mark.parametrize("case", [c for c in COMPILED if c.architecture != "ltb"], ids=ids)
def test_inference_is_one_graph(case):
    """Evaluation compiles without a break; that of ltb reads its path from the weights, and breaks."""
    torch._dynamo.reset()
    net, x = case.build("rotograd" if case.forks else "sum").eval(), case.inputs()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected, found = net(x), compiled(x)
    for task, prediction in expected.items():
        assert torch.allclose(found[task], prediction, atol=1e-6)
