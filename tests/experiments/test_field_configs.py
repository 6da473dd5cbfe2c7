"""Every comparison of benchmarks/field runs, on tiny files in the true formats."""

import gzip
import re
from pathlib import Path

import pytest

import mtlkit
from mtlkit.config.yaml_files import read_yaml
from mtlkit.data import load_dataset
from mtlkit.data.base import DataError
from mtlkit.experiments.compare import plan_jobs
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.jobs import run_job
from tests.data.published.test_dense import write_mtan
from tests.data.published.test_digit_pairs import write_mnist
from tests.data.published.test_field import SETS, write_cityscapes, write_office
from tests.data.published.test_images import write_celeba
from tests.data.published.test_qm9 import write_package

OTHERS = ("tuned", "winners", "published")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "field"
# searches and their winners are checked in tests/experiments/tuning, published rows in tests/benchmarks
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem.split("_")[-1] not in OTHERS)
MOLECULES = {"architecture": "message_passing(width=8, hidden=4)", "batch_size": 8}
TIMM = {"architecture": "hard_sharing(backbone=timm.test_resnet)", "batch_size": 9}
# what makes each comparison tiny, and the methods that are run here; the slow test runs all
TINY = {
    "aliexpress": ({"batch_size": 8}, ["single-task", "shared_bottom", "mmoe", "ple", "rotograd"]),
    "census": ({}, ["rotograd"]),
    "multifashion": ({"data": "multifashion(train=16, val=8, test=8)", "batch_size": 8}, ["rotograd"]),
    "cityscapes": (
        {"data": "cityscapes(size=[32, 64])", "architecture": "segnet(width=0.0625)", "batch_size": 4},
        ["rotograd"],
    ),
    "nash_nyuv2": (
        {"architecture": "segnet_mtan(width=0.0625)"},
        ["single-task", "nash_mtl"],
    ),
    "nash_cityscapes": ({"architecture": "segnet_mtan(width=0.0625)"}, ["famo"]),
    "nash_celeba": (
        {"architecture": "celeba_net(width=0.0625)", "batch_size": 4},
        ["fairgrad", "rotograd"],
    ),
    "nash_qm9": ({**MOLECULES, "data": "qm9(train=20, val=8, test=8)"}, ["imtl_g", "rotograd"]),
    "qm9_small": ({**MOLECULES, "data": "qm9(train=20, val=8, test=8)"}, ["single-task", "si"]),
    "office31": (TIMM, ["single-task", "pcgrad"]),
    "office_home": (TIMM, []),
    "fold_every": (
        {"data": "multimnist(train=16, val=8, test=8)", "batch_size": 8},
        ["every eighth step"],
    ),
    "units": (
        {"data": "multimnist(train=16, val=8, test=8, pixels=count)", "batch_size": 8},
        ["rotograd"],
    ),
}
# the molecules of QM9 are in a package, of which a part is written here
SMALL = [path for path in CONFIGS if "small" in read_yaml(path) and "qm9" not in path.stem]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def few_molecules(folder, monkeypatch):
    """A package qm9pack with few molecules, in the place of the installed one."""
    if not (folder / "site").exists():
        write_package(folder / "site")
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.chdir(ROOT)  # the configs name files from there


def write_census(folder: Path) -> None:
    """42 columns without a header; the targets are columns 8 and 42."""
    folder.mkdir(parents=True)
    for part, rows in (("train", 40), ("test", 8)):
        lines = []
        for row in range(rows):
            cells = [str((7 * row + column) % 5) for column in range(42)]
            cells[7] = ("Never married", "Divorced", "Widowed")[row % 3]
            cells[41] = ("- 50000.", "50000+.")[row % 2]
            lines.append(", ".join(cells))
        with gzip.open(folder / f"census_income_{part}.csv.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")


