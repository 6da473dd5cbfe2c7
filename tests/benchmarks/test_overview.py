"""The table over all data sets."""

from benchmarks.overview import (
    beside_fronts,
    common_name,
    comparable,
    left_out,
    overview,
    p_value_of_places,
    places,
)
from mtlkit.report.results import Comparison, Run, TaskRecord


def comparison(scores: dict[str, tuple[float, float]]) -> Comparison:
    """One seed; the single-task networks have 0.5 on both tasks, higher is better."""
    tasks = [TaskRecord(name, {"accuracy": True}) for name in ("a", "b")]
    everyone = {"single-task": (0.5, 0.5), **scores}
    runs = [
        Run(label, 0, metrics={"a": {"accuracy": a}, "b": {"accuracy": b}})
        for label, (a, b) in everyone.items()
    ]
    return Comparison("drawn", tasks, runs, baseline="single-task", reference="sum")


def test_options_and_aliases_are_one_method():
    assert common_name("scale_only(burn_in=20)") == "scale"
    assert common_name("rotograd") == "rotograd"
    assert common_name("tuned sum") == "tuned sum"


def test_places_and_gains_are_those_worked_out_by_hand():
    first = comparison({"sum": (0.5, 0.6), "uw": (0.4, 0.4), "scale": (0.6, 0.7), "famo": (0.45, 0.5)})
    second = comparison({"sum": (0.9, 0.9), "uw": (0.4, 0.4), "cagrad": (0.3, 0.3), "famo": (0.2, 0.2)})
    few = comparison({"sum": (0.5, 0.5), "uw": (0.5, 0.5)})
    assert left_out({"one": first, "two": second, "few": few}) == ["few"]
    lines = overview({"one": first, "two": second, "few": few}).splitlines()
    assert lines[0] == "| method | mean place | one (2, 1) | two (2, 1) |"
    # 100 log(0.6 / 0.5) = 18.2, 100 log(0.7 / 0.5) = 33.6
    assert lines[2:7] == [
        "| scale | 0.00 | +25.9 (1) | – |",
        "| sum | 0.17 | +9.1 (2) | +58.8 (1) |",
        "| uw | 0.67 | -22.3 (4) | -22.3 (2) |",
        "| cagrad | 0.67 | – | -51.1 (3) |",
        "| famo | 0.83 | -5.3 (3) | -91.6 (4) |",
    ]


def test_equal_ranks_share_their_places_whatever_the_order_of_methods():
    made = comparison({"sum": (0.5, 0.6), "uw": (0.6, 0.5), "scale": (0.9, 0.9), "famo": (0.4, 0.4)})
    assert places({"one": made})["one"] == {"scale": 0.0, "sum": 0.5, "uw": 0.5, "famo": 1.0}


def test_places_are_called_different_only_where_data_sets_agree():
    same = {str(k): {"a": 0.0, "b": 0.5, "c": 1.0} for k in range(6)}
    assert p_value_of_places(same) < 0.01
    turned = [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")]
    mixed = {str(k): dict(zip(names, (0.0, 0.5, 1.0), strict=True)) for k, names in enumerate(turned)}
    assert p_value_of_places(mixed) > 0.9
    del mixed["0"]["a"]  # not every method was run on each data set
    assert 0 < p_value_of_places(mixed) <= 1


def test_methods_beside_the_front_are_counted_as_by_hand():
    made = comparison({"sum": (0.5, 0.6), "uw": (0.6, 0.5), "scale": (0.9, 0.9)})
    for number, (a, b) in enumerate([(0.5, 0.7), (0.8, 0.8), (0.6, 0.4)]):
        metrics = {"a": {"accuracy": a}, "b": {"accuracy": b}}
        made.runs.append(Run(f"w{number}", 0, metrics=metrics, kind="front"))
    for label in made.labels:  # a seed without weightings, which does not count
        metrics = {"a": {"accuracy": 0.1}, "b": {"accuracy": 0.1}}
        made.runs.append(Run(label, 1, metrics=metrics))
    without = comparison({"sum": (0.5, 0.6)})
    assert beside_fronts({"one": made, "none": without}).splitlines() == [
        "| method | one (3, 1) |",
        "|:--|--:|",
        "| sum | 2 / 0 |",
        "| scale | 0 / 3 |",
        "| uw | 1 / 1 |",
    ]


def test_cifar10_counts_by_the_area_under_the_curve():
    metrics = {"a": {"f1": 0.0, "auc": 0.8}}
    labels = ("single-task", "sum", "sum with R_k", "imtl_g with R_k", "rotograd 64", "rotograd 128")
    runs = [Run(label, 0, metrics=metrics) for label in labels]
    runs += [Run(f"front {number}", 0, metrics=metrics, kind="front") for number in (1, 2)]
    made = Comparison("drawn", [TaskRecord("a", {"f1": True, "auc": True})], runs, reference="sum")
    found = comparable("cifar10", made)
    assert found.labels == ["single-task", "sum", "imtl_g", "rotograd"]
    assert found.front_labels == ["front 1", "front 2"]
    assert found.baseline == "single-task"
    assert found.tasks[0].main_metric == "auc"
    assert comparable("census", made) is made
