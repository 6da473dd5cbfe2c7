"""What turns raw samples into a network's inputs: saved with a run, read back for new samples.

A data set that can be predicted on from files has an attribute ``preprocessing``, an object of a
:class:`Preprocessing` subclass. ``mtlkit train`` saves it as ``preprocessing.json`` in the run's folder,
and ``mtlkit predict`` uses it like this::

    preprocessing = read_preprocessing(text)      # finds the class by the key "kind"
    rows = preprocessing.read("new.csv")          # a DataFrame, one row per sample
    for part in batches_of(rows):
        inputs = preprocessing.inputs(part)       # what the network is called with
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from mtlkit.config.registry import Registry
from mtlkit.data.base import DataError

preprocessings: Registry[Any] = Registry("kind of preprocessing", "mtlkit.preprocessing", "mtlkit.data")


class Preprocessing(ABC):
    """From raw samples to inputs; everything that was learned of the training samples is in it."""

    name: ClassVar[str]
    """The kind: set by :func:`register_preprocessing`, and the value of ``"kind"`` in the JSON."""
    identity: ClassVar[tuple[str, ...]] = ()
    """Columns of :meth:`read` that are copied to the predictions, to know which is which."""
    batch_size: ClassVar[int] = 64
    """Samples that are predicted at a time, unless the user says otherwise."""

    @abstractmethod
    def read(self, path: str | Path) -> Any:
        """The raw samples of a file or folder as a pandas DataFrame, one row each.

        A row holds what is needed to find the sample: the values of a table, the path of an image. What
        is wrong with all samples, such as a column that is not there, is a :class:`DataError` here.
        """

    @abstractmethod
    def inputs(self, rows: Any) -> Any:
        """What the network is called with, for some rows of :meth:`read`: a batch of the same length."""

    def example(self, size: int) -> Any:
        """A drawn batch to try an exported network on; None where noise will do."""
        return None

    @abstractmethod
    def to_json(self) -> str:
        """All of it as a JSON object with the key ``"kind"``."""

    @classmethod
    @abstractmethod
    def from_json(cls, text: str) -> Preprocessing:
        """What :meth:`to_json` wrote."""


def register_preprocessing(kind: str, *, replace: bool = False) -> Callable[[Any], Any]:
    """Make a :class:`Preprocessing` subclass known under the ``"kind"`` of its JSON."""
    return preprocessings.register(kind, replace=replace)


def read_preprocessing(text: str) -> Preprocessing:
    """The preprocessing that was written as ``text``, of whatever kind it is.

    Raises:
        DataError: for text that no preprocessing wrote.
        UnknownNameError: for a kind whose package or plugin is not loaded.
    """
    try:
        kind = json.loads(text)["kind"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"this is not a preprocessing: expected JSON with 'kind', got {error!r}"
        ) from None
    made: Preprocessing = preprocessings.get(str(kind)).from_json(text)
    return made