def write_aliexpress(folder: Path) -> None:
    """A header, the id of the search, 16 codes, 63 numbers and two labels; four rows per search."""
    folder.mkdir(parents=True)
    header = ["search_id", *(f"categorical_{i}" for i in range(1, 17))]
    header += [*(f"numerical_{i}" for i in range(1, 64)), "click", "conversion"]
    for part, rows in (("train", 80), ("test", 16)):
        lines = [",".join(header)]
        for row in range(rows):
            codes = [(row // 4 + column) % 5 for column in range(16)]
            numbers = [(7 * row + 3 * column) % 11 / 10 for column in range(63)]
            labels = [int(row % 2 == 0), int(row % 4 == 0)]  # who buys has clicked
            lines.append(",".join(map(str, [3 + row // 4, *codes, *numbers, *labels])))
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(name: str, folder: Path) -> None:
    name = name.removeprefix("nash_")
    kept = {
        "aliexpress": "AliExpress_NL",
        "multifashion": "fashion_mnist",
        "units": "mnist",
        "fold_every": "mnist",
        "qm9": "site",
        "qm9_small": "site",
    }.get(name, name)
    if (folder / kept).exists():
        return
    if name == "census":
        write_census(folder / name)
    elif name == "aliexpress":
        write_aliexpress(folder / kept)
    elif name in ("multifashion", "units", "fold_every"):
        write_mnist(folder / kept)
    elif name == "nyuv2":
        write_mtan(folder / name, train=10, val=2, size=(32, 64))
    elif name == "celeba":
        write_celeba(folder / name)
    elif name == "cityscapes":
        write_cityscapes(folder / name, train=5, val=1)
    else:
        factory, domains = SETS[name]
        write_office(folder / name, domains, factory.classes, each=3)


def settings_of(path: Path) -> dict:
    changes, _ = TINY[path.stem]
    settings = {**read_yaml(path), **changes, "workers": 0, "seeds": 1, "steps": 2, "eval_steps": 2}
    if "sources" in settings:
        settings["sources"] = {
            task: re.sub(r"\)$", ", size=16, train=6, test_share=0.3)", spec)
            for task, spec in settings["sources"].items()
        }
    return settings


def test_every_config_has_a_test():
    assert {path.stem for path in CONFIGS} == set(TINY)


def take_steps(path: Path, folder: Path, output: Path, labels: list[str] | None) -> None:
    write(path.stem, folder)
    config = CompareConfig.make({**settings_of(path), "data_dir": str(folder)}, path.name)
    tasks = load_dataset(config.train["data"], data_dir=folder).task_names
    jobs = [job for job in plan_jobs(config, output, tasks) if job.task in (None, tasks[0])]
    chosen = [job for job in jobs if labels is None or job.label in labels]
    assert labels is None or {job.label for job in chosen} == set(labels)
    for job in chosen:
        outcome = run_job(job)
        assert outcome.error == "", (job.name, outcome.error)
        assert outcome.steps == 2
        assert set(outcome.metrics) == ({job.task} if job.task else set(tasks))


@pytest.mark.parametrize("path", [path for path in CONFIGS if TINY[path.stem][1]], ids=lambda p: p.stem)
def test_a_comparison_takes_its_steps(path, folder, tmp_path):
    take_steps(path, folder, tmp_path, TINY[path.stem][1])


@pytest.mark.filterwarnings("ignore:no validation set")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("nash_*.yaml")), ids=lambda path: path.stem)
def test_the_fields_protocol_starts_too_and_names_the_metrics_of_its_single_task_row(
    path, folder, tmp_path
):
    write(path.stem, folder)
    settings = {**settings_of(path), "data_dir": str(folder), "protocol": "field", "epochs": 2}
    if "qm9" not in path.stem:  # its data of the field is PyG's file
        settings["data"] = settings["field"].pop("data", settings["data"])
    made = CompareConfig.make(settings, path.name)
    config = made.model_copy(update={"steps": None, "eval_steps": None})
    data = load_dataset(config.train["data"], data_dir=folder)
    (job,) = [job for job in plan_jobs(config, tmp_path, data.task_names) if job.label == "sum"]
    outcome = run_job(job)
    assert outcome.error == ""
    named = {tuple(key.rsplit("/", 1)) for key in config.single_task_row}
    assert named <= {(task, metric) for task, row in outcome.metrics.items() for metric in row}
    assert {task for task, _ in named} == set(data.task_names)
    labels = {entry.label for entry in config.entries}
    assert {"sum", "famo", "nash_mtl"} <= labels & {row["spec"] for row in config.published["rows"]}


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_all_methods_of_a_comparison_take_their_steps(path, folder, tmp_path):
    take_steps(path, folder, tmp_path, None)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_method_can_be_made(path):
    for entry in CompareConfig.make(read_yaml(path), path.name).entries:
        mtlkit.create_method(entry.method, 3, feature_dim=8)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_tasks_without_a_common_sample_are_merged_in_the_parameters(path):
    for budget in ("full", "small") if path in SMALL else ("full",):
        config = CompareConfig.make(read_yaml(path), path.name, budget=budget)
        if not config.train["data"].startswith("sources"):
            continue
        # weights of losses look at no gradient
        alone = {"sum", "uw", "dwa", "rlw", "gls"}
        for entry in config.entries:
            assert entry.method in alone or "wrt=parameters" in entry.method


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_the_small_budget_names_data_that_can_be_had(path, folder):
    assert f"`{path.name}`" in (FOLDER / "README.md").read_text()
    write(path.stem, folder)
    config = CompareConfig.make(read_yaml(path), path.name, budget="small")
    assert load_dataset(config.train["data"], data_dir=folder).tasks
    assert config.train["workers"] == 0


def test_the_rows_of_aliexpress_are_read_as_published_and_no_search_is_in_two_splits(folder):
    write("aliexpress", folder)
    data = load_dataset(read_yaml(FOLDER / "aliexpress.yaml")["data"], data_dir=folder)
    assert data.task_names == ("click", "conversion")
    assert [task.main_metric for task in data.tasks] == ["auc", "auc"]
    assert data.preprocessing.number_inputs == 63
    assert len(data.preprocessing.category_sizes) == 16
    assert "search_id" not in data.preprocessing.columns
    searches = {part: set(rows["search_id"]) for part, rows in data.frames.items()}
    assert not searches["train"] & searches["val"]
    assert len(data.test) == 16


def test_aliexpress_without_its_files_names_the_one_that_is_missing(tmp_path):
    spec = read_yaml(FOLDER / "aliexpress.yaml")["data"]
    with pytest.raises(DataError, match=r"there is no file .*AliExpress_NL/train\.csv"):
        load_dataset(spec, data_dir=tmp_path)


def test_every_comparison_names_its_primary_endpoint_before_it_runs():
    paths = [path for name in ("field", "paper") for path in (FOLDER.parent / name).glob("*.yaml")]
    settings = {path: read_yaml(path) for path in paths}
    searches = {path for path, own in settings.items() if "trials" in own}
    compared = {path for path, own in settings.items() if {"methods", "tuned"} & set(own)} - searches
    assert {path for path in compared if settings[path].get("primary")} == compared
    assert len(compared) > 15
