"""Where the trainings of a comparison run: this process, others of this machine, or submitit's jobs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mtlkit.errors import ConfigError, MissingExtraError
from mtlkit.experiments.jobs import Job, Outcome, read_outcome, run_job

Started = Callable[[Job], None]
Ended = Callable[[Job, Outcome], None]
_PATIENCE = 60.0
_MOST_JOBS = 8


def cores() -> int:
    """Cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(allowed, int(limit))) if limit.isdigit() and int(limit) > 0 else allowed


def number_of_jobs(jobs: int | None, device: str) -> int:
    """Trainings at a time: as given, or one per GPU, or one per core and at most eight."""
    if jobs is not None:
        return jobs
    import torch

    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    return gpus if gpus else min(cores(), _MOST_JOBS)


class Launcher(ABC):
    """Runs jobs; ``started`` and ``ended`` are called in the caller's thread.

    The next job is asked for when there is room for it, so ``jobs`` may choose it by what has ended.
    """

    @abstractmethod
    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs; on Ctrl-C, stop the running ones at a checkpoint and raise."""


class ThisProcess(Launcher):
    """Runs one job after another in this process."""

    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs."""
        for job in jobs:
            started(job)
            ended(job, run_job(job))


class Processes(Launcher):
    """Runs jobs in several processes on this machine.

    A process that dies (out of memory, a crash in native code) costs its job only; another takes its
    place. With several GPUs, each process sees one of them.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs."""
        workers: list[_Worker] = []
        try:
            with _terminate_as_interrupt():
                self._work(iter(jobs), workers, started, ended)
        except BaseException:
            _stop(workers)
            raise
        for worker in workers:
            worker.dismiss()

    def _work(self, jobs: Iterator[Job], workers: list[_Worker], started: Started, ended: Ended) -> None:
        while True:
            while (idle := [w for w in workers if w.job is None]) or len(workers) < self.number:
                job = next(jobs, None)
                if job is None:
                    break
                if not idle:
                    workers.append(_Worker(len(workers)))
                worker = idle[0] if idle else workers[-1]
                worker.give(job)
                started(job)
            busy = {worker.connection: worker for worker in workers if worker.job is not None}
            if not busy:
                return
            for connection in wait(list(busy), timeout=0.5):
                worker = busy[connection]  # type: ignore[index]
                done = worker.job
                assert done is not None
                try:
                    outcome = worker.take()
                except (EOFError, OSError):
                    code = worker.replace()
                    outcome = read_outcome(done) or Outcome(error=_died(code))
                ended(done, outcome)


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # not a daemon, since daemons may not start data loader workers
        self.process = context.Process(
            target=_serve, args=(theirs, os.getpid()), name=f"mtlkit-{self.index}"
        )
        with _one_gpu(self.index):
            self.process.start()
        theirs.close()

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # a dead process is noticed when its answer is awaited
            self.connection.send(job)

    def take(self) -> Outcome:
        outcome: Outcome = self.connection.recv()
        self.job = None
        return outcome

    def replace(self) -> int | None:
        self.process.join(5)
        code = self.process.exitcode
        self.connection.close()
        self.job = None
        self._start()
        return code

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(10)
        if self.process.is_alive():
            self.process.terminate()
        self.connection.close()


def _serve(connection: Connection, parent: int) -> None:
    """Run jobs until told to stop."""
    _end_with(parent)
    while True:
        try:
            job = connection.recv()
            if job is None:
                return
            connection.send(run_job(job))
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _end_with(parent: int) -> None:
    """End this process when its parent dies, since nobody would read its results."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _stop(workers: Sequence[_Worker]) -> None:
    """Ask all processes to stop; the Trainer saves a checkpoint first."""
    for worker in workers:
        if worker.process.is_alive():
            worker.process.terminate()
    deadline = time.monotonic() + _PATIENCE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM means the same as Ctrl-C."""
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
    torch: Any = sys.modules.get("torch")
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    count = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    if count < 2:
        yield
        return
    visible = before.split(",") if before else list(map(str, range(count)))
    os.environ[name] = visible[index % len(visible)]
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


class Submitit(Launcher):
    """Each job is a job of submitit: of Slurm where there is one, else of a process of this machine.

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

    def run(self, jobs: Iterable[Job], started: Started, ended: Ended) -> None:
        """Run all jobs."""
        waiting = iter(jobs)
        running: list[tuple[Job, Any]] = []
        try:
            with _terminate_as_interrupt():
                while True:
                    while len(running) < self.number and (job := next(waiting, None)) is not None:
                        running.append((job, self._executor.submit(run_job, job)))
                        started(job)
                    if not running:
                        return
                    finished = [pair for pair in running if pair[1].done()]
                    for pair in finished:
                        running.remove(pair)
                        ended(pair[0], _result(*pair))
                    if not finished:
                        time.sleep(0.5)
        except BaseException:
            for _, submitted in running:
                with contextlib.suppress(Exception):
                    submitted.cancel(check=False)
            raise


def _result(job: Job, submitted: Any) -> Outcome:
    error = submitted.exception()
    if error is None:
        outcome: Outcome = submitted.result()
        return outcome
    return read_outcome(job) or Outcome(error=f"submitit: {' '.join(str(error).split())[:500]}")


def choose_launcher(
    name: str, folder: Path, number: int, most: int, options: Mapping[str, Any]
) -> Launcher:
    """The launcher of this name.

    Args:
        name: ``local`` or ``submitit``.
        folder: of the comparison or search; submitit's files go below it.
        number: trainings at a time.
        most: how many trainings there are at most.
        options: of submitit's executor.
    """
    if name == "submitit":
        return Submitit(folder / "submitit", number, options)
    return ThisProcess() if min(number, most) == 1 else Processes(number)
