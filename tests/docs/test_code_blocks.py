"""Every Python block of the README and the documentation runs, in order, page by page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.docs.run_blocks import blocks, run

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "methods"} & set(p.parts)),
]
# packages that `dev` does not hold; `make test` puts them into folders of their own
NEEDED = {
    "docs/examples/huggingface.md": "transformers",
    "docs/examples/lora.md": "peft",
    "docs/examples/libmtl.md": "LibMTL",
}


def is_run_here(page: Path) -> bool:
    """Notebooks are run by `make docs`, where an error stops the build, if their packages are in `dev`."""
    is_notebook = page.read_text().startswith("---\nfile_format: mystnb")
    return bool(blocks(page)) and (not is_notebook or str(page.relative_to(ROOT)) in NEEDED)


@pytest.fixture
def untouched_registry():
    from mtlkit.config.registry import architectures, methods
    from mtlkit.data.base import datasets
    from mtlkit.tasks.registry import kinds

    with methods.temporary(), architectures.temporary(), kinds.temporary(), datasets.temporary():
        yield


@pytest.mark.parametrize(
    "page", [p for p in PAGES if is_run_here(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_on_a_page_runs(page, tmp_path, monkeypatch, untouched_registry):
    needed = NEEDED.get(str(page.relative_to(ROOT)))
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed; see the Makefile")
    monkeypatch.chdir(tmp_path)
    run(page)


def test_every_page_of_the_site_is_in_a_table_of_contents():
    listed = set()
    for page in (ROOT / "docs").rglob("index.md"):
        if {"_build", "methods"} & set(page.parts):
            continue
        for toctree in re.findall(r"```\{toctree\}(.*?)```", page.read_text(), re.DOTALL):
            for entry in toctree.split("\n"):
                if entry.strip() and not entry.strip().startswith(":"):
                    listed.add((page.parent / f"{entry.strip()}.md").resolve())
    pages = {p.resolve() for p in PAGES if ROOT / "docs" in p.parents} - {ROOT / "docs" / "index.md"}
    assert pages <= listed
