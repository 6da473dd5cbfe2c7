"""Own tables: reading, splitting, encoding, targets, and what is refused."""

import gzip
import warnings
import zipfile

import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.data import DataError, load_dataset, notes
from mtlkit.data.table import TablePreprocessing
from mtlkit.errors import SpecError

pandas = pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")

JOBS = ("clerk", "nurse", "smith")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    monkeypatch.setattr(notes, "printed", set())


def people(rows: int = 200, seed: int = 0):
    random = np.random.default_rng(seed)
    age = random.integers(18, 80, rows)
    frame = pandas.DataFrame(
        {
            "age": age,
            "job": random.choice(JOBS, rows),
            "hours": random.normal(38, 8, rows).round(2),
            "income": 300.0 * age + random.normal(0, 2000, rows).round(2),
            "married": np.where(random.random(rows) < age / 80, "yes", "no"),
            "grade": random.integers(1, 5, rows),
        }
    )
    frame.loc[:9, "hours"] = np.nan
    frame.loc[20:24, "job"] = None
    frame.loc[5:14, "married"] = None
    return frame


def write(frame, path: str = "people.csv", **options) -> str:
    frame.to_csv(path, index=False, **options)
    return path


def load(options: str = "", targets: str = "{income: regression, married: binary}", **more):
    extra = f", {options}" if options else ""
    return load_dataset(f"table(file=people.csv, targets={targets}{extra})", **more)


def test_numbers_are_standardized_on_the_training_rows_and_missing_ones_marked():
    frame = people()
    write(frame)
    data = load()
    inputs = data.train.inputs
    # age, hours, grade, then the indicator of hours, then the index of the job
    assert data.input_shape == (5,)
    missing = inputs[:, 3] == 1
    assert (inputs[missing, 1] == 0).all()
    assert torch.allclose(inputs[:, 0].mean(), torch.tensor(0.0), atol=1e-5)
    assert torch.allclose(inputs[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-4)
    assert torch.allclose(inputs[~missing, 1].mean(), torch.tensor(0.0), atol=1e-5)
    total = sum(int((split.inputs[:, 3] == 1).sum()) for split in (data.train, data.val, data.test))
    assert total == 10
    assert abs(float(data.test.inputs[:, 0].mean())) > 1e-4  # not standardized by its own rows


def test_unknown_and_missing_categories_have_their_own_index():
    frame = people()
    write(frame)
    preprocessing = load().preprocessing
    rows = frame.iloc[[30, 30, 30]].astype(object)
    rows["job"] = ["smith", "astronaut", " ? "]
    assert preprocessing.inputs(rows)[:, -1].tolist() == [4.0, 0.0, 1.0]
    assert preprocessing.category_sizes == [5]


def test_rare_categories_are_unknown_ones():
    frame = people()
    frame.loc[0, "job"] = "astronaut"
    write(frame)
    data = load("split_seed=1")
    assert data.preprocessing.categories[0].values == JOBS


def test_missing_targets_are_missing_labels():
    write(people())
    data = load()
    labels = torch.cat([data.split(name).targets["married"] for name in ("train", "val", "test")])
    assert int(torch.isnan(labels).sum()) == 10
    task = data.tasks[1]
    assert task.count_labels(labels).number == 190


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ", "])
def test_the_separator_is_found(separator):
    frame = people().astype(object).fillna("?")
    lines = [separator.join(map(str, row)) for row in [frame.columns, *frame.to_numpy()]]
    with open("people.csv", "w") as file:
        file.write("\n".join(lines) + "\n")
    data = load()
    assert data.task_names == ("income", "married")
    assert data.input_shape == (5,)
    given = load(f"separator={separator!r}")
    assert torch.equal(given.train.inputs, data.train.inputs)


