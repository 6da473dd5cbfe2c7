"""Every experiment of benchmarks/paper runs, on tiny files in the true formats."""

from pathlib import Path

import pytest

from mtlkit.config.yaml_files import read_yaml
from mtlkit.data import load_dataset
from mtlkit.experiments.compare import plan_jobs
from mtlkit.experiments.compare_config import CompareConfig
from mtlkit.experiments.jobs import run_job
from tests.data.published.test_dense import write_mtan
from tests.data.published.test_digit_pairs import write_mnist, write_svhn
from tests.data.published.test_images import write_batches, write_celeba

FOLDER = Path(__file__).parents[2] / "benchmarks" / "paper"
CONFIGS = sorted(FOLDER.glob("*.yaml"))

PAIRS = {"batch_size": 8}
DENSE = {"architecture": "segnet(width=0.0625, input_size=(36, 48))", "workers": 0, "batch_size": 4}
# what makes each experiment tiny, and the methods that are run here; the slow test runs all
TINY = {
    "celeba_conv": (
        {
            "data": "celeba",
            "architecture": "paper_celeba(logits=True, width=0.5)",
            "workers": 0,
            "batch_size": 4,
        },
        ["sum", "rotograd"],
    ),
    "celeba_resnet": (
        {
            "data": "celeba(size=64)",
            "architecture": "paper_cifar10(input_size=(3, 64, 64), logits=True)",
            "workers": 0,
            "batch_size": 4,
        },
        ["sum"],
    ),
    "cifar10": ({"data": "cifar10(train=8)", "batch_size": 4}, ["rotograd 64"]),
    "cosine_similarity": ({"data": "cifar10(train=8)", "batch_size": 4}, ["mgda with R_k"]),
    "learning_rate": ({"data": "multimnist(train=16, val=8, test=8)", **PAIRS}, ["rotograd 1e-1"]),
    "multimnist": (
        {"data": "multimnist(train=16, val=8, test=8)", **PAIRS},
        ["single-task", "rotograd", "gradnorm with R_k"],
    ),
    "multisvhn": ({"data": "multisvhn(train=16, val=8, test=8)", **PAIRS}, ["rotograd"]),
    "nyuv2": ({"data": "nyuv2", **DENSE}, ["single-task", "rotograd", "mgda with R_k"]),
    "rotograd_plus": ({"data": "nyuv2", **DENSE}, ["rotograd + graddrop"]),
    "scenes": (
        {
            "data": "scenes(size=32, train=4, val=2, test=2)",
            "architecture": "segnet(width=0.0625)",
            "batch_size": 4,
        },
        ["sum with R_k", "rotate_only"],
    ),
    "units": (
        {"data": "multimnist(train=16, val=8, test=8, pixels=count)", **PAIRS},
        ["rotograd from random rotations", "famo"],
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder / "mnist")
    write_svhn(folder / "svhn")
    write_batches(folder / "cifar10", per_batch=4)
    write_celeba(folder / "celeba")
    write_mtan(folder / "nyuv2", train=5, val=2)
    return folder


def test_every_config_has_a_test():
    assert {path.stem for path in CONFIGS} == set(TINY)


def take_steps(path: Path, files: Path, output: Path, labels: list[str] | None) -> None:
    changes, _ = TINY[path.stem]
    settings = {**read_yaml(path), **changes, "data_dir": str(files), "seeds": 1, "steps": 2}
    config = CompareConfig.make(settings, path.name)  # loads the plugins
    tasks = load_dataset(changes["data"], data_dir=files).task_names
    # one single-task network is enough
    jobs = [job for job in plan_jobs(config, output, tasks) if job.task in (None, tasks[0])]
    chosen = [job for job in jobs if labels is None or job.label in labels]
    assert labels is None or {job.label for job in chosen} == set(labels)
    for job in chosen:
        outcome = run_job(job)
        assert outcome.error == "", (job.name, outcome.error)
        assert outcome.steps == 2
        assert set(outcome.metrics) == ({job.task} if job.task else set(tasks))


@pytest.mark.filterwarnings("ignore:the rotations' learning rate")  # what learning_rate.yaml is about
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_experiment_takes_its_steps(path, files, tmp_path):
    take_steps(path, files, tmp_path, TINY[path.stem][1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the rotations' learning rate")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_all_methods_of_an_experiment_take_their_steps(path, files, tmp_path):
    take_steps(path, files, tmp_path, None)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_small_budget_names_data_that_can_be_had(path, files):
    config = CompareConfig.make(read_yaml(path), path.name, budget="small")
    full = CompareConfig.make(read_yaml(path), path.name)
    load_dataset(config.train["data"], data_dir=files)
    assert len(config.seeds) <= len(full.seeds)
    epochs, steps = config.train["epochs"], config.train["steps"]
    # a full run has 16,000 steps and more
    assert steps <= 9000 if steps else epochs < full.train["epochs"]
    assert config.train["workers"] == 0


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_readme_lists_the_experiment(path):
    assert f"`{path.name}`" in (FOLDER / "README.md").read_text()
