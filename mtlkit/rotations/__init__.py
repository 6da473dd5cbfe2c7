"""Learned rotations: SO(m) with an exponential step, geotorch as the reference, axes of tensors."""

from mtlkit.rotations.axis import Axis
from mtlkit.rotations.reference import GeotorchRotations
from mtlkit.rotations.so import Rotations

__all__ = ["Axis", "GeotorchRotations", "Rotations"]
