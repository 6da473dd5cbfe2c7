"""Rendered rooms: segmentation, depth and normals on any machine, exact and without a download.

A room is a box seen from inside, furnished with boxes and spheres in the 13 classes of NYUv2. Each pixel
is one ray; what it meets first gives class, depth and normal exactly, and colour by a texture, a point
light with shadow, and some noise.

Axes are NYUv2's: x right, y up, z towards the viewer. The camera looks along -z from the origin of its
own frame, so a pixel's ray is ``(u, v, -1)`` and the depth (distance along the viewing axis) is the
ray's parameter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtlkit.data.base import DataSet, SplitName, Targets, TensorSplit, register_dataset
from mtlkit.data.nyuv2 import INDOOR_CLASSES, dense_tasks
from mtlkit.data.randomness import generator
from mtlkit.errors import SpecError

__all__ = ["Camera", "Rendering", "Room", "Scenes", "furnish", "render"]

Floats = NDArray[np.float64]

_FOCAL = 0.75  # half the horizontal view is arctan(0.75), 37 degrees
_FAR = 1e9
# mean colour of each class; every object varies around it
_COLOURS: dict[str, tuple[float, float, float]] = {
    "bed": (0.75, 0.70, 0.80),
    "books": (0.60, 0.25, 0.25),
    "ceiling": (0.92, 0.92, 0.90),
    "chair": (0.45, 0.30, 0.20),
    "floor": (0.60, 0.45, 0.30),
    "furniture": (0.50, 0.38, 0.26),
    "objects": (0.30, 0.60, 0.55),
    "picture": (0.45, 0.55, 0.70),
    "sofa": (0.35, 0.45, 0.40),
    "table": (0.65, 0.50, 0.35),
    "tv": (0.10, 0.10, 0.12),
    "wall": (0.80, 0.76, 0.68),
    "window": (0.85, 0.93, 1.00),
}


@dataclass(frozen=True)
class Camera:
    """Where the picture is taken from.

    Attributes:
        position: (3,) in the room.
        rotation: (3, 3), columns are the camera's right, up and backward in the room.
        height, width: pixels.
    """

    position: Floats
    rotation: Floats
    height: int
    width: int

    def rays(self) -> Floats:
        """(height * width, 3) in the camera's frame, each ``(u, v, -1)``."""
        u = ((np.arange(self.width) + 0.5) / self.width * 2 - 1) * _FOCAL
        v = (1 - (np.arange(self.height) + 0.5) / self.height * 2) * _FOCAL * self.height / self.width
        grid_u, grid_v = np.meshgrid(u, v)
        return np.stack([grid_u, grid_v, np.full_like(grid_u, -1.0)], axis=-1).reshape(-1, 3)


@dataclass
class Room:
    """A room from (-x/2, 0, -z/2) to (x/2, y, z/2), its boxes and its spheres.

    Primitives are numbered: the room's inside is 0, then the boxes, then the spheres.
    """

    size: Floats  # (3,)
    light: Floats  # (3,)
    centres: list[Floats] = field(default_factory=list)  # of the boxes
    halves: list[Floats] = field(default_factory=list)
    yaws: list[float] = field(default_factory=list)
    box_classes: list[str] = field(default_factory=list)
    balls: list[Floats] = field(default_factory=list)
    radii: list[float] = field(default_factory=list)
    ball_classes: list[str] = field(default_factory=list)

    def add_box(
        self, kind: str, centre: Sequence[float], size: Sequence[float], yaw: float = 0.0
    ) -> None:
        """Add a box of these full sizes, turned by ``yaw`` about the vertical."""
        self.centres.append(np.asarray(centre, dtype=np.float64))
        self.halves.append(np.asarray(size, dtype=np.float64) / 2)
        self.yaws.append(yaw)
        self.box_classes.append(kind)

    def add_ball(self, kind: str, centre: Sequence[float], radius: float) -> None:
        """Add a sphere."""
        self.balls.append(np.asarray(centre, dtype=np.float64))
        self.radii.append(radius)
        self.ball_classes.append(kind)


@dataclass(frozen=True)
class Rendering:
    """One picture and its exact targets.

    Attributes:
        image: (H, W, 3) in the unit interval.
        label: (H, W) index into NYUv2's 13 classes.
        depth: (H, W) metres along the viewing axis.
        normal: (H, W, 3) unit vectors in the camera's frame, towards the viewer.
        primitive: (H, W) number of the primitive that is seen.
    """

    image: Floats
    label: NDArray[np.int64]
    depth: Floats
    normal: Floats
    primitive: NDArray[np.int64]


