"""The pages of the methods and their index, from the registry."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from evidence import HEAD, evidence
from gradient_drawings import draw
from sphinx.application import Sphinx

import mtlkit
from mtlkit.cli import catalog
from mtlkit.config.registry import methods
from mtlkit.testing import LAWS

COSTS = Path(__file__).parents[2] / "benchmarks" / "speed" / "costs.json"
# By idea: when its methods are worth a try, and when not.
_WHEN = {
    "No intervention": (
        "Always, as the baseline of a comparison.",
        "Losses differ in scale and nobody tunes weights.",
    ),
    "Gradient balancing": (
        "Losses or gradients differ in size, and you do not want to tune weights.",
        "The task with the large gradients matters most: it gets worse in exchange.",
    ),
    "Remove conflicts": (
        "Task gradients have negative cosines step after step.",
        "Gradients are nearly orthogonal: the result is the plain sum, or close to it.",
    ),
    "A common descent direction": (
        "No task may get worse in a step, or gains should be spread fairly.",
        "One task barely improves: it can slow down all others. Every step solves a K × K problem.",
    ),
    "A chosen point": (
        "You know how much each task should count.",
        "You have no preference: try gradient balancing.",
    ),
    "Weigh losses": (
        "You have only the losses, or a step must not cost more.",
        "Gradients point in conflicting directions: loss weights do not see that.",
    ),
    "Robust": (
        "Some tasks have broken or noisy gradients.",
        "All tasks matter: these methods leave out outliers on purpose.",
    ),
    "Homogenize": (
        "Gradients differ in size and in direction, and the features fork in one place.",
        "The model has no fork, or is so small that the rotations take most of the time of a step.",
    ),
}

# In the drawings, where the caption must say more.
_STATEFUL = " The gradients are constant, and the method has taken 60 steps{learning}."
_LEARNING = ", with Adam at 0.03 for its parameters"
_ROTATED = " Pale arrows: the gradients before they are rotated back."

# In the index, an alias of several parts has a line of its own: their sentences together would be too long.
_TOGETHER = {
    "imtl": "Scale all losses to the same size, and give every task the same influence.",
    "rotate_only": "Rotate the features for every task, and add the gradients.",
    "rotograd": "Rotate the task gradients toward each other, and give them the same norm.",
}


# What a class cannot be called.
_HYPHENS = {
    "aligned_mtl": "Aligned-MTL",
    "cr_mogm": "CR-MOGM",
    "db_mtl": "DB-MTL",
    "imtl_g": "IMTL-G",
    "imtl_l": "IMTL-L",
    "ldc": "LDC-MTL",
    "nash_mtl": "Nash-MTL",
    "uw_so": "UW-SO",
}


def write_method_pages(folder: Path) -> None:
    """Write one page per method with its drawing, and the index."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    facts = {known.name: known for known in catalog.all_facts()}
    for name in facts:
        (folder / f"{name}.md").write_text(_page(name, folder))
    (folder / "index.md").write_text(_index(facts))


def _page(name: str, folder: Path) -> str:
    facts = catalog.method_facts(name)
    drawing = folder / f"{name}.svg"
    # drawing all of them takes half a minute: only after a change of the methods
    sources = (Path(mtlkit.__file__).parent / "weighting").rglob("*.py")
    newest = max(path.stat().st_mtime for path in sources)
    if not drawing.exists() or drawing.stat().st_mtime < newest:
        print(f"drawing {name}", file=sys.stderr)
        draw(name, drawing)
    parts = [f"# {title(facts)}", "", _summary(facts)]
    if drawing.exists():
        parts += [
            "",
            f"![The merged gradient of {name} for two and for three conflicting task gradients]({name}.svg)",
            "",
            _caption(name),
        ]
    return "\n".join(
        [*parts, _usage(name), _advice(facts), description(facts), _parts(name), _laws(name)]
    )


def title(facts: catalog.MethodFacts) -> str:
    """Return the paper's spelling and title, who wrote it and when; the name alone for an alias or a baseline."""
    authors, _, rest = re.sub(r" \(.*\)$", "", facts.paper.partition("; ")[0]).partition(", ")
    paper = re.sub(r", arXiv [\d.]+$", "", rest.rpartition(", ")[0] or rest)
    if facts.stands_for or not facts.factory:
        spelling = paper.partition(":")[0]
        is_named_so = spelling.lower() == facts.name  # as RotoGrad's is
    else:
        spelling = _HYPHENS.get(facts.name, facts.factory.rpartition(".")[2])
        is_named_so = bool(paper)
    if not is_named_so:
        return facts.name
    return f"{spelling}: {paper.removeprefix(f'{spelling}: ')} ({authors} {facts.year})"


