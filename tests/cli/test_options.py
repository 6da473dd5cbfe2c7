"""Command-line options come from the settings."""

import json
import re

import pytest

from mtlkit.cli import COMMANDS, main
from mtlkit.cli.schema import settings_of
from mtlkit.config.spec import parse_spec


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
        if name in (
            "launcher_options",
            "small",
            "sources",
            "single_task_row",
            "single_task_metrics",
            "field",
        ):
            continue
        flag = "--plugin" if name == "plugins" else f"--{name.replace('_', '-')}"
        assert re.search(rf"{flag}[ ,]", shown), name
        assert (field.description or "")[:30].replace("`", "") in shown, name
    assert "[default: 64]" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_narrow_terminal_cuts_no_option_and_gives_flags_no_value(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert call(command, "--help") == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_config_strings_in_the_help_can_be_read_and_every_output_has_its_short_flag(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    assert call(command, "--help") == 0
    shown = capsys.readouterr().out
    for spec in re.findall(r"'(\w+\([^']*\))'", shown):
        parse_spec(spec.replace("...", "people.csv"))
    for line in shown.splitlines():
        assert ("--output " in line) <= ("-o " in line) or "Example" in line


def test_a_switch_of_a_file_can_be_turned_off_and_a_default_too(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("data: multidigits\nmethods: sum\nnormalize: true\nseeds: 1\n")
    settings = ["-c", tmp_path / "c.yaml", "-o", tmp_path / "out", "--dry-run", "--steps", 1]
    assert call("compare", *settings, "--no-normalize", "--no-single-task") == 0
    assert "0 of 1 training runs are done" in capsys.readouterr().out


def test_the_schema_is_printed(capsys):
    assert call("schema", "compare") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "mtlkit compare"
    assert call("schema", "trian") == 2
    assert "did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [("grad-clip", "max-grad-norm"), ("optim", "optimizer"), ("patience", "early-stop")],
)
def test_the_name_that_another_trainer_has_for_an_option_is_answered_with_ours(given, meant, capsys):
    assert call("train", f"--{given}", "1") == 2
    assert f"--{meant}" in capsys.readouterr().err
