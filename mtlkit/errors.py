"""The errors that mtlkit raises. Every message says what was given, what is accepted and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MtlkitError(Exception):
    """Base of all errors that mtlkit raises on purpose.

    >>> import mtlkit
    >>> try:
    ...     mtlkit.create_method("cagrad(c=-1)", tasks=2)
    ... except mtlkit.MtlkitError as error:
    ...     print(error)
    c of cagrad must be 0 or more, not -1
    """


class SpecError(MtlkitError, ValueError):
    """A config string, mapping or option that cannot be understood.

    >>> import mtlkit
    >>> mtlkit.create_method("pcgrad+mgda", tasks=2)
    Traceback (most recent call last):
        ...
    mtlkit.errors.SpecError: 'pcgrad' and 'mgda' both merge the gradients; a method has one part ...
    """


class UnknownNameError(SpecError, LookupError):
    """A method, architecture, option, task or key that does not exist.

    >>> import mtlkit
    >>> mtlkit.create_method("pcgad", tasks=2)
    Traceback (most recent call last):
        ...
    mtlkit.errors.UnknownNameError: unknown method 'pcgad'; did you mean 'pcgrad'...
    """


class UsageError(MtlkitError, RuntimeError):
    """Calls in an order that is not a training step, such as a backward without a fork.

    >>> import torch, mtlkit
    >>> mtlkit.create_method("graddrop", tasks=2).weights(torch.eye(2))
    Traceback (most recent call last):
        ...
    mtlkit.errors.UsageError: graddrop merges whole gradients and has no weight per task; use combine
    """


class ConfigError(SpecError):
    """A configuration file that does not fit its schema.

    >>> from mtlkit.training.config import TrainConfig
    >>> TrainConfig.make({"data": "multidigits", "epoch": 3}, "run.yaml")
    Traceback (most recent call last):
        ...
    mtlkit.errors.ConfigError: run.yaml: unknown key 'epoch'; did you mean 'epochs'...
    """


class NonFiniteError(MtlkitError, FloatingPointError):
    """A loss or gradient that is not finite, where the policy is to stop.

    >>> import torch, mtlkit
    >>> task, model = mtlkit.Task.regression("age"), torch.nn.ModuleDict({"age": torch.nn.Linear(1, 1)})
    >>> model.forward = lambda x: {"age": model["age"](x)}
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1)
    >>> trainer = mtlkit.Trainer(model, [task], optimizer, progress=False)
    >>> trainer.fit([(torch.tensor([[torch.inf]]), {"age": torch.ones(1, 1)})], epochs=1)
    Traceback (most recent call last):
        ...
    mtlkit.errors.NonFiniteError: ...
    """


class MissingExtraError(MtlkitError, ImportError):
    """An optional dependency is needed and absent.

    >>> print(MissingExtraError("pandas", "table", "the data set 'table'"))
    the data set 'table' needs the package 'pandas', which is not installed; pip install 'mtlkit[table]'
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"pip install 'mtlkit[{extra}]'"
        )


def unknown_key(source: str, key: object, known: Iterable[str]) -> ConfigError:
    """Make the error for a wrong key of a configuration.

    >>> print(unknown_key("run.yaml", "epoch", ["epochs", "lr"]))
    run.yaml: unknown key 'epoch'; did you mean 'epochs'? known: epochs, lr
    """
    return ConfigError(f"{source}: unknown key {shorten(key)}{_nearest(str(key), known)}")


def unknown_name(kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
    """Make the error for a wrong name: the nearest names first, then the full list.

    >>> print(unknown_name("method", "pcgad", ["mgda", "pcgrad"]))
    unknown method 'pcgad'; did you mean 'pcgrad'? known: mgda, pcgrad

    Case does not matter:

    >>> print(unknown_name("column", "AGES", ["Age"]))
    unknown column 'AGES'; did you mean 'Age'? known: Age
    """
    return UnknownNameError(f"unknown {kind} {given!r}{_nearest(given, known)}")


def shorten(value: object) -> str:
    """Show a value in a message, in 120 characters at most.

    >>> shorten("a" * 200)[-10:]
    'aaaaaaa...'
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 120 else text[:117] + "..."


def _nearest(given: str, known: Iterable[str]) -> str:
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(given.lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return f"{hint} known: {', '.join(names) or '(none)'}"
