"""Random rooms: what stands in them, what hangs on their walls, and where the camera is."""

from __future__ import annotations

import numpy as np
from room_rendering import Camera, Floats, Room, about_y


def furnish(random: np.random.Generator, height: int, width: int) -> tuple[Room, Camera]:
    """Make a random room and a camera in it."""
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
    turned = about_y(yaw) @ _about_x(pitch)
    return room, Camera(position, turned, height, width)


def _about_x(angle: float) -> Floats:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def _free_spot(
    room: Room, taken: list[tuple[float, float, float]], reach: float, random: np.random.Generator
) -> tuple[float, float] | None:
    """Find a place on the floor, clear of walls and furniture; None if none is found."""
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
        placed = about_y(self._yaw) @ np.array([x, 0.0, z])
        center = (self._spot[0] + placed[0], bottom + size[1] / 2, self._spot[1] + placed[2])
        self._room.add_box(kind or self._kind, center, size, self._yaw)


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
