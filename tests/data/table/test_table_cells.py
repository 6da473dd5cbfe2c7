"""What the cells of a table are taken for: dates, numbers as people write them, codes, words."""

import datetime
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mtlkit
from mtlkit.cli import main
from mtlkit.data import DataError, load_dataset, notes
from mtlkit.data.table import TablePreprocessing
from mtlkit.errors import SpecError, UsageError
from mtlkit.report import Comparison

pandas = pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")

ROWS = 120


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    monkeypatch.setattr(notes, "printed", set())


def frame_with(**columns):
    random = np.random.default_rng(0)
    return pandas.DataFrame({"y": random.normal(size=ROWS).round(6), **columns})


def load_csv(frame, options: str = "", **csv):
    frame.to_csv("rows.csv", index=False, **csv)
    return load_dataset(f"table(file=rows.csv, targets={{y: regression}}{options and ', '}{options})")


def taken(data) -> dict[str, str]:
    return {column.name: column.taken for column in data.input_table}


def values_of(data, rows) -> torch.Tensor:
    """Input values in the unit of the file."""
    column = data.preprocessing.numbers[0]
    return data.preprocessing.inputs(rows)[:, 0] * column.deviation + column.mean


DAYS = pandas.date_range("2020-03-01 08:00", periods=ROWS, freq="61h") if pandas else None


@pytest.mark.parametrize(
    "written",
    ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%d/%m/%Y %H:%M", "%m/%d/%Y", "%d.%m.%Y",
     "%d-%m-%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y", "%d/%m/%y"],
)  # fmt: skip
def test_dates_are_features_however_they_are_written(written, capsys):
    words = DAYS.strftime(written)
    data = load_csv(frame_with(day=words))
    assert taken(data) == {"day": "date"}
    assert "column 'day': dates" in capsys.readouterr().err
    (column,) = data.preprocessing.numbers
    assert {"year", "week"} <= set(column.cycles)
    meant = pandas.to_datetime(pandas.Series(words), format=written, utc=True)
    expected = (meant - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)
    assert np.allclose(values_of(data, pandas.DataFrame({"day": words})), expected, atol=0.05)
    # a week later is the same day of the week, and another day
    place = 1 + 2 * column.cycles.index("week")
    later = data.preprocessing.inputs([{"day": "2020-06-01"}, {"day": "2020-06-08"}])
    assert torch.allclose(later[0, place : place + 2], later[1, place : place + 2], atol=1e-4)
    assert later[0, 0] != later[1, 0]


def test_a_date_of_two_meanings_is_reported_and_can_be_decided(capsys):
    words = [f"0{1 + i % 9}/0{1 + i % 7}/2021" for i in range(ROWS)]
    data = load_csv(frame_with(day=words))
    assert "dayfirst=True" in capsys.readouterr().err
    assert data.preprocessing.numbers[0].formats == ("%m/%d/%Y",)
    assert load_csv(frame_with(day=words), "dayfirst=true").preprocessing.numbers[0].formats == (
        "%d/%m/%Y",
    )
    points = load_csv(frame_with(day=[word.replace("/", ".") for word in words]))
    assert points.preprocessing.numbers[0].formats == ("%d.%m.%Y",)


def test_a_date_helps_where_the_target_depends_on_it():
    days = pandas.date_range("2019-01-01", periods=400)
    wave = np.sin(2 * np.pi * days.day_of_year / 365.25)
    frame = pandas.DataFrame({"day": days.strftime("%d/%m/%Y"), "y": wave.round(5)})
    frame.sample(frac=1, random_state=0).to_csv("rows.csv", index=False)
    data = load_dataset("table(file=rows.csv, targets={y: regression})")
    assert data.baselines(["ridge"])["ridge"]["y"]["mse"] < 0.05


NUMBERS = np.array([1665.5, -12.25, 1234567.0, 0.5, 999.0, 70000.25])


