"""YAML files of settings with plain values only."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mtlkit.config.files import write_text
from mtlkit.config.logs import plain_values
from mtlkit.errors import ConfigError

_MOST_BYTES = 1_000_000


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a mapping from a YAML file: plain values only, without tags, aliases and repeated keys.

    Raises:
        ConfigError: for a missing file or any other content.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError(f"{path} has {size} bytes; a configuration has at most {_MOST_BYTES}")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from None
    return parse_yaml(text, str(path))


def write_yaml(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a YAML file atomically."""
    write_text(path, yaml.safe_dump(plain_values(content), sort_keys=False, allow_unicode=True))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Return the mapping that a YAML text holds."""
    try:
        content = yaml.load(text, Loader=_PlainLoader)
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source} is not a plain YAML file: {reason[:300]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{source} must be a mapping of keys to values, not a {type(content).__name__}"
        )
    return content


class _PlainLoader(yaml.SafeLoader):
    """Loads safe YAML without repeated keys, and without aliases, which could fill all memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"the alias '*{event.anchor}' is not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in getattr(node, "value", ()) if isinstance(key, yaml.ScalarNode)]
        key, times = Counter(keys).most_common(1)[0] if keys else ("", 0)
        if times > 1:
            raise yaml.MarkedYAMLError(
                problem=f"the key {key!r} is given twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)
