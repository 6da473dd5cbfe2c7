"""What a command imports, which is what its start takes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mtlkit
from mtlkit import cli
from mtlkit.cli import COMMANDS, catalog_file, main
from mtlkit.cli.catalog import all_facts
from tests.training.processes import ROOT, environment

SCRIPT = """
import contextlib, io, sys
from mtlkit.cli import main

for arguments in {commands}:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            main(arguments)
        except SystemExit as stop:
            assert not stop.code, (arguments, stop.code)
    assert shown.getvalue().strip(), arguments
    heavy = sorted({{"torch", "scipy", "accelerate", "torchmetrics", "pandas"}} & set(sys.modules))
    print(arguments, heavy, "pydantic" in sys.modules)
"""


def test_help_and_listings_do_without_torch():
    commands = [["--help"], ["--version"], ["methods"], ["methods", "rotate"], ["methods", "--json"]]
    commands += [["train", "--help"], ["compare", "--help"], ["schema", "compare"]]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(commands=commands)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == len(commands)
    assert all(" [] " in line for line in lines), ended.stdout
    assert lines[0].endswith("False")  # the list of commands needs no settings either


def test_the_file_of_methods_is_what_the_registry_says():
    kept = catalog_file.read_catalog()
    assert kept is not None, "renew it: python -m mtlkit.cli.catalog_file"
    found = {facts.name: facts for facts in all_facts()}
    assert [found[facts.name] for facts in kept] == kept
    assert {facts.name for facts in kept} == {
        name for name, facts in found.items() if facts.factory.startswith("mtlkit") or facts.stands_for
    }


def test_a_file_that_is_older_than_the_methods_is_not_used(tmp_path, monkeypatch):
    path = tmp_path / "catalog.json"
    catalog_file.write_catalog(path)
    assert catalog_file.read_catalog(path) is not None
    monkeypatch.setattr(catalog_file, "_WEIGHTING", tmp_path)  # as if every method had changed
    assert catalog_file.read_catalog(path) is None
    assert catalog_file.read_catalog(tmp_path / "absent.json") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_found_and_says_what_the_list_of_commands_says(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert COMMANDS[name].split()[0] in shown
    assert f"mtlkit {name}" in shown


def test_every_module_with_a_command_is_listed():
    folder = Path(cli.__file__).parent
    adds = {path.stem for path in folder.glob("*.py") if "\n@app.command(" in path.read_text()}
    assert adds == set(COMMANDS)


def test_every_public_name_is_there_and_known_to_type_checkers():
    tree = ast.parse(Path(mtlkit.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in mtlkit.__all__:
        assert getattr(mtlkit, name) is not None
        assert name in imported
    assert set(mtlkit.__all__) <= set(dir(mtlkit))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mtlkit.nonsense
