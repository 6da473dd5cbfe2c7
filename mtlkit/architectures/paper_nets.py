"""The networks of the RotoGrad paper's experiments (appendix C.1), layer by layer.

``Conv-F-C`` is a convolution of size F with C channels. There is no padding, because the sizes fit only
without it (a 32 x 64 image of SVHN leaves the third 5 x 5 convolution as 1 x 9). The paper lists no
activations in the CelebA net; ``activation=relu`` adds them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from torch import nn

from mtlkit.architectures.backbones import build_backbone, register_backbone
from mtlkit.architectures.base import Tasks, task_outputs
from mtlkit.architectures.features import measure
from mtlkit.architectures.hard_sharing import HardSharing
from mtlkit.architectures.heads import Head, Output
from mtlkit.config import Count, Gt, register_architecture
from mtlkit.errors import unknown_name

ImageSize: TypeAlias = Sequence[Count]
Width: TypeAlias = Annotated[float, Gt(0)]


def _pixels(layers: nn.Module, input_size: Sequence[int]) -> int:
    """Return the number of values per sample after ``layers``."""
    return measure(layers, input_size).flat_size or 0


def _dense(layers: list[nn.Module], size: int, input_size: Sequence[int]) -> list[nn.Module]:
    inputs = _pixels(nn.Sequential(*layers), input_size)
    return [*layers, nn.Flatten(), nn.Linear(inputs, size)]


def _lenet(input_size: Sequence[int], *more: nn.Module) -> nn.Sequential:
    layers = [
        nn.Conv2d(input_size[0], 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        *more,
    ]
    return nn.Sequential(*_dense(layers, 50, input_size), nn.ReLU(), nn.BatchNorm1d(50))


@register_backbone("lenet")
def lenet(*, input_size: ImageSize = (1, 28, 28)) -> nn.Sequential:
    """The reduced LeNet of the MNIST experiments; 50 features."""
    return _lenet(input_size)


@register_backbone("lenet_svhn")
def lenet_svhn(*, input_size: ImageSize = (1, 32, 64)) -> nn.Sequential:
    """The LeNet of the SVHN experiments, with a third convolution; 50 features."""
    return _lenet(input_size, nn.Conv2d(20, 20, 5))


@register_backbone("celeba_conv")
def celeba_conv(
    *,
    input_size: ImageSize = (3, 64, 64),
    activation: Literal["none", "relu"] = "none",
    width: Width = 1.0,
) -> nn.Sequential:
    """The convolutional net of the CelebA experiments; 512 features at full ``width``."""
    layers: list[nn.Module] = []
    channels = input_size[0]
    for item in (64, "max", 128, 128, "max", 256, 256, "max", 512):
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            continue
        size = max(1, round(item * width))
        layers += [nn.Conv2d(channels, size, 3), nn.BatchNorm2d(size)]
        layers += [nn.ReLU()] if activation == "relu" else []
        channels = size
    return nn.Sequential(*_dense(layers, channels, input_size), nn.BatchNorm1d(channels))


@register_backbone("resnet18_flat")
def resnet18_flat(*, input_size: ImageSize = (3, 32, 32), width: Width = 1.0) -> nn.Sequential:
    """ResNet18 without pooling and last layer, flattened, plus batch normalization.

    At full ``width`` 512 features for CIFAR10 (32 x 32), 2048 for CelebA (64 x 64). The first
    convolution keeps its 64 channels.
    """
    channels = [max(1, round(size * width)) for size in (64, 128, 256, 512)]
    resnet, _ = build_backbone(
        "timm.resnet18", global_pool="", in_chans=input_size[0], channels=channels
    )
    size = _pixels(resnet, input_size)
    return nn.Sequential(resnet, nn.Flatten(), nn.BatchNorm1d(size))


class _PaperNet(HardSharing):
    """A backbone of the paper with the paper's heads."""

    paper = "Javaloy and Valera, RotoGrad: Gradient Homogenization in Multitask Learning, ICLR 2022"
    year = 2022
    hidden_options = frozenset({"backbone", "heads", "features"})

    def __init__(self, tasks: Tasks, backbone: Any, heads: Any, **common: Any) -> None:
        size = backbone[-1].num_features  # every backbone ends with a batch normalization
        super().__init__(tasks, backbone=backbone, heads=heads, features=size, **common)


