"""Problems whose diagnosis is known by hand."""

import json
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import mtlkit
from mtlkit.errors import SpecError, UsageError
from tests.diagnosis.directed import BATCH, Directed, batches, directed_tasks, finding, rules
from tests.report.browser import look, needs_browser


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(0)


def diagnose(model, tasks, data=None, steps=24, **options):
    options = {"optimizer": "sgd", "lr": 1e-3, "progress": False} | options
    return mtlkit.diagnose(model, tasks, data or batches(tasks), steps, **options)


def test_norms_that_differ_400_fold_are_reported_with_what_to_try_first():
    tasks = directed_tasks(small=[1, 0, 0, 0], large=[0, 400, 0, 0])
    found = diagnose(Directed(tasks), tasks)
    np.testing.assert_allclose(
        found.summary.typical_norms, [1 / math.sqrt(BATCH), 400 / math.sqrt(BATCH)], 1e-5
    )
    assert found.summary.norm_ratio == pytest.approx(400, rel=1e-5)
    first = found.findings[0]
    assert first.rule == "different norms"
    assert "differ 400 x" in first.text
    assert all(name in first.advice for name in ("`scale`", "`imtl_g`", "`normalize`"))
    assert "nothing" not in rules(found)
    assert "gradient norms differ 400 x" in str(found)


def test_opposite_tasks_conflict_in_every_step_and_undo_each_other():
    tasks = directed_tasks(up=[1, 1, 0, 0], down=[-400, -400, 0, 0])
    found = diagnose(Directed(tasks), tasks)
    assert found.summary.cosine[0, 1] == pytest.approx(-1, abs=1e-6)
    assert found.summary.conflict_share[0, 1] == 1
    np.testing.assert_allclose(found.summary.help, [-1, -1], atol=1e-5)  # whatever their scales are
    assert {"lasting conflicts", "canceled progress"} <= rules(found)
    assert "in 100% of the steps, mean cosine -1.00" in finding(found, "lasting conflicts").text
    assert "cancel 100%" in finding(found, "canceled progress").text


def test_tasks_that_agree_need_no_repair_but_tuned_weights():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0.6, 0.8, 0, 0])
    found = diagnose(Directed(tasks), tasks)
    assert rules(found) == {"nothing", "help"}
    assert found.summary.cosine[0, 1] == pytest.approx(0.6, abs=1e-6)
    assert "tuned weights" in finding(found, "nothing").advice
    assert "cosine is +0.60" in finding(found, "nothing").text


@pytest.mark.filterwarnings("ignore:the gradient of task")
@pytest.mark.parametrize("how", ["zero", "detached"])
def test_a_task_without_gradient_is_unreached_and_not_the_smallest_norm(how):
    direction = [0, 0, 0, 0] if how == "zero" else [0, 1, 0, 0]
    tasks = directed_tasks(fine=[1, 0, 0, 0], lost=direction)
    found = diagnose(Directed(tasks, cut=("lost",) if how == "detached" else ()), tasks)
    assert found.findings[0].rule == "unreached"
    assert "lost" in found.findings[0].text
    assert "fine" not in found.findings[0].text
    assert found.summary.typical_norms[1] == 0
    assert "nan" not in str(found)
    assert "different norms" not in rules(found)


def test_dead_features_are_counted():
    tasks = directed_tasks(a=[1, 1, 1, 1], b=[1, 0, 1, 0])
    found = diagnose(Directed(tasks, dead=1), tasks)
    assert (found.summary.measured.dead_features, found.summary.measured.features) == (1, 4)
    assert "1 of 4 shared features (25%)" in finding(found, "dead features").text
    assert "dead features" not in rules(diagnose(Directed(tasks), tasks))


