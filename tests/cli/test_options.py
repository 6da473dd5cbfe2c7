"""Command-line options come from the settings."""

import json
import re

import pytest

from mtlkit.cli import main
from mtlkit.cli.schema import settings_of


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code


@pytest.mark.parametrize("command", ["train", "compare"])
def test_every_setting_but_mappings_is_an_option_with_its_meaning(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call(command, "--help") == 0
    shown = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    for name, field in settings_of(command).model_fields.items():
        if name in ("launcher_options", "small", "sources", "single_task_row"):
            continue
        flag = "--plugin " if name == "plugins" else f"--{name.replace('_', '-')} "
        assert flag in shown, name
        assert (field.description or "")[:30].replace("`", "") in shown, name
    assert "[default: 64]" in shown
    assert "--compile --no-compile" in shown


def test_the_schema_is_printed(capsys):
    assert call("schema", "compare") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "mtlkit compare"
    assert call("schema", "trian") == 2
    assert "did you mean 'train'" in capsys.readouterr().err
