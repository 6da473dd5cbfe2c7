"""Save an architecture as plain values or in a folder, and restore it.

The folder is that of huggingface_hub's mixin: ``config.json`` describes the network,
``model.safetensors`` holds its weights, ``README.md`` is a model card.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mtlkit._version import __version__
from mtlkit.architectures.capacity import add_capacity
from mtlkit.architectures.preference import WithPreference, add_preference
from mtlkit.config.files import replacing, write_text
from mtlkit.config.registry import architectures, option_defaults
from mtlkit.config.spec import Part, format_spec, parse_call, parse_spec
from mtlkit.errors import MissingExtraError, MtlkitError, SpecError

try:
    from huggingface_hub import ModelHubMixin
except ImportError:  # networks can be made and trained without it

    class ModelHubMixin:  # type: ignore[no-redef]
        """Names the missing package where a network is saved or loaded."""

        def __init_subclass__(cls, **_: Any) -> None:
            super().__init_subclass__()

        def __new__(cls, *_: Any, **__: Any) -> Any:
            """Take the arguments of ``__init__``, as the mixin does."""
            return super().__new__(cls)

        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Any:
            """Raise the error that names the extra."""
            raise MissingExtraError("huggingface_hub", "train", "saving and loading networks")

        save_pretrained = push_to_hub = from_pretrained


FORMAT = 1
"""Format of the descriptions that are written; a higher number is refused."""
CONFIG = "config.json"
WEIGHTS = "model.safetensors"

_DOWNLOAD = ("revision", "cache_dir", "force_download", "local_files_only", "token")
_NEEDED = ("method", "shared_parameters", "task_parameters")
_INITIAL_WEIGHTS = ("pretrained", "checkpoint_path")


def build(part: Part, tasks: Any, method: Any, preference: str | None = None, **overrides: Any) -> Any:
    """Make a network from its parsed config string; see :func:`~mtlkit.create_architecture`."""
    options = dict(part.options)
    stated = options.pop("preference", None)
    given = [Part(part.name, options, part.arguments)]
    (part,) = architectures.override(given, overrides, of=part.name)
    built = architectures.check(part)(tasks, method=method, **part.options)
    if not isinstance(built, nn.Module) or not all(hasattr(built, name) for name in _NEEDED):
        raise SpecError(
            f"architecture {part.name!r} is {type(built).__name__}; it must be an Architecture, or an "
            f"nn.Module with {', '.join(_NEEDED)}"
        )
    options = dict(part.options)
    wanted = stated if preference is None else preference
    if wanted is not None:
        if not isinstance(built, WithPreference):
            raise SpecError(f"preference needs an Architecture; {part.name!r} is {type(built).__name__}")
        add_preference(built, wanted)
        options["preference"] = wanted
    built.spec = str(Part(part.name, options))
    return built


def resolve(spec: str) -> str:
    """Return the config string of an architecture with all options, defaults included."""
    filled = []
    for part in architectures.expand(spec):
        defaults = option_defaults(architectures.get(part.name))
        plain = {k: v for k, v in defaults.items() if isinstance(v, bool | int | float | str)}
        filled.append(Part(part.name, {**plain, **part.options}))
    return format_spec(filled)


def describe(network: Any) -> dict[str, Any]:
    """Return what :func:`rebuild` needs to make the architecture ``network`` again, as plain values.

    Raises:
        SpecError: for a network that no config string describes.
    """
    try:
        spec = resolve(network.spec)
    except SpecError:
        given = f"the string {network.spec!r}" if network.spec else "no string"
        raise SpecError(
            f"{type(network).__name__} was made from {given}, which does not describe it; to save a "
            "network, make it by create_architecture with options that are plain values"
        ) from None
    described = {"architecture": spec, "tasks": dict(network.outputs), "method": str(network.method)}
    if network.extra_capacity is not None:
        described["extra_capacity"] = dict(network.extra_capacity)
    return described


def rebuild(description: Mapping[str, Any]) -> Any:
    """Make the network that :func:`describe` described, with new random weights."""
    # initial weights are not loaded: all weights are replaced, and their files may be gone
    given = parse_spec(description["architecture"])
    spec = format_spec([Part(part.name, _kept(part.options), part.arguments) for part in given])
    try:
        (part,) = architectures.expand(spec)
        network = build(part, description["tasks"], description["method"])
    except (TypeError, ValueError) as error:
        if isinstance(error, MtlkitError):
            raise
        raise SpecError(f"{spec!r} does not describe an architecture: {error}") from None
    network.spec = description["architecture"]
    if description.get("extra_capacity") is not None:
        add_capacity(network, description["extra_capacity"])
    return network


def check_format(description: Mapping[str, Any], source: str) -> None:
    """Raise an error that names both versions if a later version wrote the description."""
    if int(description["format"]) > FORMAT:
        raise MtlkitError(
            f"{source} was written by mtlkit {description.get('version')}, and this is {__version__}, "
            "which cannot read that format; upgrade with: pip install -U mtlkit"
        )


class Pretrained(ModelHubMixin, library_name="mtlkit", tags=["multi-task-learning"]):
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` of huggingface_hub."""

    def _save_pretrained(self, save_directory: Path) -> None:
        from safetensors.torch import save_model

        network: Any = self
        config = {"format": FORMAT, "version": __version__, **describe(network)}
        with replacing(save_directory / WEIGHTS) as temporary:
            save_model(network, str(temporary))
        write_text(save_directory / CONFIG, json.dumps(config, indent=2) + "\n")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        config: dict[str, Any] | None = None,
        map_location: str = "cpu",
        **options: Any,
    ) -> Any:
        from huggingface_hub import hf_hub_download
        from safetensors.torch import load_model

        if config is None or "architecture" not in config:
            raise MtlkitError(
                f"{model_id} holds no network of mtlkit: its {CONFIG} is missing or from another "
                "library; save_pretrained writes such a folder"
            )
        check_format(config, model_id)
        network = rebuild(config)
        if not issubclass(type(network), cls):  # not isinstance, which would narrow its type
            raise SpecError(
                f"{model_id} holds {type(network).__name__}, not {cls.__name__}; "
                "mtlkit.Architecture.from_pretrained takes any"
            )
        if os.path.isdir(model_id):
            path = os.path.join(model_id, WEIGHTS)
            if not os.path.isfile(path):
                raise MtlkitError(f"{model_id} holds no weights: there is no {WEIGHTS}")
        else:
            path = hf_hub_download(model_id, WEIGHTS, **{name: options[name] for name in _DOWNLOAD})
        load_model(network, path)
        return network.to(map_location).eval()


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _stripped(value) for key, value in options.items() if key not in _INITIAL_WEIGHTS}


def _stripped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _stripped(item) for key, item in value.items()}
    if not (isinstance(value, str) and "(" in value):
        return value
    part = parse_call(value)
    return str(Part(part.name, _kept(part.options), part.arguments))