def test_tasks_of_different_samples_are_measured_at_the_parameters():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[1, 0, 0, 0])
    data = batches(tasks, labeled={"a": [0, 1], "b": [2, 3]})
    found = diagnose(Directed(tasks), tasks, data)
    assert found.summary.wrt == "parameters"
    # the bias alone gives them a common gradient of 1, whatever the inputs are
    assert found.summary.cosine[0, 1] > 0
    assert "0 samples are labeled for both of a and b" in finding(found, "different samples").text
    at_features = diagnose(Directed(tasks), tasks, data, wrt="features")
    assert math.isnan(at_features.summary.cosine[0, 1])
    assert "different samples" in rules(at_features)


def test_batches_of_one_task_each_are_reported_and_not_taken_for_orthogonal():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[1, 0, 0, 0])
    data = batches(tasks, count=4, labeled={"a": [0, 1, 2, 3], "b": []})
    data += batches(tasks, count=4, labeled={"a": [], "b": [0, 1, 2, 3]})
    found = diagnose(Directed(tasks), tasks, data, steps=8)
    assert "each of the 8 batches" in finding(found, "one task per batch").text
    assert "different samples" not in rules(found)
    assert math.isnan(found.summary.cosine[0, 1])


def test_tasks_without_or_with_few_labels_are_named():
    tasks = directed_tasks(all=[1, 0, 0, 0], few=[1, 1, 0, 0], none=[0, 1, 0, 0])
    data = batches(tasks, count=12, labeled={"all": [0, 1, 2, 3], "few": [], "none": []})
    data[0][1]["few"][0] = 0.0
    found = diagnose(Directed(tasks), tasks, data, steps=12)
    assert finding(found, "no labels").text.endswith("none")
    assert "few 1, against 48 of all" in finding(found, "few labels").text


def test_steps_that_are_not_finite_are_left_out_and_reported():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[1, 1, 0, 0])
    data = batches(tasks, count=4)
    data[2][0][0, 0] = math.inf
    found = diagnose(Directed(tasks), tasks, data, steps=8)
    assert found.findings[0].text.startswith("2 of 8 steps")
    assert np.isfinite(found.summary.cosine).all()


def test_a_drifting_ratio_and_rising_losses_are_reported():
    class Growing(Directed):
        steps = 0

        def forward(self, x):
            self.steps += self.training
            predictions = super().forward(x)
            predictions["a"] = predictions["a"] * 1.1**self.steps + self.steps
            return predictions

    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0, 1, 0, 0])
    found = diagnose(Growing(tasks), tasks, steps=40, lr=1e-6)
    assert finding(found, "drifting norms").text.startswith("the gradient norm of")
    assert "losses rise: a from" in finding(found, "rising losses").text


def test_model_method_and_random_numbers_stay_as_they_are():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0, 1, 0, 0])
    torch.manual_seed(3)
    model = Directed(tasks, method="rotograd")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method, drawn = model.method, torch.random.get_rng_state()
    diagnose(model, tasks, lr=0.5)
    assert model.method is method
    assert model.method.stats is None
    assert torch.equal(torch.random.get_rng_state(), drawn)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_tasks_may_come_in_another_order_than_the_model_has_them():
    tasks = directed_tasks(small=[1, 0, 0, 0], large=[0, 400, 0, 0])
    found = diagnose(Directed(tasks), tasks[::-1])
    by_name = dict(zip(found.summary.tasks, found.summary.typical_norms, strict=True))
    assert by_name["large"] == pytest.approx(400 * by_name["small"], rel=1e-5)


def test_a_method_deep_inside_the_model_is_found():
    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0.6, 0.8, 0, 0])
    found = diagnose(Wrapped(Directed(tasks, method="pcgrad")), tasks)
    assert found.summary.wrt == "features"
    assert found.summary.cosine[0, 1] == pytest.approx(0.6, abs=1e-6)


