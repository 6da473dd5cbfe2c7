"""The laws of mtlkit.testing over every registered method.

A method is covered on the day that it is registered: the tests run over ``mtlkit.list_methods()``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

import mtlkit
from mtlkit.method.state import Stateful
from mtlkit.testing import LAWS, check_method, merge_laws
from mtlkit.testing.small_network import INPUTS, WIDTH, SmallNetwork, train
from tests.knobs import DEVICE, DTYPE

NAMES = mtlkit.list_methods()
# options that lead through other code than the defaults do
VARIANTS = [
    "balancer(preference={'0': 2.0})",
    "constant(weights={'0': 2.0})",
    "cr_mogm(inner=modo)",
    "cr_mogm(inner=pcd)",
    "db_mtl(wrt=parameters)",
    "dwa(window=2)",
    "gradnorm(wrt=parameters)",
    "graddrop(leak=0.2)",
    "igb(window=2)",
    "imtl_l+cagrad",
    "lr_annealing(wrt=parameters)",
    "match_primary(primary=1, relax=0.7, beta=0.9)",
    "mgda(normalize=loss)",
    "moco(wrt=parameters)",
    "nash_mtl(update_every=2)",
    "normalize(burn_in=2)+uw",
    "pcd(primary=1)",
    "recap(window=1)",
    "relobralo(rho=0.5)",
    "rlw(dist=bernoulli)+pcgrad",
    "rotate(backend=geotorch)+scale",
    "rotate(start=random)+mgda",
    "rotate(update_every=2)+scale",
    "scale(burn_in=2)",
    "softadapt(points=3, normalized=True, loss_weighted=True)",
    "stch(warmup=3)",
    "stch(warmup=0, transform=none)",
    "upgrad(preference={'0': 2.0})",
    "uw(classification=['0'])",
]
# tests/distributed runs all methods in one pair of processes, tests/engine/test_compiled.py compiles them
ELSEWHERE = ("distributed", "compiled")
OF_MERGES = [law for law in LAWS if hasattr(merge_laws, law)]
OF_STEPS = [law for law in LAWS if law not in (*OF_MERGES, *ELSEWHERE)]


def check(law: str, name: str, numbers_of_tasks: Sequence[int]) -> None:
    for part in mtlkit.create_method(name, 2, feature_dim=6).parts:
        if law in part.waived_laws:
            pytest.skip(f"{part.name} waives the law {law!r}: {part.waived_laws[law]}")
    for tasks in numbers_of_tasks:
        check_method(name, laws=[law], tasks=tasks, seed=tasks, examples=4, device=DEVICE, dtype=DTYPE)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@pytest.mark.parametrize("law", OF_MERGES)
def test_law_of_merges(law, name):
    check(law, name, (2, 3, 6, 40))  # solvers take other ways for many tasks


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@pytest.mark.parametrize("law", OF_STEPS)
def test_law_of_training_steps(law, name):
    check(law, name, (2, 4))


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_an_absent_task_keeps_its_state(name):
    """Those per task, pair and coordinate; the law ``absent_task`` begins without the task."""
    net = SmallNetwork(mtlkit.create_method(name, 3, feature_dim=WIDTH)).double()
    batches = torch.randn(3, 8, INPUTS, dtype=torch.float64)
    train(net, [*batches[:2]])
    parts = [module for module in net.method.modules() if isinstance(module, Stateful)]
    before = copy.deepcopy([part.read((0, 1, 2)) for part in parts])
    train(net, [(batches[2], torch.tensor([[1, 0, 1]] * 8))])
    for part, old in zip(parts, before, strict=True):
        for key, per in part._declared.items():
            was, now = getattr(old, key), getattr(part, key)
            if per != "all":
                assert torch.equal(now[1], was[1]), key
            if per == "pair":
                assert torch.equal(now[:, 1], was[:, 1]), key


@pytest.mark.parametrize("name", NAMES)
def test_waived_laws_exist_and_give_a_reason(name):
    for part in mtlkit.create_method(name, 2, feature_dim=6).parts:
        for law, reason in part.waived_laws.items():
            assert law in LAWS, f"{part.name} waives an unknown law {law!r}"
            assert len(reason) > 10