@pytest.mark.parametrize(
    ("name", "write", "separator"),
    [
        ("thousands", lambda x: f"{x:,.2f}", ","),
        ("dollars", lambda x: f"${x:,.2f}" if x >= 0 else f"-${-x:,.2f}", ","),
        ("apostrophes", lambda x: f"{x:,.2f}".replace(",", "'"), ","),
        ("decimal comma", lambda x: f"{x:.2f}".replace(".", ","), ";"),
        ("comma and points", lambda x: f"{x:,.2f}".translate(str.maketrans(",.", ".,")), ";"),
        ("percent", lambda x: f"{x:.2f}%", ","),
        ("blanks", lambda x: f"{x:,.2f}".replace(",", " ").replace(".", ","), ";"),
    ],
)
def test_numbers_are_read_as_people_write_them(name, write, separator, capsys):
    amounts = np.resize(NUMBERS, ROWS)
    data = load_csv(frame_with(amount=[write(x) for x in amounts]).assign(y=range(ROWS)), sep=separator)
    assert taken(data)["amount"] == "number"
    assert "column 'amount': " in capsys.readouterr().err
    rows = pandas.DataFrame({"amount": [write(x) for x in NUMBERS]})
    scale = float(np.abs(NUMBERS).max())
    assert np.allclose(values_of(data, rows) / scale, NUMBERS / scale, atol=1e-6)
    again = TablePreprocessing.from_json(data.preprocessing.to_json())
    assert torch.equal(again.inputs(rows), data.preprocessing.inputs(rows))
    # a network that was trained on text also takes numbers
    plain = data.preprocessing.inputs(pandas.DataFrame({"amount": NUMBERS}))
    assert torch.allclose(plain, data.preprocessing.inputs(rows), atol=1e-5)


def test_a_comma_of_two_meanings_is_decided_by_the_file_or_the_option():
    words = [f"{1 + i % 9},{100 + i}" for i in range(ROWS)]
    thousands = load_csv(frame_with(amount=words))
    assert values_of(thousands, [{"amount": "1,100"}]) == pytest.approx(1100)
    decimals = load_csv(frame_with(amount=words), "decimal=','")
    assert values_of(decimals, [{"amount": "1,100"}]) == pytest.approx(1.1, abs=1e-4)
    other = [f"{i % 7},5" for i in range(ROWS)]
    told_by_another = load_csv(frame_with(amount=words, other=other))
    assert values_of(told_by_another, [{"amount": "1,100", "other": "1,5"}]) == pytest.approx(
        1.1, abs=1e-4
    )
    with pytest.raises(SpecError, match="decimal of table must be"):
        load_csv(frame_with(amount=words), "decimal=';'")


def test_targets_may_have_a_decimal_comma_too():
    frame = frame_with(age=np.arange(ROWS) % 17).astype(str)
    frame["y"] = [word.replace(".", ",") for word in frame["y"]]
    data = load_csv(frame, sep=";")
    assert data.tasks[0].kind == "regression"
    raw = data.preprocessing.read("rows.csv")
    labels = data.preprocessing.labels(raw)["y"]
    assert torch.isfinite(labels).all()
    assert len(labels) == ROWS


def test_codes_with_leading_zeros_stay_codes_wherever_the_first_one_stands(capsys):
    codes = [f"{10000 + i % 5}" for i in range(ROWS - 2)] + ["00002", "00002"]
    frame = frame_with(zip=codes, size=np.arange(ROWS) % 13)
    data = load_csv(frame, "min_count=1, split_seed=1")
    assert taken(data) == {"zip": "categories", "size": "number"}
    assert "leading zeros" in capsys.readouterr().err
    assert "2" not in data.preprocessing.categories[0].values
    first, second = data.preprocessing.inputs([{"zip": "00002", "size": 1}, {"zip": "2", "size": 1}])[
        :, -1
    ]
    assert second == 0
    assert first == 0 or "00002" in data.preprocessing.categories[0].values


