"""Checkpoints: one file each, written atomically.

They are read with ``weights_only=True``: a file with pickled code is refused.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import warnings
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from mtlkit.config.files import UNFINISHED, replacing
from mtlkit.errors import MtlkitError

_FORMAT = "mtlkit checkpoint"
_VERSION = 1
_NAME = re.compile(r"step-(\d{9,})\.pt")


class CheckpointError(MtlkitError):
    """A checkpoint that is damaged, was written by other software, or does not fit the run.

    >>> load_checkpoint("no/such/file.pt")
    Traceback (most recent call last):
        ...
    mtlkit.training.checkpoints.CheckpointError: ...
    """


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any], *, check: bool = False) -> None:
    """Write ``state`` atomically.

    Args:
        path: path of the file.
        state: tensors, numbers, strings, and lists, tuples and mappings of these.
        check: read the file back before it is given its name.

    >>> import tempfile, torch
    >>> from mtlkit.training import load_checkpoint, save_checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/a.pt", {"step": 3, "weights": torch.ones(2)})
    ...     load_checkpoint(f"{folder}/a.pt")["step"]
    3
    """
    with replacing(path) as temporary:
        torch.save({"format": _FORMAT, "version": _VERSION, **state}, temporary)
        if check:
            load_checkpoint(temporary)


def check_resume(resume: Any) -> None:
    """Raise for a ``resume`` that is neither ``"auto"`` nor a path, such as a bool."""
    if not (resume is None or isinstance(resume, str | os.PathLike)):
        raise CheckpointError(f"resume must be 'auto', the path of a checkpoint or None, not {resume!r}")


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint that :func:`save_checkpoint` wrote; pickled code is never run.

    Raises:
        CheckpointError: for a file that is missing, damaged, not a checkpoint of mtlkit, or contains
            pickled code.

    >>> from mtlkit.training import load_checkpoint
    >>> load_checkpoint("nowhere.pt")
    Traceback (most recent call last):
    ...
    mtlkit.training.checkpoints.CheckpointError: no checkpoint at nowhere.pt
    """
    path = Path(path)
    if not path.is_file():
        hint = " (a folder): give a file in it, or resume='auto' with the run's output folder"
        raise CheckpointError(f"no checkpoint at {path}{hint if path.is_dir() else ''}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # zipfile raises many kinds of errors for damaged files
        raise CheckpointError(
            f"{path} is not a checkpoint, or is truncated ({error}); use another one, or delete it"
        ) from None
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged (wrong checksum of {damaged}); use another one, or delete it"
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path} contains more than tensors and plain values; pickled code is refused ({reason})"
        ) from None
    except Exception as error:  # torch raises many kinds of errors for other files
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise CheckpointError(f"{path} was not written by mtlkit's Trainer")
    if state.get("version") != _VERSION:
        raise CheckpointError(
            f"{path} has format version {state.get('version')}; this mtlkit reads {_VERSION}"
        )
    return state


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: folder; created when it is first needed.
        keep: number of recent checkpoints to keep, at least one, in addition to ``best.pt``.

    >>> import tempfile
    >>> from mtlkit.training import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder, keep=1)
    ...     for step in (1, 2):
    ...         path = checkpoints.save(step, {"position": {"step": step}}, best=step == 1)
    ...     [path.name for path in checkpoints.paths()], checkpoints.best.exists()
    (['step-000000002.pt'], True)
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise CheckpointError(f"keep must be at least 1, not {keep}")
        self.directory = Path(directory)
        self.keep = keep
        self._checked = False

    @property
    def best(self) -> Path:
        """Path of the best checkpoint; it may not exist."""
        return self.directory / "best.pt"

    def paths(self) -> list[Path]:
        """Return all checkpoints except the best, oldest first."""
        if not self.directory.is_dir():
            return []
        found = [(int(m[1]), p) for p in self.directory.iterdir() if (m := _NAME.fullmatch(p.name))]
        return [path for _, path in sorted(found)]

    def save(self, step: int, state: dict[str, Any], *, best: bool = False) -> Path:
        """Write the checkpoint of this step, then remove the oldest ones."""
        path = self.directory / f"step-{step:09d}.pt"
        # the first one is read back, to detect a scheduler whose state cannot be loaded
        save_checkpoint(path, state, check=not self._checked)
        self._checked = True
        if best:
            self._link(path)
        for old in self.paths()[: -self.keep]:
            old.unlink(missing_ok=True)
        return path

    def set_aside(self, after: int) -> list[Path]:
        """Rename the checkpoints of later steps, which a run that resumes at ``after`` abandons."""
        later = [path for path in self.paths() if int(path.stem.split("-")[1]) > after]
        return [path.replace(path.with_suffix(".pt.abandoned")) for path in later]

    def adopt_best(self, source: Path, step: int | None) -> bool:
        """Make the checkpoint of this step the best one of a run that resumes from ``source``.

        It is searched here and in the folder of ``source``. If there is none that can be read, return
        False and rename an old best checkpoint.
        """
        for candidate in (self.best, source, source.parent / self.best.name):
            with contextlib.suppress(CheckpointError):
                if step is not None and load_checkpoint(candidate)["position"]["step"] == step:
                    if candidate != self.best:
                        self._link(candidate)
                    return True
        if self.best.is_file():
            self.best.replace(self.best.with_suffix(".pt.abandoned"))
        return False

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest valid checkpoint; warn of each that cannot be read."""
        for path in reversed(self.paths()):
            try:
                return path, load_checkpoint(path)
            except CheckpointError as error:
                warnings.warn(f"{error}; using the one before it", RuntimeWarning, stacklevel=2)
        return None

    def clean(self) -> None:
        """Remove the unfinished files of a killed process."""
        if self.directory.is_dir():
            for path in self.directory.glob(UNFINISHED):
                path.unlink(missing_ok=True)

    def _link(self, path: Path) -> None:
        with replacing(self.best) as temporary:
            try:
                os.link(path, temporary)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, temporary)


def seed_rng(seed: int) -> None:
    """Seed the random generators of this process: torch's, NumPy's and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's range
    random.seed(seed)


def read_rng() -> dict[str, Any]:
    """Return the states of the random generators of this process, as plain values."""
    version, words, gauss = random.getstate()
    numpy: Any = np.random.get_state()
    name, keys, position, has_gauss, cached = numpy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def write_rng(state: dict[str, Any]) -> None:
    """Restore the generators to ``state``."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(saved, device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
