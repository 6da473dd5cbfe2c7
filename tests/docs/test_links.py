"""Links between files that Sphinx does not read; on the site, a dead link stops the build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SITE = re.compile(r"\]\(https://mtlkit\.github\.io/mtlkit/latest/([\w/]+)\.html")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    return LINK.findall(CODE.sub("code", page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file(page):
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_the_site_leads_to_a_page(page):
    """The pages of methods and results are written when the site is built."""
    names = SITE.findall(page.read_text())
    written = [name for name in names if not name.startswith(("methods/", "results/"))]
    assert [name for name in written if not (ROOT / "docs" / f"{name}.md").exists()] == []


def test_the_links_of_the_readme_are_found():
    assert "start" in SITE.findall((ROOT / "README.md").read_text())
    assert "CONTRIBUTING.md" in links(ROOT / "README.md")