def test_gzip_parquet_and_csv_hold_the_same_table():
    pytest.importorskip("pyarrow", reason="pyarrow is in mtlkit[table]")
    frame = people()
    write(frame)
    with open("people.csv", "rb") as plain, gzip.open("people.csv.gz", "wb") as packed:
        packed.write(plain.read())
    frame.to_parquet("people.parquet")
    first = load()
    for name in ("people.csv.gz", "people.parquet"):
        other = load_dataset("table", file=name, targets={"income": "regression", "married": "binary"})
        assert torch.equal(first.train.inputs, other.train.inputs), name
        assert torch.equal(first.test.targets["income"], other.test.targets["income"]), name


def test_columns_without_a_header_are_counted_from_one():
    write(people(), header=False)
    data = load("header=false", "{4: regression, wed: binary(column=5)}")
    assert data.task_names == ("column_4", "wed")
    assert data.preprocessing.columns == ["1", "3", "6", "2"]
    with pytest.raises(SpecError, match=r"unknown column of people.csv '9'.*counted from 1"):
        load("header=false", "{9: regression}")


def test_rows_are_split_by_share_and_seed():
    write(people())
    data = load("val_share=0.1, test_share=0.3")
    assert [len(data.split(part)) for part in ("train", "val", "test")] == [120, 20, 60]
    again, other = load("val_share=0.1, test_share=0.3"), load("val_share=0.1, test_share=0.3", seed=1)
    assert torch.equal(data.test.inputs, again.test.inputs)
    assert not torch.equal(data.test.inputs, other.test.inputs)
    fixed = [load("split_seed=7", seed=seed).test.inputs for seed in (0, 1)]
    assert torch.equal(*fixed)


def test_rows_are_split_by_a_column():
    frame = people()
    frame["part"] = ["test"] * 50 + ["Validation"] * 30 + ["train"] * 120
    write(frame)
    data = load("split=part")
    assert [len(data.split(part)) for part in ("train", "val", "test")] == [120, 30, 50]
    assert "part" not in data.preprocessing.columns
    frame["part"] = ["test"] * 50 + ["train"] * 150
    write(frame)
    assert [len(load("split=part").split(part)) for part in ("train", "val", "test")] == [120, 30, 50]
    frame.loc[3, "part"] = "later"
    write(frame)
    with pytest.raises(DataError, match="it also holds 'later'"):
        load("split=part")


def test_rows_are_split_by_time_and_one_moment_stays_together():
    frame = people().sample(frac=1, random_state=0)
    frame["day"] = pandas.date_range("2024-01-01", periods=200).astype(str)
    frame.loc[frame["day"].between("2024-06-01", "2024-06-20"), "day"] = "2024-06-10"
    write(frame.sample(frac=1, random_state=1))
    data = load("time=day", "{order: regression(column=income)}")
    parts = [len(data.split(part)) for part in ("train", "val", "test")]
    assert sum(parts) == 200
    assert parts[2] >= 40
    assert "day" not in data.preprocessing.columns
    days = pandas.read_csv("people.csv")["day"]
    later = set(days.iloc[np.argsort(days, kind="stable")][-parts[2] :])
    assert not later & set(days.iloc[np.argsort(days, kind="stable")][: -parts[2]])


def test_a_test_file_is_encoded_like_the_training_rows():
    write(people())
    write(people(50, seed=1), "later.csv")
    data = load("test_file=later.csv")
    assert [len(data.split(part)) for part in ("train", "val", "test")] == [160, 40, 50]
    frame = data.preprocessing.read("later.csv")
    assert torch.equal(data.preprocessing.inputs(frame), data.test.inputs)
    write(people(50).drop(columns="hours"), "later.csv")
    with pytest.raises(DataError, match=r"lacks the column.*'hours'"):
        load("test_file=later.csv")


