"""Run the study of five tables: python -m benchmarks.tables [TABLE ...] [--output FOLDER]

It searches the weights of the sum, then compares, one table after the other, and resumes where it was
stopped. After a run without names, ``benchmarks/results/tables`` has all runs as one CSV file, which
``make results`` draws; with names it runs these tables alone, as several processes may.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import mtlkit
from benchmarks.draw_results import RESULTS
from benchmarks.tables.data import write_tables
from mtlkit.config.yaml_files import read_yaml

GZIP: Any = {"method": "gzip", "mtime": 0}  # the same bytes for the same runs
SETTINGS = Path(__file__).with_name("settings.yaml")


def study(name: str, data: str, settings: dict[str, Any], folder: Path) -> pd.DataFrame:
    """Tune and compare on one table; return the runs in long form."""
    common = {"data_dir": str(folder), "jobs": 1}
    tuned = [{"method": "constant", "label": "tuned sum"}]
    mtlkit.tune(
        {"data": data, "methods": tuned, "trials": settings["trials"], **common},
        folder / name / "tune",
        progress=False,
    )
    found = mtlkit.compare(
        tuned=str(folder / name / "tune"),
        methods=settings["methods"],
        seeds=settings["seeds"],
        reference=settings["reference"],
        timing=0,
        output=folder / name / "compare",
        progress=False,
        **common,
    )
    print(f"{name}\n{found.verdict}", flush=True)
    frame = found.frame()
    return frame.assign(table=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="only these; nothing is stored")
    parser.add_argument("--output", type=Path, default=Path("runs/tables"))
    arguments = parser.parse_args()
    folder = arguments.output.resolve()
    settings = read_yaml(SETTINGS)
    tables = settings["tables"]
    write_tables(folder)
    made = [study(name, tables[name], settings, folder) for name in arguments.tables or tables]
    if arguments.tables:
        return
    columns = ["table", "method", "seed", "task", "metric", "value", "higher_is_better", "main"]
    target = RESULTS / "tables"
    target.mkdir(exist_ok=True)
    frame = pd.concat(made)[[*columns, "seconds", "steps"]]
    frame.to_csv(target / "tables.csv.gz", index=False, float_format="%.6g", compression=GZIP)


if __name__ == "__main__":
    main()
