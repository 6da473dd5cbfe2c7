"""The page of a search: the winners, the history, and the value of every setting."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit._version import __version__
from mtlkit.config.files import write_text
from mtlkit.config.search import Choice, LogUniform
from mtlkit.experiments.tuning.ledger import Trial
from mtlkit.experiments.tuning.spaces import MethodSpace
from mtlkit.experiments.tuning.winners import Winners
from mtlkit.report.charts import Chart, Line, line_chart, plain, scatter
from mtlkit.report.page import Cell, Charts, Command, Head, Listing, Note, Section, render_page

PAGE = "tune.html"
_LABEL = "improvement on validation in %"

Trials = Mapping[str, Sequence[Trial]]


def write_page(
    folder: Path, title: str, winners: Winners, trials: Trials, spaces: Mapping[str, MethodSpace]
) -> Path:
    """Write ``tune.html`` and return its path."""
    legend = list(trials)
    axes = list(dict.fromkeys(name for space in spaces.values() for name in space.axes))
    shared = [name for name in axes if sum(name in space.axes for space in spaces.values()) > 1]
    own = [name for name in axes if name not in shared]
    about = Note(
        "Improvement: the mean over tasks of the relative gain in validation metrics over one run of "
        "the plain sum with the given settings. As the best of "
        f"{winners.trials} trials it is optimistic; mtlkit compare --tuned measures the winners on "
        "samples that no trial has seen."
    )
    settings = Charts([_slice(name, trials, spaces) for name in shared])
    options = Charts([_slice(name, trials, spaces) for name in own], title="Options of single methods")
    sections = [
        Section("winners", "Winners", [_listing(winners, trials), about]),
        Section("history", "Best value by trial", [Charts([_history(trials)])]),
        Section("settings", "Settings", [settings, options]),
    ]
    count = sum(map(len, trials.values()))
    facts = [
        f"data: {winners.shared['data']}",
        f"model: {winners.shared.get('architecture') or 'the default of the data set'}",
        f"seed of all trials: {winners.seed}",
        f"{len(trials)} methods, {winners.trials} trials each, {count} in total ({winners.sampler})",
        f"mtlkit {__version__}",
    ]
    command = Command(
        shlex.join(["mtlkit", "compare", "--tuned", str(folder)]),
        "Next: compare the winners on new seeds.",
    )
    page = render_page(title, sections, lead=[command], facts=facts, legend=legend)
    write_text(folder / PAGE, page)
    return folder / PAGE


def _listing(winners: Winners, trials: Trials) -> Listing:
    best = {winner.label: winner for winner in winners.best}
    rows = []
    for place, label in enumerate(trials):
        winner, cost = best.get(label), winners.cost[label]
        failed = int(cost["failed"])
        value = None if winner is None else winner.value
        settings = {} if winner is None else winner.settings
        cells = [
            Cell(label, series=place),
            Cell("none" if value is None else f"{value:+.2f} %", value),
            Cell("" if winner is None else winner.method, code=True),
            Cell(", ".join(f"{key} {_text(item)}" for key, item in settings.items())),
            Cell(f"{int(cost['trials'])}", cost["trials"], small=f"{failed} failed" if failed else ""),
            Cell(f"{cost['seconds']:.0f}", cost["seconds"]),
            Cell(f"{int(cost['steps'])}", cost["steps"]),
        ]
        rows.append(cells)
    heads: list[Head | str] = [
        *(Head("method", "low"), Head("improvement"), "best", "settings"),
        *(Head("trials"), Head("seconds", "low"), Head("steps", "low")),
    ]
    return Listing(heads, rows, name="winners", sortable=len(rows) > 2)


def _history(trials: Trials) -> Chart | None:
    lines = []
    for place, (label, known) in enumerate(trials.items()):
        values = np.array([np.nan if t.state != "done" or t.value is None else t.value for t in known])
        if np.isfinite(values).any():
            best = np.fmax.accumulate(values)
            lines.append(Line(place, label, np.arange(1.0, len(known) + 1), best))
    return line_chart(lines, "Best so far", "trial", _LABEL)


def _slice(name: str, trials: Trials, spaces: Mapping[str, MethodSpace]) -> Chart | None:
    """Draw the value of the trials against one setting; pruned trials are rings."""
    data = []
    axis: dict[str, Any] = {}
    for place, (label, known) in enumerate(trials.items()):
        space = spaces[label]
        shown = [t for t in known if name in t.point and t.state in ("done", "pruned")]
        if name not in space.axes or not shown:
            continue
        axis = axis or _scale(name, space)
        places = [space.shown(t.point)[name] for t in shown]
        pruned = [t.state == "pruned" for t in shown]
        rings = ["circle-open" if each else "circle" for each in pruned]
        texts = [f"{t.index + 1}{' (pruned)' if p else ''}" for t, p in zip(shown, pruned, strict=True)]
        x = list(map(_text, places)) if axis["type"] == "category" else places
        data.append(
            scatter(
                place,
                label,
                x,
                [t.value for t in shown],
                mode="markers",
                marker={"size": 7} | ({"symbol": rings} if any(pruned) else {}),
                cliponaxis=False,
                hovertemplate=f"{plain(label)}, trial %{{text}}: %{{x}}: %{{y:.3g}}<extra></extra>",
                text=texts,
            )
        )
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": plain(name)}, **axis},
        "yaxis": {"title": {"text": _LABEL}},
        "hovermode": "closest",
    }
    return Chart(name, {"data": data, "layout": layout}, f"{_LABEL} by {name}, a dot per trial.")


def _scale(name: str, space: MethodSpace) -> dict[str, Any]:
    """Return the axis of a setting, limited to possible values."""
    search = space.axes[name]
    if isinstance(search, Choice):
        return {"type": "category", "categoryarray": list(map(_text, search.values))}
    if isinstance(search, LogUniform):
        return {"type": "log"}
    low, high = search.low, search.high
    if space.is_weight(name):  # they sum to the number of tasks
        low, high = 0.0, float(len(space.tasks))
    return {"type": "linear", "minallowed": low, "maxallowed": high}


def _text(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
