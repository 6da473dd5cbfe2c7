"""Run the trainings of a comparison: in this process, in several, or as jobs of submitit."""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import patch_environment

from mtlkit.config.files import read_json
from mtlkit.errors import ConfigError, MissingExtraError, UsageError
from mtlkit.experiments.compare_config import MethodsConfig
from mtlkit.experiments.jobs import Job, Outcome, read_outcome, run_job

Started = Callable[[Job], None]
Ended = Callable[[Job, Outcome], None]
_PATIENCE = 60.0
_MOST_JOBS = 8


def number_of_jobs(jobs: int | None, device: str) -> int:
    """Return the number of parallel trainings: as given, or one per GPU, or one per core, at most 8."""
    if jobs is not None:
        return jobs
    return (0 if device == "cpu" else _gpus()) or min(_cores(), _MOST_JOBS)


def threads_of(header: Path, config: MethodsConfig) -> int:
    """Return the threads per training of the folder's first call, which fix the order of sums."""
    known = read_json(header) or {}
    threads = (known.get("config") or known).get("threads")
    return threads if isinstance(threads, int) else threads_per_job(config.jobs, config.device)


def threads_per_job(jobs: int | None, device: str) -> int:
    """Return the threads of each training: its fraction of the cores, at most ``OMP_NUM_THREADS``."""
    threads = max(1, _cores() // number_of_jobs(jobs, device))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(limit)) if limit.isdigit() and int(limit) > 0 else threads


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class Launcher:
    """Runs jobs one after another in this process; subclasses run several elsewhere.

    A job is requested only when it can start, so ``jobs`` may depend on the outcomes of earlier ones.
    """

    number = 1

    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs; on Ctrl-C or SIGTERM, stop the running ones at a checkpoint and raise.

        ``started`` and ``ended`` are called in this thread.
        """
        waiting = iter(jobs)
        running: list[tuple[Job, Any]] = []
        try:
            with _terminate_as_interrupt():
                while True:
                    while len(running) < self.number and (job := next(waiting, None)) is not None:
                        started(job)
                        running.append((job, self.submit(job)))
                    if not running:
                        break
                    finished = [pair for pair in running if pair[1].done()]
                    for pair in finished:
                        running.remove(pair)
                        ended(pair[0], self.outcome(*pair))
                    if not finished:
                        time.sleep(0.1)
        except BaseException:
            self.stop([future for _, future in running])
            raise
        self.close()

    def submit(self, job: Job) -> Any:
        """Start a job; the result has ``done()``, ``exception()`` and ``result()``."""
        future: Future[Outcome] = Future()
        future.set_result(run_job(job))
        return future

    def outcome(self, job: Job, future: Any) -> Outcome:
        """Return the outcome of a job, even if its process died."""
        error = future.exception()
        if error is None:
            outcome: Outcome = future.result()
            return outcome
        return read_outcome(job) or Outcome(error=" ".join(str(error).split())[:500])

    def stop(self, futures: list[Any]) -> None:
        """Stop the running jobs at a checkpoint."""

    def close(self) -> None:
        """Release resources."""


class LocalProcesses(Launcher):
    """Runs jobs in several processes on this machine.

    Each process has its own executor, so that a process that dies (out of memory, a crash in native
    code) only fails its own job. With several GPUs, each process sees one of them.
    """

    def __init__(self, number: int) -> None:
        _require_main_guard()
        self.number = number
        self._pools: dict[int, ProcessPoolExecutor] = {}
        self._workers: dict[int, Any] = {}
        self._places: dict[Any, int] = {}  # by future of a running job

    def submit(self, job: Job) -> Any:
        """Start a job in an idle process."""
        place = next(p for p in range(self.number) if p not in self._places.values())
        before = set(multiprocessing.active_children())
        if place not in self._pools:
            context = multiprocessing.get_context("spawn")
            self._pools[place] = ProcessPoolExecutor(1, context, _prepare, (os.getpid(),))
        with patch_environment(**_one_gpu(place)):
            future = self._pools[place].submit(run_job, job)
        self._places[future] = place
        for worker in set(multiprocessing.active_children()) - before:
            self._workers[place] = worker
        return future

    def outcome(self, job: Job, future: Any) -> Outcome:
        """Return the outcome of a job; a process that died is replaced."""
        place = self._places.pop(future)
        if not isinstance(future.exception(), BrokenExecutor):
            return super().outcome(job, future)
        del self._pools[place]  # the next job starts another process
        self._workers[place].join(5)
        code = self._workers[place].exitcode
        name = signal.Signals(-code).name if code and -code in set(signal.Signals) else ""
        died = f"was killed by {name}" if name else f"ended with exit code {code}"
        return read_outcome(job) or Outcome(error=f"the process {died}")

    def stop(self, futures: list[Any]) -> None:
        """Terminate the processes, and wait a minute for their checkpoints."""
        for worker in self._workers.values():
            if worker.is_alive():
                worker.terminate()  # the Trainer saves a checkpoint first
        if wait(futures, _PATIENCE).not_done:
            for worker in self._workers.values():
                worker.kill()
        self.close()

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._pools.clear()
        self._workers.clear()


def _require_main_guard() -> None:
    """Raise if the script that Python runs would start its comparison again in every process."""
    main = sys.modules["__main__"]
    script, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if script is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return  # a notebook, or `python -m package`: neither is run again
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError):  # a program without source
        return
    tests = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    names = (part.id for test in tests for part in ast.walk(test) if isinstance(part, ast.Name))
    if "__name__" not in names:
        raise UsageError(
            f"{script} would run again in every process that trains, because each imports it: put the "
            "call under `if __name__ == '__main__':`, or train in one process with jobs=1"
        )


def _one_gpu(place: int) -> dict[str, str]:
    """Return the environment of a process that sees one of several GPUs."""
    count = _gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    names = visible.split(",")
    return {"CUDA_VISIBLE_DEVICES": names[place % len(names)]} if count > 1 else {}


def _prepare(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent does."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


class Submitit(Launcher):
    """Runs each job with submitit: on Slurm if available, else in a process on this machine.

    Args:
        folder: folder for submitit's files; on a cluster, visible to all nodes.
        number: largest number of queued jobs.
        options: parameters of the executor, such as ``slurm_partition`` or ``timeout_min``; ``cluster``
            is ``slurm`` or ``local``.
    """

    def __init__(self, folder: Path, number: int, options: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise MissingExtraError("submitit", "bench", "--launcher submitit") from None
        self.number = number
        given = dict(options)
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster", None))
            self._executor.update_parameters(**{"timeout_min": 24 * 60, "name": "mtlkit", **given})
        except (TypeError, NameError, ValueError, RuntimeError) as error:
            raise ConfigError(f"launcher_options do not fit submitit's executor: {error}") from None

    def submit(self, job: Job) -> Any:
        """Put a job into the queue."""
        return self._executor.submit(run_job, job)

    def stop(self, futures: list[Any]) -> None:
        """Cancel the jobs."""
        for future in futures:
            with contextlib.suppress(Exception):
                future.cancel(check=False)


def choose_launcher(
    name: str, folder: Path, number: int, most: int, options: Mapping[str, Any]
) -> Launcher:
    """Return the launcher ``local`` or ``submitit`` of ``most`` trainings, ``number`` at a time."""
    if name == "submitit":
        return Submitit(folder / "submitit", number, options)
    return Launcher() if min(number, most) == 1 else LocalProcesses(min(number, most))
