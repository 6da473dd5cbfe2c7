"""Peak memory that a method adds to a ResNet18 step, in MiB, at K = 10.

Every candidate takes three steps in a process of its own, and its largest resident set is compared with
that of the plain sum. All load the solvers' libraries, which are code and not a step's memory (47 MiB).
``python -m benchmarks.speed.memory CANDIDATE`` prints one peak.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.speed.peers import Autogram, TorchJD
from benchmarks.speed.steps import TASKS, Candidate
from benchmarks.speed.timing import Row
from mtlkit.method.host import load_solvers

FEATURES = ("pcgrad", "upgrad", "gradnorm", "graddrop")
PARAMETERS = ("upgrad", "pcgrad", "graddrop", "moco")
PEERS = {"TorchJD UPGrad": TorchJD, "TorchJD autogram UPGrad": Autogram}
STEPS = 3


def peak(name: str) -> float:
    """Return the largest resident set of this process, in MiB, after some steps of a candidate."""
    torch.set_num_threads(1)
    load_solvers()
    batch = (torch.randn(64, 3, 32, 32), torch.randint(0, 2, (64, TASKS)).float())
    spec = None if name == "plain" else name
    step = PEERS[name]("UPGrad", batch) if name in PEERS else Candidate(spec, batch)
    for _ in range(STEPS):
        step()
    # not ru_maxrss, which begins with the peak of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def _measure(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.speed.memory", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run() -> list[Row]:
    """Measure the added memory at the features, at the parameters, and that of TorchJD."""
    plain = _measure("plain")
    group = f"memory added to a ResNet18 step, batch 64, K={TASKS}"
    rows = [Row(group, name, _measure(name) - plain, "MiB", limit=30.0) for name in FEATURES]
    theirs = {name: _measure(name) - plain for name in PEERS}
    rows += [Row(group, name, added, "MiB") for name, added in theirs.items()]
    for name in PARAMETERS:
        spec = f"{name}(wrt=parameters)"
        limit = theirs["TorchJD UPGrad"] / 2 if name in ("upgrad", "pcgrad") else None
        rows.append(Row(group, spec, _measure(spec) - plain, "MiB", limit=limit))
    return rows


if __name__ == "__main__":
    print(peak(sys.argv[1]))
