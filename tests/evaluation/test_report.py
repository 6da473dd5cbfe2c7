"""The HTML report: well formed, self-contained, and alive in a browser."""

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from mtlkit.cli import main
from mtlkit.evaluation.plots import Boxes, Line, box_chart, line_chart, log_ticks, nice_ticks, tick_text
from mtlkit.evaluation.report import render_report, write_report
from mtlkit.evaluation.results import Comparison, Run, TaskRecord
from tests.evaluation.drawn_results import METHODS, draw_comparison

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; on Debian: apt-get install chromium"
)

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


def test_the_report_is_balanced_html_with_unique_ids_and_needs_no_other_file():
    text = render_report(draw_comparison(seeds=3, epochs=3, monitor=5))
    parser = parse(text)
    assert parser.wrong == []
    assert parser.open == []
    ids = [attributes["id"] for _, attributes in parser.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [link for link in parser.links if link != "data:,"] == []
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_every_plot_is_valid_svg_with_a_title_and_a_description():
    text = render_report(draw_comparison(seeds=3, epochs=3, monitor=5))
    figures = re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL)
    # 5 boxes; metric, training and validation loss of 5 tasks; 3 overviews and 4 by task; 2 bars
    assert len(figures) == 5 + 15 + 3 + 20 + 2
    for figure in figures:
        root = ElementTree.fromstring(figure)
        assert root.find("title").text
        assert root.find("desc").text
        named = root.attrib["aria-labelledby"].split()
        assert [root.find("title").attrib["id"], root.find("desc").attrib["id"]] == named
        assert "nan" not in figure
        assert "inf" not in re.sub(r"<(title|desc).*?</\1>", "", figure)


def test_the_same_results_give_the_same_file():
    assert render_report(draw_comparison(seeds=2, epochs=2)) == render_report(
        draw_comparison(seeds=2, epochs=2)
    )


def test_names_from_outside_are_escaped():
    evil = "<script>alert(1)</script>&\"'"
    made = draw_comparison(methods=("single-task", "sum", evil), seeds=2, epochs=2, monitor=2)
    made.title = evil
    made.config = {"note": "</pre>" + evil}
    made.runs[-1].status, made.runs[-1].error = "failed", evil
    text = render_report(made)
    assert text.count("<script>") == 1
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


def test_a_method_has_one_colour_everywhere_and_no_two_look_alike():
    labels = ("single-task", *(f"method{i}" for i in range(20)))
    text = render_report(draw_comparison(methods=labels, seeds=2, epochs=2, monitor=2))
    looks = []
    for index in range(21):
        (colour,) = re.findall(rf"\.m{index}\{{--c:(var\(--c\d\))\}}", text)
        dashes = re.findall(rf"\.curve\.m{index}\{{stroke-dasharray:([\d ]+)\}}", text)
        looks.append((colour, tuple(dashes)))
    assert len(set(looks)) == 21
    assert looks[0] == ("var(--c7)", ())


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 17), (0.95, 0.97), (5, 5), (0, 0), (-1e-9, 1e9)])
def test_ticks_are_round_and_span_the_range(low, high):
    ticks = nice_ticks(low, high)
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 12
    assert all(len(tick_text(tick)) <= 7 for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.2), (1, 100), (1e-9, 1e9), (3, 3.1)])
def test_log_ticks_lie_within_the_range(low, high):
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)


def test_gaps_and_single_points_are_drawn_as_such():
    x = np.arange(6.0)
    gap = line_chart([Line(0, "a", x, np.array([1, 2, np.nan, 4, 5, 6.0]))], "t", "x", "y")
    assert re.search(r'class="curve m0" d="([^"]*)"', gap).group(1).count("M") == 2
    dot = line_chart([Line(0, "a", x[:1], np.array([1.0]))], "t", "x", "y")
    assert '<circle class="dot m0"' in dot
    assert line_chart([], "t", "x", "y") == ""
    assert line_chart([Line(0, "a", x, np.full(6, np.nan))], "t", "x", "y") == ""
    assert box_chart([Boxes(0, "a", [math.nan])], "t", "x") == ""


def test_long_curves_are_thinned_and_keep_their_ends():
    x = np.arange(10_000.0)
    text = line_chart([Line(0, "a", x, np.sin(x / 1000))], "t", "x", "y")
    assert text.count("L") < 400
    assert len(text) < 20_000


def test_the_command_rebuilds_the_report_and_the_tables_from_disk(tmp_path, capsys):
    made = draw_comparison(seeds=2, epochs=2, monitor=3)
    made.save(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert not stop.value.code
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_report(made)
    assert (tmp_path / "table.md").read_text(encoding="utf-8").startswith("| method")
    assert (tmp_path / "table.csv").exists()
    assert (tmp_path / "table.tex").exists()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path / "elsewhere")])
    assert stop.value.code == 1
    assert "mtlkit compare" in capsys.readouterr().err