def test_preprocessing_survives_json_and_takes_plain_rows():
    frame = people()
    write(frame)
    data = load(targets="{income: regression, married: binary, grade: classification}")
    again = TablePreprocessing.from_json(data.preprocessing.to_json())
    assert again.to_json() == data.preprocessing.to_json()
    assert torch.equal(again.inputs(again.read("people.csv")), data.preprocessing.inputs(frame))
    row = {"age": "44", "hours": None, "job": "nurse"}
    one = again.inputs([row])
    assert one.shape == (1, 4)
    assert one[0, 1:].tolist() == [0.0, 1.0, 3.0]
    assert again.targets[2].make_task().classes == ("1", "2", "3", "4")
    with pytest.raises(DataError, match=r"columns that this table lacks: 'hours'; given are: age, job"):
        again.inputs([{"age": 44, "job": "nurse"}])
    with pytest.raises(DataError, match="not the preprocessing"):
        TablePreprocessing.from_json("[1]")


def test_values_that_only_the_test_file_has_are_never_taken_silently(capsys):
    write(people())
    later = people(60, seed=1)
    later["grade"] = later["grade"].astype(object)
    later.loc[3, "grade"] = 9
    write(later, "later.csv")
    with pytest.raises(DataError, match=r"grade.*test file also holds '9'.*classes=\["):
        load("test_file=later.csv", targets="{grade: classification}")
    named = load("test_file=later.csv", targets="{grade: classification(classes=[1, 2, 3, 4, 9])}")
    assert named.test.targets["grade"][3] == 4

    later = people(60, seed=1)
    later["married"] = later["married"] + "."  # as in the test file of the Adult data
    write(later, "later.csv")
    with pytest.raises(DataError, match=r"married.*'no\.', 'yes\.'"):
        load("test_file=later.csv", targets="{married: binary}")
    later = people(60, seed=1)
    later.loc[3, "job"] = "judge"
    write(later, "later.csv")
    load("test_file=later.csv", targets="{craft: binary(column=job, yes=smith)}")
    assert "'judge'" in capsys.readouterr().err
    later["income"] = later["income"].astype(object)
    later.loc[3, "income"] = "much"
    write(later, "later.csv")
    with pytest.raises(DataError, match=r"income.*test file holds 'much'"):
        load("test_file=later.csv", targets="{income: regression}")


def test_guessed_kinds_are_reported(capsys):
    write(people())
    data = load(targets="[income, married, grade, job]")
    kinds = {task.name: task.kind for task in data.tasks}
    assert kinds == {
        "income": "regression",
        "married": "binary",
        "grade": "classification",
        "job": "classification",
    }
    said = capsys.readouterr().err
    for name, kind in kinds.items():
        assert f"target {name!r}: {kind}, guessed" in said
    assert "target 'income' is in standard deviations" in said
    load(targets="[income, married, grade, job]")
    assert capsys.readouterr().err == ""  # once per process


def test_a_rare_yes_is_reported_unless_the_metric_was_chosen(capsys):
    frame = people()
    frame["rich"] = ["yes" if row % 20 == 0 else "no" for row in range(len(frame))]
    write(frame)
    assert load(targets="{rich: binary(metric=auc)}").tasks[0].main_metric == "auc"
    assert "binary(metric=auc)" not in capsys.readouterr().err
    assert load(targets="{rich: binary}").tasks[0].main_metric == "f1"
    assert "'rich' is yes in " in capsys.readouterr().err


def test_which_value_is_yes_can_be_set():
    write(people())
    data = load(
        targets="{craft: binary(column=job, yes=[smith, nurse]), clerk: binary(column=job, yes=clerk)}"
    )
    craft, clerk = (data.train.targets[name] for name in ("craft", "clerk"))
    known = ~torch.isnan(craft)
    assert torch.equal(craft[known], 1 - clerk[known])
    assert data.tasks[1].classes == ("no", "clerk")
    with pytest.raises(
        DataError, match=r"holds 3 values: 'clerk', 'nurse', 'smith'. Name those that mean yes"
    ):
        load(targets="{job: binary}")
    with pytest.raises(DataError, match="yes='pilot' is not in column 'job'"):
        load(targets="{job: binary(yes=pilot)}")


