"""The API page documents what the packages export, and the packages export what it documents."""

from __future__ import annotations

from tests.docs.api_page import documented, exported


def test_every_exported_name_is_documented():
    shown = documented().values()
    assert [name for name, found in exported().items() if not any(found is each for each in shown)] == []


def test_every_documented_name_is_exported_by_a_package():
    public = exported().values()
    page = documented()
    assert [name for name, found in page.items() if not any(found is each for each in public)] == []