class Plain(nn.Module):
    """Neither a method nor a fork."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 3)
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Linear(3, 4)})

    def forward(self, x):
        z = self.shared(x).tanh()
        return {name: head(z) for name, head in self.heads.items()}


def test_a_model_without_a_fork_is_measured_at_the_parameters():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0, 1, 0, 0])
    torch.manual_seed(0)
    model, data = Plain(), batches(tasks, count=1)
    found = diagnose(model, tasks, data, steps=1)
    rows = []
    for task in tasks:
        loss = task.loss(model(data[0][0])[task.name], None)
        gradients = torch.autograd.grad(loss, list(model.shared.parameters()))
        rows.append(torch.cat([g.flatten() for g in gradients]))
    np.testing.assert_allclose(found.summary.norms[0], [row.norm().item() for row in rows], rtol=1e-5)
    expected = torch.cosine_similarity(rows[0], rows[1], dim=0).item()
    assert found.summary.cosines[0, 0, 1] == pytest.approx(expected, abs=1e-6)
    assert "no fork" in rules(found)
    with pytest.raises(SpecError, match="does not call method"):
        diagnose(model, tasks, data, wrt="features")


def test_batches_of_one_task_each_do_not_make_the_tasks_of_an_unforked_model_unreached():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0, 1, 0, 0])
    data = batches(tasks, count=4, labeled={"a": [0, 1, 2, 3], "b": []})
    data += batches(tasks, count=4, labeled={"a": [], "b": [0, 1, 2, 3]})
    found = diagnose(Plain(), tasks, data, steps=8)
    assert "unreached" not in rules(found)
    assert "one task per batch" in rules(found)


@pytest.mark.parametrize(
    ("architecture", "wrt"), [("hard_sharing", "features"), ("cross_stitch", "parameters")]
)
def test_architectures_by_name_are_diagnosed(architecture, wrt):
    tasks = [mtlkit.Task.classification("label", 3), mtlkit.Task.regression("value")]
    model = mtlkit.create_architecture(f"{architecture}(backbone=mlp(8, 6, inputs=5))", tasks)
    inputs = torch.randn(6, 5)
    data = [(inputs, {"label": torch.tensor([0, 1, 2, -1, 1, 0]), "value": inputs[:, :1]})]
    found = diagnose(model, tasks, data, steps=4)
    assert found.summary.wrt == wrt
    assert np.isfinite(found.summary.cosine).all()


def test_one_task_alone_is_an_answer_too():
    tasks = directed_tasks(a=[1, 0, 0, 0])
    found = diagnose(Directed(tasks), tasks, steps=3)
    assert rules(found) == {"nothing"}
    assert "a " in str(found)
    assert "3 steps are too few" in found.findings[0].text
    assert "too few" not in str(diagnose(Directed(tasks), tasks, steps=20))


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("160", 100)])
def test_the_text_fits_the_terminal_and_every_finding_has_its_numbers(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[-400, 1, 0, 0], c=[0, 0, 0, 0])
    text = str(diagnose(Directed(tasks), tasks))
    assert max(map(len, text.splitlines())) <= width
    assert "`" not in text
    for piece in re.split(r"\n\n(?=\d+\. )", text)[1:]:
        assert "\n  try  " in piece
        assert "\n  why  " in piece


def test_what_cannot_be_diagnosed_is_refused_with_the_reason():
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[0, 1, 0, 0])
    with pytest.raises(UsageError, match="no batch"):
        diagnose(Directed(tasks), tasks, iter(()))
    with pytest.raises(UsageError, match="read only once"):
        diagnose(Directed(tasks), tasks, iter(batches(tasks)))
    with pytest.raises(SpecError, match="steps"):
        diagnose(Directed(tasks), tasks, steps=0)
    with pytest.raises(SpecError, match="has the tasks"):
        diagnose(Directed(tasks), tasks[:1])
    with pytest.raises(SpecError, match="a copy of the model"):
        diagnose(Directed(tasks), tasks, optimizer=torch.optim.SGD(Plain().parameters()))
    found = diagnose(
        Directed(tasks), tasks, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )
    assert found.summary.steps == 24


def test_the_page_shows_findings_tasks_and_drawings(tmp_path):
    tasks = directed_tasks(**{"a<b": [1, 0.2, 0, 0], "c": [-1, 0.1, 0, 0], "d": [0, 0, 400, 0]})
    found = diagnose(Directed(tasks), tasks)
    written = found.to_html(tmp_path / "deep" / "page.html").read_text()
    page = written.partition('id="library"')[0]
    assert "Gradient norms differ 398 x" in page
    assert "a&lt;b" in page
    assert "a<b" not in page
    for title in ("Gradient norm", "Loss", "Mean cosine", "Steps in conflict"):
        assert f"<figcaption>{title}</figcaption>" in page
    for fact in ("Directed", "sgd, lr 0.001", "seed 0", f"mtlkit {mtlkit.__version__}"):
        assert fact in page.partition("</header>")[0]
    assert "http://" not in page


@needs_browser
@pytest.mark.slow
def test_a_browser_draws_the_page_on_a_narrow_screen(tmp_path):
    tasks = directed_tasks(a=[1, 0.2, 0, 0], b=[-1, 0.1, 0, 0], c=[0, 0, 400, 0])
    page = diagnose(Directed(tasks), tasks).to_html(tmp_path / "found.html").read_text()
    script = """window.dispatchEvent(new Event("beforeprint"));  // draws those out of view too
    await wait();
    window.dispatchEvent(new Event("afterprint"));
    await wait();
    const charts = Array.from(document.querySelectorAll(".chart"));
    seen.drawn = charts.filter(c => c.querySelector(".main-svg")).length;"""
    seen, console = look(tmp_path, page, script, "--window-size=500,900")
    assert seen["errors"] == []
    assert console == []
    assert seen["drawn"] == 5
    assert seen["overflow"] <= 0


def test_the_command_prints_and_writes_what_it_found(tmp_path, capsys):
    from mtlkit.cli import main

    arguments = [
        "diagnose",
        "--data",
        "multidigits(train=60, val=20, test=20)",
        "--steps",
        "3",
        "--lr",
        "1e-4",
    ]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--batch-size", "20", "-o", str(tmp_path / "out")])
    shown = capsys.readouterr()
    assert stop.value.code == 0, shown.err
    assert "trained a copy for 3 steps" in shown.out
    assert "  try  " in shown.out
    assert (tmp_path / "out" / "diagnosis.txt").read_text().strip() in shown.out
    header = (tmp_path / "out" / "diagnosis.html").read_text().partition("</header>")[0]
    assert "data: multidigits(train=60, val=20, test=20)" in header


def test_the_command_takes_the_settings_of_a_run_with_rotations(tmp_path, capsys):
    from mtlkit.cli import main

    settings = {"data": "multidigits(train=60, val=20, test=20)", "method": "rotograd"}
    settings |= {"rotation_decay": 0.999, "schedule": "cosine", "steps": 1, "test_last": 1}
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", "-c", str(tmp_path / "run.yaml"), "--steps", "2", "-o", str(tmp_path / "out")])
    assert stop.value.code == 0, capsys.readouterr().err


class TwoLayers(nn.Module):
    """The tasks agree in the second shared layer, and conflict in the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        first, second = self.first(x), self.second(x)
        return {"a": 2 * first + second, "b": second - first, "c": second}


def test_at_the_parameters_conflicts_are_shown_by_layer(tmp_path):
    tasks = directed_tasks(a=[1, 0, 0, 0], b=[1, 0, 0, 0], c=[1, 0, 0, 0])
    found = diagnose(TwoLayers(), tasks)
    assert list(found.summary.layers) == ["first", "second"]
    # the pairs a and b, a and c, b and c: c does not use the first layer
    np.testing.assert_allclose(found.summary.layers["first"], [-1, math.nan, math.nan], atol=1e-5)
    np.testing.assert_allclose(found.summary.layers["second"], [1, 1, 1], atol=1e-5)
    assert (
        "in 1 of 2 layers: first, lowest mean cosine -1.00" in finding(found, "conflicts by layer").text
    )
    assert "first   -1.00  a and b" in str(found)
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "<figcaption>Mean cosine, by layer and pair of tasks</figcaption>" in page
    at_features = directed_tasks(a=[1, 0, 0, 0], b=[-1, 0, 0, 0])
    assert diagnose(Directed(at_features), at_features).summary.layers == {}
