"""Two digits per image: pairs, tasks and files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from mtlkit.data import DataError, load_dataset
from mtlkit.data.published.digit_pairs import overlap
from mtlkit.errors import SpecError, UnknownNameError


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, train: int = 60, test: int = 30, suffix: str = ".gz") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        write_idx(
            folder / f"{part}-images-idx3-ubyte{suffix}",
            random.integers(0, 256, (count, 28, 28)),
        )
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", random.integers(0, 10, count))


def write_svhn(folder: Path, train: int = 40, test: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        images = random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = random.integers(1, 11, (count, 1)).astype(np.uint8)
        savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels})


def assert_targets_follow_from_digits(split) -> None:
    left, right = split.targets["left"], split.targets["right"]
    for name in ("left", "right"):
        assert split.targets[name].dtype == torch.long
        assert split.targets[name].min() >= 0
        assert split.targets[name].max() <= 9
    odd = ((left % 2 == 1) & (right % 2 == 1)).float()
    torch.testing.assert_close(split.targets["parity"][:, 0], odd)
    torch.testing.assert_close(split.targets["digit_sum"][:, 0], (left + right).float())


def test_the_five_tasks_of_multidigits_follow_from_the_digits():
    data = load_dataset("multidigits(pixels=count)")
    assert data.task_names == ("left", "right", "parity", "digit_sum", "pixels")
    assert [task.kind for task in data.tasks] == [
        "classification",
        "classification",
        "binary",
        "regression",
        "regression",
    ]
    assert [task.higher_is_better[task.main_metric] for task in data.tasks] == [
        True,
        True,
        True,
        False,
        False,
    ]
    for split in (data.train, data.val, data.test):
        assert_targets_follow_from_digits(split)
        inputs, targets = split.batch(range(50))
        assert inputs.min() >= 0
        assert inputs.max() <= 1
        active = (inputs > 0.5).flatten(1).sum(1).float()
        torch.testing.assert_close(targets["pixels"][:, 0], active)
    assert (len(data.train), len(data.test)) == (4000, 2000)


def test_standardized_pixels_have_the_training_sets_mean_and_deviation():
    data = load_dataset("multidigits")
    pixels = data.train.targets["pixels"]
    assert abs(float(pixels.mean())) < 1e-4
    assert abs(float(pixels.std(correction=0)) - 1) < 1e-4
    plain = load_dataset("multidigits(pixels=count)")
    slope = plain.train.targets["pixels"].std() / pixels.std()
    shifted = data.test.targets["pixels"] * slope + plain.train.targets["pixels"].mean()
    torch.testing.assert_close(shifted, plain.test.targets["pixels"], atol=1e-2, rtol=1e-4)


def test_asking_for_the_test_split_first_changes_nothing():
    first, second = load_dataset("multidigits"), load_dataset("multidigits")
    test_first = first.test.targets["pixels"]
    _ = second.train
    torch.testing.assert_close(test_first, second.test.targets["pixels"])


def test_same_seed_same_pairs_and_another_seed_other_pairs():
    one, same, other = (load_dataset("multidigits", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)


def test_no_digit_occurs_in_two_splits():
    data = load_dataset("multidigits", seed=1)
    seen = [{digit.tobytes() for digit in data.digits(split)[0]} for split in ("train", "val", "test")]
    assert sum(map(len, seen)) > 1700
    # the source itself holds a handful of twins at most
    assert len(seen[0] & seen[2]) + len(seen[0] & seen[1]) + len(seen[1] & seen[2]) == 0


def test_the_field_s_layout_is_a_nearest_neighbor_of_two_digits_six_pixels_apart(tmp_path):
    write_mnist(tmp_path / "mnist")
    data = load_dataset("multimnist(pixels=count)", tmp_path)
    digits, labels = data.digits("train")
    by_label = {digit.tobytes(): index for index, digit in enumerate(digits)}
    assert len(by_label) == len(digits)
    # canvas pixel (i + 1/2) * 36/28 rounded down, as pillow takes the nearest pixel
    nearest = ((np.arange(28) + 0.5) * 36 / 28).astype(int)
    partners = []
    for image, first, second in zip(
        data.train.inputs[:, 0].numpy(),
        data.train.targets["left"],
        data.train.targets["right"],
        strict=True,
    ):
        fits = []
        for left in np.flatnonzero(labels == int(first)):
            for right in np.flatnonzero(labels == int(second)):
                canvas = np.zeros((36, 36), dtype=np.uint8)
                canvas[:28, :28] = digits[left]
                canvas[6:34, 6:34] = np.maximum(canvas[6:34, 6:34], digits[right])
                if np.array_equal(canvas[np.ix_(nearest, nearest)], image):
                    fits.append((left, right))
        assert len(fits) == 1
        partners += fits
    lefts, rights = zip(*partners, strict=True)
    assert sorted(lefts) == list(range(len(digits)))  # once each
    assert len(set(rights)) < len(digits)  # partners are drawn with replacement


def test_an_unknown_layout_is_refused(tmp_path):
    write_mnist(tmp_path / "mnist")
    with pytest.raises(SpecError, match="layout"):
        load_dataset("multimnist(layout=sabour)", tmp_path)


def test_overlap_keeps_the_brighter_pixel_and_the_left_digit_on_the_upper_left():
    left = np.zeros((1, 4, 4), dtype=np.uint8)
    right = np.zeros((1, 4, 4), dtype=np.uint8)
    left[0, 0, 0], left[0, 3, 3], right[0, 1, 1], right[0, 3, 3] = 200, 90, 120, 250
    merged = overlap(left, right, shift=2, size=6)[0, 0]
    assert merged[0, 0] == 200
    assert merged[3, 3] == 120
    assert merged[5, 5] == 250
    assert int(merged.sum()) == 200 + 120 + 250


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "folder"), [("multimnist", "mnist"), ("multifashion", "fashion_mnist")]
)
def test_idx_files_are_read_plain_and_gzipped(tmp_path, suffix, name, folder):
    write_mnist(tmp_path / folder, suffix=suffix)
    data = load_dataset(name, data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (54, 6, 30)
    assert data.train[0][0].shape == data.input_shape == (1, 28, 28)
    assert_targets_follow_from_digits(data.train)
    assert_targets_follow_from_digits(data.test)


def test_in_the_corners_every_digit_is_once_left_and_once_right(tmp_path):
    write_mnist(tmp_path / "mnist")
    data = load_dataset("multimnist(layout=corners)", data_dir=tmp_path)
    labels = np.sort(data.digits("test")[1])
    for side in ("left", "right"):
        assert np.array_equal(np.sort(data.test.targets[side].numpy()), labels)


def test_the_environment_variable_names_the_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("MTLKIT_DATA", str(tmp_path))
    assert len(load_dataset("multimnist").test) == 30
    # the argument wins
    with pytest.raises(DataError, match="no folder"):
        _ = load_dataset("multimnist", data_dir=tmp_path / "elsewhere").test


def test_without_a_folder_the_error_says_where_the_files_come_from(monkeypatch):
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    with pytest.raises(DataError, match=r"(?s)MTLKIT_DATA.*ossci-datasets.*DATA_DIR/mnist/"):
        _ = load_dataset("multimnist").train


def test_a_missing_file_is_named(tmp_path):
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        _ = load_dataset("multimnist", data_dir=tmp_path).train


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [0, 3, 10, 200])
def test_a_truncated_idx_file_is_refused(tmp_path, suffix, keep):
    write_mnist(tmp_path / "mnist", suffix=suffix)
    path = tmp_path / "mnist" / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.*(cut short|damaged)"):
        _ = load_dataset("multimnist", data_dir=tmp_path).train


def test_a_wrong_magic_number_is_refused(tmp_path):
    write_mnist(tmp_path / "mnist", suffix="")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(b"\x00\x00\x0d\x03" + path.read_bytes()[4:])
    with pytest.raises(DataError, match="starts with 00000d03, expected 00000803"):
        _ = load_dataset("multimnist", data_dir=tmp_path).train


def test_images_and_labels_of_different_number_are_refused(tmp_path):
    write_mnist(tmp_path / "mnist", suffix="")
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte", np.zeros(7))
    with pytest.raises(DataError, match=r"30 images.*7 labels"):
        _ = load_dataset("multimnist", data_dir=tmp_path).test


def test_svhn_pairs_are_gray_and_side_by_side(tmp_path):
    write_svhn(tmp_path / "svhn")
    data = load_dataset("multisvhn", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (36, 4, 20)
    assert data.train[0][0].shape == data.input_shape == (1, 32, 64)
    assert_targets_follow_from_digits(data.train)
    from scipy.io import loadmat

    content = loadmat(tmp_path / "svhn" / "test_32x32.mat")
    gray = content["X"].astype(float).transpose(3, 0, 1, 2) @ [0.299, 0.587, 0.114]
    digits = content["y"][:, 0] % 10
    for index in range(20):
        image = data.test.inputs[index, 0].numpy().astype(float)
        for side, half in (("left", image[:, :32]), ("right", image[:, 32:])):
            match = np.abs(gray - half).max((1, 2)) < 0.51
            assert match.sum() == 1
            assert digits[match][0] == data.test.targets[side][index]


@pytest.mark.parametrize("damage", ["truncated", "other arrays", "wrong shape"])
def test_a_damaged_svhn_file_is_refused(tmp_path, damage):
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage == "other arrays":
        savemat(path, {"images": np.zeros(3)})
    else:
        savemat(path, {"X": np.zeros((32, 32, 5), dtype=np.uint8), "y": np.ones((5, 1))})
    with pytest.raises(DataError, match=r"train_32x32\.mat"):
        _ = load_dataset("multisvhn", data_dir=tmp_path).train


def test_options_are_checked_by_name_and_range():
    with pytest.raises(UnknownNameError, match="did you mean 'pixels'"):
        load_dataset("multidigits(pixel=count)")
    with pytest.raises(UnknownNameError, match="did you mean 'multidigits'"):
        load_dataset("multidigit")
    with pytest.raises(SpecError, match="train of multidigits"):
        load_dataset("multidigits(train=0)")
    with pytest.raises(SpecError, match="one data set"):
        load_dataset("multidigits+cifar10")
    with pytest.raises(SpecError, match="seed"):
        load_dataset("multidigits", seed=-1)


def test_the_spec_of_a_data_set_reads_back():
    data = load_dataset("multidigits(train=100, size=28)", test=50)
    again = load_dataset(data.spec)
    assert data.input_shape == (1, 28, 28)
    assert torch.equal(data.train.inputs, again.train.inputs)
    assert len(again.test) == 50
