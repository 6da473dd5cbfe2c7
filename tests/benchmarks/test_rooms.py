"""The plugin of rendered rooms: its geometry, its options, and that the command line finds it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mtlkit
from mtlkit.cli import main
from mtlkit.config.plugins import load_plugin
from mtlkit.data import list_datasets, load_dataset
from mtlkit.data.published.mtan import INDOOR_CLASSES
from mtlkit.errors import SpecError

PLUGIN = Path(__file__).parents[2] / "benchmarks" / "rooms" / "scenes.py"
scenes = load_plugin(str(PLUGIN))
furnish, render = scenes.furnish, scenes.render


def test_the_plugin_adds_one_data_set():
    assert [name for name in list_datasets() if name.lower() == "scenes"] == ["scenes"]
    assert load_dataset(f"{PLUGIN}:scenes(size=16, train=2)").spec == "scenes(size=16, train=2)"


def test_the_command_line_draws_rooms(tmp_path, capsys):
    path = tmp_path / "rooms.png"
    spec = "scenes(size=16, train=4, val=1, test=1)"
    with pytest.raises(SystemExit) as stop:
        main(["data", spec, "--plugin", str(PLUGIN), "--preview", str(path), "--count", "3"])
    assert stop.value.code in (0, None)
    with Image.open(path) as image:
        assert len(image.convert("RGB").getcolors(100_000)) > 10


def test_its_network_predicts_a_map_for_each_task():
    data = load_dataset("scenes(size=32, train=2, val=1, test=1)")
    network = mtlkit.create_architecture(data.default_architecture, data.tasks, method="sum")
    predictions = network(torch.rand(2, *data.input_shape))
    assert {name: tuple(p.shape[1:]) for name, p in predictions.items()} == {
        "segmentation": (13, 32, 32),
        "depth": (1, 32, 32),
        "normals": (3, 32, 32),
    }


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


@pytest.mark.parametrize("seed", range(30))
def test_depth_puts_every_pixel_on_the_surface_that_it_shows(seed):
    room, camera, seen = rendered(seed)
    points = camera.position + seen.depth.reshape(-1, 1) * (camera.rays() @ camera.rotation.T)
    distance = surface_distance(room, points, seen.primitive.reshape(-1))
    np.testing.assert_allclose(distance, 0, atol=1e-9)


@pytest.mark.parametrize("seed", range(30))
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


@pytest.mark.parametrize("seed", range(30))
def test_normals_are_unit_vectors_toward_the_viewer(seed):
    _, camera, seen = rendered(seed)
    np.testing.assert_allclose(np.linalg.norm(seen.normal, axis=-1), 1, atol=1e-12)
    facing = np.einsum("ij,ij->i", seen.normal.reshape(-1, 3), camera.rays())
    assert facing.max() <= 1e-9
    assert seen.depth.min() > 0
    assert seen.image.min() >= 0
    assert seen.image.max() <= 1


@pytest.mark.parametrize("seed", range(20))
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