def _caption(name: str) -> str:
    method = mtlkit.create_method(name, tasks=2, feature_dim=2)
    text = (
        "The gradients of two tasks (left) and of three, one of them large (right). "
        f"Red: the merged gradient of `{name}`. Dashed: the plain sum."
    )
    if method.state_dict():
        text += _STATEFUL.format(learning=_LEARNING if list(method.parameters()) else "")
    if method.forking is not None:
        text += _ROTATED
    return f"*{text}*"


def _advice(facts: catalog.MethodFacts) -> str:
    """Write when to use it, what our own runs found, what it costs, and which methods are like it."""
    idea = (facts.idea or "").partition(":")[0]
    lines = ["## When to use it", ""]
    for start, (when, when_not) in _WHEN.items():
        if idea.startswith(start):
            lines += [f"- **Try it if:** {when}", f"- **Avoid it if:** {when_not}"]
    if ratio := _costs().get(facts.name):
        times = "as much as" if _is_noise(ratio) else f"{ratio:.2f} times"
        lines += [
            f"- **Cost:** {times} a plain step of [ResNet18 with ten tasks](../speed.md#every-method)."
        ]
    same = [
        f"[`{each.name}`]({each.name}.md)" for each in catalog.all_facts() if each.idea == facts.idea
    ]
    related = [link for link in same if not link.startswith(f"[`{facts.name}`]")]
    if related and facts.idea:
        lines += [f"- **Related:** {', '.join(related)}."]
    if found := evidence().get(facts.name):
        lines += [
            "",
            "What [our own runs](../results/index.md) found. The difference is in the primary endpoint, in "
            "[points](../glossary.md), with its corrected interval:",
            "",
        ]
        lines += [*HEAD, *found]
    else:
        lines += ["- **Our own evidence:** not tested by us."]
    return "\n".join([*lines, ""])


def _costs() -> dict[str, float]:
    return {row["name"]: row["value"] for row in json.loads(COSTS.read_text())}


def _is_noise(ratio: float) -> bool:
    return ratio < 1.055


def description(facts: catalog.MethodFacts) -> str:
    """Return the facts that the class states, in MyST Markdown; its docstring is included by autodoc."""
    lines = ["## Definition", ""]
    if facts.stands_for:
        links = ", ".join(f"[{part.name}]({part.name}.md)" for part in methods.expand(facts.name))
        lines += [f"`{facts.name}` stands for `{facts.stands_for}`: see {links}.", ""]
    lines += ["| | |", "|---|---|"]
    rows = {
        "role": ", ".join(facts.roles),
        "paper": facts.paper,
        "year": str(facts.year or ""),
        # the address without its path: a long one would make the table too wide for a phone
        "link": f"[{urlsplit(facts.url).netloc}]({facts.url})" if facts.url else "",
        "needs": ", ".join(facts.needs),
        "several processes": facts.distributed,
        "work per step": facts.cost,
    }
    lines += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value]
    if facts.factory:
        lines += ["", "```{eval-rst}", f".. autoclass:: {facts.factory}\n   :no-index:", "```"]
    if facts.options:
        lines += ["", "## Options", ""]
        lines += ["| option | default | values | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{option.name}` | `{option.default_text}` | {_cell(option.accepted)} | "
            f"{_cell(_myst(option.description))} |"
            for option in facts.options
        ]
    return "\n".join([*lines, ""])


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def _parts(name: str) -> str:
    """Write what an alias stands for, so that nobody has to follow a link for the equations."""
    if not catalog.method_facts(name).stands_for:
        return ""
    lines = []
    for part in dict.fromkeys(part.name for part in methods.expand(name)):
        factory = catalog.method_facts(part).factory
        lines += [f"## {part}", "", f"```{{eval-rst}}\n.. autoclass:: {factory}\n   :no-index:\n```", ""]
    return "\n".join(lines)


def _laws(name: str) -> str:
    method = mtlkit.create_method(name, tasks=3, feature_dim=4)
    waived = {law: reason for part in method.parts for law, reason in part.waived_laws.items()}
    kept = f"The tests check {len(LAWS) - len(waived)} of the {len(LAWS)} [laws of a step](../design.md#what-a-step-promises)"
    lines = ["## Laws", "", f"{kept}{'. These do not apply:' if waived else '.'}", ""]
    lines += [f"- {LAWS[law].splitlines()[0].rstrip('.')}: {reason}." for law, reason in waived.items()]
    return "\n".join([*lines, ""])


