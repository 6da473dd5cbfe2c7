"""One small run, trained once for all tests of this folder; its data is gone afterward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployment.people import train, write_people


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A finished run of ``rotograd`` on a table that is not there any more. Tests do not write into it."""
    folder = tmp_path_factory.mktemp("trained")
    table = folder / "people.csv"
    write_people(table)
    run = train(folder / "run", table)
    table.unlink()
    return run


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """A copy of that run, to write into."""
    import shutil

    return Path(shutil.copytree(trained_run, tmp_path / "run"))