def test_several_columns_make_one_task():
    frame = people()
    frame["rich"] = (frame["income"] > 15000).astype(int)
    frame["old"] = (frame["age"] + np.arange(200) % 7 > 50).astype(int)
    write(frame)
    data = load(
        targets="{both: regression(columns=[income, hours]), tags: multilabel(columns=[rich, old])}"
    )
    assert data.train.targets["both"].shape == (120, 2)
    assert data.train.targets["tags"].shape == (120, 2)
    assert data.tasks[1].classes == ("rich", "old")
    assert int(torch.isnan(data.train.targets["both"]).sum()) > 0
    assert set(data.preprocessing.columns) == {"age", "job", "grade"} | {"married"}


def test_a_regression_keeps_its_unit_if_asked():
    frame = people()
    write(frame)
    data = load(targets="{income: regression(scale=false)}")
    assert float(data.train.targets["income"].mean()) > 1000
    scaled = load(targets="{income: regression}")
    target = scaled.preprocessing.targets[0]
    back = scaled.train.targets["income"] * target.deviations[0] + target.means[0]
    assert torch.allclose(back, data.train.targets["income"], rtol=1e-4)


def test_codes_are_categories_if_asked_and_columns_can_be_left_out():
    write(people())
    data = load("categories=[grade], ignore=[age]")
    assert [column.name for column in data.preprocessing.categories] == ["job", "grade"]
    assert data.preprocessing.columns == ["hours", "job", "grade"]
    assert load("inputs=[age, job]").preprocessing.columns == ["age", "job"]
    with pytest.raises(SpecError, match="'income' is a target"):
        load("inputs=[age, income]")


def test_bools_are_categories_whatever_else_their_column_holds():
    frame = people()
    frame["member"] = np.arange(len(frame)) % 3 == 0
    write(frame)
    preprocessing = load("inputs=[age, member]").preprocessing
    (member,) = preprocessing.categories
    assert member.values == ("False", "True")
    for cells in ("TRUE\n50,", "True\n50,", "true\n50,False"):
        with open("new.csv", "w") as file:
            file.write(f"age,member\n40,{cells}\n")
        codes = preprocessing.inputs(preprocessing.read("new.csv"))[:, 1].tolist()
        assert codes == [3.0, 2.0 if "False" in cells else 1.0]


def test_words_where_numbers_were_learned_are_refused():
    write(people())
    preprocessing = load("inputs=[age, job]").preprocessing
    told = r"column 'age' must hold a number, but 1 of 2 cells do not, such as 'forty'"
    with pytest.raises(DataError, match=told):
        preprocessing.inputs([{"age": "forty", "job": "smith"}, {"age": "40", "job": "smith"}])
    later = people(60, seed=1).astype(object)
    later.loc[3, "age"] = "forty"
    write(later, "later.csv")
    with pytest.raises(DataError, match="'forty'"):
        preprocessing.read("later.csv")
    with pytest.raises(DataError, match="'forty'"):  # not after the training
        load("test_file=later.csv")
    assert torch.isfinite(preprocessing.inputs([{"age": np.inf, "job": "smith"}])).all()


def test_dates_of_parquet_are_read_from_csv_too():
    pytest.importorskip("pyarrow", reason="pyarrow is in mtlkit[table]")
    frame = people()
    frame["day"] = pandas.date_range("2024-01-01", periods=200, freq="7h").to_numpy()[::-1]
    frame.to_parquet("people.parquet")
    data = load_dataset("table(file=people.parquet, targets={income: regression}, inputs=[age, day])")
    preprocessing = TablePreprocessing.from_json(data.preprocessing.to_json())
    write(frame, "new.csv")
    assert torch.equal(preprocessing.inputs(preprocessing.read("new.csv")), preprocessing.inputs(frame))
    rows = [{"age": 40, "day": "2024-01-15"}, {"age": 40, "day": pandas.Timestamp(2024, 1, 15)}]
    assert torch.equal(preprocessing.inputs(rows[:1]), preprocessing.inputs(rows[1:]))
    with pytest.raises(DataError, match=r"'day' must hold a date such as .* 'tomorrow'"):
        preprocessing.inputs([{"age": 40, "day": "tomorrow"}])


