"""The page of a search: the winners, how they were found, and what every setting was worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtlkit.config.files import write_text
from mtlkit.config.search import Choice, LogUniform
from mtlkit.experiments.tuning.ledger import Trial
from mtlkit.experiments.tuning.spaces import MethodSpace
from mtlkit.experiments.tuning.winners import Winners
from mtlkit.report.charts import Chart, Line, line_chart, plain
from mtlkit.report.page import Cell, Charts, Head, Listing, Note, Section, render_page

PAGE = "tune.html"
_LABEL = "improvement on validation in %"

Trials = Mapping[str, Sequence[Trial]]


def write_page(
    folder: Path, title: str, winners: Winners, trials: Trials, spaces: Mapping[str, MethodSpace]
) -> Path:
    """Write ``tune.html``; its path."""
    legend = list(trials)
    axes = list(dict.fromkeys(name for space in spaces.values() for name in space.axes))
    shared = [name for name in axes if sum(name in space.axes for space in spaces.values()) > 1]
    own = [name for name in axes if name not in shared]
    sections = [
        Section(
            "winners",
            "Winners",
            [
                Note(
                    "Improvement: the mean over tasks of the relative gain in validation metrics over "
                    "one plain run of the sum with the given settings. It is the best of "
                    f"{winners.trials} trials each, so it flatters; what the winners are worth is "
                    "shown by mtlkit compare --tuned, on samples that no trial has seen."
                ),
                _listing(winners, trials),
            ],
        ),
        Section("history", "How they were found", [Charts([_history(trials)])]),
        Section(
            "settings",
            "Settings",
            [
                Charts([_slice(name, trials, spaces) for name in shared]),
                Charts(
                    [_slice(name, trials, spaces) for name in own], title="Options of single methods"
                ),
            ],
        ),
    ]
    count = sum(map(len, trials.values()))
    facts = [
        f"{len(trials)} methods, {winners.trials} trials each, {count} in all",
        f"sampler: {winners.sampler}; seed of all trials: {winners.seed}",
        str(winners.shared["data"]),
    ]
    write_text(folder / PAGE, render_page(title, sections, facts=facts, legend=legend))
    return folder / PAGE


def _listing(winners: Winners, trials: Trials) -> Listing:
    best = {winner.label: winner for winner in winners.best}
    rows = []
    for place, label in enumerate(trials):
        winner, cost = best.get(label), winners.cost[label]
        failed = int(cost["failed"])
        cells = [
            Cell(label, series=place),
            Cell(
                "none" if winner is None else f"{winner.value:+.2f} %",
                None if winner is None else winner.value,
            ),
            Cell(f"{int(cost['trials'])}", cost["trials"], small=f"{failed} failed" if failed else ""),
            Cell(f"{cost['seconds']:.0f}", cost["seconds"]),
            Cell(f"{int(cost['steps'])}", cost["steps"]),
            Cell("" if winner is None else ", ".join(f"{k} {v}" for k, v in winner.settings.items())),
            Cell("" if winner is None else winner.method, code=True),
        ]
        rows.append(cells)
    heads: list[Head | str] = [
        *(Head("method"), Head("improvement"), Head("trials")),
        *(Head("seconds", "low"), Head("steps", "low"), "settings", "best"),
    ]
    return Listing(heads, rows, name="winners")


def _history(trials: Trials) -> Chart | None:
    lines = []
    for place, (label, known) in enumerate(trials.items()):
        values = np.array([np.nan if t.state != "done" or t.value is None else t.value for t in known])
        if np.isfinite(values).any():
            best = np.fmax.accumulate(values)
            lines.append(Line(place, label, np.arange(1.0, len(known) + 1), best))
    return line_chart(lines, "Best so far", "trial", _LABEL)


def _slice(name: str, trials: Trials, spaces: Mapping[str, MethodSpace]) -> Chart | None:
    """What trials were worth, by one of their settings; a pruned one is a ring."""
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
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(label),
                "x": list(map(_text, places)) if axis["type"] == "category" else places,
                "y": [t.value for t in shown],
                "marker": {"size": 7} | ({"symbol": rings} if any(pruned) else {}),
                "cliponaxis": False,
                "hovertemplate": f"{plain(label)}, trial %{{text}}: %{{x}}: %{{y:.3g}}<extra></extra>",
                "text": [
                    f"{t.index + 1}{' (pruned)' if p else ''}"
                    for t, p in zip(shown, pruned, strict=True)
                ],
                "meta": {"series": place},
            }
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
    """The axis of a setting: choices in their order, and no values that cannot be."""
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