def test_none_is_a_class_among_words_and_missing_among_numbers(capsys):
    kinds = ["None", "mild", "severe"] * (ROWS // 3)
    sizes = [str(i % 11) if i % 10 else "None" for i in range(ROWS)]
    frame = frame_with(damage=kinds, size=sizes)
    frame.to_csv("rows.csv", index=False)
    data = load_dataset("table(file=rows.csv, targets={damage: classification}, inputs=[size])")
    assert data.tasks[0].classes == ("None", "mild", "severe")
    assert (data.train.targets["damage"] >= 0).all()
    assert taken(data) == {"size": "number"}
    assert data.preprocessing.numbers[0].indicator
    assert "'None' is one of its words" in capsys.readouterr().err
    told = load_dataset("table(file=rows.csv, targets={damage: classification}, missing=[None, ''])")
    assert told.tasks[0].classes == ("mild", "severe")


def test_nothing_is_left_out_in_silence(capsys):
    frame = frame_with(
        uid=[f"u{i}" for i in range(ROWS)], planet="Earth", nothing=None, age=np.arange(ROWS) % 9
    )
    data = load_csv(frame)
    said = capsys.readouterr().err
    for name in ("uid", "planet", "nothing"):
        assert taken(data)[name] == "left out"
        assert name in said
    with pytest.raises(SystemExit) as stop:
        main(["data", "table(file=rows.csv, targets={y: regression})"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    for word in ("uid", "planet", "nothing", "age", "left out", "number", "distinct"):
        assert word in shown


def test_a_hundred_targets_are_named_by_a_wildcard_and_reported_in_few_lines(capsys):
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({f"school_{i}": random.normal(size=ROWS) for i in range(100)})
    frame["age"] = np.arange(ROWS) % 9
    frame.to_csv("rows.csv", index=False)
    data = load_dataset("table(file=rows.csv, targets=['school_*'])")
    assert data.title == "rows.csv, 100 targets"
    assert len(capsys.readouterr().err.splitlines()) <= 3
    some = load_dataset(
        "table(file=rows.csv, targets={'school_1?': regression(scale=false), age: auto})"
    )
    assert data.preprocessing.columns == ["age"]
    assert len(some.tasks) == 11
    with pytest.raises(SpecError, match="unknown column 'scool_\\*'"):
        load_dataset("table(file=rows.csv, targets=['scool_*'])")


def test_a_data_frame_is_taken_instead_of_a_file():
    frame = frame_with(age=np.arange(ROWS) % 9, day=DAYS)
    frame.to_parquet("rows.parquet")
    stored = load_dataset("table(file=rows.parquet, targets={y: regression})")
    for made in (
        load_dataset("table", file=frame, targets={"y": "regression"}),
        load_dataset("table(targets={y: regression})", file=frame),
    ):
        assert torch.equal(made.train.inputs, stored.train.inputs)
        assert made.title == "DataFrame, 1 target"
        assert made.checksum == stored.checksum
    tested = load_dataset("table", file=frame, test_file=frame.head(30), targets=["y"])
    assert len(tested.test) == 30
    with pytest.raises(SpecError, match="a path or a pandas DataFrame"):
        load_dataset("table", file=3, targets=["y"])
    with pytest.raises(DataError, match="it was a DataFrame"):
        load_dataset(tested.spec)


def test_the_backbone_table_is_completed_by_the_data_set():
    data = load_csv(frame_with(age=np.arange(ROWS) % 9, job=["a", "b", "c"] * (ROWS // 3)))
    spec = data.complete_architecture("hard_sharing(backbone=table(32, 16, dropout=0.1))")
    network = mtlkit.create_architecture(spec, data.tasks, method="sum")
    assert network(data.train.inputs)["y"].shape == (len(data.train), 1)
    assert data.complete_architecture(spec) == spec
    with pytest.raises(SpecError, match=r"this table has categories=\[5\]"):
        data.complete_architecture("hard_sharing(backbone=table(8, numbers=1, categories=[7]))")
    with pytest.raises(SpecError, match=r"option of backbone table 'depth'.*dropout"):
        mtlkit.create_architecture(
            data.complete_architecture("hard_sharing(backbone=table(8, depth=3))"), data.tasks
        )
    wrong = data.train.inputs[:3].clone()
    wrong[1, -1] = 5
    with pytest.raises(UsageError, match="codes 0 to 4, not 5"):
        network(wrong)


def test_baselines_have_the_metrics_of_a_run_and_learn_what_can_be_learned():
    random = np.random.default_rng(0)
    age, job = random.integers(18, 80, 400), random.choice(["a", "b", "c"], 400)
    frame = pandas.DataFrame(
        {
            "age": age,
            "job": job,
            "income": 300.0 * age + random.normal(0, 900, 400),
            "old": np.where(age + random.integers(-3, 4, 400) > 50, "yes", "no"),
            "kind": np.where(random.random(400) < 0.9, job, "d"),
        }
    )
    frame.loc[:99, "old"] = None
    data = load_dataset(
        "table", file=frame,
        targets={"income": "regression", "old": "binary", "kind": "classification"},
    )  # fmt: skip
    scores = data.baselines(["constant", "ridge", "forest", "boosting"])
    for name in ("ridge", "forest", "boosting"):
        assert scores[name]["income"]["mse"] < 0.3 < 0.6 < scores["constant"]["income"]["mse"]
        assert scores[name]["old"]["auc"] > 0.9
        assert scores[name]["kind"]["accuracy"] > scores["constant"]["kind"]["accuracy"]
    for task in data.tasks:
        assert next(iter(scores["ridge"][task.name])) == "loss"
        assert set(task.higher_is_better) <= set(scores["ridge"][task.name])
        assert all(math.isfinite(value) for value in scores["forest"][task.name].values())


def test_a_baseline_has_no_metrics_on_a_target_without_test_labels():
    rows = np.arange(60)
    frame = pandas.DataFrame(
        {"x": rows % 7, "old": rows % 2, "y": rows % 5, "part": np.where(rows < 40, "train", "test")}
    )
    frame.loc[40:, "old"] = None
    data = load_dataset("table(targets={old: binary, y: regression}, split=part)", file=frame)
    scores = data.baselines(["constant"])["constant"]
    assert {"loss", "f1"} < set(scores["old"])
    assert all(map(math.isnan, scores["old"].values()))
    assert math.isfinite(scores["y"]["mse"])


def test_a_comparison_does_not_go_on_with_changed_labels(tmp_path, capsys):
    frame = frame_with(age=np.arange(ROWS) % 9)
    frame.to_csv("rows.csv", index=False)
    data = "table(file=rows.csv, targets={y: regression(scale=false)})"
    command = ["compare", "--data", data, "--seeds", "1", "--steps", "3", "--timing", "0", "--jobs", "1"]
    with pytest.raises(SystemExit) as stop:
        main([*command, "--methods", "sum", "-o", "runs"])
    assert stop.value.code == 0
    frame["y"] = frame["y"].to_numpy()[::-1]
    frame.to_csv("rows.csv", index=False)
    with pytest.raises(SystemExit) as stop:
        main([*command, "--methods", "sum,pcgrad", "-o", "runs"])
    assert stop.value.code == 1
    assert "the data changed" in capsys.readouterr().err
    # nothing was trained on the changed data, so a report shows the old runs only
    assert [run.label for run in Comparison.load("runs").runs if not run.kind] == ["single-task", "sum"]


# any table: names, cells and gaps of any kind

NAMES = st.text(min_size=1, max_size=8).map(str.strip).filter(bool)
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=6),
    st.dates(),
    st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    st.sampled_from(
        ["12%", "1,665.50", "3,5", "00002", "2024-05-01", "18/09/2022 19:31", "None", "?", ""]
    ),
)
KINDS = [
    CELLS,
    st.floats(allow_nan=True),
    st.integers(0, 5),
    st.sampled_from(["a", "b", " b", "None"]),
    st.dates().map(str),
    st.integers(0, 999).map(lambda n: f"{n:05d}"),
    st.floats(-1e9, 1e9).map(lambda x: f"{x:,.2f}"),
    st.floats(-1e9, 1e9).map(lambda x: f"{x:.3f}".replace(".", ",")),
    st.floats(0, 100).map(lambda x: f"{x:.1f}%"),
]


@st.composite
def frames(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    size = draw(st.integers(12, 30))
    columns = {}
    for name in names:
        kind = draw(st.sampled_from(KINDS))
        columns[name] = pandas.Series(draw(st.lists(kind, min_size=size, max_size=size)), dtype=object)
    frame = pandas.DataFrame(columns)
    return frame if draw(st.booleans()) else frame.infer_objects()


@given(frames(), st.booleans())
@settings(max_examples=80)
@pytest.mark.filterwarnings("ignore:column .* determines target")
def test_any_table_is_encoded_or_refused_with_a_sentence_and_every_column_is_accounted_for(
    frame, as_csv
):
    assume("target" not in frame.columns)
    frame = frame.assign(target=np.arange(len(frame)) % 7 + 0.5)
    source = frame
    if as_csv:
        frame.to_csv("any.csv", index=False)
        source = "any.csv"
    try:
        data = load_dataset("table", file=source, targets={"target": "regression"})
        train = data.train
    except (DataError, SpecError) as error:
        assert str(error)
        return
    assert torch.isfinite(train.inputs).all()
    # every column is an input, or is named with the reason
    described = {column.name: column for column in data.input_table}
    assert set(described) == {name.strip() for name in map(str, frame.columns)} - {"target"}
    for column in described.values():
        assert (column.taken == "left out") == (column.name not in data.preprocessing.columns)
        assert column.note or column.taken != "left out"
    # the saved preprocessing gives the same inputs to the same raw rows
    again = TablePreprocessing.from_json(data.preprocessing.to_json())
    try:
        raw = again.read("any.csv") if as_csv else frame
    except DataError as error:
        raise AssertionError(f"its own rows are refused: {error}") from None
    inputs = again.inputs(raw)
    rows = load_dataset("table", file=source, targets={"target": "regression"}, test_file=source).test
    assert inputs.shape == (len(frame), data.input_shape[0])
    assert len(rows) == len(frame)
    known = {tuple(row) for row in np.round(inputs.double().numpy(), 3).tolist()}
    assert {tuple(row) for row in np.round(train.inputs.double().numpy(), 3).tolist()} <= known


def test_time_spans_are_days():
    spans = pandas.to_timedelta(pandas.Series(range(ROWS)), "h")
    frame = frame_with(span=spans.where(spans.index % 7 > 0))
    data = load_dataset("table(targets={y: regression})", file=frame)
    assert taken(data) == {"span": "number"}
    again = TablePreprocessing.from_json(data.preprocessing.to_json())
    inputs = again.inputs(frame)
    expected = torch.where(inputs[:, 1] > 0, torch.nan, torch.arange(ROWS) / 24)
    found = torch.where(inputs[:, 1] > 0, torch.nan, values_of(data, frame))
    assert inputs[:, 1].sum() == len(range(0, ROWS, 7))
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_columns_of_any_backend_of_pandas_are_read_alike(backend):
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({
        "y": random.normal(size=ROWS), "kind": random.integers(0, 4, ROWS), "x": random.normal(size=ROWS),
        "day": DAYS, "word": random.choice(["a", "b"], ROWS), "flag": random.random(ROWS) < 0.5,
        "span": pandas.to_timedelta(random.integers(0, 99, ROWS), "h"),
    })  # fmt: skip
    frame.loc[::9, "x"] = np.nan
    one, two = (
        load_dataset("table(targets=[y, kind])", file=rows)
        for rows in (frame, frame.convert_dtypes(dtype_backend=backend))
    )
    assert taken(one) == taken(two)
    for name in ("train", "test"):
        torch.testing.assert_close(one.split(name).inputs, two.split(name).inputs)
        torch.testing.assert_close(one.split(name).targets, two.split(name).targets)


def test_days_of_arrow_are_dates():
    arrow = pytest.importorskip("pyarrow")
    days = pandas.Series(DAYS.date).astype(pandas.ArrowDtype(arrow.date32()))
    plain, other = (
        load_dataset("table(targets=[y])", file=frame_with(day=column))
        for column in (pandas.Series(DAYS.date), days)
    )
    assert taken(other) == {"day": "date"}
    torch.testing.assert_close(other.train.inputs, plain.train.inputs)