def furnish(random: np.random.Generator, height: int, width: int) -> tuple[Room, Camera]:
    """A random room and a camera in it."""
    size = np.array([random.uniform(3.5, 6.5), random.uniform(2.4, 3.2), random.uniform(3.5, 6.5)])
    light = np.array([random.uniform(-0.3, 0.3), 0.92, random.uniform(-0.3, 0.3)]) * size
    room = Room(size, light)
    position = np.array(
        [random.uniform(-0.35, 0.35) * size[0], random.uniform(1.2, 1.7), 0.42 * size[2]]
    )
    yaw, pitch = random.uniform(-0.45, 0.45), random.uniform(-0.35, -0.02)
    taken: list[tuple[float, float, float]] = [(position[0], position[2], 0.9)]
    for kind in random.choice(list(_PIECES), size=int(random.integers(4, 8))):
        spot = _free_spot(room, taken, _REACH[kind], random)
        if spot is not None:
            _PIECES[kind](room, spot, random)
    for kind in ("picture", "window", "tv"):
        for _ in range(int(random.integers(0, 3))):
            _hang(room, kind, random)
    turned = _about_y(yaw) @ _about_x(pitch)
    return room, Camera(position, turned, height, width)


def render(room: Room, camera: Camera, random: np.random.Generator, noise: float = 0.02) -> Rendering:
    """Cast one ray per pixel."""
    view = camera.rays()
    directions = view @ camera.rotation.T  # (N, 3)
    depth, primitive, normal = _cast(room, camera.position, directions)
    points = camera.position + depth[:, None] * directions
    classes = _classes(room, primitive, normal)
    colour = _texture(room, points, primitive, classes, normal, random)
    image = colour * _shade(room, points, normal, classes)[:, None]
    image += noise * random.standard_normal(image.shape)
    shape = (camera.height, camera.width)
    return Rendering(
        image=np.clip(image, 0, 1).reshape(*shape, 3),
        label=classes.reshape(shape),
        depth=depth.reshape(shape),
        normal=(normal @ camera.rotation).reshape(*shape, 3),
        primitive=primitive.reshape(shape),
    )


@register_dataset("scenes")
class Scenes(DataSet):
    """Rendered rooms with the three tasks and 13 classes of NYUv2.

    Args:
        data_dir: not used, nothing is read from disk.
        seed: decides the rooms; splits never share one.
        size: side of the square images, or (height, width).
        train, val, test: numbers of rooms.
        augment: flip half of the training images.
        noise: standard deviation of the noise on colours.
    """

    summary = "rendered rooms (embedded): segmentation (13 classes), depth, normals; any size"
    default_architecture = "segnet(width=0.25)"
    tasks = dense_tasks()

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        *,
        size: int | Sequence[int] = 64,
        train: int = 400,
        val: int = 100,
        test: int = 200,
        augment: bool = True,
        noise: float = 0.02,
    ) -> None:
        super().__init__(data_dir, seed)
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2 or not all(isinstance(side, int) and side >= 8 for side in sides):
            raise SpecError(
                f"option size of {self.name} must be a number of pixels from 8, or (height, width), "
                f"not {size!r}"
            )
        self.check_counts(train=train, val=val, test=test)
        if not 0 <= noise < 1:
            raise SpecError(f"option noise of {self.name} must be from 0 to below 1, not {noise}")
        self._counts = {"train": train, "val": val, "test": test}
        self._augment = augment
        self._noise = noise
        self.input_shape = (3, sides[0], sides[1])

    def make_split(self, split: SplitName) -> TensorSplit:
        """Render all rooms of a split (some milliseconds each at 64 x 64)."""
        _, height, width = self.input_shape
        count = self._counts[split]
        images = torch.empty(count, 3, height, width, dtype=torch.uint8)
        labels = torch.empty(count, height, width, dtype=torch.long)
        depths = torch.empty(count, 1, height, width)
        normals = torch.empty(count, 3, height, width)
        for index in range(count):
            random = generator(self.seed, self.name, split, index)
            room, camera = furnish(random, height, width)
            seen = render(room, camera, random, self._noise)
            images[index] = torch.from_numpy(np.rint(seen.image * 255).astype(np.uint8)).permute(2, 0, 1)
            labels[index] = torch.from_numpy(seen.label)
            depths[index, 0] = torch.from_numpy(seen.depth)
            normals[index] = torch.from_numpy(seen.normal).permute(2, 0, 1)
        targets = {"segmentation": labels, "depth": depths, "normals": normals}
        flipped = split == "train" and self._augment
        return TensorSplit(
            images,
            targets,
            augment=_flip if flipped else None,
            draws=1 if flipped else 0,
            seed=self.seed,
        )


