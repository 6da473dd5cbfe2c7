"""Exported files compute what the network computes, in other programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.deployment.model import LoadedModel
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError, SpecError
from mtlkit.tasks import Task


def loaded(
    spec: str, method: str, shape: tuple[int, ...], seed: int = 0, sample: Any = None
) -> LoadedModel:
    """A network that was not trained, as a run's folder would give it."""
    from mtlkit.training.record import describe_run

    torch.manual_seed(seed)
    tasks = [Task.classification("a", 3), Task.regression("b")]
    network = mtlkit.create_architecture(spec, tasks, method=method).eval()
    with torch.no_grad():
        for parameter in network.method.parameters():
            parameter.normal_(0, 0.2)

    class Data:
        val = [(torch.zeros(shape) if sample is None else sample, {})]

    Data.tasks = tasks
    record = describe_run(network, tasks, Data())
    return LoadedModel(network, tasks, None, record).eval()


@pytest.mark.parametrize("format", ["pt2", "onnx", "safetensors"])
def test_a_run_on_a_table_is_exported(format, run):
    model = mtlkit.load(run)
    made = mtlkit.export(run, format=format)
    assert made.path == run / f"model.{format}"
    assert made.difference < 1e-5
    assert made.notes == ()  # all rotations are folded
    x = model.example(11)
    with torch.no_grad():
        wanted = model(x)
    if format == "pt2":
        found = torch.export.load(made.path).module()(x)
        metadata: dict[str, str] = {"mtlkit": ""}
        torch.export.load(made.path, extra_files=metadata)
        about = json.loads(metadata["mtlkit"])
    elif format == "onnx":
        import onnx
        import onnxruntime

        session = onnxruntime.InferenceSession(str(made.path))
        names = [output.name for output in session.get_outputs()]
        arrays = session.run(None, {"inputs": x.numpy()})
        found = {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}
        about = json.loads({p.key: p.value for p in onnx.load(made.path).metadata_props}["mtlkit"])
        onnx.checker.check_model(onnx.load(made.path))
    else:
        again = mtlkit.load(made.path)
        assert str(again.network.method) == "sum"  # nothing is left to rotate
        assert [task.name for task in again.tasks] == [task.name for task in model.tasks]
        row = [{"age": 30, "job": "clerk", "hours": 40.0}]
        assert again.predict(row)["height"][0] == pytest.approx(
            model.predict(row)["height"][0], rel=1e-5
        )
        about, found = again.record, again(x)
    assert list(found) == list(wanted)
    for task, prediction in wanted.items():
        assert torch.allclose(found[task], prediction, atol=1e-5)
    assert about["tasks"][1]["classes"] == ["a", "b", "c"]
    assert about["preprocessing"]["kind"] == "table"
    assert json.loads((run / "model.json").read_text())["weights"] == "checkpoints/best.pt"  # untouched


def test_images_are_exported_with_any_batch(tmp_path):
    model = loaded("paper_mnist(logits=True)", "rotograd", (1, 28, 28))
    assert mtlkit.export(model, tmp_path / "net.onnx").difference < 1e-5
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for size in (1, 5):
        x = model.example(size)
        a, b = session.run(["a", "b"], {"inputs": x.numpy()})
        assert (a.shape, b.shape) == ((size, 3), (size, 1))
        np.testing.assert_allclose(a, model(x)["a"].detach(), atol=1e-4)


def test_tasks_with_batches_of_their_own_are_exported(tmp_path):
    model = loaded("hard_sharing(backbone=mlp(8, inputs=6), multi_input=True)", "rotograd", (6,))
    model.record["input"] = {"items": dict.fromkeys("ab", model.record["input"])}
    made = mtlkit.export(model, tmp_path / "net.pt2")
    x = {"a": torch.randn(1, 6), "b": torch.randn(4, 6)}
    found = torch.export.load(made.path).module()(x)
    import onnxruntime

    made = mtlkit.export(model, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(made.path))
    arrays = session.run(["a", "b"], {f"input_{task}": rows.numpy() for task, rows in x.items()})
    with torch.no_grad():
        for (task, prediction), array in zip(model(x).items(), arrays, strict=True):
            assert torch.allclose(found[task], prediction, atol=1e-5)
            assert torch.allclose(torch.from_numpy(array), prediction, atol=1e-5)


