"""The study of five tables."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

import mtlkit
from benchmarks.tables import data
from benchmarks.tables.draw import ROWS, gains, gains_table, intervals

SETTINGS = Path(data.__file__).with_name("settings.yaml")


def runs() -> pd.DataFrame:
    """Two tasks, three seeds: every row halves the sum's error on one task and equals it on the other."""
    rows = []
    for seed in range(3):
        for method in ("sum", "constant", *ROWS):
            for task in ("a", "b"):
                error = (1 if method in ("sum", "constant") or task == "b" else 0.5) * (1 + seed)
                common = {"table": "t", "method": method, "seed": seed, "task": task}
                rows.append({**common, "metric": "mse", "value": error, "main": True})
                rows.append({**common, "metric": "mae", "value": 9.0, "main": False})
    return pd.DataFrame(rows).assign(higher_is_better=False)


def test_the_endpoint_is_the_mean_log_ratio_of_main_metrics_to_the_sum_of_the_same_seed():
    found = gains(runs()).set_index(["method", "seed"])["gain"]
    assert found["forest"].tolist() == pytest.approx([34.66] * 3, abs=0.01)  # 100 log(2) / 2
    assert found["constant"].tolist() == [0, 0, 0]
    assert intervals(runs())["t"]["forest"].mean == pytest.approx(34.66, abs=0.01)
    assert "| t | a | mse | 2.000 | 1.000 |" in gains_table(runs())


@pytest.mark.filterwarnings("ignore::UserWarning")  # leaks are the user's to judge
@pytest.mark.parametrize("name", ["wine", "tumors", "countries"])
def test_the_tables_of_installed_packages_are_read_with_their_targets(name, tmp_path):
    pytest.importorskip("plotly")
    data.TABLES[name]().to_csv(tmp_path / f"{name}.csv", index=False)
    spec = yaml.safe_load(SETTINGS.read_text())["tables"][name]
    table = mtlkit.load_dataset(spec, data_dir=tmp_path)
    assert len(table.tasks) >= 2
    assert min(len(table.train), len(table.test)) > 50
