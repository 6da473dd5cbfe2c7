"""Store what a comparison found: python -m benchmarks.store_results [--add] RUN FOLDER [RUN FOLDER ...]

Copies settings and results of ``RUN``, a folder of ``mtlkit compare``, to ``benchmarks/results/FOLDER``,
with the mean cosines of task and update gradients, which the logs of its runs have. A comparison that is
not finished is stored with the runs that it has. With ``--add``, its runs are added to those that are
stored, such as more methods or the front of weighted sums; runs of both must have equal main metrics.
``make results`` then draws tables and figures; the README with claim and verdict is written by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

import yaml

from benchmarks.draw_results import RESULTS
from mtlkit.config.files import write_text
from mtlkit.report.results import Comparison, append_result

Points = list[tuple[int, float]]


def store(run: Path, folder: Path) -> None:
    """Store the comparison in ``run``."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = yaml.safe_load((run / "compare.yaml").read_text())
    settings.pop("data_dir", None)  # paths of one machine
    write_text(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False, width=110))
    header = json.loads((run / "comparison.json").read_text())
    header["config"].pop("data_dir", None)
    if "plugins" in settings:  # as they were given; the header has paths of one machine
        header["config"]["plugins"] = settings["plugins"]
    header["versions"].pop("command", None)  # the README has it
    write_text(folder / "comparison.json", json.dumps(header, indent=2) + "\n")
    for name in ("results.jsonl", "timing.json"):
        if (run / name).is_file():
            shutil.copy(run / name, folder / name)
    cosines = mean_cosines(run)
    if cosines:
        write_text(folder / "cosines.json", json.dumps(cosines) + "\n")


def add(run: Path, folder: Path) -> None:
    """Add the runs of the comparison in ``run`` to the stored ones."""
    stored, new = Comparison.load(folder), Comparison.load(run)
    own = {"methods", "order", "seeds"}
    common = sorted((stored.config.keys() & new.config.keys()) - own)
    changed = [key for key in common if stored.config[key] != new.config[key]]
    if changed:
        raise SystemExit(f"{run} differs from {folder} in {', '.join(changed)}")
    compared = [(task.name, task.main_metric) for task in stored.tasks]
    added = []
    for each in new.runs:
        known = stored.find(each.label, each.seed)
        if known is None:
            added.append(each)
        elif any(known.metric(*main) != each.metric(*main) for main in compared):
            raise SystemExit(f"{run}: {each.label}, seed {each.seed}, is stored with other metrics")
    for each in added:
        append_result(folder, each)
    stored.config["methods"] |= new.config["methods"]
    stored.config["order"] = list(dict.fromkeys([*stored.config["order"], *new.config["order"]]))
    stored.save_header(folder)


def mean_cosines(run: Path) -> dict[str, list[Points]]:
    """Return, by method and seed, the steps and the tasks' mean cosine with the update around them."""
    found: dict[str, list[Points]] = {}
    for result in Comparison.load(run).runs:
        points = [(row.step, round(row.mean_cosine, 4)) for row in result.monitor]
        points = [point for point in points if math.isfinite(point[1])]
        if points:
            found.setdefault(result.label, []).append(points)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="+", metavar="RUN FOLDER")
    parser.add_argument("--add", action="store_true", help="add the runs to those that are stored")
    arguments = parser.parse_args()
    pairs = arguments.pairs
    if len(pairs) % 2:
        parser.error("give pairs: the comparison's folder, and its name in benchmarks/results")
    for run, name in zip(pairs[::2], pairs[1::2], strict=True):
        (add if arguments.add else store)(Path(run), RESULTS / name)
        print(RESULTS.relative_to(RESULTS.parent.parent) / name)


if __name__ == "__main__":
    main()