def test_codes_with_leading_zeros_stay_what_they_are():
    frame = people()
    frame["code"] = ["0012", "0034", "A7", "12"] * 50
    frame["zip"] = ["01067", "10115"] * 100
    write(frame)
    frame[frame["code"] == "0012"].to_csv("later.csv", index=False)
    data = load("categories=[zip], inputs=[age, code, zip], test_file=later.csv")
    code, postal = data.preprocessing.categories
    assert code.values == ("0012", "0034", "12", "A7")
    assert postal.values == ("01067", "10115")
    assert set(data.test.inputs[:, 1].tolist()) == {2.0}
    assert torch.equal(data.preprocessing.inputs(data.preprocessing.read("later.csv")), data.test.inputs)
    kinds = load("test_file=later.csv", "{kind: classification(column=code)}")
    assert set(kinds.test.targets["kind"].tolist()) == {0}
    write(frame, header=False)
    blind = load("header=false, categories=[8], inputs=[7, 8]", "{4: regression}")
    assert blind.preprocessing.categories[1].values == ("01067", "10115")


def test_codes_are_the_same_with_and_without_a_decimal_point():
    frame = people()
    frame["code"] = frame["grade"].where(frame.index > 20)  # a column with gaps is written as 3.0
    write(frame)
    preprocessing = load("categories=[code], inputs=[age, code]").preprocessing
    assert preprocessing.categories[0].values == ("1", "2", "3", "4")
    for cells in ("3", "3.0", "3.0\n40,other"):
        with open("new.csv", "w") as file:
            file.write(f"age,code\n40,{cells}\n")
        assert preprocessing.inputs(preprocessing.read("new.csv"))[0, 1] == 4


def test_a_stray_word_among_numbers_is_reported(capsys):
    frame = people().astype(object)
    frame.loc[[3, 50, 90], "age"] = "n/a"
    write(frame)
    assert "age" in [column.name for column in load().preprocessing.numbers]
    frame.loc[::40, "age"] = "unknown"
    write(frame)
    load("train=120, val_share=0.1, test_share=0.1, split_seed=3")
    said = capsys.readouterr().err
    assert "column 'age' is taken as words" in said
    assert "'unknown'; if these mean that a value is missing, add them to missing=[...]" in said
    assert "'job' is taken as words" not in said


def test_a_column_that_numbers_the_rows_is_left_out(capsys):
    frame = people()
    frame["id"] = np.arange(1000, 1200)
    frame.sample(frac=1, random_state=0).sort_values("id").to_csv("people.csv")
    data = load()
    assert not {"id", "Unnamed: 0"} & set(data.preprocessing.columns)
    assert "'Unnamed: 0', 'id') are left out: it numbers the rows" in capsys.readouterr().err
    frame.drop(columns="id").sample(frac=1, random_state=0).to_csv("people.csv")
    assert "Unnamed: 0" not in load().preprocessing.columns
    write(frame)
    assert load("inputs=[id, age]").preprocessing.columns == ["id", "age"]


