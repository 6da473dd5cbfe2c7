"""The ``>>>`` examples of the docstrings: all run, and every public object has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import mtlkit
from mtlkit.config.extras import EXTRAS
from mtlkit.config.registry import architectures, methods
from mtlkit.data.base import datasets
from mtlkit.tasks.registry import kinds
from tests.docs.api_page import public_callables

ROOT = Path(mtlkit.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(ROOT)], "mtlkit.")
    if not module.name.endswith("__main__")
]


def has_examples(module: str) -> bool:
    path = ROOT.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ">>>" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["mtlkit", *filter(has_examples, MODULES)])
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {m for some in EXTRAS.values() for m in some}:
            raise
        pytest.skip(f"{error.name} is not installed")
    monkeypatch.chdir(tmp_path)
    with methods.temporary(), architectures.temporary(), datasets.temporary(), kinds.temporary():
        failed, tried = doctest.testmod(module, optionflags=FLAGS)
    assert tried
    assert not failed


def test_every_public_function_and_class_has_an_example():
    lacking = {name for name, found in public_callables().items() if ">>>" not in (found.__doc__ or "")}
    assert lacking == set(), "write a short >>> example into the docstring"


@pytest.mark.parametrize("name", sorted(set(methods.names()) - set(methods.aliases())))
def test_every_method_has_an_example_of_its_own(name):
    assert ">>>" in methods.get(name).__doc__