@register_architecture("paper_mnist")
class MnistNet(_PaperNet):
    """The paper's net for multi-MNIST: reduced LeNet, and a head by the kind of task.

    A task with several outputs is a classification, ``Dense-50, ReLU, Dense-10, LogSoftmax``. One with a
    single output is a regression, ``Dense-50, ReLU, Dense-1``, or, if ``binary`` names it,
    ``Dense-1, Sigmoid``.

    Args:
        input_size: shape of an image.
        binary: names of the tasks that are a binary classification.
        logits: leave out LogSoftmax and Sigmoid, for losses that take logits.
    """

    make_backbone = staticmethod(lenet)

    def __init__(
        self,
        tasks: Tasks,
        *,
        input_size: ImageSize = (1, 28, 28),
        binary: Sequence[str] = (),
        logits: bool = False,
        **common: Any,
    ) -> None:
        outputs = task_outputs(tasks, common.get("outputs"))
        for task in binary:
            if task not in outputs:
                raise unknown_name("task in binary", task, outputs)
        heads = {}
        for task, size in outputs.items():
            if task in binary:
                heads[task] = "linear" if logits else "linear(output=sigmoid)"
            elif size > 1:
                heads[task] = "mlp(50)" if logits else "mlp(50, output=log_softmax)"
            else:
                heads[task] = "mlp(50)"
        super().__init__(tasks, self.make_backbone(input_size=input_size), heads, **common)


@register_architecture("paper_svhn")
class SvhnNet(MnistNet):
    """The paper's net for multi-SVHN: as for MNIST, with a third convolution."""

    make_backbone = staticmethod(lenet_svhn)

    def __init__(self, tasks: Tasks, *, input_size: ImageSize = (1, 32, 64), **options: Any) -> None:
        super().__init__(tasks, input_size=input_size, **options)


@register_architecture("paper_cifar10")
class CifarNet(_PaperNet):
    """The paper's net for CIFAR10, and its residual net for CelebA: ResNet18, a linear layer per task.

    ResNet18 is without pooling and last layer, plus batch normalization: 512 features for images of
    32 x 32, 2048 for those of 64 x 64. The heads are ``Dense-1, Sigmoid``.

    Args:
        input_size: shape of an image.
        width: factor of the channels of all residual blocks, to make a smaller net.
        logits: leave out the Sigmoid, for losses that take logits.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        input_size: ImageSize = (3, 32, 32),
        width: Width = 1.0,
        logits: bool = False,
        **common: Any,
    ) -> None:
        backbone = resnet18_flat(input_size=input_size, width=width)
        super().__init__(tasks, backbone, "linear" if logits else "linear(output=sigmoid)", **common)


@register_architecture("paper_celeba")
class CelebaNet(_PaperNet):
    """The paper's convolutional net for CelebA; heads ``Dense-128, BN, Dense-1, Sigmoid``.

    Args:
        input_size: shape of an image.
        activation: ``relu`` after every normalized convolution; the paper lists none.
        width: factor of all channels, to make a smaller net.
        logits: leave out the Sigmoid, for losses that take logits.
    """

    def __init__(
        self,
        tasks: Tasks,
        *,
        input_size: ImageSize = (3, 64, 64),
        activation: Literal["none", "relu"] = "none",
        width: Width = 1.0,
        logits: bool = False,
        **common: Any,
    ) -> None:
        backbone = celeba_conv(input_size=input_size, activation=activation, width=width)
        hidden = max(1, round(128 * width))
        output: Output = "none" if logits else "sigmoid"

        def head(features: int, outputs: int) -> Head:
            layers = nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, outputs)
            return Head(nn.Sequential(*layers), output=output)

        super().__init__(tasks, backbone, head, **common)
