"""Architectures as folders of huggingface_hub: saved, restored, uploaded. No network is used."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.architectures.capacity import add_capacity
from mtlkit.architectures.hard_sharing import HardSharing
from mtlkit.architectures.saving import rebuild, resolve
from mtlkit.errors import MtlkitError, SpecError
from tests.architectures.cases import CASES, TASKS, ids, light

MLP = "hard_sharing(backbone=mlp(16, inputs=8), heads=mlp(6))"


def trained(spec: str, method: str, x: torch.Tensor, tasks=TASKS) -> mtlkit.Architecture:
    net = mtlkit.create_architecture(spec, tasks, method=method)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(2):
        predictions = net(x)
        net.method.total({task: out.square().mean() for task, out in predictions.items()}).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.eval()


def assert_same(one: nn.Module, other: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        wanted, found = one(x), other(x)
    assert list(wanted) == list(found)
    for task in wanted:
        assert torch.equal(wanted[task], found[task])


@pytest.mark.parametrize("case", light(CASES), ids=ids)
def test_any_architecture_comes_back_from_its_folder(case, tmp_path):
    net, x = case.build("rotograd" if case.forks else "sum").eval(), case.inputs()
    with torch.no_grad():
        for parameter in net.method.parameters():
            parameter.normal_(0, 0.2)
    net.save_pretrained(tmp_path)
    again = mtlkit.Architecture.from_pretrained(tmp_path)
    assert type(again) is type(net)
    assert not again.training
    assert_same(net, again, x)


def test_the_method_and_its_state_are_kept(tmp_path):
    x = torch.randn(9, 8)
    net = trained(MLP, "dwa(temperature=3)+rotate(size=4)+gradnorm(alpha=0.5)", x)
    net.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tasks"] == dict(net.outputs)
    assert config["method"] == str(net.method)
    assert config["architecture"].startswith("hard_sharing(")
    assert "multi_input=False" in config["architecture"]  # what was left out is written too
    assert (tmp_path / "README.md").read_text().count("multi-task-learning") == 1
    again = mtlkit.Architecture.from_pretrained(str(tmp_path))
    for key, value in net.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    assert again.spec == config["architecture"]
    again.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == config


def test_matrices_before_the_heads_are_kept(tmp_path):
    net = mtlkit.create_architecture(MLP, TASKS)
    add_capacity(net, {"size": 5})
    net.save_pretrained(tmp_path)
    assert_same(net.eval(), HardSharing.from_pretrained(tmp_path), torch.randn(3, 8))


def test_weights_to_start_from_are_not_read_again():
    spec = "hard_sharing(backbone='timm.resnet10t(pretrained=True, in_chans=1)', heads=linear)"
    net = rebuild({"architecture": resolve(spec), "tasks": {"a": 2}, "method": "sum"})
    assert "pretrained=True" in net.spec
    spec = "hard_sharing(backbone='timm.resnet10t(checkpoint_path=gone.pt)')"
    rebuild({"architecture": resolve(spec), "tasks": {"a": 2}, "method": "sum"})


def test_what_no_string_describes_is_not_saved(tmp_path):
    net = mtlkit.create_architecture("hard_sharing", TASKS, backbone=nn.Linear(4, 3), features=3)
    with pytest.raises(SpecError, match=r"plain values"):
        net.save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=r"no string"):
        HardSharing(TASKS, backbone="mlp(4, inputs=2)").save_pretrained(tmp_path)


def test_folders_of_others_are_refused(tmp_path):
    from mtlkit.architectures.mmoe import MMoE

    with pytest.raises(MtlkitError, match=r"holds no network of mtlkit"):
        mtlkit.Architecture.from_pretrained(tmp_path)
    mtlkit.create_architecture(MLP, TASKS).save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=r"holds HardSharing, not MMoE"):
        MMoE.from_pretrained(tmp_path)
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "format": 99, "version": "7.0"}))
    with pytest.raises(MtlkitError, match=r"written by mtlkit 7\.0.*upgrade"):
        mtlkit.Architecture.from_pretrained(tmp_path)
    config.write_text(json.dumps(content))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(MtlkitError, match=r"no weights"):
        mtlkit.Architecture.from_pretrained(tmp_path)


def test_an_upload_holds_config_weights_and_card(monkeypatch):
    from types import SimpleNamespace

    import huggingface_hub.hub_mixin as hub

    uploaded = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, **_):
            uploaded[repo_id] = sorted(path.name for path in Path(folder_path).iterdir())
            return "url"

    monkeypatch.setattr(hub, "HfApi", Api)
    assert mtlkit.create_architecture(MLP, TASKS).push_to_hub("me/net") == "url"
    assert uploaded == {"me/net": ["README.md", "config.json", "model.safetensors"]}


def test_networks_are_copied_and_pickled_as_before(tmp_path):
    import copy

    net, x = mtlkit.create_architecture(MLP, TASKS, method="rotograd").eval(), torch.randn(3, 8)
    assert_same(net, copy.deepcopy(net), x)
    torch.save(net, tmp_path / "net.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(net, torch.load(tmp_path / "net.pt", weights_only=False), x)
