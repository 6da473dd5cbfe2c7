"""What a command imports, which is what its start takes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mtlkit
from mtlkit import cli
from mtlkit.cli import COMMANDS, main
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


def test_help_and_schemas_of_settings_do_without_torch():
    commands = [["--help"], ["--version"], ["methods", "--help"]]
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
