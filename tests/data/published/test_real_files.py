"""The loaders on the published files, where MTLKIT_DATA points at them."""

import os

import pytest
import torch

from mtlkit.data import load_dataset
from mtlkit.data.base import datasets


def real(name: str):
    if not os.environ.get("MTLKIT_DATA"):
        pytest.skip("MTLKIT_DATA is not set")
    if not datasets.get(name).files_found():
        pytest.skip(f"no files of {name} under MTLKIT_DATA")
    return load_dataset(name)


@pytest.mark.parametrize("name", ["multimnist", "multifashion"])
def test_the_published_idx_files_give_all_pairs(name):
    data = real(name)
    assert (len(data.train), len(data.val), len(data.test)) == (54_000, 6_000, 10_000)
    assert torch.equal(data.test.targets["left"].unique(), torch.arange(10))
    # a quarter of all pairs has an odd product
    assert abs(float(data.train.targets["parity"].mean()) - 0.25) < 0.02


def test_the_left_digit_of_the_published_files_can_be_told_from_the_image():
    # nearest class mean on the upper left part: far above the 10 % of chance if labels fit images
    data = real("multimnist")
    corner = slice(0, 22)
    train, test = (
        split.inputs[:5000, 0, corner, corner].flatten(1).float() for split in (data.train, data.test)
    )
    labels = data.train.targets["left"][:5000]
    means = torch.stack([train[labels == digit].mean(0) for digit in range(10)])
    guess = torch.cdist(test, means).argmin(1)
    assert float((guess == data.test.targets["left"][:5000]).float().mean()) > 0.4


def test_the_subset_of_cifar10_is_balanced():
    data = real("cifar10")
    for name in data.task_names:
        assert abs(float(data.test.targets[name].mean()) - 0.1) < 0.02
    inputs, _ = data.test.batch(range(200))
    assert torch.isfinite(inputs).all()


def test_real_scenes_have_depth_in_meters_and_unit_normals():
    data = real("nyuv2")
    image, targets = data.test[0]
    assert image.shape[1:] == targets["segmentation"].shape
    assert 0.3 < float(targets["depth"].median()) < 10
    lengths = targets["normals"].norm(dim=0)
    known = lengths > 0.5
    assert known.float().mean() > 0.8
    torch.testing.assert_close(lengths[known], torch.ones_like(lengths[known]), atol=0.02, rtol=0)
    assert set(targets["segmentation"].unique().tolist()) <= set(range(-1, 13))


CENSUS = (
    "table(file='census/census_income_train.csv.gz', test_file='census/census_income_test.csv.gz', "
    "header=false, ignore=[25], categories=[3, 4], split_seed=0, "
    "targets={income: binary(column=42), single: binary(column=8, yes='Never married')}"
)


def census(options: str = ""):
    pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")
    folder = os.environ.get("MTLKIT_DATA")
    if not folder or not os.path.isfile(f"{folder}/census/census_income_train.csv.gz"):
        pytest.skip("no census files under MTLKIT_DATA")
    return load_dataset(f"{CENSUS}{options})")


def test_the_census_files_are_read_whole():
    data = census()
    assert len(data.train) + len(data.val) == 199_523
    assert len(data.test) == 99_762
    # counted in the file itself
    income, single = (data.test.targets[name] for name in ("income", "single"))
    assert int(income.sum()) == 6_186
    assert int(single.sum()) == 43_143
    assert len(data.preprocessing.columns) == 39


def test_the_census_tasks_are_learned_by_mmoe(tmp_path):
    from mtlkit.training.config import TrainConfig
    from mtlkit.training.experiment import run

    settings = {
        "data": f"{CENSUS}, train=20000)",
        "architecture": "mmoe",
        "epochs": 2,
        "batch_size": 256,
        "output": str(tmp_path),
    }
    result = run(TrainConfig.make(settings, "test"), progress=False, dataset=census(", train=20000"))
    assert result.test is not None
    assert result.test["income"]["auc"] > 0.91
    assert result.test["single"]["auc"] > 0.98
    assert result.test["single"]["f1"] > 0.9
