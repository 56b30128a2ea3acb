"""YAML from other programs, parsed like PyYAML but with limits, and with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.settings import KeyPath, Nested, Setting, Settings, Value
from ckpttool.core.errors import ConfigError, ForeignConfigError, UnsafeError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
"""Maximum size in bytes. A real config has 30 kB. PyYAML needs about two seconds for a megabyte."""
MAX_DEPTH = 64
"""Maximum nesting depth. A real config has six levels; a trainer's own parser fails at a few dozen."""
MAX_NODES = 200_000
"""Maximum number of values after expanding aliases.

A real config has a few hundred values, but nine lines of aliases can produce a billion.
"""
MAX_NUMBER_CHARS = 100
"""Maximum number of digits, because Python refuses to print thousands of digits, and sizes are multiplied."""

_TAG = "tag:yaml.org,2002:"
_KNOWN_TAGS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp"))
_MERGE = _TAG + "merge"
_NUMBERS = frozenset({_TAG + "int", _TAG + "float"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML mapping, with the line of each key."""

    text: str
    """The complete file."""
    data: dict[str, object]
    """The result of `yaml.safe_load`."""
    lines: dict[KeyPath, int]
    """Line number of each key and list item, from 1, in the order of the file.

    Aliased parts have only the line of their definition.
    """
    spelt: dict[KeyPath, str]
    """Original text of values without quotes, because `010` is parsed as eight."""


def parse_document(content: bytes, *, where: str) -> Document:
    """Return the mapping in a YAML file that has exactly one.

    PyYAML silently uses the last of two equal keys, expands aliases into any number of values, and needs seconds for
    deep nesting. A config that would cause any of this is refused.

    Args:
        content: The complete content of the file.
        where: Name of the file for errors.

    Raises:
        ConfigError: The content is not YAML or UTF-8, is not a single mapping, or has a duplicate key or a custom tag.
        UnsafeError: The content is larger or deeper than a config can be, or has too many aliased values.
    """
    import yaml

    _refuse_long(content, where)
    try:
        text = content.decode("utf-8")
        loader = _loader_class()(text)
        try:
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise ForeignConfigError(f"{where!r} has no settings; expected YAML with keys at the top level")
            walk = _Walk(where)
            walk.visit(node, ())
            data = loader.construct_document(node)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where!r} is not UTF-8 (byte {error.start})") from error
    except yaml.YAMLError as error:
        why, line = " ".join(str(error).split()), None
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:  # PyYAML's message has four lines
            line = int(error.problem_mark.line) + 1
            why = f"line {line}: {', '.join(filter(None, (error.context, error.problem)))}"
        several = (
            isinstance(error, yaml.MarkedYAMLError) and error.context == "expected a single document in the stream"
        )
        kind = ForeignConfigError if several else ConfigError  # no program reads this as a single config
        raise kind(f"{where!r} is not valid YAML: {why}", line=line) from error
    except (ValueError, TypeError) as error:  # a date like 2024-13-45, or a list as a key
        raise ConfigError(f"{where!r} cannot be read: {error}".replace("\n", " ")) from error
    return Document(text=text, data=data, lines=walk.lines, spelt=walk.spelt)


def read_bytes(path: str) -> bytes:
    """Return the content of a config file.

    Raises:
        ConfigError: The file cannot be opened, or is not a regular file.
        UnsafeError: The file is larger than a config can be; only the bytes up to the limit were read.
    """
    content = read_head(path)
    _refuse_long(content, path)
    return content


def read_head(path: str) -> bytes:
    """Return the content of a file or, if it is too large for a config, slightly more bytes than the limit.

    Raises:
        ConfigError: The file cannot be opened, or is not a regular file.
    """
    try:
        with open(path, "rb", opener=_open_regular) as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # not a valid file name: it has a NUL or an unencodable character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"cannot read the config {path!r}: {reason}") from error


def _refuse_long(content: bytes, where: str) -> None:
    if len(content) > MAX_BYTES:
        raise UnsafeError(f"{where!r} has more than {MAX_BYTES} bytes, more than any config")


def _open_regular(path: str, flags: int) -> int:
    """Open a file without blocking, even if it is a FIFO."""
    import os
    import stat

    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "not a regular file")
    return fd


@cache
def _loader_class() -> type[yaml.SafeLoader]:
    """Return PyYAML's loader with a limit on nesting, so that its memory is bounded."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise UnsafeError(f"it is nested more than {MAX_DEPTH} levels deep, deeper than any real config")
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    return BoundedLoader


class _Walk:
    """A pass over all nodes that records lines and original texts, and checks keys, tags, and the number of values."""

    def __init__(self, where: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.spelt: dict[KeyPath, str] = {}
        self._what = where
        self._sizes: dict[int, int | None] = {}  # by node; None while its children are visited

    def visit(self, node: yaml.Node, path: KeyPath) -> int:
        """Return the number of values in the node, with aliases expanded."""
        if id(node) in self._sizes:
            size = self._sizes[id(node)]
            if size is None:
                raise self._error(node, "a value contains itself through an alias")
            return size
        self._sizes[id(node)] = None
        self._check_tag(node)
        size = 1 + self._children(node, path)
        if size > MAX_NODES:
            raise UnsafeError(f"{self._what!r} has more than {MAX_NODES} values after its aliases are expanded")
        self._sizes[id(node)] = size
        return size

    def _children(self, node: yaml.Node, path: KeyPath) -> int:
        import yaml

        if isinstance(node, yaml.MappingNode):
            return self._pairs(node, path)
        if isinstance(node, yaml.SequenceNode):
            total = 0
            for index, item in enumerate(node.value):
                place = (*path, index)
                self.lines[place] = _line(item)
                total += self.visit(item, place)
            return total
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if is_plain and (node.tag == _TAG + "str" or node.tag in _NUMBERS):
            self.spelt[path] = node.value
        return 0

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> int:
        import yaml

        lines_by_key: dict[tuple[str, str], int] = {}
        total = 0
        for key, value in node.value:
            line = _line(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a list or mapping cannot be a key")
            self._check_tag(key)
            if (key.tag, key.value) in lines_by_key:
                first = lines_by_key[key.tag, key.value]
                raise self._error(key, f"{key.value!r} was set before, on line {first}")
            lines_by_key[key.tag, key.value] = line
            place = (*path, key.value)
            self.lines[place] = line
            total += self.visit(value, place)
        return total

    def _check_tag(self, node: yaml.Node) -> None:
        if node.tag not in _KNOWN_TAGS and node.tag != _MERGE:
            raise self._error(node, f"the tag {node.tag!r} is not allowed in a config")
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARS:
            raise self._error(node, f"a number of {len(node.value)} characters is not allowed in a config")

    def _error(self, node: yaml.Node, problem: str) -> ConfigError:
        return ConfigError(f"{self._what!r}, line {_line(node)}: {problem}", line=_line(node))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def settings_of(document: Document, *, path: str) -> Settings:
    """Return every setting of a config, with aliases expanded.

    Args:
        document: The result of `parse_document`, which limits its depth and size.
        path: The path of the file, as the user typed it.
    """
    entries = tuple(
        Setting(key=key, value=value, line=document.lines.get(key), spelt=document.spelt.get(key))
        for key, value in _flat((), document.data)
    )
    return Settings(path=path, entries=entries)


def _flat(key: KeyPath, value: object) -> Iterator[tuple[KeyPath, Value]]:
    if key:
        yield key, _value(value)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat((*key, str(name)), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flat((*key, index), inner)


def _value(value: object) -> Value:
    if isinstance(value, dict):
        return Nested.MAPPING
    if isinstance(value, list):
        return Nested.LIST
    return value if isinstance(value, str | int | float | bool | None) else str(value)
