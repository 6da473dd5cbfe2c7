"""Backbones by name: any model of timm, multi-layer perceptrons, and the paper's nets.

``timm.resnet18(pretrained=True, in_chans=1)`` is ``timm.create_model("resnet18", ...)`` without its
classifier; options are timm's own. ``features_only=True`` gives the list of maps of all stages,
``global_pool=""`` the last map or the tokens, and the default the pooled vector. Maps are channels
first for every model.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from torch import Tensor, nn

from mtlkit.architectures.features import Features, declared_features, last_leaf, measure_features
from mtlkit.architectures.heads import Norm, layer_sizes, make_mlp, pooled
from mtlkit.config import Count, Ge, Lt
from mtlkit.config.extras import import_extra
from mtlkit.config.registry import check_names, check_options, option_names
from mtlkit.config.spec import Part, parse_call, refuse_arguments
from mtlkit.errors import MtlkitError, SpecError, UnknownNameError, unknown_name

T = TypeVar("T", bound=Callable[..., nn.Module])

_BACKBONES: dict[str, Callable[..., nn.Module]] = {}


def register_backbone(name: str) -> Callable[[T], T]:
    """Register a factory as ``backbone=name(...)``; its keyword-only arguments are the options.

    The module declares its number of features in an attribute ``num_features``, and has
    ``feature_kind = "map"`` if it returns maps.
    """

    def decorate(factory: T) -> T:
        _BACKBONES[name] = factory
        return factory

    return decorate


def build_backbone(
    backbone: Any,
    *,
    features: int | None = None,
    input_size: int | Sequence[int] | None = None,
    **forced: Any,
) -> tuple[nn.Module, Features | None]:
    """Build a backbone from its spec, or use a module; also return the kind and size of its features.

    Args:
        backbone: for example ``"timm.resnet18(in_chans=1)"``, or a module.
        features: number of features, if the backbone does not declare it.
        input_size: shape of one sample, to find the features by one forward pass.
        forced: options of timm that the architecture needs, such as ``features_only``.
    """
    if isinstance(backbone, nn.Module):
        module: nn.Module = backbone
    elif isinstance(backbone, str | Mapping | Part):
        part = parse_call(backbone)
        if part.name == "timm" or part.name.startswith("timm."):
            return _build_timm(part, forced)
        module = _build_own(part, input_size)
    else:
        raise SpecError(
            f"cannot make a backbone from {type(backbone).__name__}; give a module, or a spec such as "
            "'timm.resnet18' or 'mlp(64, inputs=10)'"
        )
    if features is not None:
        return module, Features(getattr(module, "feature_kind", "vector"), features)
    if input_size is not None:
        return module, measure_features(module, input_size)
    return module, declared_features(module)


def _build_own(part: Part, input_size: Any) -> nn.Module:
    factory = _BACKBONES.get(part.name)
    if factory is None:
        raise unknown_name("backbone", part.name, [*_BACKBONES, "timm.<model>"])
    check_names(factory, part.options, of=f"backbone {part.name}")
    check_options(factory, part.options, of=f"backbone {part.name}")
    options = dict(part.options)
    if "input_size" in option_names(factory) and input_size is not None:
        options.setdefault("input_size", input_size)
    try:
        return factory(*part.arguments, **options)
    except TypeError as error:
        raise SpecError(f"backbone {part} cannot be built: {error}") from None


@register_backbone("mlp")
def _mlp(
    *hidden_sizes: int,
    hidden: int | Sequence[int] = (),
    inputs: Count | None = None,
    input_size: Count | Sequence[Count] | None = None,
    norm: Norm = "none",
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
    activate_last: bool = True,
) -> nn.Module:
    sizes = layer_sizes(hidden_sizes, hidden)
    if inputs is None and input_size is not None:
        inputs = input_size if isinstance(input_size, int) else input_size[0]
    if inputs is None or not sizes:
        raise SpecError("backbone mlp needs the sizes of its input and layers: mlp(64, 32, inputs=10)")
    return make_mlp([inputs, *sizes], norm=norm, dropout=dropout, last=activate_last)


class ChannelsFirst(nn.Module):
    """A timm model that returns (B, H, W, d), with its output permuted to (B, d, H, W)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        """Return the model's features with channels first."""
        output = self.model(x)
        if isinstance(output, list | tuple):
            return [level.permute(0, 3, 1, 2) for level in output]
        return output.permute(0, 3, 1, 2)


