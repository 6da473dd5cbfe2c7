"""Links between files that Sphinx does not read; on the site, a dead link stops the build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    return LINK.findall(CODE.sub("code", page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file(page):
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def test_the_links_of_the_readme_are_found():
    assert "docs/start.md" in links(ROOT / "README.md")
