"""The merge alone, ``method.combine``, in milliseconds, beside TorchJD's in the same run.

Then that of many tasks as a ratio: beside two busy processes, as data loader workers are, to quiet.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import torch

import mtlkit
from benchmarks.speed.timing import Row, interleave

PEERS = {
    "aligned_mtl": "AlignedMTL",
    "cagrad": "CAGrad(c=0.4)",
    "config": "ConFIG",
    "dualproj": "DualProj",
    "fairgrad": "FairGrad(alpha=1.0)",
    "graddrop": "GradDrop",
    "gradvac": "GradVac",
    "imtl_g": "IMTLG",
    "krum": "Krum(n_byzantine=0)",
    "mean": "Mean",
    "mgda": "MGDA",
    "nash_mtl": "NashMTL(n_tasks={tasks})",
    "pcgrad": "PCGrad",
    "random": "Random",
    "sum": "Sum",
    "trimmed_mean": "TrimmedMean(trim_number=1)",
    "upgrad": "UPGrad",
}
LIMITS = {40: 5.0, 3: 1.0}
# Calls in a turn: enough that a short one isn't timed by how the others left the caches.
REPEATS = {40: 5, 3: 20}
MANY = (10, 40, 100, 200)
SOLVERS = ("mgda", "nash_mtl", "cagrad", "upgrad", "dualproj")
MOST_MILLISECONDS = {("upgrad", 200): 200.0}
# Other libraries' code behind an adapter of ours.
NOT_OURS = {"torchjd"}


def _peer(name: str, tasks: int):
    """Return TorchJD's aggregator; None if it is absent or cannot be made."""
    from torchjd import aggregation

    expression = PEERS[name].format(tasks=tasks)
    class_name, _, arguments = expression.partition("(")
    options = dict(pair.split("=") for pair in arguments.rstrip(")").split(",") if pair)
    try:
        factory = getattr(aggregation, class_name)
        return factory(**{k: float(v) if "." in v else int(v) for k, v in options.items()})
    except Exception:
        return None


def run(rounds: int = 15) -> list[Row]:
    """Time every method at K = 40 and K = 3, D = 10,000, one thread."""
    torch.set_num_threads(1)
    rows = []
    for tasks, limit in LIMITS.items():
        torch.manual_seed(0)
        grads = torch.randn(tasks, 10_000) + 0.1
        ours, candidates = {}, {}
        for name in mtlkit.list_methods():
            try:
                method = mtlkit.create_method(name, tasks, feature_dim=8)
            except mtlkit.MtlkitError:
                continue  # needs an option, such as the adapter of other libraries
            if name not in NOT_OURS:
                ours[name] = method
            candidates[name] = partial(method.combine, grads)
            peer = _peer(name, tasks) if name in PEERS else None
            if peer is not None:
                candidates[f"{name} in TorchJD"] = partial(peer, grads)
        seconds = interleave(candidates, rounds, repeats=REPEATS[tasks])
        group = f"combine, K={tasks}, D=10000"
        for name in candidates:
            milliseconds = 1e3 * statistics.median(seconds[name])
            rows.append(Row(group, name, milliseconds, "ms", limit=limit if name in ours else None))
    return rows + [row for tasks in MANY for row in _many(tasks)]


def _many(tasks: int, rounds: int = 5) -> list[Row]:
    """Time the solvers alone and beside busy processes; torch has one thread, BLAS its default."""
    torch.manual_seed(0)
    grads = torch.randn(tasks, 2000) + 0.1
    merges = {name: partial(mtlkit.create_method(name, tasks).combine, grads) for name in SOLVERS}
    quiet = interleave(merges, rounds, warmup=1)
    with _busy(2):
        busy = interleave(merges, rounds, warmup=1)
    rows = []
    for name in merges:
        milliseconds = 1e3 * statistics.median(quiet[name])
        limit = MOST_MILLISECONDS.get((name, tasks))
        rows.append(Row(f"combine, K={tasks}, D=2000", name, milliseconds, "ms", limit=limit))
        slower = statistics.median(busy[name]) / statistics.median(quiet[name])
        rows.append(Row(f"combine, K={tasks}, D=2000, busy / quiet", name, slower, limit=3.0))
    return rows


@contextlib.contextmanager
def _busy(number: int) -> Iterator[None]:
    """Keep this many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
