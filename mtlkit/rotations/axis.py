"""Matrices along one axis of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor

from mtlkit.errors import UsageError


@dataclass(frozen=True)
class Axis:
    """The axis of the features that matrices act on, and how much of it.

    Args:
        dim: an axis; ``channel`` for axis 1; ``flat`` for all axes but the first, flattened.
        side: the matrices act on the first ``side`` entries of the axis; the others are passed through.
        whole: whether the axis must be ``side`` long.

    Example:
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> Axis(-1, side=2).apply_one(turn, torch.tensor([[1.0, 0.0, 5.0]]))
        tensor([[0., 1., 5.]])
    """

    dim: int | Literal["channel", "flat"]
    side: int
    whole: bool = False

    def apply(self, matrices: Tensor, stack: Tensor) -> Tensor:
        """Return ``M_k x_k`` for (P, b, n, n) blocks of matrices and a (1 or P, batch, ...) stack.

        A single tensor in the stack is multiplied by all matrices. The result has the stack's dtype.
        """
        count, blocks, size, _ = matrices.shape
        before, length, after = self.split_shape(stack.shape[1:])
        flat = stack.reshape(len(stack), before, length, after)
        matrices, head = matrices.to(stack.dtype), flat[:, :, : self.side]
        if after == 1 and blocks == 1:
            rows = head[..., 0].expand(count, -1, -1)
            turned = torch.bmm(rows, matrices[:, 0].mT)  # (P, before, m)
        elif after == 1:
            # one product of all samples per block, not one of every sample
            rows = head.reshape(len(stack), before, blocks, size).transpose(1, 2)
            turned = torch.matmul(rows, matrices.mT).transpose(1, 2)  # (P, before, b, n)
        else:
            columns = head.reshape(len(stack), before, blocks, size, after)
            turned = torch.matmul(matrices.unsqueeze(1), columns)  # (P, before, b, n, after)
        turned = turned.reshape(count, before, self.side, after)
        if length > self.side:
            rest = flat[:, :, self.side :].expand(count, -1, -1, -1)
            turned = torch.cat([turned, rest], dim=2)
        return turned.reshape(count, *stack.shape[1:])

    def apply_one(self, matrix: Tensor, features: Tensor) -> Tensor:
        """Return ``M x`` for one (m, m) matrix and (batch, ...) features, in their dtype.

        It reads no shape, so torch.fx can trace it.
        """
        axis = 1 if self.dim == "channel" else self.dim
        if axis == "flat":
            last = features.flatten(1)
        else:
            last = features if axis == -1 else features.movedim(axis, -1)
        turned = torch.matmul(last[..., : self.side], matrix.mT.to(features.dtype))
        if not self.whole:
            turned = torch.cat([turned, last[..., self.side :]], dim=-1)
        if axis == "flat":
            return turned.view_as(features)
        return turned if axis == -1 else turned.movedim(-1, axis)

    def rows(self, stack: Tensor, blocks: int = 1) -> Tensor:
        """Return the (P, b, N, n) rows that the matrices act on, of a (P, batch, ...) stack."""
        before, length, after = self.split_shape(stack.shape[1:])
        flat = stack.reshape(len(stack), before, length, after)[:, :, : self.side]
        flat = flat.reshape(len(stack), before, blocks, self.side // blocks, after)
        return flat.permute(0, 2, 1, 4, 3).flatten(2, 3)

    def split_shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Split a tensor's shape into (before, axis, after)."""
        if self.dim == "flat":
            return shape[0], math.prod(shape[1:]), 1
        axis = 1 if self.dim == "channel" else self.dim % len(shape)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def check(self, features: Tensor, name: str) -> None:
        """Raise if the features cannot be rotated; ``name`` begins the message."""
        axes, axis = features.dim(), 0 if isinstance(self.dim, str) else self.dim
        if (
            axes < 1 + isinstance(self.dim, str)
            or not -axes <= axis < axes
            or not features.is_floating_point()
        ):
            self._refuse_axes(features, name)
        length = self.split_shape(features.shape)[1]
        if length < self.side or (self.whole and length != self.side) or self._is_width(features.shape):
            self._refuse_length(features.shape, length, name)

    def _is_width(self, shape: Sequence[int]) -> bool:
        """Return whether the last axis looks like the width of square images."""
        return self.dim == -1 and len(shape) > 3 and shape[-1] == shape[-2] != shape[1]

    def _refuse_axes(self, features: Tensor, name: str) -> NoReturn:
        shape, least = tuple(features.shape), 2 if isinstance(self.dim, str) else 1
        if len(shape) < least or not features.is_floating_point():
            raise UsageError(
                f"{name}(dim={self.dim}) cannot rotate a {features.dtype} tensor of shape {shape}; give "
                f"it a floating-point tensor with at least {least} axes"
            )
        raise UsageError(
            f"{name}(dim={self.dim}): features of shape {shape} have no such axis; choose one of "
            f"{-len(shape)} to {len(shape) - 1}, 'channel' or 'flat'"
        )

    def _refuse_length(self, shape: Sequence[int], length: int, name: str) -> NoReturn:
        shape = tuple(shape)
        if length == self.side or (length > self.side and not self.whole):
            raise UsageError(
                f"{name} rotates the last axis, which is the width of features of shape {shape}: "
                f"rotate the channels, with dim=channel and feature_dim={shape[1]}; if the last "
                f"axis does hold the features, say dim={len(shape) - 1}"
            )
        advice = f"pass feature_dim={length} to create_method, or choose another dim or size"
        if len(shape) > 3 and self.dim in (-1, len(shape) - 1):  # the last axis of an image is its width
            advice = (
                "rotate the channels of images: rotograd(dim=channel) or rotate(dim=channel) "
                f"with feature_dim={shape[1]}"
            )
        raise UsageError(
            f"{name} was made for {self.side} features, but the axis dim={self.dim} of features of "
            f"shape {shape} has {length}; {advice}"
        )


def block_diagonal(blocks: Tensor) -> Tensor:
    """Return (K, m, m) block-diagonal matrices of (K, b, n, n) blocks."""
    count, number, size, _ = blocks.shape
    matrices = blocks.new_zeros(count, number, size, number, size)
    matrices.diagonal(dim1=1, dim2=3).copy_(blocks.permute(0, 2, 3, 1))
    return matrices.view(count, number * size, number * size)
