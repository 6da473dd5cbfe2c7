import json
import re

import pytest

import mtlkit
from mtlkit.cli import main
from mtlkit.cli.catalog import all_facts
from mtlkit.cli.pages import plain_docstring, plain_text
from mtlkit.cli.schema import json_schema


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["methods", *arguments])
    output = capsys.readouterr()
    return stop.value.code, output.out, output.err


def test_the_table_lists_every_method_with_its_facts(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys)
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for name in ("uw", "dwa", "famo", "config", "pcgrad", "sum", "mgda"):
        assert name in lines
    assert "2018" in lines["uw"]
    assert "own parameters" in lines["uw"]
    assert "Gram matrix + solver" in lines["mgda"]
    assert "= gls" in lines["geometric_mean"]
    assert "auto_lambda" in out


def test_a_page_shows_description_facts_and_options(capsys):
    code, out, _ = run(capsys, "stch")
    assert code == 0
    assert "smooth maximum" in out
    assert "ICML 2024" in out
    assert "mtlkit.weighting.stch.STCH" in out
    assert "= 1.0" in out
    assert "https://arxiv.org/abs/2402.19078" in out
    assert "a number, above 0" in " ".join(out.split())
    assert "Args:" not in out


def test_the_page_of_an_alias_shows_what_it_stands_for(capsys):
    code, out, _ = run(capsys, "geometric_mean")
    assert code == 0
    assert "Stands for gls." in out


def test_json_holds_the_same_facts(capsys):
    code, out, _ = run(capsys, "--json")
    assert code == 0
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert set(entries) == set(mtlkit.list_methods())
    assert entries["geometric_mean"]["stands_for"] == "gls"
    assert entries["cagrad"]["options"][0]["accepted"] == "a number, 0 or more"
    assert entries["uw"]["needs"] == ["losses", "own parameters"]
    code, out, _ = run(capsys, "dwa", "--json")
    options = {option["name"]: option["default"] for option in json.loads(out)["options"]}
    assert options == {"temperature": 2.0, "window": None}


def test_a_wrong_name_is_an_error_with_the_nearest_one(capsys):
    code, out, err = run(capsys, "pcgad")
    assert code == 2
    assert out == ""
    assert "did you mean 'pcgrad'" in err


@pytest.mark.parametrize("name", ["auto_lambda", "forum", "moml"])
def test_a_method_that_is_left_out_says_why(capsys, name):
    code, _, err = run(capsys, name)
    assert code == 2
    assert "left out" in err
    assert "second backward" in err


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_and_the_pages_fit_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys)
    assert max(map(len, out.splitlines())) <= columns
    assert ("work per step" in out) == (columns == 160)
    assert "Improve the worst-off task" in out
    for name in mtlkit.list_methods():
        _, out, _ = run(capsys, name)
        # neither code nor addresses are broken
        kept = (">>>", "... ", "https://")
        text = [line for line in out.splitlines() if not any(mark in line for mark in kept)]
        assert max(map(len, text)) <= columns, name
        assert not re.search(r":\w+:`|``|\.\. math", out), name


def test_a_formula_has_symbols_where_there_are_some():
    text = plain_text(r":math:`\sum_k \langle G_k, d \rangle \le \sigma \mathbf{x}`")
    assert text == "Σ_k ⟨ G_k, d ⟩ ≤ σ x"
    text = plain_text(r":math:`\frac{\hat m_k}{\sqrt{v_{k+1}} + 1} \ne \frac1K \lambda_k`")
    assert text == "(m\u0302_k) / (√(v_{k+1}) + 1) ≠ 1/K λ_k"


def test_no_page_of_a_method_shows_a_latex_command():
    for facts in all_facts():
        shown = plain_docstring(facts.docstring, 100)
        assert not re.search(r"\\[A-Za-z]+", shown), facts.name


def test_the_schema_of_a_method_has_names_and_ranges_of_the_options():
    schemas = {each.get("title"): each for each in json_schema("method")["anyOf"]}
    assert set(schemas) == {None, *mtlkit.list_methods()}
    assert schemas["cagrad"]["properties"]["c"]["minimum"] == 0
    assert schemas["moco"]["properties"]["beta"]["exclusiveMinimum"] == 0
