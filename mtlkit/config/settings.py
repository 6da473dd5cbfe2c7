"""Settings that are described once: a field says type, range, default, meaning and how it is shown.

Checks, command-line options (:mod:`mtlkit.cli.options`), the docs' tables and the JSON schema for
editors all read the fields of a :class:`Settings`.
"""

import types
import typing
from collections.abc import Iterator, Mapping
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
    """How a setting is shown, and who may set it.

    Attributes:
        panel: heading that it stands under, in ``--help`` and in the docs.
        per_method: whether one method of a comparison may have a value of its own.
        flags: names on the command line; empty for the key with dashes.
        missing: what to say where a setting without a default is absent.
        cli: type on the command line, where that is simpler than the field's.
    """

    panel: str = "Options"
    per_method: bool = False
    flags: tuple[str, ...] = ()
    missing: str = ""
    cli: type | None = None

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add nothing of this to the JSON schema."""


@dataclass(frozen=True)
class TypeLabel:
    """What a type accepts, in words, where its name is not clear enough."""

    words: str


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
    """Declare a field of a :class:`Settings`; the default ``...`` is for one that must be given.

    Args:
        default: the value where none is given.
        description: what it means, in Markdown, as a sentence.
        ge: the least value that is accepted; ``gt``, ``le`` and ``lt`` are the other bounds.
        **shown: attributes of :class:`Display`.
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
"""A config string, or the mapping or list that means the same; kept as the string."""

Names = Annotated[
    list[str],
    BeforeValidator(_split_names),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    TypeLabel("a list of names"),
]
"""Names as a list, or separated by commas."""


class _Untitled(GenerateJsonSchema):
    """A schema without titles, which would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Settings(BaseModel):
    """Settings by name. A subclass declares each with :func:`setting`."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """Names that other libraries have for a setting; an error for one of them names the setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def make(cls, settings: Mapping[str, Any], source: str = "the settings") -> Self:
        """Check settings by name, type and range.

        Args:
            settings: values by key, as a YAML file or the command line gives them.
            source: where they are from, for error messages.

        Raises:
            ConfigError: for an unknown key, with the nearest one, or a value that does not fit.
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
        """Refuse a key that is not a setting."""
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
            return raised  # a complete sentence already
        if not first["loc"]:
            return ConfigError(f"{source}: {raised or first['msg']}")
        key = str(first["loc"][0])
        field = cls.model_fields[key]
        if first["type"] == "missing":
            flag = source in ("compare", "tune", "train")  # settings of the command line
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
    """Return what a field accepts, in words, without its range."""
    labels = [entry.words for entry in _metadata(field) if isinstance(entry, TypeLabel)]
    # YAML has no word for a bool but these
    kinds = ["true or false" if kind is bool else describe(kind) for kind in choices(field.annotation)]
    return labels[0] if labels else " or ".join(dict.fromkeys(kinds))


def bounds(field: FieldInfo) -> str:
    """Return the range of a field in words; empty where it has none."""
    return describe_range(_metadata(field))


def _metadata(field: FieldInfo) -> Iterator[Any]:
    """What is annotated to a field, or to one of the types that it allows."""
    yield from field.metadata
    for choice in typing.get_args(field.annotation):
        if typing.get_origin(choice) is Annotated:
            for entry in choice.__metadata__:
                yield from entry.metadata if isinstance(entry, FieldInfo) else [entry]
