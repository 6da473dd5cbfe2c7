"""The field's data sets: Cityscapes as MTAN prepared it, Office-31 and Office-Home."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.data import DataError, load_dataset
from mtlkit.data.published.mtan import STREET_CLASSES, scale_crop_flip
from mtlkit.data.published.office import Office31, OfficeHome
from mtlkit.errors import SpecError
from mtlkit.tasks import NO_LABEL

pytest.importorskip("torchvision", reason="torchvision is in mtlkit[vision]")
from PIL import Image  # comes with torchvision


def write_cityscapes(folder: Path, train: int = 12, val: int = 4, label: str = "label") -> None:
    """Files as MTAN's: floats, channels last, -1 for void, 0 for unknown inverse depth."""
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for kind in ("image", label, "depth"):
            (folder / part / kind).mkdir(parents=True)
        for index in range(count):
            depth = random.uniform(0.01, 0.5, (128, 256, 1)).astype(np.float32)
            depth[:5] = 0
            arrays = {
                "image": np.full((128, 256, 3), index / 20, dtype=np.float32),
                label: random.integers(-1, 7, (128, 256)).astype(np.float64),
                "depth": depth,
            }
            for kind, array in arrays.items():
                np.save(folder / part / kind / f"{index}.npy", array)


@pytest.mark.parametrize("label", ["label", "label_7"])
def test_mtans_cityscapes_is_read(tmp_path, label):
    write_cityscapes(tmp_path / "cityscapes", label=label)
    data = load_dataset("cityscapes", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (11, 1, 4)
    assert data.input_shape == (3, 128, 256)
    assert data.task_names == ("segmentation", "depth")
    assert data.tasks[0].classes == STREET_CLASSES
    image, targets = data.test[3]
    folder = tmp_path / "cityscapes" / "val"
    torch.testing.assert_close(image, torch.full((3, 128, 256), 0.15))
    assert torch.equal(
        targets["segmentation"], torch.from_numpy(np.load(folder / label / "3.npy")).long()
    )
    depth = torch.from_numpy(np.load(folder / "depth" / "3.npy"))[..., 0]
    assert torch.equal(targets["depth"][0], depth)
    assert data.tasks[1].count_labels(targets["depth"][None]).number == 123 * 256
    assert torch.equal(
        data.train[0][0], data.train[0][0][:, :1, :1].expand(3, 128, 256)
    )  # not augmented


def test_a_nearer_street_has_a_larger_inverse_depth():
    image = torch.zeros(3, 12, 24)
    targets = {"segmentation": torch.zeros(12, 24).long(), "depth": torch.ones(1, 12, 24)}
    _, changed = scale_crop_flip(image, targets, np.array([0.9, 0.2, 0.3, 0.7]), inverse_depth=True)
    assert torch.equal(changed["depth"], torch.full((1, 12, 24), 1.5))


def test_damaged_streets_are_named(tmp_path):
    folder = tmp_path / "cityscapes"
    write_cityscapes(folder, train=3, val=1)
    path = folder / "val" / "label" / "0.npy"
    np.save(path, np.full((128, 256), 7.0))
    with pytest.raises(DataError, match=r"val.\*.0\.npy: labels must be -1 \(unknown\) to 6"):
        load_dataset("cityscapes", data_dir=tmp_path).test[0]
    path.unlink()
    with pytest.raises(DataError, match=r"(?s)label.0\.npy.*lorenmt/mtan"):
        _ = load_dataset("cityscapes", data_dir=tmp_path).test
    with pytest.raises(DataError, match=r"(?s)cityscapes.*train,val"):
        _ = load_dataset("cityscapes", data_dir=tmp_path / "elsewhere").test


def write_office(folder: Path, domains: tuple[str, ...], things: tuple[str, ...], each: int = 5) -> None:
    for number, domain in enumerate(domains):
        for label, thing in enumerate(things):
            (folder / domain / thing).mkdir(parents=True)
            for index in range(each):
                pixels = np.full((6, 8, 3), (label, number, index), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / domain / thing / f"{index:05d}.png")


SETS = {
    "office31": (Office31, ("amazon/images", "dslr/images", "webcam/images")),
    "office_home": (OfficeHome, ("Art", "Clipart", "Product", "Real World")),
}


@pytest.mark.parametrize("name", SETS)
def test_every_domain_is_a_task_with_images_of_its_own(tmp_path, name):
    factory, folders = SETS[name]
    write_office(tmp_path / name, folders, factory.classes)
    data = load_dataset(f"{name}(size=8)", data_dir=tmp_path, seed=3)
    classes = len(factory.classes)
    assert data.task_names == tuple(factory.folders)
    assert all(task.outputs == classes for task in data.tasks)
    seen = Counter()
    for split, share in ((data.train, 3), (data.val, 1), (data.test, 1)):
        assert len(split) == share * classes * len(folders)
        for index in range(0, len(split), 7):
            picture, targets = split[index]
            path = split.paths[index]
            label, number, _ = np.asarray(Image.open(path))[0, 0]
            own = data.task_names[number]
            assert targets[own] == label
            assert all(targets[task] == NO_LABEL for task in data.task_names if task != own)
            assert picture.shape == (3, 8, 8)
        # every class of every domain has its share
        counts = Counter((path.parents[0].name, str(path.parents[1])) for path in split.paths)
        assert set(counts.values()) == {share}
        seen.update(split.paths)
    assert set(seen.values()) == {1}


def test_one_domain_or_some_of_them(tmp_path):
    factory, folders = SETS["office31"]
    write_office(tmp_path / "office31", tuple(f.split("/")[0] for f in folders), factory.classes)
    whole = load_dataset("office31(size=8)", data_dir=tmp_path)
    webcam = load_dataset("office31(size=8, domains=webcam, train=10)", data_dir=tmp_path)
    assert webcam.task_names == ("webcam",)
    assert len(webcam.train) == 10
    assert set(webcam.train[0][1]) == {"webcam"}
    assert set(webcam.test.paths) <= set(whole.test.paths)
    alone = whole.only(["webcam"])
    assert alone.test.paths == webcam.test.paths
    assert whole.task_names == ("amazon", "dslr", "webcam")
    with pytest.raises(SpecError, match="did you mean 'webcam'"):
        load_dataset("office31(domains=[webcams])", data_dir=tmp_path)


def test_sources_mix_the_domains_evenly(tmp_path):
    factory, folders = SETS["office31"]
    write_office(tmp_path / "office31", folders, factory.classes, each=3)
    of = ", ".join(f"{name}: office31(domains={name}, size=8)" for name in factory.folders)
    data = load_dataset(f"sources(of={{{of}}}, mixing=uniform)", data_dir=tmp_path)
    assert data.task_names == tuple(factory.folders)
    _, targets = next(iter(data.loader("train", 12)))
    counts = [task.count_labels(targets[task.name]).number for task in data.tasks]
    assert counts == [4, 4, 4]
    assert data.preprocessing.sizing.size == (8, 8)
    other = of.replace("webcam, size=8", "webcam, size=8, fit=crop")
    assert load_dataset(f"sources(of={{{other}}})", data_dir=tmp_path).preprocessing is None


def test_absent_and_unknown_folders_are_named(tmp_path):
    factory, folders = SETS["office31"]
    write_office(tmp_path / "office31", folders, factory.classes[:-1], each=3)
    with pytest.raises(DataError, match=r"(?s)trash_can.*gatech"):
        _ = load_dataset("office31", data_dir=tmp_path).train
    write_office(tmp_path / "office31", folders, ("trash_can", "zebra"), each=3)
    with pytest.raises(DataError, match="no class of office31: zebra"):
        _ = load_dataset("office31", data_dir=tmp_path).train
    for folder in folders:
        for path in (tmp_path / "office31" / folder / "zebra").iterdir():
            path.unlink()
        (tmp_path / "office31" / folder / "zebra").rmdir()
    (tmp_path / "office31" / "dslr" / "images" / "mug" / "00001.png").unlink()
    with pytest.raises(DataError, match="dslr, mug: 2 samples are too few"):
        _ = load_dataset("office31", data_dir=tmp_path).train
    for path in (tmp_path / "office31" / "webcam").rglob("*.png"):
        path.unlink()
    (tmp_path / "office31" / "webcam").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"(?s)webcam.*amazon,dslr,webcam"):
        _ = load_dataset("office31", data_dir=tmp_path).train


def test_domains_meet_in_the_parameters_but_not_at_the_features(tmp_path):
    factory, folders = SETS["office31"]
    write_office(tmp_path / "office31", folders, factory.classes, each=3)
    data = load_dataset("office31(size=16)", data_dir=tmp_path)
    torch.manual_seed(0)
    for where, expected in (("features", True), ("parameters", False)):
        model = mtlkit.create_architecture(
            data.complete_architecture("hard_sharing(backbone=timm.test_resnet)"),
            data.tasks,
            method=f"pcgrad(wrt={where})",
        )
        inputs, targets = next(iter(data.loader("train", 12, seed=1)))
        predictions = model(inputs)
        losses = {
            task.name: task.measure(predictions[task.name], targets[task.name])[0] for task in data.tasks
        }
        assert all(loss is not None for loss in losses.values())
        model.method.total(losses).backward()
        cosines = model.method.stats.cosines
        off = cosines[~torch.eye(3, dtype=bool)]
        assert bool((off.abs() < 1e-6).all()) is expected
