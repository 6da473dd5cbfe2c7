import json

import pytest

from mtlkit.cli import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["speed", *arguments])
    output = capsys.readouterr()
    return stop.value.code, output.out, output.err


def test_every_method_asked_for_has_a_ratio_and_the_fastest_comes_first(capsys):
    code, out, _ = run(capsys, "rotograd", "sum", "cagrad(c=0.4)", "-k", "3", "--repeats", "3")
    assert code == 0
    lines = out.splitlines()
    assert {line.split("  ")[0] for line in lines[:3]} == {"sum", "cagrad(c=0.4)", "rotograd"}
    ratios = [float(line.removesuffix(" x").split()[-1]) for line in lines[:3]]
    assert ratios == sorted(ratios)
    assert all(ratio > 0 for ratio in ratios)
    assert "K = 3" in lines[-1]


def test_json_has_the_ratios(capsys):
    code, out, _ = run(capsys, "si", "--repeats", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["tasks"] == 10
    assert found["ratios"]["si"] > 0


def test_a_wrong_name_is_refused_before_anything_is_measured(capsys):
    code, out, err = run(capsys, "si", "pcgad")
    assert (code, out) == (2, "")
    assert "pcgrad" in err
