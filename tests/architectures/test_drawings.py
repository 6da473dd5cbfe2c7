"""The drawings of the documentation are those that its script draws, one for each architecture."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mtlkit
from mtlkit.config.registry import architectures

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("draw_architectures", DOCS / "draw_architectures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_committed_drawings_are_what_the_script_draws(script):
    for name, text in script.DRAWINGS.items():
        assert (DOCS / "images" / f"{name}.svg").read_text() == text
        ElementTree.fromstring(text)


def test_every_architecture_is_drawn_and_described(script):
    page = (DOCS / "architectures.md").read_text()
    for name in mtlkit.list_architectures():
        if not architectures.get(name).__module__.startswith("mtlkit."):
            continue
        drawing = "paper_nets" if name.startswith("paper_") else name
        assert drawing in script.DRAWINGS
        assert f"images/{drawing}.svg" in page
        assert f"`{name}" in page