def test_columns_that_teach_nothing_are_left_out_and_named(capsys):
    frame = people()
    frame["id"] = [f"p{number}" for number in range(200)]
    frame["planet"] = "Earth"
    write(frame)
    data = load()
    assert not {"id", "planet"} & set(data.preprocessing.columns)
    said = capsys.readouterr().err
    assert "column 'id' is left out" in said
    assert "column 'planet' is left out" in said


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("copy", lambda frame: frame["married"]),
        ("code", lambda frame: (frame["married"] == "yes") * 3.0),
        ("dollars", lambda frame: frame["income"] * 1.1 + 5),
        ("asked", lambda frame: np.where(frame["married"] == "yes", np.nan, frame["age"])),
    ],
)
def test_a_column_that_gives_a_target_away_is_named(name, make):
    frame = people().dropna()
    frame[name] = make(frame)
    write(frame)
    with pytest.warns(UserWarning, match=f"column '{name}' determines target"):
        load()


def test_an_honest_table_raises_no_warning():
    write(people())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load()


def test_constant_and_empty_targets_are_refused():
    frame = people()
    frame["same"] = 3
    frame["none"] = np.nan
    write(frame)
    for kind in ("regression", "binary", "auto"):
        with pytest.raises(
            DataError, match=r"target 'same' of people\.csv is constant: column 'same' is 3 in"
        ):
            load(targets=f"{{same: {kind}}}")
    with pytest.raises(DataError, match="'none' holds no value"):
        load(targets="{none: regression}")


def test_a_word_in_a_column_of_numbers_is_named():
    frame = people().astype(object)
    frame.loc[:150, "income"] = "lots"
    write(frame)
    with pytest.raises(DataError, match=r"'income' is a number, but column 'income' holds .*'lots'"):
        load()


def test_a_wrong_column_is_an_error_with_the_nearest():
    write(people())
    with pytest.raises(SpecError, match="did you mean 'income'"):
        load(targets="{incom: regression}")
    with pytest.raises(SpecError, match=r"unknown column of people.csv 'hour'; did you mean 'hours'"):
        load("ignore=[hour]")
    with pytest.raises(SpecError, match="did you mean 'regression'"):
        load(targets="{income: regresion}")
    with pytest.raises(SpecError, match="is for images"):
        load(targets="{income: depth}")


def test_a_wrong_option_of_a_target_is_reported_with_those_of_columns_and_kinds():
    write(people())
    with pytest.raises(SpecError, match=r"did you mean 'column' or 'columns'\?.*classes.*yes"):
        load(targets="{it: binary(colum=income)}")


@pytest.mark.parametrize(
    ("options", "targets", "message"),
    [
        ("separator='::'", "[age]", "separator of a table must be one character, not '::'"),
        ("separator=''", "[age]", "one character"),
        ("encoding=klingon", "[age]", "unknown encoding 'klingon'"),
        ("", "[[age, job]]", r"each a string or an integer.*not \[\['age', 'job'\]\]"),
        ("", "{job: 3}", "target 'job': its kind must be a string such as binary, not 3"),
    ],
)
def test_wrong_options_are_named(options, targets, message):
    write(people())
    with pytest.raises(SpecError, match=message):
        load(options, targets)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "people.csv is empty: the file has no bytes"),
        (b"a,b,c\n", "is empty: it has no rows"),
        (b"a,b\n1,2\n3,4,5\n6,7\n", "cannot read the table"),
        (b"a,b\n\xff\xfe,2\n3,4\n", "set its encoding"),
        (b"a,a ,b\n1,2,3\n4,5,6\n", "two columns called 'a'; rename one"),
        (b'b,a,"a"\n1,2,3\n4,5,6\n', "two columns called 'a'; rename one"),
        (b"\x1f\x8b\x00garbage", "cannot read|encoding"),
    ],
)
def test_damaged_files_are_refused(content, message):
    with open("people.csv", "wb") as file:
        file.write(content)
    with pytest.raises(DataError, match=message):
        load(targets="[a]")


def test_damaged_archives_and_missing_files_are_refused():
    for name in ("x.csv.gz", "x.parquet"):
        with open(name, "wb") as file:
            file.write(b"no archive at all")
        with pytest.raises(DataError, match="cannot read the table x"):
            load_dataset("table", file=name, targets=["a"])
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.csv"):
        load_dataset("table(file=nowhere.csv, targets=[a])")
    with pytest.raises(SpecError, match=r"table\(file=..., targets=...\)"):
        load_dataset("table")