def _usage(name: str) -> str:
    facts = catalog.method_facts(name)
    size = ", feature_dim=512" if "fork features" in facts.roles else ""
    lines = ["", "## Use", "", "```python"]
    lines += [f'method = mtlkit.create_method("{name}", tasks=("seg", "depth"){size})']
    if "own parameters" in facts.needs:
        lines += [
            "# the method has parameters, which learn too",
            "optimizer = torch.optim.Adam(mtlkit.param_groups([backbone, heads, method], lr=1e-3))",
            "",
        ]
    lines += ["z_seg, z_depth = method(backbone(x))"]
    lines += ['method.total({"seg": seg_loss, "depth": depth_loss}).backward()', "```", ""]
    lines += ["Compare it with the plain sum:", ""]
    lines += ["```console", f"$ mtlkit compare --data multidigits --methods sum,{name}", "```", ""]
    return "\n".join(lines)


def _index(facts: dict[str, catalog.MethodFacts]) -> str:
    lines = [
        "# All methods",
        "",
        "Not sure which one to use? See [Choose a method](../choose.md). The methods are grouped by idea. Click a column's heading to sort by it.",
        "",
        "*Role*: the method weighs the losses, forks the features or merges the gradients. *Year* links to the paper. *Waits*: how often a "
        "step waits for the GPU. [Speed](../speed.md) has the step times.",
        "",
    ]
    for idea, known in group_by_idea(facts.values()).items():
        lines += [
            f"## {idea}",
            "",
            "```{table}",
            ":class: methods",
            "",
            "| method | what it does | role | year | needs | waits |",
            "|---|---|---|--:|---|--:|",
        ]
        lines += [*(_row(method) for method in known), "```", ""]
    lines += ["## Left out on purpose", "", "| method | reason |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in catalog.OMITTED.items()]
    names = "\n".join(f"{name} <{name}>" for name in facts)  # the side bar has no room for titles
    return "\n".join([*lines, "", f"```{{toctree}}\n:hidden:\n\n{names}\n```", ""])


def group_by_idea(facts: Iterable[catalog.MethodFacts]) -> dict[str, list[catalog.MethodFacts]]:
    """Group methods by the ideas that their classes state: the plain sum's first, those without one last."""
    groups: dict[str, list[catalog.MethodFacts]] = {}
    for each in facts:
        groups.setdefault(each.idea or "Others", []).append(each)
    first = catalog.method_facts("sum").idea
    order = sorted(groups, key=lambda idea: (idea != first, idea == "Others", idea))
    return {idea: groups[idea] for idea in order}


def _row(facts: catalog.MethodFacts) -> str:
    year = f"[{facts.year}]({facts.url})" if facts.year and facts.url else str(facts.year or "")
    waits = "1" if {"solver", "eigenvalues"} & set(facts.cost.split()) else "0"
    roles = [role.split()[0] for role in facts.roles]  # the page says of what
    cells = [f"[`{facts.name}`]({facts.name}.md)", _summary(facts), ", ".join(roles), year]
    cells += [", ".join(facts.needs), waits]
    return f"| {' | '.join(cells)} |"


def _summary(facts: catalog.MethodFacts) -> str:
    if not facts.stands_for:
        text = _myst(facts.docstring.split("\n\n")[0])
    elif facts.name in _TOGETHER:
        text = f"`{facts.stands_for}`: {_TOGETHER[facts.name]}"
    else:
        text = f"Stands for `{facts.stands_for}`."
    return text.replace("|", "\\|")


def cost_table() -> str:
    """Return the table of what a step with every measured method takes, the slowest first; one row for all that take no longer."""
    links = {facts.name: f"[`{facts.name}`](methods/{facts.name}.md)" for facts in catalog.all_facts()}
    costs = {name: ratio for name, ratio in _costs().items() if name in links}
    slow = sorted((name for name in costs if not _is_noise(costs[name])), key=costs.__getitem__)
    same = sorted({*costs} - {*slow})
    lines = ["| method | a step, plain sum = 1 |", "|---|--:|"]
    lines += [f"| {links[name]} | {costs[name]:.2f} |" for name in reversed(slow)]
    low, high = min(costs[name] for name in same), max(costs[name] for name in same)
    lines += [f"| {', '.join(links[name] for name in same)} | {low:.2f} to {high:.2f} |"]
    return "\n".join([*lines, ""])


def _myst(text: str) -> str:
    """Return a sentence of a docstring as MyST Markdown."""
    return re.sub(r":math:`([^`]*)`", r"$\1$", " ".join(text.split())).replace("``", "`")


def leave_options_out(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Remove the options from the docstring of a method, whose page has a table of them."""
    if options.no_index and "Args:" in lines:
        start = lines.index("Args:")
        after = (n for n, line in enumerate(lines) if n > start and line and not line.startswith(" "))
        del lines[start : next(after, len(lines))]


def setup(app: Sphinx) -> dict[str, object]:
    """Register with Sphinx; before napoleon, which turns the section into fields."""
    app.connect("autodoc-process-docstring", leave_options_out, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
