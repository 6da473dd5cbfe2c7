"""Formulas and pages of methods as the terminal shows them."""

import re

import pytest

from mtlkit.cli.catalog_file import read_catalog, write_catalog
from mtlkit.cli.formulas import plain_docstring, plain_formula


@pytest.mark.parametrize(
    ("latex", "shown"),
    [
        (r"G_0 = \frac1K \sum_k G_k", "G₀ = 1/K Σ_k G_k"),
        (r"\alpha_k = \frac{\|G_k\| / \|G_k^0\|}{\sum_i \|G_i\|}", "α_k = (‖G_k‖ / ‖G_k⁰‖)/(Σ_i ‖G_i‖)"),
        (r"\operatorname{argmax}_d\ \min_k \langle G_k, d \rangle", "argmax_d min_k ⟨G_k, d⟩"),
        (r"R_k^\top \tilde g_{n,k}", "R_kᵀ g̃_(n,k)"),
        (r"w_k > 0 \quad \text{subject to} \quad x \le c\,y", "w_k > 0   subject to   x ≤ c y"),
        (r"\sqrt{1 - \phi^2} + \sqrt K", "√(1 - φ²) + √K"),
        (r"e^{s_k} H^{-1}", "e^(s_k) H⁻¹"),
        (r"\log\left(L_k\right)", "log(L_k)"),
        (r"\unknowncommand x", "unknowncommand x"),
    ],
)
def test_a_formula_becomes_characters(latex, shown):
    assert plain_formula(latex) == shown


def test_every_method_has_a_page_without_markup_that_fits_80_columns(tmp_path):
    write_catalog(tmp_path / "catalog.json")
    for facts in read_catalog(tmp_path / "catalog.json"):
        page = plain_docstring(facts.docstring.partition("\nArgs:\n")[0], 78)
        assert not re.search(r"\\|:\w+:`|``|\.\. |[{}]", page), facts.name
        assert max(map(len, page.splitlines())) <= 78, facts.name


def test_a_table_keeps_its_columns():
    text = "===  =====\na    first\n``b``  second, which is longer than one line\n===  ====="
    rows = plain_docstring(text.replace("``b``  ", "b    "), 30).splitlines()
    assert rows == ["    a  first", "    b  second, which is longer", "       than one line"]


@pytest.mark.parametrize("columns", [80, 140])
def test_the_list_of_methods_fits_the_terminal(columns, monkeypatch, capsys):
    from mtlkit.cli import main

    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (["methods"], ["methods", "Nash-MTL"], ["data"], ["architectures"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        out = capsys.readouterr().out
        assert stop.value.code == 0
        assert max(map(len, out.splitlines())) <= columns, arguments
        if arguments == ["methods"]:
            assert "nash_mtl" in out
            assert ("several processes" in out or "distributed" in out) == (columns == 140)
