"""Where the trainings of a comparison run: this process, others on this machine, or jobs of submitit."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from mtlkit.errors import ConfigError, MissingExtraError
from mtlkit.experiments.jobs import Job, Outcome, read_outcome, run_job

Started = Callable[[Job], None]
Ended = Callable[[Job, Outcome], None]
_PATIENCE = 60.0
_MOST_JOBS = 8


def number_of_jobs(jobs: int | None, device: str) -> int:
    """Trainings at a time: as given, or one per GPU, or one per core and at most eight."""
    if jobs is not None:
        return jobs
    import torch

    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    return gpus if gpus else min(_cores(), _MOST_JOBS)


def threads_per_job(jobs: int | None, device: str) -> int:
    """Threads of each training: its fraction of the cores, and no more than ``OMP_NUM_THREADS``."""
    threads = max(1, _cores() // number_of_jobs(jobs, device))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(limit)) if limit.isdigit() and int(limit) > 0 else threads


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Launcher:
    """Runs jobs one after another in this process; subclasses run several elsewhere.

    The next job is requested when there is room for it, so ``jobs`` may depend on what has ended.
    """

    number = 1

    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs; on Ctrl-C or SIGTERM, stop the running ones at a checkpoint and raise.

        ``started`` and ``ended`` are called in the caller's thread.
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
        """Return how a job ended, also when its process did not survive it."""
        error = future.exception()
        if error is None:
            outcome: Outcome = future.result()
            return outcome
        return read_outcome(job) or Outcome(error=" ".join(str(error).split())[:500])

    def stop(self, futures: list[Any]) -> None:
        """Stop the running jobs at a checkpoint."""

    def close(self) -> None:
        """Release what the jobs ran on."""


class Processes(Launcher):
    """Runs jobs in several processes on this machine.

    Each process has an executor of its own, so that one that dies (out of memory, a crash in native
    code) costs its job only. With several GPUs, each process sees one of them.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pools: list[ProcessPoolExecutor | None] = [None] * number
        self._busy: dict[int, Future[Outcome]] = {}
        self._workers: dict[int, Any] = {}

    def submit(self, job: Job) -> Any:
        """Start a job in a process that has none."""
        place = next(p for p in range(self.number) if p not in self._busy)
        pool = self._pools[place]
        if pool is None:
            pool = self._pools[place] = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _prepare, (os.getpid(),)
            )
        before = set(multiprocessing.active_children())
        with _one_gpu(place):
            self._busy[place] = future = pool.submit(run_job, job)
        for worker in set(multiprocessing.active_children()) - before:
            self._workers[place] = worker
        return future

    def outcome(self, job: Job, future: Any) -> Outcome:
        """Return how a job ended; a process that died is replaced."""
        place = next(p for p, known in self._busy.items() if known is future)
        del self._busy[place]
        if not isinstance(future.exception(), BrokenExecutor):
            return super().outcome(job, future)
        self._pools[place] = None  # the next job starts another process
        self._workers[place].join(5)
        return read_outcome(job) or Outcome(error=_died(self._workers[place].exitcode))

    def stop(self, futures: list[Any]) -> None:
        """Terminate the processes, and wait a minute for their checkpoints."""
        for worker in self._workers.values():
            if worker.is_alive():
                worker.terminate()  # the Trainer saves a checkpoint first
        deadline = time.monotonic() + _PATIENCE
        for worker in self._workers.values():
            while worker.is_alive() and time.monotonic() < deadline:
                if all(future.done() for future in futures):
                    break
                time.sleep(0.05)
            else:
                worker.kill()
        self.close()

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        self._pools = [None] * self.number
        self._workers.clear()


def _prepare(parent: int) -> None:
    """Leave Ctrl-C to the parent, which terminates this process, and end with the parent."""
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

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def _one_gpu(index: int) -> Iterator[None]:
    """Let the process that is started within see one GPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = before.split(",") if before else list(map(str, range(count)))
    if count > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[index % len(visible)]
    try:
        yield
    finally:
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        elif count > 1:
            del os.environ["CUDA_VISIBLE_DEVICES"]


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


class Submitit(Launcher):
    """Runs each job as a job of submitit: of Slurm if it is there, else in a process on this machine.

    Args:
        folder: for submitit's files; on a cluster, one that all nodes see.
        number: jobs in the queue at a time.
        options: of the executor, such as ``slurm_partition`` or ``timeout_min``; ``cluster`` chooses
            ``slurm`` or ``local``.
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
    """Return the launcher of this name.

    Args:
        name: ``local`` or ``submitit``.
        folder: of the comparison or search; submitit's files go below it.
        number: trainings at a time.
        most: how many trainings there are at most.
        options: of submitit's executor.
    """
    if name == "submitit":
        return Submitit(folder / "submitit", number, options)
    return Launcher() if min(number, most) == 1 else Processes(min(number, most))