def _flip(images: Tensor, targets: Targets, uniform: Floats) -> tuple[Tensor, Targets]:
    """Mirror half of the images; a mirrored normal points to the other side."""
    chosen = torch.from_numpy(uniform[:, 0] < 0.5)
    mirrored = {name: target.flip(-1) for name, target in targets.items()}
    mirrored["normals"] = mirrored["normals"] * torch.tensor([-1.0, 1.0, 1.0])[:, None, None]
    picked = {
        name: torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), mirrored[name], target)
        for name, target in targets.items()
    }
    return torch.where(chosen[:, None, None, None], images.flip(-1), images), picked


def _cast(room: Room, origin: Floats, directions: Floats) -> tuple[Floats, NDArray[np.int64], Floats]:
    """What each ray from ``origin`` meets first.

    Returns the ray's parameter (N,), the primitive (N,) and its normal (N, 3) in the room's frame.
    """
    boxes = len(room.centres)
    offsets = np.array([*room.centres, *room.balls]).reshape(-1, 3) - origin  # (P, 3)
    radii = np.array([*(np.linalg.norm(half) for half in room.halves), *room.radii])
    lengths = np.einsum("ij,ij->i", directions, directions)
    along = directions @ offsets.T  # (N, P)
    # a ray that passes a primitive's bounding sphere cannot meet it: most pairs end here
    squares = np.einsum("ij,ij->i", offsets, offsets) - radii**2
    near = ((along > 0) & (along * along >= squares * lengths[:, None])) | (squares < 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # rays parallel to a plane meet it at infinity
        best, normal = _leave_room(room, origin, directions)
        primitive = np.zeros(len(directions), dtype=np.int64)
        for number in range(len(offsets)):
            rays = np.flatnonzero(near[:, number])
            if not len(rays):
                continue
            if number < boxes:
                turn = _about_y(room.yaws[number])
                local = directions[rays] @ turn
                inverse = 1 / local
                middle, reach = (offsets[number] @ turn) * inverse, np.abs(room.halves[number] * inverse)
                enter = middle - reach  # (R, 3) per axis
                first = enter.max(1)
                hit = (first <= (middle + reach).min(1)) & (first > 1e-6) & (first < best[rays])
                axis, rows = enter[hit].argmax(1), np.arange(int(hit.sum()))
                facing = np.zeros((len(rows), 3))
                facing[rows, axis] = -np.sign(local[hit][rows, axis])
                facing = facing @ turn.T
            else:
                a, b = lengths[rays], along[rays, number]
                first = (b - np.sqrt(b * b - a * squares[number])) / a  # NaN: the ray misses
                hit = (first > 1e-6) & (first < best[rays])
                facing = (first[hit, None] * directions[rays[hit]] - offsets[number]) / radii[number]
            met = rays[hit]
            best[met], primitive[met], normal[met] = first[hit], number + 1, facing
    return best, primitive, normal


def _leave_room(room: Room, origin: Floats, directions: Floats) -> tuple[Floats, Floats]:
    low = np.array([-room.size[0] / 2, 0, -room.size[2] / 2])
    high = np.array([room.size[0] / 2, room.size[1], room.size[2] / 2])
    bounds = np.where(directions > 0, high, low)
    leave = np.where(directions == 0, _FAR, (bounds - origin) / directions)
    axis = leave.argmin(1)
    rows = np.arange(len(directions))
    normal = np.zeros_like(directions)
    normal[rows, axis] = -np.sign(directions[rows, axis])
    return leave[rows, axis], normal


def _classes(room: Room, primitive: NDArray[np.int64], normal: Floats) -> NDArray[np.int64]:
    table = np.array(
        [INDOOR_CLASSES.index(kind) for kind in ("wall", *room.box_classes, *room.ball_classes)]
    )
    classes = table[primitive]
    inside = primitive == 0
    classes[inside & (normal[:, 1] > 0.5)] = INDOOR_CLASSES.index("floor")
    classes[inside & (normal[:, 1] < -0.5)] = INDOOR_CLASSES.index("ceiling")
    return classes


def _texture(
    room: Room,
    points: Floats,
    primitive: NDArray[np.int64],
    classes: NDArray[np.int64],
    normal: Floats,
    random: np.random.Generator,
) -> Floats:
    """Colour of each point: the class's colour, varied per primitive, with a pattern on it."""
    means = np.array([_COLOURS[kind] for kind in INDOOR_CLASSES])
    surfaces = 1 + len(room.centres) + len(room.balls)
    # drawn for every surface, visible or not, so that colours do not depend on the camera
    tint = random.normal(0, 0.09, size=(surfaces, len(INDOOR_CLASSES), 3))
    pattern = random.integers(0, 4, size=(surfaces, len(INDOOR_CLASSES)))[primitive, classes]
    pitch = random.uniform(4, 12, size=(surfaces, len(INDOOR_CLASSES)))[primitive, classes]
    strength = random.uniform(0.06, 0.22, size=(surfaces, len(INDOOR_CLASSES)))[primitive, classes]
    # on the surface itself: drop the coordinate along the normal
    steep = np.abs(normal).argmax(1)
    first = np.where(steep == 0, points[:, 2], points[:, 0]) * pitch
    second = np.where(steep == 1, points[:, 2], points[:, 1]) * pitch
    stripes = np.sign(np.sin(first))
    values = np.select(
        [pattern == 1, pattern == 2, pattern == 3],
        [
            stripes * np.sign(np.sin(second)),
            stripes,
            np.sin(first + 2 * np.sin(0.7 * second)) * np.sin(second + 1.3 * np.sin(0.9 * first)),
        ],
        default=0.0,
    )
    colour = np.clip(means[classes] + tint[primitive, classes], 0.03, 1.0)
    shaded: Floats = colour * (1 + strength * values)[:, None]
    return shaded


def _shade(room: Room, points: Floats, normal: Floats, classes: NDArray[np.int64]) -> Floats:
    """Ambient light plus a point light with shadow; windows shine by themselves."""
    to_light = room.light - points
    distance = np.linalg.norm(to_light, axis=1)
    facing = np.clip(np.einsum("ij,ij->i", to_light, normal) / distance, 0, None)
    # shadow rays start at the light and share its origin; a lit point is hit itself, at parameter 1
    reached, _, _ = _cast(room, room.light, -to_light)
    lit = reached > 1 - 1e-4
    light = 0.42 + 0.75 * facing * lit / (1 + 0.05 * distance**2)
    return np.where(classes == INDOOR_CLASSES.index("window"), 1.0, light)


def _about_y(angle: float) -> Floats:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def _about_x(angle: float) -> Floats:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def _free_spot(
    room: Room, taken: list[tuple[float, float, float]], reach: float, random: np.random.Generator
) -> tuple[float, float] | None:
    """A place on the floor, clear of the walls and of what stands there; None where none was found."""
    for _ in range(12):
        x = random.uniform(-1, 1) * (room.size[0] / 2 - reach)
        z = random.uniform(-1, 1) * (room.size[2] / 2 - reach)
        if all(np.hypot(x - a, z - b) > reach + other for a, b, other in taken):
            taken.append((x, z, reach))
            return x, z
    return None


class _Piece:
    """Adds boxes in the frame of a piece of furniture: turned by ``yaw``, standing at ``spot``."""

    def __init__(self, room: Room, kind: str, spot: tuple[float, float], yaw: float) -> None:
        self._room, self._kind, self._spot, self._yaw = room, kind, spot, yaw

    def box(
        self, x: float, bottom: float, z: float, size: tuple[float, float, float], kind: str = ""
    ) -> None:
        placed = _about_y(self._yaw) @ np.array([x, 0.0, z])
        centre = (self._spot[0] + placed[0], bottom + size[1] / 2, self._spot[1] + placed[2])
        self._room.add_box(kind or self._kind, centre, size, self._yaw)


def _bed(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "bed", spot, random.uniform(0, np.pi))
    wide, high = random.uniform(0.9, 1.6), random.uniform(0.35, 0.55)
    piece.box(0, 0, 0, (wide, high, 1.9))
    piece.box(0, high, -0.7, (0.7 * wide, 0.12, 0.35))
    piece.box(0, 0, -0.97, (wide, high + 0.45, 0.06))


def _sofa(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "sofa", spot, random.uniform(0, 2 * np.pi))
    wide = random.uniform(1.2, 1.8)
    piece.box(0, 0, 0, (wide, 0.42, 0.8))
    piece.box(0, 0.42, -0.32, (wide, 0.42, 0.16))
    for side in (-1, 1):
        piece.box(side * (wide / 2 - 0.08), 0.42, 0.08, (0.16, 0.2, 0.64))


def _table(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "table", spot, random.uniform(0, np.pi))
    wide, deep, high = random.uniform(0.8, 1.3), random.uniform(0.6, 0.8), random.uniform(0.55, 0.78)
    piece.box(0, high - 0.05, 0, (wide, 0.05, deep))
    for x in (-1, 1):
        for z in (-1, 1):
            piece.box(x * (wide / 2 - 0.05), 0, z * (deep / 2 - 0.05), (0.06, high - 0.05, 0.06))
    if random.random() < 0.6:
        _stack_books(piece, random.uniform(-0.3, 0.3) * wide, high, random)
    if random.random() < 0.5:
        radius = random.uniform(0.08, 0.16)
        room.add_ball("objects", (spot[0], high + radius, spot[1]), radius)


def _chair(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "chair", spot, random.uniform(0, 2 * np.pi))
    piece.box(0, 0.42, 0, (0.45, 0.05, 0.45))
    piece.box(0, 0.47, -0.2, (0.45, 0.45, 0.05))
    for x in (-0.19, 0.19):
        for z in (-0.19, 0.19):
            piece.box(x, 0, z, (0.05, 0.42, 0.05))


def _cabinet(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "furniture", spot, random.uniform(0, np.pi))
    wide, high, deep = random.uniform(0.6, 1.1), random.uniform(0.6, 2.0), random.uniform(0.35, 0.6)
    piece.box(0, 0, 0, (wide, high, deep))
    piece.box(0, 0.08, deep / 2, (0.02, high - 0.16, 0.03))
    if high < 1.4 and random.random() < 0.6:
        _stack_books(piece, random.uniform(-0.2, 0.2), high, random)


def _books(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    piece = _Piece(room, "books", spot, random.uniform(0, np.pi))
    for row in range(3):
        piece.box(0, 0.5 * row, 0, (0.9, 0.04, 0.3), "furniture")
        edge = -0.42
        while edge < 0.36:
            thick, high = random.uniform(0.05, 0.14), random.uniform(0.26, 0.42)
            piece.box(edge + thick / 2, 0.5 * row + 0.04, 0, (thick, high, 0.24))
            edge += thick + 0.01


def _ball(room: Room, spot: tuple[float, float], random: np.random.Generator) -> None:
    radius = random.uniform(0.15, 0.4)
    room.add_ball("objects", (spot[0], radius, spot[1]), radius)


def _stack_books(piece: _Piece, x: float, bottom: float, random: np.random.Generator) -> None:
    for _ in range(int(random.integers(1, 4))):
        thick = random.uniform(0.04, 0.08)
        piece.box(x, bottom, 0, (random.uniform(0.2, 0.3), thick, random.uniform(0.15, 0.22)), "books")
        bottom += thick


_PIECES = {
    "bed": _bed,
    "sofa": _sofa,
    "table": _table,
    "chair": _chair,
    "furniture": _cabinet,
    "books": _books,
    "objects": _ball,
}
_REACH = {
    "bed": 1.0,
    "sofa": 0.8,
    "table": 0.65,
    "chair": 0.4,
    "furniture": 0.6,
    "books": 0.5,
    "objects": 0.4,
}


def _hang(room: Room, kind: str, random: np.random.Generator) -> None:
    """Put a flat box on the far wall or on a side wall."""
    wide, high = {
        "picture": (random.uniform(0.4, 1.0), random.uniform(0.4, 0.8)),
        "window": (random.uniform(0.8, 1.5), random.uniform(0.8, 1.2)),
        "tv": (random.uniform(0.8, 1.3), random.uniform(0.45, 0.7)),
    }[kind]
    level = random.uniform(0.5, 0.65) * room.size[1]
    thick = 0.06
    if random.random() < 0.6:
        along = random.uniform(-0.5, 0.5) * (room.size[0] - wide)
        room.add_box(kind, (along, level, -room.size[2] / 2 + thick / 2), (wide, high, thick))
    else:
        side = random.choice([-1.0, 1.0])
        along = random.uniform(-0.5, 0.2) * (room.size[2] - wide)
        room.add_box(kind, (side * (room.size[0] / 2 - thick / 2), level, along), (thick, high, wide))
