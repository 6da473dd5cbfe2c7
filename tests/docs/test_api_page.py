"""The API pages document what the packages export, and the packages export what they document."""

from __future__ import annotations

import re

from tests.docs.api_page import documented, exported, packages


def test_every_exported_name_is_documented():
    shown = documented().values()
    assert [name for name, found in exported().items() if not any(found is each for each in shown)] == []


def test_nothing_private_is_documented():
    assert [name for name in documented() if re.search(r"\b_(?!_version__)", name)] == []


def test_every_name_that_is_documented_as_a_packages_is_exported_by_it():
    owners = packages()
    listed = exported()
    names = [name for name in documented() if name.rpartition(".")[0] in owners]
    assert [name for name in names if name not in listed] == []