class TwoInputs(torch.nn.Module):
    """A backbone that is given numbers and categories, nested in one way or another."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.numbers, self.categories = torch.nn.Linear(4, 8), torch.nn.Embedding(5, 8)

    def forward(self, x):
        if self.form == "dict":
            numbers, categories = x["numbers"], x["categories"]
        elif self.form == "deep":
            numbers, categories = x["person"]["numbers"], x["others"][0]
        else:
            numbers, categories = x
        return torch.relu(self.numbers(numbers) + self.categories(categories).sum(1))


NUMBERS, CATEGORIES = torch.zeros(4), torch.zeros(2, dtype=torch.long)
NESTED = {
    "dict": ({"numbers": NUMBERS, "categories": CATEGORIES}, ["numbers", "categories"]),
    "tuple": ((NUMBERS, CATEGORIES), ["inputs_0", "inputs_1"]),
    "deep": ({"person": {"numbers": NUMBERS}, "others": [CATEGORIES]}, ["inputs_0", "inputs_1"]),
}


@pytest.fixture
def two_inputs(monkeypatch):
    from mtlkit.architectures import backbones

    def build(*, form: str) -> torch.nn.Module:
        return TwoInputs(form)

    monkeypatch.setitem(backbones._BACKBONES, "two_inputs", build)


@pytest.mark.parametrize("form", NESTED)
def test_nested_inputs_are_exported(form, two_inputs, tmp_path):
    import onnxruntime

    sample, names = NESTED[form]
    model = loaded(
        f"hard_sharing(backbone=two_inputs(form={form}), features=8)", "rotograd", (), sample=sample
    )
    x = model.example(5)
    with torch.no_grad():
        wanted = model(x)
    for format in ("pt2", "safetensors"):
        made = mtlkit.export(model, tmp_path / f"net.{format}")
        assert made.difference < 1e-5
    found = torch.export.load(tmp_path / "net.pt2").module()(x)
    made = mtlkit.export(model, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(made.path))
    assert [given.name for given in session.get_inputs()] == names
    arrays = session.run(None, dict(zip(names, map(np.asarray, flatten_features(x)[0]), strict=True)))
    for task, array in zip(("a", "b"), arrays, strict=True):
        assert torch.allclose(found[task], wanted[task], atol=1e-5)
        assert torch.allclose(torch.from_numpy(array), wanted[task], atol=1e-5)


def test_a_fixed_batch_is_fixed(tmp_path):
    model = loaded("mmoe(backbone=mlp(8, inputs=6))", "sum", (6,))
    made = mtlkit.export(model, tmp_path / "net.pt2", batch=1)
    program = torch.export.load(made.path).module()
    assert program(model.example(1))["a"].shape == (1, 3)
    with pytest.raises((RuntimeError, AssertionError)):
        program(model.example(2))


def test_rotations_that_stay_are_reported_and_kept(tmp_path):
    """Heads without a layer have nothing to fold a rotation into."""
    model = loaded("hard_sharing(backbone=mlp(8, inputs=6), heads=identity)", "sum", (6,))
    model.network.set_method("rotate(size=4)")
    with torch.no_grad():
        for parameter in model.network.method.parameters():
            parameter.normal_(0, 0.5)
    model.record["method"] = str(model.network.method)
    model.eval()  # a new method trains
    for format in ("pt2", "safetensors"):
        made = mtlkit.export(model, tmp_path / f"net.{format}")
        assert made.difference < 1e-5
        assert "explicit products" in made.notes[0]
    x = model.example(4)
    again = mtlkit.load(tmp_path / "net.safetensors")
    assert torch.allclose(again(x)["b"], model(x)["b"], atol=1e-6)


def test_wrong_orders_are_refused(run, tmp_path, monkeypatch):
    with pytest.raises(SpecError, match="set the format"):
        mtlkit.export(run)
    with pytest.raises(SpecError, match="unknown format 'onx'; did you mean 'onnx'"):
        mtlkit.export(run, format="onx")
    with pytest.raises(SpecError, match=r"format is pt2, but the file is called net\.onnx"):
        mtlkit.export(run, "net.onnx", format="pt2")
    with pytest.raises(SpecError, match="batch is 'dynamic' or a number"):
        mtlkit.export(run, format="pt2", batch=0)
    with pytest.raises(SpecError, match="needs the file to write"):
        mtlkit.export(mtlkit.load(run), format="pt2")
    with pytest.raises(MtlkitError, match=r"there is no file .*gone\.safetensors"):
        mtlkit.load(tmp_path / "gone.safetensors")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MtlkitError, match=r"mtlkit\[export\]"):
        mtlkit.export(run, format="onnx")
    assert not list(run.glob("*.onnx"))


def test_a_file_that_computes_something_else_is_not_written(run, monkeypatch):
    from mtlkit.deployment import exporting

    def wrong(model, example):
        fused = mtlkit.fuse(model, example)
        with torch.no_grad():
            next(fused.parameters()).add_(1)
        return fused

    monkeypatch.setattr(exporting, "fuse", wrong)
    with pytest.raises(MtlkitError, match="nothing was written"):
        mtlkit.export(run, format="pt2")
    assert not (run / "model.pt2").exists()


@pytest.mark.parametrize("kind", ["lora(rank=2)", "full"])
@pytest.mark.parametrize("format", ["onnx", "pt2", "safetensors"])
def test_a_file_may_take_the_preference_as_an_input(format, kind, tmp_path):
    model = loaded(f"hard_sharing(backbone=mlp(8, 6, inputs=4), preference={kind})", "rotograd", (4,))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".delta", ".up")):
                parameter.normal_()
    made = mtlkit.export(model, tmp_path / f"net.{format}", preference="input")
    assert made.difference < 1e-5
    x, outputs = torch.randn(5, 4), []
    for preference in ([1.0, 0.0], [0.0, 1.0], [0.3, 0.7], [2.0, 6.0]):
        chosen = dict(zip(model.network.tasks, preference, strict=True))
        model.network.set_preference(chosen)
        with torch.no_grad():
            wanted = model(x)
        if format == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(str(made.path))
            assert [given.name for given in session.get_inputs()] == ["inputs", "preference"]
            arrays = session.run(
                ["a", "b"], {"inputs": x.numpy(), "preference": np.array(preference, np.float32)}
            )
            found = dict(zip("ab", map(torch.from_numpy, arrays), strict=True))
        elif format == "pt2":
            found = torch.export.load(made.path).module()(x, torch.tensor(preference))
        else:
            again = mtlkit.load(made.path)
            again.network.set_preference(chosen)
            found = again(x)
        for task, prediction in wanted.items():
            assert torch.allclose(found[task], prediction, atol=1e-5)
        outputs.append(wanted["b"])
    assert not torch.allclose(outputs[0], outputs[1], atol=0.01), "the preference changes the outputs"


def test_a_network_without_preferences_cannot_take_one_as_an_input(tmp_path):
    model = loaded("hard_sharing(backbone=mlp(8, inputs=4))", "sum", (4,))
    with pytest.raises(MtlkitError, match="without preferences"):
        mtlkit.export(model, tmp_path / "net.pt2", preference="input")