def _build_timm(part: Part, forced: Mapping[str, Any]) -> tuple[nn.Module, Features]:
    timm = import_extra("timm", "a timm backbone")
    options = dict(part.options)
    name = part.name.partition(".")[2] or options.pop("name", "")
    refuse_arguments(part, of=f"timm.{name}")
    if not name:
        raise SpecError("name the timm model: 'timm.resnet18', or timm(name='hf-hub:...')")
    if ":" not in name and not timm.is_model(name):
        error = unknown_name("timm model", name, timm.list_models())
        near = str(error).partition(" known: ")[0]  # there are more than a thousand names
        raise UnknownNameError(f"{near} timm.list_models() lists all models")
    options |= forced
    if not options.get("features_only"):
        options.setdefault("num_classes", 0)
    model = _create_timm(timm, name, options)
    found = measure_timm(model, options)
    expected = _expected_channels(model)
    if found.kind == "map" and found.shape is not None and found.dim != expected == found.shape[-1]:
        model = ChannelsFirst(model)
        found = measure_timm(model, options)
    # the other axes of a map depend on the size of the image
    return model, found if found.kind == "vector" else replace(found, shape=None)


def _expected_channels(model: nn.Module) -> int | None:
    info: Any = getattr(model, "feature_info", None)
    if hasattr(info, "channels"):
        return int(info.channels()[-1])
    return getattr(model, "num_features", None)


def _create_timm(timm: Any, name: str, options: dict[str, Any]) -> nn.Module:
    path = options.pop("checkpoint_path", None)
    if path:
        options["pretrained"] = True
        # timm's reader of pretrained weights drops the classifier and adapts the first convolution
        overlay = {**(options.get("pretrained_cfg_overlay") or {}), "file": os.fspath(path)}
        options["pretrained_cfg_overlay"] = overlay
        if not os.path.isfile(path):
            raise SpecError(f"checkpoint_path of timm.{name}: there is no file {str(path)!r}")
    pretrained = bool(options.get("pretrained"))
    try:
        model: nn.Module = timm.create_model(name, **options)
    except TypeError as error:
        raise SpecError(f"timm.{name} does not take these options: {error}") from None
    except Exception as error:  # downloads raise many kinds of errors
        if not pretrained:
            raise SpecError(f"timm.{name} cannot be built with these options: {error}") from error
        raise weights_error(f"timm.{name}", path, error) from error
    if path:
        held = timm.models.load_state_dict(os.fspath(path))
        own = model.state_dict()
        if not any(key in own for key in held):
            raise SpecError(
                f"the checkpoint {str(path)!r} has no weights of timm.{name}; its first keys are "
                f"{list(held)[:3]}, the model's {list(own)[:3]}"
            )
    return model


def weights_error(model: str, path: Any, error: Exception) -> MtlkitError:
    """Make the error for weights that could not be loaded, from a file or the network."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if path:
        return SpecError(f"the weights of {model} could not be read from {str(path)!r} ({reason})")
    return MtlkitError(
        f"the pretrained weights of {model} could not be downloaded ({reason}); check the network "
        "connection, pass a file as checkpoint_path=..., or pretrained=False for random weights"
    )


def measure_timm(model: nn.Module, options: Mapping[str, Any]) -> Features:
    """Find the features of a timm model, or of one that was cut into stages."""
    channels = int(options.get("in_chans", 3))
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    default = tuple(config.get("input_size", (3, 224, 224)))[1:]
    given = options.get("img_size")
    if given is not None:
        default = (given, given) if isinstance(given, int) else tuple(given)
    # a small image is faster, for models that accept any size
    if given is None and not config.get("fixed_input_size"):
        with contextlib.suppress(SpecError, ValueError):
            return measure_features(model, (channels, 64, 64))
    return measure_features(model, (channels, *default))


def vector_size(found: Features | None, of: str) -> int:
    """Return the number of features, or raise an error if it is unknown."""
    if found is None:
        raise SpecError(
            f"{of} needs the number of features, which the backbone does not declare; give the option "
            "features=d or input_size=(C, H, W), or give the backbone an attribute num_features"
        )
    return found.dim


def as_vector(features: Any) -> Tensor:
    """Return (B, d): the mean of tokens or maps; of a pyramid, the last level."""
    return pooled(last_leaf(features), "avg")
