"""The HTML report: well formed, self-contained, and alive in a browser."""

import base64
import gzip
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import plotly.graph_objects as plotly
import pytest
import torch

import mtlkit
from mtlkit.cli import main
from mtlkit.config.logs import Log
from mtlkit.experiments.demo import PARTS, write_demo_page
from mtlkit.report import page
from mtlkit.report.page import PALETTE, Charts, Listing, Note, Section, palette_slots, render_page
from mtlkit.report.report import render_report, write_report
from mtlkit.report.results import Comparison, Run, TaskRecord, read_trainer_run
from mtlkit.report.tables import build_table
from mtlkit.training import Monitor
from tests.report.browser import DARK, LIGHT, look, needs_browser
from tests.report.drawn_results import METHODS, draw_comparison

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Balance(HTMLParser):
    """Collects tags, and notes those that are closed in the wrong order."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.seen, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def parse(text):
    parser = Balance()
    parser.feed(text)
    return parser


def without_library(text):
    return re.sub(r'<script type="application/gzip" id="library">.*?</script>\n', "", text)


def library(text):
    packed = re.search(r'<script type="application/gzip" id="library">(.*?)</script>', text)[1]
    return gzip.decompress(base64.b64decode(packed)).decode()


def figures(text):
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(each) for each in found]


def test_the_report_is_balanced_html_with_unique_ids_and_needs_no_other_file():
    text = render_report(draw_comparison(seeds=3, epochs=3, monitor=5))
    assert re.search(r"plotly\.js .*v\d", library(text)[:100])
    assert len(text) < 3_000_000
    own = without_library(text)
    parser = parse(own)
    assert parser.wrong == []
    assert parser.open == []
    ids = [attributes["id"] for _, attributes in parser.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [link for link in parser.links if link != "data:,"] == []
    assert not re.search(r"https?://|@import|url\((?!#)", own)
    assert "default-src 'none'" in own


def test_a_report_embeds_the_part_of_plotly_that_it_needs_or_all_of_it(tmp_path, monkeypatch):
    part = tmp_path / "part.js"
    monkeypatch.setattr(page, "_PLOTLY", part)
    embed = page._library.__wrapped__  # without its cache
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(embed()))[:100]
    part.write_text("a part")
    assert gzip.decompress(base64.b64decode(embed())) == b"a part"


def test_every_chart_is_one_that_plotly_takes_and_is_described():
    text = without_library(render_report(draw_comparison(seeds=3, epochs=3, monitor=5)))
    found = figures(text)
    # mean and 5 tasks against the sum; ranks; 3 of cost; 5 of tasks; metric, training and validation loss
    # of 5 tasks; 3 overviews and 4 by task
    assert len(found) == 6 + 1 + 3 + 5 + 15 + 3 + 20
    for figure in found[::7]:
        plotly.Figure(figure, skip_invalid=False)
    charts = [facts for tag, facts in parse(text).seen if facts.get("class") == "chart"]
    assert len(charts) == len(found)
    assert all(facts["aria-label"] for facts in charts)


def test_the_verdict_stands_on_top_and_no_best_row_is_praised():
    text = without_library(render_report(draw_comparison(seeds=3, epochs=2, monitor=2)))
    place = text.index('id="verdict"')
    assert place < text.index('id="results"')
    statuses = re.findall(r'<span class="status [\w-]+">(.*?)</span>.*?<b>(.*?)</b>', text)
    assert {label for _, label in statuses} == set(METHODS[2:])
    assert {status for status, _ in statuses} <= {"better", "worse", "level", "not decided"}
    assert "mtlkit tune --data multidigits" in text


def test_the_report_in_its_folder_names_the_command_that_adds_seeds(tmp_path):
    made = draw_comparison(METHODS[:3], seeds=3, epochs=1, monitor=1)
    (tmp_path / "compare.yaml").write_text("data: multidigits\n")
    random = np.random.default_rng(0)
    for run in made.runs:  # chance is all that differs
        row = {"accuracy": 0.8, "f1": 0.8, "mse": 1.0, "mae": 1.0}
        run.metrics = {
            t.name: {m: row[m] * random.uniform(0.8, 1.2) for m in t.metrics} for t in made.tasks
        }
    text = write_report(made, tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"mtlkit compare -c {tmp_path}/compare.yaml -o {tmp_path} --seeds 0,1,2,3,4,5" in text


@pytest.mark.parametrize(("background", "place"), [("#f7f8fa", 0), ("#1b2126", 1)])
def test_every_color_of_the_charts_has_enough_contrast(background, place):
    script = (files("mtlkit.report") / "templates" / "page.js").read_text()
    inks = [
        (night, day) for night, day in re.findall(r'(?:text|gray): night \? "(.*?)" : "(.*?)"', script)
    ]
    assert len(inks) == 2
    for color in [pair[place] for pair in PALETTE] + [ink[1 - place] for ink in inks]:
        assert contrast(color, background) >= 4.5, color


def contrast(*colors):
    """The ratio that WCAG defines."""
    found = []
    for color in colors:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        found.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(found) / min(found)


def test_the_same_results_give_the_same_file():
    assert render_report(draw_comparison(seeds=2, epochs=2)) == render_report(
        draw_comparison(seeds=2, epochs=2)
    )


def test_names_from_outside_are_escaped():
    evil = "<script>alert(1)</script>&\"'"
    tasks = [TaskRecord(evil, {"accuracy": True}), TaskRecord("b", {evil: False})]
    made = Comparison(
        evil, tasks, reference="sum", baseline="single-task", config={"note": "</pre>" + evil}
    )
    for label in ("single-task", "sum", evil):
        for seed in range(2):
            metrics = {evil: {"accuracy": 0.5 + 0.1 * seed}, "b": {evil: 1.0 + seed}}
            made.runs.append(Run(label, seed, metrics=metrics, method=evil, seconds=1.0))
    made.runs.append(Run(evil + "w", 0, metrics=made.runs[0].metrics, kind="front"))
    made.runs[-2].status, made.runs[-2].error = "failed", evil
    text = without_library(render_report(made))
    assert text.count("<script>") == 1
    assert "alert(1)</script>" not in text
    assert parse(text).wrong == []


@pytest.mark.parametrize(
    "made",
    [
        Comparison("nothing", [TaskRecord("a", {"mse": False})]),
        Comparison("one", [TaskRecord("a", {"mse": False})], [Run("m", 0, metrics={"a": {"mse": 1.0}})]),
        Comparison("failed", [TaskRecord("a", {"mse": False})], [Run("m", 0, "failed", error="x")]),
        Comparison(
            "nan",
            [TaskRecord("a", {"mse": False})],
            [Run("m", s, metrics={"a": {"mse": math.nan}}) for s in (0, 1)],
            baseline="m",
            reference="m",
        ),
        Comparison(
            "infinite",
            [TaskRecord("a", {"mse": False})],
            [Run("m", s, metrics={"a": {"mse": math.inf if s else 1.0}}) for s in (0, 1)],
        ),
    ],
    ids=lambda made: made.title,
)
def test_results_of_any_completeness_give_a_report(made):
    text = render_report(made)
    assert parse(text).wrong == []
    assert made.title in text


def test_no_two_names_of_a_legend_look_alike():
    names = ["single-task", *(f"method{i}" for i in range(20))]
    slots = palette_slots(names, "single-task")
    assert len(set(slots)) == 21
    assert slots[0] == 7


def test_a_page_of_a_large_comparison_is_small():
    """20 methods, 10 tasks, 10 seeds: under 3 MB besides the library."""
    tasks = [TaskRecord(f"t{k}", {"accuracy": True} if k % 2 else {"mse": False}) for k in range(10)]
    names = ["single-task", "sum", *(f"method{k}" for k in range(18))]
    made = Comparison("large", tasks, baseline="single-task", reference="sum")
    source = draw_comparison(
        METHODS[:2], 1, 60, [TaskRecord(n, {"mse": False}) for n in ("digit_sum", "pixels")], 200
    )
    random = np.random.default_rng(0)
    for label in names:
        for seed in range(10):
            metrics = {task.name: {task.main_metric: 0.5 + 0.1 * random.random()} for task in tasks}
            made.runs.append(Run(label, seed, metrics=metrics, seconds=1.0))
        # every curve of every task, with figures that do not round to a few characters
        run = made.runs[-1]
        for row in source.runs[0].history:
            values = {task.name: float(random.random()) for task in tasks}
            metrics = {t.name: {t.main_metric: float(random.random())} for t in tasks}
            run.history.append(type(row)(row.step, row.epoch, row.split, values, metrics))
        for row in source.runs[0].monitor:
            values = [{t.name: float(random.random()) for t in tasks} for _ in range(4)]
            run.monitor.append(type(row)(row.step, *values[:3], 0.5, values[3]))
        made.runs[-2].history, made.runs[-2].monitor = run.history[::-1], run.monitor
    text = without_library(render_report(made))
    assert 1_000_000 < len(text.encode()) < 3_000_000


def test_the_command_rebuilds_the_report_and_the_tables_from_disk(tmp_path, capsys):
    made = draw_comparison(seeds=2, epochs=2, monitor=3)
    made.save(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert not stop.value.code
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_report(made, tmp_path)
    assert (
        (tmp_path / "table.md")
        .read_text(encoding="utf-8")
        .startswith(build_table(made).verdict.sentences[0])
    )
    assert (tmp_path / "table.csv").exists()
    assert (tmp_path / "table.tex").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "elsewhere")])
    assert stop.value.code == 1
    assert "mtlkit compare" in capsys.readouterr().err


def test_the_command_repairs_what_was_cut_short_and_says_so(tmp_path, capsys):
    made = draw_comparison(methods=("single-task", "sum"), seeds=2, epochs=2, monitor=3)
    made.save(tmp_path)
    lost = made.runs[-1]
    folder = tmp_path / "runs" / "sum-seed1"
    (folder / "job.json").write_text(json.dumps({"label": "sum", "seed": 1, "train": {"method": "sum"}}))
    (folder / "result.json").write_text(
        json.dumps({"metrics": lost.metrics, "seconds": 2.0, "steps": 4})
    )
    results = tmp_path / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-30])
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    assert "repaired results.jsonl: 1 run from" in capsys.readouterr().out
    assert "Missing from results.jsonl" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert Comparison.load(tmp_path).recovered == []


def test_a_page_of_anything_else_can_be_made_of_the_same_blocks():
    text = render_page(
        "A <page>",
        [
            Section("one", "One", [Note("text"), Listing(["a", "b"], [["x", "1"], ["y", "2"]])]),
            Section("empty", "Not shown", [Charts([None])]),
        ],
        lead=["Important."],
    )
    assert parse(text).wrong == []
    assert "A &lt;page&gt;" in text
    assert "Not shown" not in text
    assert len(text) < 30_000  # no charts, no library


def test_a_single_run_shows_all_its_metrics_and_says_nothing_about_seeds():
    made = draw_comparison(("sum",), seeds=1, epochs=3, monitor=3)
    text = without_library(render_report(made))
    assert text.count("mae ↓") == 2
    assert "over seeds" not in text.lower()
    assert "All on the test set." in text


def test_the_page_of_the_demo_shows_both_parts_with_their_verdicts_and_a_command_each(tmp_path):
    made = {part.name: draw_comparison(METHODS[:4], seeds=3, epochs=1, monitor=1) for part in PARTS}
    for part in PARTS:
        (tmp_path / part.name).mkdir()
        (tmp_path / part.name / "compare.yaml").touch()
    text = without_library(write_demo_page(made, tmp_path).read_text(encoding="utf-8"))
    parser = parse(text)
    assert parser.wrong == []
    ids = [attributes["id"] for _, attributes in parser.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {"raw", "normalized", "table-raw", "table-normalized"} <= set(ids)
    for part in PARTS:
        assert f"<h3>{part.losses}</h3>" in text
        assert f'href="{part.name}/report.html"' in text
        assert f"mtlkit compare -c {tmp_path / part.name / 'compare.yaml'} " in text


LOOK = """
  const column = n => Array.from(document.querySelectorAll("#table tbody tr")).map(
    r => r.cells[n].dataset.value);
  const charts = Array.from(document.querySelectorAll(".chart"));
  seen.charts = charts.length;
  for (let tries = 0; !charts.some(c => c.querySelector(".main-svg")) && tries < 50; tries++) {
    await wait();
  }
  seen.first = charts.filter(c => c.querySelector(".main-svg")).length;
  window.dispatchEvent(new Event("beforeprint")); await wait();
  seen.paper = charts.filter(c => c._fullLayout.width === 335).length;
  window.dispatchEvent(new Event("afterprint")); await wait();
  seen.drawn = charts.filter(c => c.querySelector(".main-svg")).length;
  seen.small = charts.map(c => c.getBoundingClientRect()).filter(s => s.width < 100 || s.height < 50).length;
  seen.wider = charts.filter(
    c => c.querySelector(".main-svg").getBoundingClientRect().width > c.clientWidth + 1).length;
  seen.background = getComputedStyle(document.body).backgroundColor;
  const curve = c => c.querySelector(".scatterlayer path.js-line, .scatterlayer path.point");
  const chart = charts.find(c => c.closest("#learning"));
  seen.color = chart && getComputedStyle(curve(chart)).stroke;
  seen.verdict = document.getElementById("verdict").innerText;
  seen.names = column(0);
  const buttons = document.querySelectorAll("#table thead tr:nth-child(2) button");
  buttons[1].click(); seen.down = column(1);
  seen.sorted = buttons[1].closest("th").getAttribute("aria-sort");
  buttons[1].click(); seen.up = column(1);
  buttons[4].click(); seen.low = column(4);
  buttons[4].click(); buttons[4].click(); seen.restored = column(0);
  const legend = document.querySelector('#legend button[data-series="1"]');
  const shown = () => charts.map(
    c => (c._fullData || []).filter(t => t.meta && t.meta.series === 1 && t.visible === true).length);
  const sum = numbers => numbers.reduce((a, b) => a + b, 0);
  seen.before = sum(shown());
  legend.click(); await wait(); seen.hidden = sum(shown());
  seen.pressed = legend.getAttribute("aria-pressed");
  seen.dimmed = Array.from(document.querySelectorAll("tr.off")).map(r => r.cells[0].innerText.split(" ")[0]);
  legend.click(); await wait(); seen.after = sum(shown());
  legend.dispatchEvent(new MouseEvent("dblclick")); await wait();
  seen.alone = sum(charts.map(
    c => (c._fullData || []).filter(t => t.meta && t.meta.series !== 1 && t.visible === true).length));
  legend.dispatchEvent(new MouseEvent("dblclick")); await wait();
  seen.axes = charts.filter(c => c._fullLayout && c._fullLayout.yaxis.maxallowed === 1).map(
    c => c._fullLayout.yaxis.range);
  seen.tools = Array.from(document.querySelectorAll(".modebar-btn")).map(b => b.dataset.title);