def test_an_error_for_another_format_lists_the_accepted_ones():
    write(people())
    with zipfile.ZipFile("people.csv.zip", "w") as packed:
        packed.write("people.csv")
    with pytest.raises(DataError, match=r"formats are CSV, gzipped CSV \(\.csv\.gz\) and Parquet"):
        load_dataset("table", file="people.csv.zip", targets=["age"])
    for name in ("people.csv", "data/people.csv.gz"):
        with pytest.raises(SpecError, match=rf"is a file.*table\(file='{name}', targets=...\)"):
            load_dataset(name)


def test_a_negative_seed_is_refused():
    write(people())
    for option in ("split_seed", "test_seed"):
        with pytest.raises(SpecError, match=f"{option} of table must be .*0 or more.*not -1"):
            load(f"{option}=-1")


def test_files_are_also_looked_for_among_the_data_sets(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    write(people(), "store/people.csv")
    with pytest.raises(DataError, match="there is no file"):
        load()
    assert len(load(data_dir=tmp_path / "store").train) == 120


@pytest.mark.parametrize(
    "architecture",
    ["hard_sharing", "mmoe", "ple", "cgc", "dselect_k", "mmoe(experts=3)", "cross_stitch", "ltb"],
)
def test_architectures_stand_on_the_tables_backbone_by_name(architecture):
    write(people())
    data = load()
    spec = data.complete_architecture(architecture)
    network = mtlkit.create_architecture(spec, data.tasks, method="sum")
    predictions = network(data.train.inputs[:7])
    assert {name: tuple(p.shape) for name, p in predictions.items()} == {
        "income": (7, 1),
        "married": (7, 1),
    }
    other = data.train.inputs[:7].clone()
    other[:, -1] = 0  # another job must change the prediction
    changed = network(other)["income"] - predictions["income"]
    assert float(changed.detach().abs().sum()) > 0


def test_rotograd_learns_a_table(tmp_path):
    write(people(600))
    from mtlkit.training.config import TrainConfig
    from mtlkit.training.experiment import run

    config = TrainConfig.make(
        {
            "data": "table(file=people.csv, targets={income: regression, married: binary})",
            "method": "rotograd",
            "epochs": 15,
            "batch_size": 32,
            "output": "run",
        },
        "test",
    )
    result = run(config, progress=False)
    assert result.test is not None
    assert result.test["income"]["mse"] < 0.5
    assert result.test["married"]["auc"] > 0.6
    saved = TablePreprocessing.from_json((tmp_path / "run" / "preprocessing.json").read_text())
    assert saved.columns == ["age", "hours", "grade", "job"]


def test_a_registered_kind_is_a_target_by_its_name():
    from mtlkit.tasks.registry import kinds, register_task

    with kinds.temporary():

        @register_task("tests_huber")
        class Huber(mtlkit.Task):
            def __init__(self, name: str, *, delta: float = 1.0) -> None:
                super().__init__(name, torch.nn.HuberLoss(delta=delta), outputs=1)

        write(people())
        data = load(targets="{income: tests_huber(delta=2, scale=true)}")
        assert data.tasks[0].kind == "tests_huber"
        assert abs(float(data.train.targets["income"].mean())) < 1e-4
        loss, count = data.tasks[0].measure(torch.zeros(120, 1), data.train.targets["income"])
        assert count == 120
        assert float(loss) > 0


def test_the_command_line_compares_methods_on_a_table(tmp_path, capsys):
    from mtlkit.cli import main
    from mtlkit.report.results import Comparison

    write(people())
    data = "table(file=people.csv, targets={income: regression, married: binary})"
    small = ["--steps", "5", "--timing", "0", "--jobs", "1", "--output", "runs/t"]
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--data", data, "--methods", "sum,pcgrad", "--seeds", "1", *small])
    assert stop.value.code == 0
    made = Comparison.load(tmp_path / "runs" / "t")
    assert {run.label for run in made.runs if run.status == "done"} == {
        "single-task",
        "sum",
        "pcgrad",
        "constant",
        "ridge",
        "forest",
        "boosting",
    }
    assert set(made.runs[0].metrics) <= {"income", "married"}
    assert list(made.runs[-1].metrics["married"]) == ["loss", "f1", "auc", "accuracy"]


def test_a_run_is_not_written_into_a_file(capsys):
    from mtlkit.cli import main

    write(people())
    data = "table(file=people.csv, targets={income: regression})"
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data", data, "-o", "people.csv"])
    assert stop.value.code == 2
    assert "the output people.csv is a file; give a folder" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["true,false", "TRUE,FALSE", "True,False"])