# Runs in the page: headings and the legend are clicked, what is then seen is written down.
PROBE = """
<script>
window.addEventListener("load", function () {
  const seen = {};
  const column = function (n) {
    return Array.from(document.querySelectorAll("#table tbody tr")).map(r => r.cells[n].dataset.value);
  };
  const open = e => !e.closest("details:not([open])");
  const boxes = Array.from(document.querySelectorAll("figure svg")).filter(open);
  seen.plots = boxes.length;
  const sizes = boxes.map(s => s.getBoundingClientRect());
  seen.small = sizes.filter(s => s.width < 100 || s.height < 50).length;
  seen.curves = Array.from(document.querySelectorAll("figure .curve")).filter(
    c => open(c) && c.getBBox().width > 5).length;
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.background = getComputedStyle(document.body).backgroundColor;
  seen.colour = getComputedStyle(document.querySelector("figure .curve.m1")).stroke;
  seen.names = column(0);
  const buttons = document.querySelectorAll("#table thead tr:nth-child(2) button");
  buttons[1].click(); seen.down = column(1);
  seen.sorted = buttons[1].closest("th").getAttribute("aria-sort");
  buttons[1].click(); seen.up = column(1);
  buttons[4].click(); seen.low = column(4);
  buttons[0].click(); seen.restored = column(0);
  const legend = document.querySelector('.legend button[data-method="1"]');
  legend.click();
  seen.hidden = Array.from(document.querySelectorAll("figure .m1")).every(
    m => getComputedStyle(m).display === "none");
  legend.click();
  seen.shown = getComputedStyle(document.querySelector("figure .m1")).display !== "none";
  seen.errors = window.errors;
  document.body.setAttribute("data-seen", JSON.stringify(seen));
});
</script>
"""
TRAP = """<script>window.errors = [];
window.addEventListener("error", e => window.errors.push(String(e.message)));
for (const name of ["error", "warn"]) {
  console[name] = (...words) => window.errors.push(words.join(" "));
}</script>"""


def probe(tmp_path, text, *flags):
    page = tmp_path / "page.html"
    page.write_text(
        text.replace("<head>", "<head>" + TRAP, 1).replace("</body>", PROBE + "</body>"), "utf-8"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", *flags]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'data-seen="(.*?)"', done.stdout)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(found.group(1).replace("&quot;", '"').replace("&amp;", "&")), console


@needs_browser
def test_in_a_browser_plots_are_visible_sorting_works_and_nothing_is_logged(tmp_path):
    made = draw_comparison(seeds=3, epochs=4, monitor=10)
    made.runs = [run for run in made.runs if run.label != "mgda"] + [
        Run("mgda", 0, "failed", error="NaN")
    ]
    seen, console = probe(tmp_path, render_report(made), "--window-size=1200,900")
    assert seen["errors"] == []
    assert console == []
    # all but the 5 validation losses, weights and angles by task, which are closed
    assert seen["plots"] == 5 + 10 + 3 + 10 + 2
    assert seen["small"] == 0
    assert seen["curves"] > 100
    assert seen["overflow"] <= 0
    known = [float(value) for value in seen["down"] if value]
    assert known == sorted(known, reverse=True)
    assert len(known) == 7
    assert seen["down"][-1] == seen["up"][-1] == ""  # a failed method comes last either way
    assert [float(value) for value in seen["up"] if value] == sorted(known)
    low = [float(value) for value in seen["low"] if value]
    assert low == sorted(low)  # of an error, the lowest is on top first
    assert seen["sorted"] == "descending"
    assert seen["restored"] == seen["names"]
    assert seen["hidden"]
    assert seen["shown"]


@needs_browser
def test_in_a_browser_the_theme_follows_the_system(tmp_path):
    text = render_report(draw_comparison(seeds=2, epochs=2, monitor=3))
    light, _ = probe(tmp_path, text, "--blink-settings=preferredColorScheme=1")
    dark, _ = probe(tmp_path, text, "--blink-settings=preferredColorScheme=0")
    assert light["background"] == "rgb(255, 255, 255)"
    brightness = sum(map(int, re.findall(r"\d+", dark["background"]))) / 3
    assert brightness < 60
    assert light["colour"] != dark["colour"]


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
    seen, console = probe(tmp_path, render_report(made), "--window-size=500,900")
    assert seen["errors"] == []
    assert console == []
    assert seen["overflow"] <= 0


def test_writing_leaves_no_half_file(tmp_path):
    path = write_report(draw_comparison(seeds=1, epochs=1, monitor=1), tmp_path / "deep" / "report.html")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
