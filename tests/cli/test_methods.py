import json

import pytest

import mtlkit
from mtlkit.cli import main


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
    assert lines["mgda"].rstrip().endswith(" ms")
    assert "= gls" in lines["geometric_mean"]
    assert "auto_lambda" in out
    assert "at K = 10" in out


def test_a_page_shows_description_facts_and_options(capsys):
    code, out, _ = run(capsys, "stch")
    assert code == 0
    assert "smooth maximum" in out
    assert "ICML 2024" in out
    assert "mtlkit.weighting.stch.STCH" in out
    assert "= 1.0" in out
    assert "cost at K = 10  +" in out
    assert "Args:" not in out


def test_the_page_of_an_alias_shows_what_it_stands_for(capsys):
    code, out, _ = run(capsys, "geometric_mean")
    assert code == 0
    assert "Stands for gls." in out


def test_json_holds_the_same_facts(capsys):
    code, out, _ = run(capsys, "--json")
    assert code == 0
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert set(entries) <= set(mtlkit.list_methods())
    assert entries["geometric_mean"]["stands_for"] == "gls"
    assert entries["rotograd"]["added_ms"] > entries["mgda"]["added_ms"] > 0
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