"""


@needs_browser
def test_in_a_browser_charts_are_drawn_sorting_and_hiding_work_and_nothing_is_logged(tmp_path):
    made = draw_comparison(METHODS[:5], seeds=3, epochs=4, monitor=10)
    made.runs = [run for run in made.runs if run.label != "mgda"] + [
        Run("mgda", 0, "failed", error="NaN")
    ]
    seen, console = look(tmp_path, render_report(made), LOOK, "--window-size=1200,900")
    assert seen["errors"] == []
    assert console == []
    assert 0 < seen["first"] < 20  # those in view
    assert seen["charts"] == seen["drawn"] > 40
    assert seen["small"] == seen["wider"] == 0
    assert seen["overflow"] <= 0
    assert "not decided" in seen["verdict"] or "better" in seen["verdict"]
    known = [float(value) for value in seen["down"] if value]
    assert known == sorted(known, reverse=True)
    assert len(known) == 4
    assert seen["down"][-1] == seen["up"][-1] == ""  # a failed method comes last either way
    assert [float(value) for value in seen["up"] if value] == sorted(known)
    low = [float(value) for value in seen["low"] if value]
    assert low == sorted(low)  # of an error, the lowest is on top first
    assert seen["sorted"] == "descending"
    assert seen["restored"] == seen["names"]
    assert seen["before"] == seen["after"] > 40
    assert seen["hidden"] == 0
    assert seen["pressed"] == "false"
    assert len(seen["dimmed"]) > 1  # in all tables
    assert set(seen["dimmed"]) == {"sum"}
    assert seen["alone"] == 0
    assert all(low >= 0 and high <= 1 for low, high in seen["axes"])
    assert set(seen["tools"]) == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}
    assert seen["paper"] > 40


THEME = """
  for (const name of ["beforeprint", "afterprint"]) { window.dispatchEvent(new Event(name)); await wait(); }
  seen.background = getComputedStyle(document.body).backgroundColor;
  seen.color = getComputedStyle(document.querySelector("#learning .scatterlayer path.js-line")).stroke;
  seen.swatch = getComputedStyle(document.querySelector(".swatch.s1")).backgroundColor;
