"""Rendered rooms in the 13 classes of NYUv2."""

from mtlkit.data.scenes.dataset import Scenes
from mtlkit.data.scenes.furniture import furnish
from mtlkit.data.scenes.rooms import Camera, Rendering, Room, render

__all__ = ["Camera", "Rendering", "Room", "Scenes", "furnish", "render"]
