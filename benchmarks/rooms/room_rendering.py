"""Rooms of boxes and spheres, seen through a camera: one ray per pixel.

A room is a box seen from inside. What a pixel's ray meets first gives class, depth and normal exactly,
and color by a texture, a point light with shadow, and some noise.

Axes are NYUv2's: x right, y up, z toward the viewer. The camera looks along -z from the origin of its
own frame, so a pixel's ray is ``(u, v, -1)`` and the depth (distance along the viewing axis) is the
ray's parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtlkit.data.published.mtan import INDOOR_CLASSES

Floats = NDArray[np.float64]

_FOCAL = 0.75  # half the horizontal view is arctan(0.75), 37 degrees
_FAR = 1e9
# mean color of each class; every object varies around it
_COLORS: dict[str, tuple[float, float, float]] = {
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
    """The position and direction from which an image is taken.

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
    centers: list[Floats] = field(default_factory=list)  # of the boxes
    halves: list[Floats] = field(default_factory=list)
    yaws: list[float] = field(default_factory=list)
    box_classes: list[str] = field(default_factory=list)
    balls: list[Floats] = field(default_factory=list)
    radii: list[float] = field(default_factory=list)
    ball_classes: list[str] = field(default_factory=list)

    def add_box(
        self, kind: str, center: Sequence[float], size: Sequence[float], yaw: float = 0.0
    ) -> None:
        """Add a box of these full sizes, turned by ``yaw`` about the vertical."""
        self.centers.append(np.asarray(center, dtype=np.float64))
        self.halves.append(np.asarray(size, dtype=np.float64) / 2)
        self.yaws.append(yaw)
        self.box_classes.append(kind)

    def add_ball(self, kind: str, center: Sequence[float], radius: float) -> None:
        """Add a sphere."""
        self.balls.append(np.asarray(center, dtype=np.float64))
        self.radii.append(radius)
        self.ball_classes.append(kind)


@dataclass(frozen=True)
class Rendering:
    """One image and its exact targets.

    Attributes:
        image: (H, W, 3) in the unit interval.
        label: (H, W) index into NYUv2's 13 classes.
        depth: (H, W) meters along the viewing axis.
        normal: (H, W, 3) unit vectors in the camera's frame, toward the viewer.
        primitive: (H, W) number of the primitive that is seen.
    """

    image: Floats
    label: NDArray[np.int64]
    depth: Floats
    normal: Floats
    primitive: NDArray[np.int64]


def render(room: Room, camera: Camera, random: np.random.Generator, noise: float = 0.02) -> Rendering:
    """Cast one ray per pixel."""
    view = camera.rays()
    directions = view @ camera.rotation.T  # (N, 3)
    depth, primitive, normal = _cast(room, camera.position, directions)
    points = camera.position + depth[:, None] * directions
    classes = _classes(room, primitive, normal)
    color = _texture(room, points, primitive, classes, normal, random)
    image = color * _shade(room, points, normal, classes)[:, None]
    image += noise * random.standard_normal(image.shape)
    shape = (camera.height, camera.width)
    return Rendering(
        image=np.clip(image, 0, 1).reshape(*shape, 3),
        label=classes.reshape(shape),
        depth=depth.reshape(shape),
        normal=(normal @ camera.rotation).reshape(*shape, 3),
        primitive=primitive.reshape(shape),
    )


def about_y(angle: float) -> Floats:
    """(3, 3) rotation about the vertical."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def _cast(room: Room, origin: Floats, directions: Floats) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Find the first surface on each ray from ``origin``.

    Returns the ray's parameter (N,), the primitive (N,) and its normal (N, 3) in the room's frame.
    """
    boxes = len(room.centers)
    offsets = np.array([*room.centers, *room.balls]).reshape(-1, 3) - origin  # (P, 3)
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
                turn = about_y(room.yaws[number])
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
    """Return the color of each point: the class's color, varied per primitive, with a pattern on it."""
    means = np.array([_COLORS[kind] for kind in INDOOR_CLASSES])
    surfaces = 1 + len(room.centers) + len(room.balls)
    # drawn for every surface, visible or not, so that colors do not depend on the camera
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
    color = np.clip(means[classes] + tint[primitive, classes], 0.03, 1.0)
    shaded: Floats = color * (1 + strength * values)[:, None]
    return shaded


def _shade(room: Room, points: Floats, normal: Floats, classes: NDArray[np.int64]) -> Floats:
    """Return ambient light plus a point light with shadow; windows emit light."""
    to_light = room.light - points
    distance = np.linalg.norm(to_light, axis=1)
    facing = np.clip(np.einsum("ij,ij->i", to_light, normal) / distance, 0, None)
    # shadow rays start at the light and share its origin; a lit point is hit itself, at parameter 1
    reached, _, _ = _cast(room, room.light, -to_light)
    lit = reached > 1 - 1e-4
    light = 0.42 + 0.75 * facing * lit / (1 + 0.05 * distance**2)
    return np.where(classes == INDOOR_CLASSES.index("window"), 1.0, light)