def test_bools_are_the_same_words_in_the_test_file_whatever_their_case(spelling):
    """Pandas reads a column of bools as bools, and one that is read as text as it is written."""
    yes, no = spelling.split(",")
    rows = [f"{number},{yes if number % 3 else no},{'ab'[number % 2]}" for number in range(60)]
    frame = "\n".join(["x,member,y", *rows])
    with open("people.csv", "w") as file, open("new.csv", "w") as new:
        file.write(frame)
        new.write(f"x,member,y\n1,{yes},a\n2,{no},b\n3,{yes},a\n")
    data = load("test_file=new.csv", "[y]")
    assert data.test.inputs[:, -1].tolist() == [3, 2, 3]  # codes 0 and 1: unknown and missing
    label = load("test_file=new.csv", "{member: binary}").test.targets["member"]
    assert label.flatten().tolist() == [1, 0, 1]
    with open("people.csv", "a") as file:
        file.write(f"\n61,maybe,a\n62,{yes},b")
    named = load("inputs=[x]", f"{{member: classification(classes=[{no}, {yes}, maybe])}}")
    assert set(named.train.targets["member"].tolist()) >= {0, 1}


@pytest.mark.parametrize("word", ["FALSE", "False", False])
def test_a_bool_that_means_missing_may_be_written_as_in_the_table(word):
    frame = people()
    frame["job"] = ["FALSE" if number % 2 else "clerk" for number in range(200)]
    data = load_dataset("table(targets=[age])", file=frame, missing=[word])
    assert next(column.missing for column in data.input_table if column.name == "job")


def test_a_class_may_be_called_none():
    frame = people()
    frame["job"] = ["None" if number % 2 else "clerk" for number in range(200)]
    write(frame)
    data = load(targets="{job: classification(classes=[clerk, None])}")
    assert sorted(set(data.train.targets["job"].tolist())) == [0, 1]


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_targets_of_any_size_have_unit_variance(unit):
    frame = people()
    frame["income"] *= unit / 1e5
    write(frame)
    income = load().train.targets["income"]
    torch.testing.assert_close(income.std(correction=0), torch.tensor(1.0))
    torch.testing.assert_close(income.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)


def test_a_column_whose_words_are_all_rare_is_left_out(capsys):
    frame = people(40)
    frame["job"] = [f"job {number}" for number in range(40)]
    write(frame)
    data = load()
    assert "job" not in data.preprocessing.columns
    assert "no word occurs 2 times" in capsys.readouterr().err


def test_the_word_that_spoils_a_column_of_dates_is_named_also_if_it_is_frequent(capsys):
    frame = people()
    frame["day"] = [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" if n % 15 else "unknown" for n in range(200)]
    write(frame)
    load()
    assert "most of its cells are dates, because it also has 'unknown'" in capsys.readouterr().err


def test_an_input_that_is_named_twice_is_read_once():
    write(people())
    assert load("inputs=[age, age]").train.inputs.shape[1] == 1
