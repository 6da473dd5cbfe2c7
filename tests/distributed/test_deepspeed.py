"""DeepSpeed's engine on two CPU processes: ZeRO stages 0 to 3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.train_with_deepspeed import CASES, RATE, REFUSED, batches, network

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("MTLKIT_DEEPSPEED")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="DeepSpeed is not installed: run `make test-slow`"),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepspeed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    paths = os.pathsep.join([str(ROOT), str(FOLDER)])
    subprocess.run(
        [*command, str(ROOT / "tests" / "distributed" / "train_with_deepspeed.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        check=True,
        timeout=600,
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("spec", "stage", "micro"), CASES)
def test_two_processes_end_where_a_plain_loop_in_one_does(outcomes, spec, stage, micro):
    net = network(spec)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for step in batches(micro):
        optimizer.zero_grad()
        for x in step:
            (net(x) / micro).backward()
        optimizer.step()
    for outcome in outcomes:
        for name, expected in net.named_parameters():
            found = outcome[spec, stage, micro][name]
            torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("spec", "stage", "micro"), REFUSED)
def test_what_zero_3_cannot_do_is_refused_on_every_process(outcomes, spec, stage, micro):
    assert all("DeepSpeed" in outcome[spec, stage, micro] for outcome in outcomes)
