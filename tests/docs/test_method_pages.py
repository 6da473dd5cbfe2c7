"""What the pages of the methods show, and what their extension does to docstrings."""

import sys
from pathlib import Path

import pytest

from mtlkit.cli import catalog

PAGE = """
.. autofunction:: mtlkit.create_method

.. autoclass:: mtlkit.weighting.pcgrad.PCGrad
   :no-index:
"""
CONF = """
extensions = ["sphinx.ext.autodoc", "method_pages", "sphinx.ext.napoleon", "sphinx.ext.imgmath"]
"""


@pytest.mark.filterwarnings("ignore:The mapping interface")  # napoleon's
def test_options_are_left_out_of_the_pages_of_methods_alone(tmp_path, monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is in mtlkit[docs]")
    from sphinx.application import Sphinx

    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "docs" / "_ext"), *sys.path])
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "index.rst").write_text(PAGE)
    Sphinx(tmp_path, tmp_path, tmp_path / "out", tmp_path / "trees", "text", status=None).build()
    function, method = (tmp_path / "out" / "index.txt").read_text().split("PCGrad", 1)
    assert "**feature_dim**" in function
    assert "projections" in method
    assert "**seed**" not in method


@pytest.mark.parametrize("facts", catalog.all_facts(), ids=lambda facts: facts.name)
def test_a_method_has_a_displayed_equation(facts):
    assert ".. math::" in facts.docstring
