"""Dense prediction with the encoders and decoders of segmentation_models_pytorch."""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mtlkit.architectures.backbones import weights_error
from mtlkit.architectures.base import Architecture, MethodLike, Tasks
from mtlkit.architectures.features import Features
from mtlkit.architectures.heads import Head
from mtlkit.config import Count, register_architecture
from mtlkit.config.extras import import_extra
from mtlkit.config.spec import parse_call, refuse_arguments
from mtlkit.errors import SpecError, UsageError, unknown_name


@register_architecture("smp")
class Smp(Architecture):
    """A shared encoder with a decoder per task, or a shared decoder with a head per task.

    With ``split=encoder`` the maps of all scales are forked, and their gradients are merged jointly;
    with ``split=decoder`` the decoder's output is forked. ``rotograd`` rotates the channels of the
    coarsest map, or of the decoder's output.

    Args:
        encoder: an encoder of SMP, such as ``resnet18``, or ``timm.<model>`` for any model of timm.
        decoder: ``unet``, ``unetplusplus``, ``manet``, ``linknet``, ``fpn``, ``pspnet``, ``pan``,
            ``deeplabv3``, ``deeplabv3plus``, ``upernet`` or ``segformer``, with the options of
            the SMP model: ``unet(decoder_channels=[64, 32, 16, 8, 4])``.
        split: after the ``encoder`` or after the ``decoder``.
        vectors: tasks that predict one vector per image, by a linear layer on the pooled map.
        in_channels: channels of the images.
        pretrained: True loads SMP's default weights of the encoder, a string names others.
        checkpoint_path: file with weights of the encoder.
    """

    paper = "Iakubovskii, Segmentation Models Pytorch, 2019"
    year = 2019

    def __init__(
        self,
        tasks: Tasks,
        *,
        encoder: str = "resnet18",
        decoder: str | Mapping[str, Any] = "unet",
        split: Literal["encoder", "decoder"] = "encoder",
        vectors: Sequence[str] = (),
        in_channels: Count = 3,
        pretrained: bool | str = False,
        checkpoint_path: str | None = None,
        method: MethodLike = "sum",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        smp = import_extra("segmentation_models_pytorch", "the architecture smp")
        part = parse_call(decoder)
        name = part.name.lower()
        decoders = smp.MODEL_ARCHITECTURES_MAPPING.keys() - {"dpt"}  # DPT reads no maps
        if name not in decoders:
            raise unknown_name("decoder of smp", part.name, sorted(decoders))
        refuse_arguments(part, of=f"decoder {name}")
        encoder_name = f"tu-{encoder[5:]}" if encoder.startswith("timm.") else encoder
        from_timm = encoder_name.startswith("tu-")
        known = smp.encoders.get_encoder_names()
        if not from_timm and encoder not in known:
            raise unknown_name("encoder of smp", encoder, [*known, "timm.<model>"])
        weights: str | bool | None = None
        if pretrained and not checkpoint_path:
            weights = "imagenet" if pretrained is True else pretrained
            weights = True if from_timm else weights

        def build(weights: str | bool | None, classes: int) -> Any:
            try:
                return smp.create_model(
                    name,
                    encoder_name=encoder_name,
                    encoder_weights=weights,
                    in_channels=in_channels,
                    classes=classes,
                    **part.options,
                )
            except Exception as error:  # downloads raise many kinds of errors
                if weights is None or isinstance(error, TypeError):
                    raise SpecError(f"smp cannot build {name} on {encoder}: {error}") from error
                raise weights_error(f"encoder {encoder}", None, error) from error

        for task in vectors:
            self.check_task(task)
        maps = [task for task in self.tasks if task not in vectors]
        if not maps:
            raise SpecError("smp predicts maps, but all tasks are in vectors; use hard_sharing")
        models = {task: build(weights if task == maps[0] else None, self.outputs[task]) for task in maps}
        first = models[maps[0]]
        self.split = split
        self.encoder = first.encoder
        if checkpoint_path:
            _load(self.encoder, checkpoint_path, encoder)
        self._stride = self.encoder.output_stride if first.requires_divisible_input_shape else 1
        if split == "encoder":
            channels = tuple(self.encoder.out_channels[1:])
            self.features = Features("map", channels[-1], channels)
            heads: dict[str, nn.Module] = {
                task: nn.Sequential(OrderedDict(decoder=model.decoder, head=model.segmentation_head))
                for task, model in models.items()
            }
        else:
            self.decoder = first.decoder
            heads = {task: model.segmentation_head for task, model in models.items()}
            layers = first.segmentation_head.modules()
            convolution = next(layer for layer in layers if isinstance(layer, nn.Conv2d))
            self.features = Features("map", convolution.in_channels)
        for task in vectors:
            linear = nn.Linear(self.features.dim, self.outputs[task])
            heads[task] = Head(nn.Sequential(linear), pool="avg")
        self.heads = self.by_task({task: heads[task] for task in self.tasks})
        self._vectors = frozenset(vectors)
        self.set_method(method)

    def encode(self, inputs: Tensor) -> Any:
        """Return the maps of all scales without the image, finest first; or the decoder's output."""
        height, width = inputs.shape[-2:]
        if height % self._stride or width % self._stride:
            raise UsageError(
                f"images of {height} x {width} do not fit: height and width must be multiples of "
                f"{self._stride} for this encoder and decoder; pad or resize them"
            )
        maps = list(self.encoder(inputs))
        return maps[1:] if self.split == "encoder" else self.decoder(maps)

    def predict(self, task: str, shared: Any, inputs: Tensor) -> Any:
        """Return (B, outputs, H, W), or (B, outputs)."""
        if task in self._vectors:
            return self.head(task)(shared)
        # SMP counts the image as the finest map
        features = [inputs, *shared] if self.split == "encoder" else shared
        return self.head(task)(features)


def _load(encoder: nn.Module, path: str, name: str) -> None:
    if not os.path.isfile(path):
        raise SpecError(f"checkpoint_path of encoder {name}: there is no file {str(path)!r}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        # SMP's encoders drop the classifier of a checkpoint themselves
        encoder.load_state_dict(state)
    except Exception as error:
        raise weights_error(f"encoder {name}", path, error) from error
