"""NYUv2's files and augmentation."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtlkit.data import DataError, load_dataset
from mtlkit.data.published.mtan import scale_crop_flip
from mtlkit.errors import SpecError


def write_mtan(folder: Path, train: int = 12, val: int = 4, size=(36, 48)) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for kind in ("image", "label", "depth", "normal"):
            (folder / part / kind).mkdir(parents=True)
        for index in range(count):
            normal = random.standard_normal((*size, 3))
            arrays = {
                "image": np.full((*size, 3), index / 20),
                "label": random.integers(-1, 13, size).astype(np.float64),
                "depth": random.uniform(0, 5, (*size, 1)),
                "normal": normal / np.linalg.norm(normal, axis=-1, keepdims=True),
            }
            for kind, array in arrays.items():
                np.save(folder / part / kind / f"{index}.npy", array)


def test_mtans_files_are_read_in_order_of_their_numbers(tmp_path):
    write_mtan(tmp_path / "nyuv2", val=12)
    data = load_dataset("nyuv2", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (11, 1, 12)
    assert data.input_shape == (3, 36, 48)
    for index in range(12):
        image, targets = data.test[index]
        torch.testing.assert_close(image, torch.full((3, 36, 48), index / 20))
        assert targets["segmentation"].shape == (36, 48)
        assert targets["segmentation"].dtype == torch.long
        assert targets["depth"].shape == (1, 36, 48)
        assert targets["normals"].shape == (3, 36, 48)


def test_images_can_be_resized(tmp_path):
    write_mtan(tmp_path / "nyuv2")
    data = load_dataset("nyuv2(size=[18, 24])", data_dir=tmp_path)
    image, targets = data.train[0]
    assert image.shape == data.input_shape == (3, 18, 24)
    assert targets["segmentation"].shape == (18, 24)
    with pytest.raises(SpecError, match="height, width"):
        load_dataset("nyuv2(size=[18])", data_dir=tmp_path)


def test_the_npz_layout_gives_unit_normals_and_unit_images(tmp_path):
    folder = tmp_path / "nyuv2"
    folder.mkdir()
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 10), ("val", 3)):
        normal = random.standard_normal((count, 18, 24, 3))
        normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
        normal[:, 0, 0] = 0
        arrays |= {
            f"image_{part}": random.integers(0, 256, (count, 18, 24, 3), dtype=np.uint8),
            f"label_{part}": random.integers(-1, 13, (count, 18, 24)).astype(np.int8),
            f"depth_{part}": random.uniform(0, 9, (count, 18, 24)).astype(np.float16),
            f"normal_{part}": np.rint(normal * 127).astype(np.int8),
        }
    np.savez(folder / "mini.npz", **arrays)
    data = load_dataset("nyuv2(augment=False)", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (9, 1, 3)
    image, targets = data.test[1]
    np.testing.assert_allclose(image.permute(1, 2, 0), arrays["image_val"][1] / 255, atol=1e-6)
    assert torch.equal(targets["segmentation"], torch.from_numpy(arrays["label_val"][1]).long())
    lengths = targets["normals"].norm(dim=0)
    assert lengths[0, 0] == 0
    lengths[0, 0] = 1
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_damaged_or_missing_dense_files_are_named(tmp_path):
    write_mtan(tmp_path / "nyuv2")
    path = tmp_path / "nyuv2" / "val" / "depth" / "2.npy"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"depth.2\.npy"):
        load_dataset("nyuv2", data_dir=tmp_path).test[2]
    np.save(path, np.zeros((5, 5, 1)))
    with pytest.raises(DataError, match="shapes do not fit"):
        load_dataset("nyuv2", data_dir=tmp_path).test[2]
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"depth.2\.npy"):
        load_dataset("nyuv2", data_dir=tmp_path).test[2]
    path.unlink()
    with pytest.raises(DataError, match=r"(?s)depth.2\.npy.*lorenmt/mtan"):
        _ = load_dataset("nyuv2", data_dir=tmp_path).test
    (tmp_path / "empty" / "nyuv2").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train.image"):
        _ = load_dataset("nyuv2", data_dir=tmp_path / "empty").test


@pytest.mark.parametrize("seed", range(40))
def test_scaling_and_cropping_keeps_image_and_targets_together(seed):
    random = np.random.default_rng(seed)
    height, width = 24, 36
    # the image's first channel is its column, so a pixel's content tells where it came from
    columns = torch.arange(width).float().expand(height, width)
    image = torch.stack([columns, columns, columns]) / width
    normals = torch.zeros(3, height, width)
    normals[0] = 1.0
    targets = {
        "segmentation": (columns // 3).long(),
        "depth": torch.full((1, height, width), 6.0),
        "normals": normals,
    }
    uniform = random.random(4)
    scaled, changed = scale_crop_flip(image, targets, uniform)
    scale = (1.0, 1.2, 1.5)[int(uniform[0] * 3)]
    assert scaled.shape == image.shape
    torch.testing.assert_close(changed["depth"], torch.full((1, height, width), 6.0 / scale))
    sign = -1.0 if uniform[3] < 0.5 else 1.0
    assert torch.equal(changed["normals"][0], torch.full((height, width), sign))
    # resampling moves an image's pixel by less than two columns against its label's
    assert (scaled[0] * width / 3 - changed["segmentation"]).abs().max() < 1.8
