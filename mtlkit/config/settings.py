"""Settings that are declared once: type, range, default, description and display of each field.

Checks, command-line options (:mod:`mtlkit.cli.options`), tables in the docs and the JSON schema for
editors are all derived from the fields of a :class:`Settings`.
"""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from mtlkit.config.annotations import describe, describe_range, read_number
from mtlkit.config.spec import format_spec, parse_spec
from mtlkit.errors import ConfigError, shorten, unknown_key


@dataclass(frozen=True)
class Display:
    """Display of a setting, and who may set it.

    Attributes:
        panel: heading in ``--help`` and in the docs.
        per_method: whether each method of a comparison may have its own value.
        flags: names on the command line; by default, the key with dashes.
        missing: hint for the error if a required setting is missing.
        cli: type on the command line, if it is simpler than the field's.
    """

    panel: str = "Options"
    per_method: bool = False
    flags: tuple[str, ...] = ()
    missing: str = ""
    cli: type | None = None

    def __call__(self, schema: dict[str, Any]) -> None:
        """Leave the JSON schema unchanged; pydantic calls this."""


@dataclass(frozen=True)
class TypeLabel:
    """A description of what a type accepts, if its name is not clear enough."""

    text: str


def setting(
    default: Any,
    description: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    **shown: Any,
) -> Any:
    """Declare a field of a :class:`Settings`; the default ``...`` makes it required.

    The description is a sentence in Markdown, ``shown`` are attributes of :class:`Display`.
    """
    display = Display(**shown)
    return Field(default, description=description, json_schema_extra=display, ge=ge, gt=gt, le=le, lt=lt)


def display(field: FieldInfo) -> Display:
    """Return how a field is shown."""
    shown = field.json_schema_extra
    return shown if isinstance(shown, Display) else Display()


def _read_spec(value: Any) -> str:
    return format_spec(parse_spec(value))


def _split_names(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    pieces = [piece.split(",") if isinstance(piece, str) else [piece] for piece in value]
    return [name.strip() if isinstance(name, str) else name for names in pieces for name in names]


Spec = Annotated[
    str,
    BeforeValidator(_read_spec),
    WithJsonSchema({"type": ["string", "object", "array"]}),
    TypeLabel("a config string"),
]
"""A config string, or an equivalent mapping or list; stored as the string."""

Names = Annotated[
    list[str],
    BeforeValidator(_split_names),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    TypeLabel("a list of names"),
]
"""A list of names, or names separated by commas."""


class _Untitled(GenerateJsonSchema):
    """Omits titles, which would only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Settings(BaseModel):
    """Settings by name. A subclass declares each with :func:`setting`."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """Names of a setting in other libraries; the error for such a name suggests the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def make(cls, settings: Mapping[str, Any], source: str = "the settings") -> Self:
        """Check settings by name, type and range.

        Args:
            settings: values by key, as a YAML file or the command line gives them.
            source: their origin, for error messages.

        Raises:
            ConfigError: for an unknown key, with the nearest one, or an invalid value.
        """
        cls.check_keys(settings, source)
        fields = cls.model_fields
        given = {k: v for k, v in settings.items() if v is not None or not fields[k].is_required()}
        try:
            return cls.model_validate(given, context={"source": source, "settings": dict(settings)})
        except ValidationError as error:
            raise cls._explain(error, source) from None

    @classmethod
    def check_keys(cls, settings: Mapping[str, Any], source: str) -> None:
        """Raise a ConfigError for a key that is not a setting."""
        for key in settings:
            if isinstance(key, str) and key in cls.model_fields:
                continue
            meant = cls.synonyms.get(str(key))
            if meant in cls.model_fields:
                raise ConfigError(f"{source}: unknown key {key!r}; did you mean {meant!r}?")
            raise unknown_key(source, key, cls.model_fields)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of these settings, for editors."""
        return cls.model_json_schema(schema_generator=_Untitled)

    @field_validator("*", mode="before")
    @classmethod
    def _read_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = set(choices(cls.model_fields[str(info.field_name)].annotation))
        if isinstance(value, str) and kinds & {int, float} and str not in kinds:
            value = read_number(value)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{shorten(value)} is too large")
        return value

    @classmethod
    def _explain(cls, error: ValidationError, source: str) -> ConfigError:
        """Return the first error as a sentence: source, key, what was given and what is accepted."""
        first = error.errors()[0]
        raised = first.get("ctx", {}).get("error")
        if isinstance(raised, ConfigError):
            return raised  # already a complete sentence
        if not first["loc"]:
            return ConfigError(f"{source}: {raised or first['msg']}")
        key = str(first["loc"][0])
        field = cls.model_fields[key]
        if first["type"] == "missing":
            flag = source in ("compare", "tune", "train", "diagnose")  # settings of the command line
            named = f"--{key.replace('_', '-')}" if flag else f"the key {key!r}"
            hint = f"; {display(field).missing}" if display(field).missing else ""
            return ConfigError(f"{source}: {named} is missing{hint}")
        if raised is not None:
            return ConfigError(f"{source}, {key!r}: {raised}")
        wanted = accepted(field)
        if first["type"] == "finite_number":
            wanted = "finite"
        elif first["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
            wanted = bounds(field)
        return ConfigError(f"{source}: {key!r} must be {wanted}, not {shorten(first['input'])}")


def choices(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows: those of a union one by one, without None."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(annotation):
            yield from choices(choice)
    elif origin is Annotated:
        yield from choices(typing.get_args(annotation)[0])
    elif annotation is not type(None):
        yield annotation


def accepted(field: FieldInfo) -> str:
    """Describe the types that a field accepts, without its range."""
    labels = [entry.text for entry in _metadata(field) if isinstance(entry, TypeLabel)]
    # as YAML writes a bool
    kinds = ["true or false" if kind is bool else describe(kind) for kind in choices(field.annotation)]
    return labels[0] if labels else " or ".join(dict.fromkeys(kinds))


def bounds(field: FieldInfo) -> str:
    """Describe the range of a field; empty if it has none."""
    return describe_range(_metadata(field))


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any], keys: Iterable[str]) -> str:
    """List the settings that differ, among these keys; empty if none does.

    >>> describe_changes({"lr": 0.1, "epochs": 3}, {"lr": 0.2, "epochs": 3}, ["epochs", "lr"])
    'lr was 0.1, now 0.2'
    """
    pairs = {key: (before.get(key), now.get(key)) for key in keys}
    changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    return "; ".join(f"{k} was {shorten(old)}, now {shorten(new)}" for k, (old, new) in changed.items())


def _metadata(field: FieldInfo) -> Iterator[Any]:
    """Yield the metadata of a field and of the types that it allows."""
    yield from field.metadata
    for choice in typing.get_args(field.annotation):
        if typing.get_origin(choice) is Annotated:
            for entry in choice.__metadata__:
                yield from entry.metadata if isinstance(entry, FieldInfo) else [entry]
