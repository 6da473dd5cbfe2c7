"""SegNet with shared encoder and decoder and a convolutional head per task."""

from collections.abc import Sequence
from typing import Annotated, Any

from torch import Tensor, nn
from torch.nn import functional as F

from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.features import Features
from mtlkit.architectures.heads import Head
from mtlkit.config import Count, Gt, register_architecture
from mtlkit.errors import SpecError

_WIDTHS = (64, 128, 256, 512, 512)
_DEPTHS = (2, 2, 3, 3, 3)


def _block(inputs: int, outputs: int, depth: int) -> nn.Sequential:
    """Return ``depth`` convolutions with norm and ReLU; the first one changes the width."""
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [
            nn.Conv2d(inputs if index == 0 else outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


@register_architecture("segnet")
class SegNet(Architecture):
    """SegNet as multi-task learning uses it on NYUv2: all but the last two convolutions are shared.

    Five blocks of 2, 2, 3, 3, 3 convolutions (VGG16's) with widths 64, 128, 256, 512, 512, each followed
    by max-pooling; the decoder mirrors them and puts every value back where the pooling took it from.
    A task's head is a 3x3 and a 1x1 convolution. Predictions are logits, and normals of any length: the
    losses normalize them. ``rotograd`` rotates the channels of the shared map; the paper's rotation of
    1024 features is ``rotograd(dim=flat, size=1024)``.

    Args:
        in_channels: channels of the images.
        width: factor of all widths, to make a smaller net.
        input_size: height and width of the images, for a rotation of the flattened map.
    """

    paper = (
        "Badrinarayanan, Kendall and Cipolla, SegNet, PAMI 2017; split as by Liu et al., MTAN, CVPR 2019"
    )
    year = 2017

    def __init__(
        self,
        tasks: Tasks,
        *,
        in_channels: Count = 3,
        width: Annotated[float, Gt(0)] = 1.0,
        input_size: Sequence[Count] = (288, 384),
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        if len(input_size) != 2:
            raise SpecError(f"input_size of segnet is (height, width), not {tuple(input_size)}")
        widths = [max(1, round(size * width)) for size in _WIDTHS]
        above = [in_channels, *widths]
        self.encoder = nn.ModuleList(
            _block(above[level], widths[level], depth) for level, depth in enumerate(_DEPTHS)
        )
        below = [widths[0], *widths]
        self.decoder = nn.ModuleList(
            _block(widths[level], below[level], depth) for level, depth in enumerate(_DEPTHS)
        )
        self.heads = self.by_task(
            {task: self._head(widths[0], size) for task, size in self.outputs.items()}
        )
        self.features = Features("map", widths[0], shape=(widths[0], *input_size))
        self.set_method(method)

    @staticmethod
    def _head(features: int, outputs: int) -> Head:
        return Head(
            nn.Sequential(nn.Conv2d(features, features, 3, padding=1), nn.Conv2d(features, outputs, 1))
        )

    def encode(self, inputs: Tensor) -> Tensor:
        """Return the output (B, C, H, W) of the decoder."""
        x, pooled = inputs, []
        for block in self.encoder:
            x = block(x)
            size = x.shape[-2:]
            x, places = F.max_pool2d(x, 2, return_indices=True)
            pooled.append((places, size))
        for block, (places, size) in zip(reversed(self.decoder), reversed(pooled), strict=True):
            x = block(F.max_unpool2d(x, places, [2, 2], output_size=size))
        return x
