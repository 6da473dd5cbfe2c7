"""A run folder names the plugins that it was trained with; their code runs only if the caller trusts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import mtlkit
from mtlkit.cli import main
from mtlkit.config.registry import architectures
from mtlkit.deployment.predicting import predict
from mtlkit.errors import MtlkitError, SpecError
from tests.deployment.people import people, train, write_people


@pytest.fixture
def hostile(run, tmp_path, monkeypatch):
    """A function that makes a run folder name a plugin, and the file that this plugin would write."""
    marker = tmp_path / "code_has_run"
    (tmp_path / "hostile_plugin.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def name(plugin: str, record: Path = run / "model.json") -> Path:
        record.write_text(json.dumps({**json.loads(record.read_text()), "plugins": [plugin]}))
        return marker

    yield name
    sys.modules.pop("hostile_plugin", None)


@pytest.mark.parametrize("plugin", ["{}/hostile_plugin.py", "hostile_plugin"], ids=["file", "module"])
def test_no_code_of_a_run_folder_runs_unless_it_is_trusted(run, tmp_path, hostile, plugin):
    mtlkit.export(run, tmp_path / "net.safetensors")
    plugin = plugin.format(tmp_path)
    hostile(plugin, tmp_path / "net.safetensors.json")
    marker = hostile(plugin)
    people(3).to_csv(tmp_path / "new.csv", index=False)
    for call in (
        lambda: mtlkit.load(run),
        lambda: mtlkit.load(tmp_path / "net.safetensors"),
        lambda: mtlkit.export(run, tmp_path / "net.pt2"),
        lambda: predict(run, tmp_path / "new.csv", tmp_path / "out.csv"),
    ):
        with pytest.raises(MtlkitError, match=r"hostile_plugin.*--plugin .*trust_plugins=True"):
            call()
    assert not marker.exists()
    assert "hostile_plugin" not in sys.modules
    assert sorted(path.name for path in tmp_path.glob("*.*") if path.suffix in (".pt2", ".csv")) == [
        "new.csv"
    ]
    mtlkit.load(run, trust_plugins=True)
    assert marker.exists()


@pytest.mark.parametrize("command", ["export", "predict", "evaluate"])
def test_the_commands_run_no_code_without_the_flag(run, tmp_path, hostile, command, capsys):
    marker = hostile(str(tmp_path / "hostile_plugin.py"))
    people(3).to_csv(tmp_path / "new.csv", index=False)
    arguments = {
        "export": ["--format", "safetensors"],
        "predict": ["--input", str(tmp_path / "new.csv"), "--output", str(tmp_path / "out.csv")],
        "evaluate": ["--input", str(tmp_path / "new.csv")],
    }[command]
    with pytest.raises(SystemExit) as stop:
        main([command, str(run), *arguments])
    assert stop.value.code == 1
    assert "--plugin" in capsys.readouterr().err
    assert not marker.exists()
    with pytest.raises(SystemExit) as stop:
        main([command, str(run), *arguments, "--plugin", str(tmp_path / "hostile_plugin.py")])
    assert stop.value.code == 0
    assert marker.exists()


def test_a_plugin_may_have_moved_and_a_trusted_one_that_is_gone_is_named(tmp_path):
    plugin = tmp_path / "own_network_of_deployment.py"
    plugin.write_text(
        "import mtlkit\n"
        "from mtlkit.architectures.hard_sharing import HardSharing\n"
        "@mtlkit.register_architecture('own_network')\n"
        "class Own(HardSharing):\n"
        "    pass\n"
    )
    write_people(tmp_path / "people.csv")
    settings = {"method": "sum", "epochs": 1, "plugins": [str(plugin)], "architecture": "own_network"}
    with architectures.temporary():
        folder = train(tmp_path / "run", tmp_path / "people.csv", **settings)
        assert type(mtlkit.load(folder).network).__name__ == "Own"  # this process has imported it
    del sys.modules[plugin.stem]
    with architectures.temporary():
        assert type(mtlkit.load(folder, trust_plugins=True).network).__name__ == "Own"
    del sys.modules[plugin.stem]
    plugin.unlink()
    with pytest.warns(UserWarning, match="no such file"), pytest.raises(SpecError, match="own_network"):
        mtlkit.load(folder, trust_plugins=True)
