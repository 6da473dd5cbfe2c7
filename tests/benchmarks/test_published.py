"""The field's published rows: Delta m comes out of the published metrics."""

from pathlib import Path

import pytest
import yaml

from mtlkit.report.statistics import delta_m, task_improvement

FILE = Path(__file__).parents[2] / "benchmarks" / "field" / "published.yaml"
DATA_SETS = yaml.safe_load(FILE.read_text(encoding="utf-8"))["data_sets"]
ROWS = [(name, row) for name, data in DATA_SETS.items() for row in data["rows"]]


def recomputed(name, values):
    directions = DATA_SETS[name]["metrics"]
    single = dict(zip(directions, DATA_SETS[name]["single_task"], strict=True))
    return delta_m(dict(zip(directions, values, strict=True)), single, directions)


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{n}-{r['method']}" for n, r in ROWS])
def test_the_metrics_of_a_published_row_give_its_delta_m_to_rounding(name, row):
    if "values" not in row:
        pytest.skip("its metrics are not in the file")
    # those of AliExpress are computed from the metrics, not printed
    tolerance = {"nyuv2": 0.02, "cityscapes": 0.11, "celeba": 0.01}.get(name, 0.006)
    assert recomputed(name, row["values"]) == pytest.approx(row["delta_m"], abs=tolerance)


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("nyuv2", "LS", 5.59),
        ("nyuv2", "Nash-MTL", -4.05),
        ("nyuv2", "MGDA", 1.38),
        ("cityscapes", "FAMO", 8.13),
        ("cityscapes", "UW", 5.88),
        ("cityscapes", "Nash-MTL", 6.72),
        ("cityscapes", "FairGrad", 5.12),
    ],
)
def test_seven_published_rows_recomputed(name, method, expected):
    (row,) = [row for row in DATA_SETS[name]["rows"] if row["method"] == method]
    assert recomputed(name, row["values"]) == pytest.approx(expected, abs=0.005)


def test_the_two_conventions_disagree_in_sign_on_the_published_sum_of_nyuv2():
    directions = DATA_SETS["nyuv2"]["metrics"]
    single = dict(zip(directions, DATA_SETS["nyuv2"]["single_task"], strict=True))
    values = dict(zip(directions, DATA_SETS["nyuv2"]["rows"][0]["values"], strict=True))
    gains = [
        task_improvement(values, single, {k: v for k, v in directions.items() if k.startswith(task)})
        for task in ("segmentation", "depth", "normals")
    ]
    assert sum(gains) / 3 == pytest.approx(0.88, abs=0.01)  # better, by tasks
    assert delta_m(values, single, directions) == pytest.approx(5.59, abs=0.01)  # worse, by metrics