"""


@pytest.mark.slow
@needs_browser
def test_in_a_browser_the_theme_follows_the_system(tmp_path):
    text = render_report(draw_comparison(METHODS[:3], seeds=2, epochs=3, monitor=3))
    light, _ = look(tmp_path, text, THEME, *LIGHT)
    dark, _ = look(tmp_path, text, THEME, *DARK)
    assert light["errors"] == dark["errors"] == []
    assert light["background"] == "rgb(255, 255, 255)"
    brightness = sum(map(int, re.findall(r"\d+", dark["background"]))) / 3
    assert brightness < 60
    assert light["color"] != dark["color"]
    assert light["swatch"] != dark["swatch"]


@needs_browser
def test_in_a_browser_forty_tasks_on_a_phone_do_not_overflow(tmp_path):
    tasks = [TaskRecord("left" if k == 0 else f"pixels{k}", {"f1": True}) for k in range(40)]
    made = Comparison("forty", tasks, baseline="single-task", reference="sum")
    random = np.random.default_rng(0)
    for label in METHODS[:3]:
        for seed in range(2):
            made.runs.append(Run(label, seed, metrics={t.name: {"f1": random.random()} for t in tasks}))
    source = draw_comparison(methods=METHODS[:3], seeds=1, epochs=2, monitor=3)
    for run in source.runs:
        made.find(run.label, 0).history, made.find(run.label, 0).monitor = run.history, run.monitor
    script = """for (const name of ["beforeprint", "afterprint"]) {
      window.dispatchEvent(new Event(name)); await wait();
    }"""
    seen, console = look(tmp_path, render_report(made), script, "--window-size=500,900")
    assert seen["errors"] == []
    assert console == []
    assert seen["overflow"] <= 0


def test_writing_leaves_no_half_file(tmp_path):
    path = write_report(draw_comparison(seeds=1, epochs=1, monitor=1), tmp_path / "deep" / "report.html")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_conflicts_by_layer_go_from_the_monitor_to_the_report(tmp_path):
    first, second = torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(4, 1, bias=False)
    layers = torch.nn.ModuleDict({"first": first, "second": second})
    method = mtlkit.create_method("pcgrad(wrt=parameters, groups=layer)", ["a", "b"], shared=layers)
    monitor, log = Monitor(method, every=1), Log(tmp_path / "log.jsonl")
    log.write("run", 0, tasks={name: {"metrics": {"mse": False}} for name in "ab"}, method=str(method))
    for step in (1, 2):
        x = torch.randn(8, 4)
        losses = [(first(x) + second(x)).mean(), (second(x) - first(x)).mean()]
        method.total(losses).backward()
        monitor.observe(step)
    log.write("monitor", 2, **monitor.summary())
    log.close()
    single = read_trainer_run(tmp_path)
    single.save(tmp_path / "saved")
    for comparison in (single, Comparison.load(tmp_path / "saved")):
        (row,) = comparison.runs[0].monitor
        assert row.groups["first"]["a and b"] == pytest.approx(-1)
        assert row.groups["second"]["a and b"] == pytest.approx(1)
        heat = [f for f in figures(render_report(comparison)) if f and "colorscale" in str(f)]
        (trace,) = heat[0]["data"]
        assert (trace["y"], trace["x"], trace["z"]) == (["first", "second"], ["a and b"], [[-1], [1]])
