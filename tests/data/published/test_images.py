"""CIFAR10 and CelebA: files, labels, augmentation."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mtlkit.data import DataError, TensorSplit, load_dataset
from mtlkit.data.published.celeba import ATTRIBUTES
from mtlkit.data.published.cifar10 import crop_and_flip


def write_batches(folder: Path, per_batch: int = 20) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    written = {}
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        pixels = random.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        labels = random.integers(0, 10, per_batch).tolist()
        content = {
            b"batch_label": b"x",
            b"labels": labels,
            b"data": pixels,
            b"filenames": [b"a.png"] * per_batch,
        }
        # protocol 2 is that of the published files
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        written[name] = (pixels, labels)
    return written


def write_celeba(folder: Path, count: int = 12) -> np.ndarray:
    (folder / "img_align_celeba").mkdir(parents=True)
    random = np.random.default_rng(0)
    attributes = random.choice([-1, 1], size=(count, 40))
    lines = [str(count), " ".join(ATTRIBUTES) + " "]
    parts = []
    for index in range(count):
        name = f"{index + 1:06d}.jpg"
        color = tuple(int(c) for c in random.integers(0, 256, 3))
        Image.new("RGB", (178, 218), color).save(folder / "img_align_celeba" / name, quality=95)
        lines.append(f"{name}  " + " ".join(f"{value:2d}" for value in attributes[index]))
        parts.append(f"{name} {0 if index < 8 else 1 if index < 10 else 2}")
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    (folder / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    return attributes


def test_python_batches_become_ten_binary_tasks(tmp_path):
    written = write_batches(tmp_path / "cifar10" / "cifar-10-batches-py")
    data = load_dataset("cifar10", data_dir=tmp_path)
    assert len(data.tasks) == 10
    assert (len(data.train), len(data.val), len(data.test)) == (80, 20, 20)
    pixels, labels = written["test_batch"]
    assert np.array_equal(data.test.inputs.numpy().reshape(20, -1), pixels)
    for index in range(20):
        _, targets = data.test[index]
        assert [float(targets[name]) for name in data.task_names] == [
            float(labels[index] == k) for k in range(10)
        ]


def test_npz_and_batches_give_the_same_images(tmp_path):
    written = write_batches(tmp_path / "one" / "cifar10")
    train = [written[f"data_batch_{n}"] for n in range(1, 6)]

    def as_images(pixels):
        return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)

    (tmp_path / "two" / "cifar10").mkdir(parents=True)
    np.savez(
        tmp_path / "two" / "cifar10" / "all.npz",
        x_train=as_images(np.concatenate([p for p, _ in train])),
        y_train=np.concatenate([y for _, y in train]),
        x_test=as_images(written["test_batch"][0]),
        y_test=np.array(written["test_batch"][1]),
    )
    one, two = (load_dataset("cifar10", data_dir=tmp_path / name) for name in ("one", "two"))
    assert torch.equal(one.train.inputs, two.train.inputs)
    torch.testing.assert_close(one.val[3][0], two.val[3][0])


def test_images_are_standardized_by_the_training_images(tmp_path):
    write_batches(tmp_path / "cifar10")
    data = load_dataset("cifar10(augment=False)", data_dir=tmp_path)
    inputs, _ = data.train.batch(range(len(data.train)))
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_a_batch_that_asks_for_code_is_refused_and_not_run(tmp_path):
    write_batches(tmp_path / "cifar10")

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "cifar10" / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(DataError, match="could run code"):
        _ = load_dataset("cifar10", data_dir=tmp_path).train
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps({b"data": 1})]
)
def test_a_damaged_batch_is_refused(tmp_path, content):
    write_batches(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match="test_batch"):
        _ = load_dataset("cifar10", data_dir=tmp_path).test


def test_a_damaged_npz_is_refused(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "x.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"x\.npz"):
        _ = load_dataset("cifar10", data_dir=tmp_path).train
    np.savez(folder / "x.npz", x_train=np.zeros((4, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="y_train"):
        _ = load_dataset("cifar10", data_dir=tmp_path).train


def test_a_crop_is_a_window_of_the_padded_image_and_a_flip_mirrors_it():
    images = torch.rand(4, 3, 32, 32)
    uniform = np.array(
        [[4.5 / 9, 4.5 / 9, 0.9], [0.0, 0.0, 0.9], [8.9 / 9, 8.9 / 9, 0.9], [0.5, 0.5, 0.1]]
    )
    cropped, _ = crop_and_flip(images, {}, uniform)
    assert torch.equal(cropped[0], images[0])
    assert torch.equal(cropped[1][:, 4:, 4:], images[1][:, :-4, :-4])
    assert cropped[1][:, :4].abs().sum() == 0
    assert torch.equal(cropped[2][:, :-4, :-4], images[2][:, 4:, 4:])
    assert torch.equal(cropped[3], images[3].flip(-1))


def test_augmentation_depends_on_seed_epoch_and_sample_only(tmp_path):
    write_batches(tmp_path / "cifar10")
    split = load_dataset("cifar10", data_dir=tmp_path).train
    alone = torch.stack([split[index][0] for index in (5, 2, 60)])
    together, _ = split.batch([5, 2, 60])
    assert torch.equal(alone, together)
    split.set_epoch(1)
    assert not torch.equal(split.batch([5, 2, 60])[0], together)
    split.set_epoch(0)
    assert torch.equal(split.batch([5, 2, 60])[0], together)
    other = load_dataset("cifar10", data_dir=tmp_path, seed=1).train
    assert not torch.equal(other.batch([5, 2, 60])[0], together)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_any_number_of_workers_give_the_same_epochs(tmp_path, workers):
    write_batches(tmp_path / "cifar10")
    data = load_dataset("cifar10", data_dir=tmp_path)
    loader = data.loader("train", 32, num_workers=workers, seed=7)
    reference = data.loader("train", 32, seed=7)
    for epoch in range(2):
        data.train.set_epoch(epoch)
        found = [(x.clone(), {k: v.clone() for k, v in y.items()}) for x, y in loader]
        expected = list(reference)
        assert len(found) == len(expected) == 3
        for (x, y), (x_ref, y_ref) in zip(found, expected, strict=True):
            assert torch.equal(x, x_ref)
            assert all(torch.equal(y[name], y_ref[name]) for name in y_ref)


def test_the_default_collate_of_torch_works_too(tmp_path):
    split = TensorSplit(torch.arange(6.0)[:, None], {"a": torch.arange(6)})
    loader = torch.utils.data.DataLoader(split, batch_size=4)
    (first, targets), _ = list(loader)
    assert torch.equal(first[:, 0], torch.arange(4.0))
    assert torch.equal(targets["a"], torch.arange(4))


def test_iterating_over_a_split_ends_with_its_last_sample():
    split = TensorSplit(torch.arange(6.0)[:, None], {"a": torch.arange(6)})
    assert [int(y["a"]) for _, y in split] == list(range(6))
    assert int(split[-1][1]["a"]) == 5
    with pytest.raises(IndexError):
        split[6]


@pytest.mark.parametrize("preload", [False, True])
def test_celeba_follows_its_lists(tmp_path, preload):
    attributes = write_celeba(tmp_path / "celeba")
    data = load_dataset(f"celeba(preload={preload})", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (8, 2, 2)
    assert len(data.tasks) == 40
    for index in range(2):
        image, targets = data.test[index]
        assert image.shape == data.input_shape == (3, 64, 64)
        assert float(image.min()) >= 0
        assert float(image.max()) <= 1
        assert [float(targets[name]) for name in ATTRIBUTES] == [
            float(v > 0) for v in attributes[10 + index]
        ]
    inputs, targets = next(iter(data.loader("train", 8)))
    assert inputs.shape == (8, 3, 64, 64)
    assert targets["Young"].shape == (8, 1)


def test_celeba_images_have_the_color_of_their_file(tmp_path):
    write_celeba(tmp_path / "celeba")
    image, _ = load_dataset("celeba(size=16)", data_dir=tmp_path).test[0]
    with Image.open(tmp_path / "celeba" / "img_align_celeba" / "000011.jpg") as file:
        color = torch.tensor(file.getpixel((0, 0))) / 255
    torch.testing.assert_close(image.mean((1, 2)), color, atol=0.02, rtol=0)


def test_damaged_celeba_files_are_named(tmp_path):
    folder = tmp_path / "celeba"
    write_celeba(folder)
    (folder / "img_align_celeba" / "000012.jpg").write_bytes(b"\xff\xd8 cut")
    with pytest.raises(DataError, match=r"000012\.jpg"):
        load_dataset("celeba", data_dir=tmp_path).test[1]
    (folder / "img_align_celeba" / "000012.jpg").unlink()
    with pytest.raises(DataError, match=r"(?s)000012\.jpg.*mmlab"):
        load_dataset("celeba", data_dir=tmp_path).test[1]
    text = (folder / "list_attr_celeba.txt").read_text()
    (folder / "list_attr_celeba.txt").write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="list_attr_celeba"):
        _ = load_dataset("celeba", data_dir=tmp_path).test
    (folder / "list_attr_celeba.txt").write_text("\n".join(text.splitlines()[:-1]))
    with pytest.raises(DataError, match="says 12 images, but it has 11"):
        _ = load_dataset("celeba", data_dir=tmp_path).test
    (folder / "list_attr_celeba.txt").write_text(text)
    (folder / "list_eval_partition.txt").write_text("000001.jpg 3\n")
    with pytest.raises(DataError, match="0, 1 or 2"):
        _ = load_dataset("celeba", data_dir=tmp_path).test
    (folder / "list_eval_partition.txt").unlink()
    with pytest.raises(DataError, match="list_eval_partition"):
        _ = load_dataset("celeba", data_dir=tmp_path).test
