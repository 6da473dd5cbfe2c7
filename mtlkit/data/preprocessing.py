"""The preprocessing of raw samples, which is saved with a run and used for new samples.

A data set whose network can predict on new files has an attribute ``preprocessing``, an object of a
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
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from mtlkit.config.extras import import_extra
from mtlkit.config.registry import Registry
from mtlkit.data.files import DataError

preprocessings: Registry[Any] = Registry("kind of preprocessing", "mtlkit.preprocessing", "mtlkit.data")


class Preprocessing(ABC):
    """Turns raw samples into inputs, with everything that was fitted on the training samples.

    A subclass that is a dataclass, of plain values or other dataclasses, is saved and loaded without
    further code.

    Example:
        >>> import pandas, torch
        >>> from dataclasses import dataclass
        >>> @register_preprocessing("words", replace=True)
        ... @dataclass(frozen=True)
        ... class Words(Preprocessing):
        ...     longest: int
        ...
        ...     def read(self, path):
        ...         return pandas.DataFrame({"word": Path(path).read_text().split()})
        ...
        ...     def inputs(self, rows):
        ...         return torch.tensor([[len(word) / self.longest] for word in rows["word"]])
        >>> saved = Words(longest=10).to_json()
        >>> read_preprocessing(saved).inputs(pandas.DataFrame({"word": ["cat", "horse"]}))
        tensor([[0.3000],
                [0.5000]])
    """

    name: ClassVar[str]
    """The value of ``"kind"`` in the JSON, set by :func:`register_preprocessing`."""
    format: ClassVar[int] = 1
    """The version of the JSON fields."""
    identity: ClassVar[tuple[str, ...]] = ()
    """Columns of :meth:`read` that are copied to the predictions, to identify the samples."""
    batch_size: ClassVar[int] = 64
    """Default number of samples per forward pass."""

    @abstractmethod
    def read(self, path: str | Path) -> Any:
        """Return the raw samples of a file or folder as a pandas DataFrame, one row each.

        A row identifies the sample: the values of a table, or the path of an image. Problems of the
        whole file, such as a missing column, raise a :class:`DataError` here.
        """

    @abstractmethod
    def inputs(self, rows: Any) -> Any:
        """Return the inputs of the network for some rows of :meth:`read`."""

    def example(self, size: int) -> Any:
        """Return a random batch to test an exported network on; None if normal numbers are valid."""
        return None

    def to_json(self) -> str:
        """Return the object as JSON with the key ``"kind"``."""
        fields: Any = self
        content = {"kind": self.name, "format": self.format, **asdict(fields)}
        return json.dumps(content, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Return what :meth:`to_json` wrote."""
        try:
            content = json.loads(text)
            found = content.pop("format")
            if found != cls.format:
                raise DataError(f"preprocessing of format {found}; this version reads {cls.format}")
            del content["kind"]
            adapter = import_extra("pydantic", "reading a preprocessing").TypeAdapter(cls)
            made: Preprocessing = adapter.validate_python(content)
            return made
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"this is not the preprocessing of kind {cls.name!r}: {error!r}") from None


def register_preprocessing(kind: str, *, replace: bool = False) -> Callable[[Any], Any]:
    """Register a :class:`Preprocessing` subclass under the ``"kind"`` of its JSON.

    Args:
        kind: value of ``"kind"``.
        replace: replace a class of the same kind instead of raising an error.

    Example:
        >>> from mtlkit.data.table import TablePreprocessing
        >>> @register_preprocessing("my_table", replace=True)
        ... class Mine(TablePreprocessing):
        ...     batch_size = 100
        >>> Mine.name
        'my_table'
    """
    return preprocessings.register(kind, replace=replace)


def read_preprocessing(text: str) -> Preprocessing:
    """Load a preprocessing of any kind from its JSON.

    Raises:
        DataError: for text that is not the JSON of a preprocessing.
        UnknownNameError: for a kind whose package or plugin is not loaded.

    Example:
        >>> import mtlkit, pandas
        >>> rows = pandas.DataFrame({"age": [20, 30, 40, 50] * 9})
        >>> rows["old"] = ["no", "no", "yes", "no", "yes", "yes"] * 6
        >>> data = mtlkit.load_dataset("table(targets={old: binary})", file=rows)
        >>> read_preprocessing(data.preprocessing.to_json()).columns
        ['age']
    """
    try:
        kind = json.loads(text)["kind"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"this is not a preprocessing, which is JSON with 'kind': {error!r}") from None
    made: Preprocessing = preprocessings.get(str(kind)).from_json(text)
    return made
