"""NYUv2's files and augmentation, and the geometry of rendered rooms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtlkit.data import DataError, load_dataset
from mtlkit.data.published.mtan import scale_crop_flip
from mtlkit.data.published.nyuv2 import INDOOR_CLASSES
from mtlkit.data.scenes import furnish, render
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


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
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


def box_distance(points, center, half, yaw):
    c, s = np.cos(yaw), np.sin(yaw)
    turn = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    local = np.abs((points - center) @ turn) - half
    return np.linalg.norm(np.maximum(local, 0), axis=-1) + np.minimum(local.max(-1), 0)


def surface_distance(room, points, primitive):
    """Distance of each point to the surface of the primitive that it is said to lie on."""
    distance = np.full(len(points), np.nan)
    inside = primitive == 0
    center = np.array([0, room.size[1] / 2, 0])
    distance[inside] = box_distance(points[inside], center, room.size / 2, 0.0)
    boxes = len(room.centers)
    for number in np.unique(primitive[primitive > 0]):
        seen = primitive == number
        if number <= boxes:
            box = (room.centers[number - 1], room.halves[number - 1], room.yaws[number - 1])
            distance[seen] = box_distance(points[seen], *box)
        else:
            ball = number - 1 - boxes
            distance[seen] = np.linalg.norm(points[seen] - room.balls[ball], axis=1) - room.radii[ball]
    return distance


def rendered(seed, height=48, width=64):
    random = np.random.default_rng(seed)
    room, camera = furnish(random, height, width)
    return room, camera, render(room, camera, random)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_depth_puts_every_pixel_on_the_surface_that_it_shows(seed):
    room, camera, seen = rendered(seed)
    points = camera.position + seen.depth.reshape(-1, 1) * (camera.rays() @ camera.rotation.T)
    distance = surface_distance(room, points, seen.primitive.reshape(-1))
    np.testing.assert_allclose(distance, 0, atol=1e-9)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_nothing_stands_between_the_camera_and_what_it_sees(seed):
    room, camera, seen = rendered(seed, 24, 32)
    assert len(room.centers) + len(room.balls) > 0
    rays = camera.rays() @ camera.rotation.T
    for share in np.linspace(0.05, 0.98, 12):
        points = camera.position + share * seen.depth.reshape(-1, 1) * rays
        for center, half, yaw in zip(room.centers, room.halves, room.yaws, strict=True):
            assert box_distance(points, center, half, yaw).min() > -1e-9
        for ball, radius in zip(room.balls, room.radii, strict=True):
            assert (np.linalg.norm(points - ball, axis=1) - radius).min() > -1e-9


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_normals_are_unit_vectors_toward_the_viewer(seed):
    _, camera, seen = rendered(seed)
    np.testing.assert_allclose(np.linalg.norm(seen.normal, axis=-1), 1, atol=1e-12)
    facing = np.einsum("ij,ij->i", seen.normal.reshape(-1, 3), camera.rays())
    assert facing.max() <= 1e-9
    assert seen.depth.min() > 0
    assert seen.image.min() >= 0
    assert seen.image.max() <= 1


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_normals_equal_those_of_finite_differences_of_depth_where_it_is_smooth(seed):
    _, camera, seen = rendered(seed, 120, 160)
    points = seen.depth[..., None] * camera.rays().reshape(120, 160, 3)
    right = points[1:-1, 2:] - points[1:-1, :-2]
    up = points[:-2, 1:-1] - points[2:, 1:-1]
    found = np.cross(right, up)
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    # smooth: the neighbors lie on the same primitive and on nearly the same face
    middle = seen.primitive[1:-1, 1:-1]
    smooth = np.ones_like(middle, dtype=bool)
    for rows, columns in ((slice(1, -1), slice(2, None)), (slice(1, -1), slice(None, -2))):
        for r, c in ((rows, columns), (columns, rows)):
            smooth &= seen.primitive[r, c] == middle
            smooth &= np.einsum("ijk,ijk->ij", seen.normal[r, c], seen.normal[1:-1, 1:-1]) > 0.95
    assert smooth.mean() > 0.5
    cosine = np.einsum("ijk,ijk->ij", found, seen.normal[1:-1, 1:-1])[smooth]
    assert cosine.min() > 0.98
    assert np.median(cosine) > 1 - 1e-9


def test_same_seed_same_scenes_and_another_seed_other_scenes():
    spec = "scenes(size=[24, 32], train=6, val=2, test=2)"
    one, same, other = (load_dataset(spec, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.inputs, same.train.inputs)
    for name in one.task_names:
        assert torch.equal(one.test.targets[name], same.test.targets[name])
    assert not torch.equal(one.train.inputs, other.train.inputs)
    assert not torch.equal(one.train.inputs[:2], one.val.inputs)


def test_a_scene_does_not_depend_on_how_many_there_are():
    few = load_dataset("scenes(size=16, train=3)").train
    many = load_dataset("scenes(size=16, train=9)").train
    assert torch.equal(few.inputs, many.inputs[:3])


def test_scenes_show_all_thirteen_classes():
    train = load_dataset("scenes(size=32, train=80)").train
    assert set(train.targets["segmentation"].unique().tolist()) == set(range(len(INDOOR_CLASSES)))


def test_a_mirrored_scene_has_mirrored_targets():
    plain = load_dataset("scenes(size=16, train=20, augment=False)").train
    flipped = load_dataset("scenes(size=16, train=20)").train
    mirrored = 0
    for index in range(20):
        (image, targets), (image_ref, targets_ref) = flipped[index], plain[index]
        if torch.equal(image, image_ref):
            assert torch.equal(targets["normals"], targets_ref["normals"])
            continue
        mirrored += 1
        assert torch.equal(image, image_ref.flip(-1))
        assert torch.equal(targets["depth"], targets_ref["depth"].flip(-1))
        assert torch.equal(targets["segmentation"], targets_ref["segmentation"].flip(-1))
        assert torch.equal(targets["normals"][0], -targets_ref["normals"][0].flip(-1))
        assert torch.equal(targets["normals"][1:], targets_ref["normals"][1:].flip(-1))
    assert 2 < mirrored < 18


@pytest.mark.parametrize(
    "spec", ["scenes(size=4)", "scenes(size=[16])", "scenes(train=0)", "scenes(noise=2)"]
)
def test_wrong_options_of_scenes_are_errors(spec):
    with pytest.raises(SpecError, match="of scenes must be"):
        load_dataset(spec)
