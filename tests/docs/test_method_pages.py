"""What the pages of the methods show, and what their extension does to docstrings."""

import sys
from pathlib import Path

import pytest

import mtlkit
from mtlkit.cli import catalog
from mtlkit.config.registry import methods

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


@pytest.fixture
def pages(monkeypatch):
    for package in ("sphinx", "matplotlib"):
        pytest.importorskip(package, reason="the site needs mtlkit[docs,bench]")
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "docs" / "_ext"), *sys.path])
    import method_pages

    return method_pages


def test_a_page_shows_link_options_and_ranges(pages):
    page = pages.description(catalog.method_facts("cagrad"))
    assert "[arxiv.org](https://arxiv.org/abs/2110.14048)" in page
    assert "| `c` | `0.4` | a number, 0 or more | radius of the ball" in page
    assert ".. autoclass:: mtlkit.weighting.cagrad.CAGrad" in page
    alias = pages.description(catalog.method_facts("rotograd"))
    assert "[rotate](rotate.md), [scale](scale.md)" in alias
    assert "autoclass" not in alias


def test_the_title_of_a_page_is_the_papers_without_its_venue(pages):
    titles = {facts.name: pages.title(facts) for facts in catalog.all_facts()}
    assert titles["pcgrad"] == "PCGrad: Gradient Surgery for Multi-Task Learning (Yu et al. 2020)"
    assert titles["rotograd"].startswith("RotoGrad: Gradient Homogenization")
    assert titles["nash_mtl"].startswith("Nash-MTL: ")
    assert titles["sum"] == "sum"
    assert not [title for title in titles.values() if "arXiv" in title or title.count("(") > 1]


def test_methods_are_grouped_by_the_idea_that_they_state(pages):
    with methods.temporary():

        @mtlkit.register_method("my_merge")
        class MyMerge(mtlkit.GradientAggregator):
            """Add."""

            def weigh(self, gram, state):
                return gram[0], state

        groups = pages.group_by_idea(catalog.all_facts())
    assert next(iter(groups)) == catalog.method_facts("sum").idea
    assert [facts.name for facts in groups["Others"]] == ["my_merge"]
    assert sum(map(len, groups.values())) == len(catalog.all_facts()) + 1


def test_the_table_of_costs_has_the_built_in_methods(pages):
    assert "[`pcgrad`](methods/pcgrad.md)" in pages.cost_table()
