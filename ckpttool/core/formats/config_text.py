"""Configs of other programs in YAML, JSON or TOML, parsed to the same type of document with line numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module

from ckpttool.core.domain.settings import KeyPath
from ckpttool.core.errors import ConfigError, UnsafeError
from ckpttool.core.formats.safe_yaml import MAX_BYTES, MAX_DEPTH, Document, parse_document
from ckpttool.core.formats.strict_json import ParseError, parse_object

TOML = ".toml"
_READER = "tomllib" if sys.version_info >= (3, 11) else "tomli"

_BARE = r"[A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_BARE})\s*\]\]?\s*(?:#.*)?")
_PAIR = re.compile(rf"\s*({_BARE})\s*=")


class ConfigFile:
    """A config that is parsed once, on first use, and shared by several readers."""

    def __init__(self, content: bytes, *, path: str) -> None:
        """Store the complete content of the file, and its path as the user typed it."""
        self.content = content
        self.path = path

    @cached_property
    def yaml(self) -> Document:
        """The document parsed as YAML.

        Raises:
            ConfigError: As for `parse_document`.
            UnsafeError: As for `parse_document`.
        """
        return parse_document(self.content, where=self.path)

    @cached_property
    def document(self) -> Document:
        """The document, parsed as TOML if it has that suffix, as JSON if it is valid JSON, and otherwise as YAML.

        A YAML parser accepts most JSON, but reads `1e-8` as text.

        Raises:
            ConfigError: The text is in none of these formats.
            UnsafeError: The text is larger or deeper than a config can be.
        """
        if self.path.endswith(TOML):
            return _toml(self.content, self.path)
        if self.content.lstrip()[:1] != b"{" or len(self.content) > MAX_BYTES:
            return self.yaml
        try:
            data = parse_object(self.content, where=self.path)
        except ParseError:
            return self.yaml
        lines = _json_lines(self.content, self.path)
        return Document(text=self.content.decode("utf-8"), data=dict(data), lines=lines, spelt={})


def _json_lines(content: bytes, path: str) -> dict[KeyPath, int]:
    """Return the lines of the keys; empty if YAML cannot parse the JSON, because YAML rejects tabs between values."""
    try:
        return parse_document(content.replace(b"\t", b" "), where=path).lines
    except (ConfigError, UnsafeError):
        return {}


def _toml(content: bytes, path: str) -> Document:
    if len(content) > MAX_BYTES:
        raise UnsafeError(f"{path!r} has more than {MAX_BYTES} bytes, more than any config")
    try:
        text = content.decode("utf-8")
        data: dict[str, object] = import_module(_READER).loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path!r} cannot be read: {error}".replace("\n", " ")) from error
    _assert_shallow(data, path, MAX_DEPTH)
    return Document(text=text, data=data, lines=dict(_toml_lines(text)), spelt={})


def _assert_shallow(value: object, path: str, levels: int) -> None:
    if not levels:
        raise UnsafeError(f"{path!r} is nested more than {MAX_DEPTH} levels deep, deeper than any real config")
    if isinstance(value, Mapping):
        value = [*value.values()]
    for item in value if isinstance(value, list) else ():
        _assert_shallow(item, path, levels - 1)


def _toml_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield the lines of tables and keys without quotes; quoted keys and inner tables are left out."""
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.fullmatch(line):
            table = _keys(match[1])
            yield table, number
        elif match := _PAIR.match(line):
            yield (*table, *_keys(match[1])), number


def _keys(dotted: str) -> KeyPath:
    return tuple(part.strip() for part in dotted.split("."))
