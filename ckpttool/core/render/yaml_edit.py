"""Edits of a YAML text that leave all other bytes unchanged.

PyYAML's event stream gives the exact position of each key and value. A value is replaced in place and a key is added on
a separate line (in `{…}`: before the brace). Comments, order, quotes, anchors, line ends, a byte order mark and a
missing last line end remain unchanged. No YAML writer is involved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from ckpttool.core.domain.settings import KeyPath
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    import yaml

Scalar: TypeAlias = "str | int | bool | None"

_BREAKS = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""PyYAML's line breaks."""
_ANCHOR = re.compile(r"&[^\s,\[\]{}]+[ \t]*")
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Value:
    """The place and kind of a value after a key."""

    kind: str
    """`scalar`, `alias`, `mapping` or `list`."""
    start: int
    end: int
    """Positions of characters in the text, end exclusive.

    The end of a list or mapping in block style is not reliable.
    """
    anchor: str | None
    mapping: Mapping | None = None


@dataclass(slots=True)
class Mapping:
    """A mapping in the text, in block style or in braces."""

    flow: bool
    start: int
    end: int = -1
    """The position after the closing brace, in flow style."""
    entries: dict[str, tuple[int, Value]] = field(default_factory=dict)
    """Key -> the start of the key, and its value."""


class Editor:
    """Edits of one text, which are collected and then applied together."""

    def __init__(self, text: str) -> None:
        """Find the keys of a text that `yaml.safe_load` reads as a mapping."""
        import yaml

        self._text = text
        self._edits: list[tuple[int, int, bool, str]] = []  # start, end, whether it is an addition, new text
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        self._aliases = {str(event.anchor) for event in events if isinstance(event, yaml.AliasEvent)}
        self.top = _Reader(events).document()

    def line(self, position: int) -> int:
        """Return the line, from 1, of a position in the text."""
        return len(_BREAKS.findall(self._text, 0, position)) + 1

    def shared(self, value: Value) -> bool:
        """Return whether an alias elsewhere in the document refers to this value, or the value is itself an alias."""
        return value.kind == "alias" or value.anchor in self._aliases

    def set(self, mapping: Mapping, key: str, value: Scalar, *, after: tuple[str, ...] = ()) -> None:
        """Set `key` to this value: in place if the mapping has the key, or after the first existing key of `after`.

        Raises:
            UsageError: The existing value is a mapping or a list, or other keys refer to this value by an alias.
        """
        if key in mapping.entries:
            self._replace(key, mapping.entries[key][1], value)
        elif mapping.flow:
            self._add_in_braces(mapping, f"{key}: {spell(value)}")
        else:
            self._add_line(mapping, f"{key}: {spell(value)}", after)

    def apply(self) -> str:
        """Return the text with all edits applied."""
        parts: list[str] = []
        done = 0
        for start, end, _, text in sorted(self._edits, key=lambda edit: edit[:3]):  # stable: keeps additions in order
            parts += (self._text[done:start], text)
            done = end
        return "".join((*parts, self._text[done:]))

    def _replace(self, key: str, old: Value, value: Scalar) -> None:
        if old.kind in {"mapping", "list"}:
            raise UsageError(f"`{key}` is a {old.kind} (line {self.line(old.start)}); expected a single value")
        start, end = old.start, old.end
        if old.kind == "scalar" and old.anchor is not None:
            if self.shared(old):
                raise UsageError(
                    f"other settings reuse the value of `{key}` (line {self.line(start)}) through "
                    f"`*{old.anchor}`: write the value there first"
                )
            if match := _ANCHOR.match(self._text, start):
                start = match.end()
        # The range of a block scalar includes the empty lines after it.
        end = start + len(self._text[start:end].rstrip())
        quoted = self._text[start : start + 1] if isinstance(value, str) else ""
        before = "" if start == 0 or self._text[start - 1].isspace() else " "  # a key without a value ends in its colon
        self._edits.append((start, end, False, before + spell(value, quotes=quoted)))

    def _add_in_braces(self, mapping: Mapping, entry: str) -> None:
        begin = self._text.index("{", mapping.start) + 1  # an anchor may precede the brace
        inside = self._text[begin : mapping.end - 1]
        # After the last value, but never after a comment, which would absorb it.
        position = mapping.end - 1 if "#" in inside else begin + len(inside.rstrip())
        if any(start == position for start, *_ in self._edits):
            comma = ", "  # after the previous addition
        elif _trailing_comma(inside):
            comma = " "
        else:
            comma = ", " if mapping.entries else ""
        self._edits.append((position, position, True, comma + entry))

    def _add_line(self, mapping: Mapping, entry: str, after: tuple[str, ...]) -> None:
        first = min(start for start, _ in mapping.entries.values())
        indent = self._text[self._line_start(first) : first]
        if indent.strip(" "):
            raise UsageError(f"line {self.line(first)} is not a plain `key: value`, so no key can be added beside it")
        neighbour = next((mapping.entries[key][1] for key in after if key in mapping.entries), None)
        if neighbour is None or neighbour.kind in {"mapping", "list"}:
            self._edits.append((first, first, True, f"{entry}{self._line_end(first)}{indent}"))
            return
        line = self._text[neighbour.start : neighbour.end].rstrip()
        match = _BREAKS.search(self._text, neighbour.start + len(line))
        if match is None:
            position = len(self._text)
            self._edits.append((position, position, True, f"{self._line_end(first)}{indent}{entry}"))
        else:
            self._edits.append((match.end(), match.end(), True, f"{indent}{entry}{match.group()}"))

    def _line_start(self, position: int) -> int:
        ends = [match.end() for match in _BREAKS.finditer(self._text, 0, position)]
        return ends[-1] if ends else int(self._text.startswith("\ufeff"))

    def _line_end(self, position: int) -> str:
        match = _BREAKS.search(self._text, position) or _BREAKS.search(self._text)
        return match.group() if match else "\n"


def with_values(text: str, values: Dict[KeyPath, str]) -> tuple[str, frozenset[KeyPath]]:
    """Replace single values at any depth, without changing any other byte.

    Args:
        text: A text that `yaml.safe_load` parses as a mapping, with limits already checked.
        values: The new value as YAML, on one line, by key path.

    Returns:
        The new text, and the keys that were written, excluding values that have a tag or that an alias or anchor shares
        with other keys.
    """
    import yaml

    top = yaml.compose(text, Loader=yaml.SafeLoader)
    uses = Counter(_uses(top))
    spans = {key: span for key in values if (span := _own_span(top, key, uses, text)) is not None}
    for key, (start, end) in sorted(spans.items(), key=lambda edit: -edit[1][0]):
        text = text[:start] + values[key] + text[end:]
    return text, frozenset(spans)


def _uses(node: yaml.Node | None) -> Iterator[int]:
    """Yield each node once per use, including through aliases."""
    if node is None:
        return
    yield id(node)
    value = node.value
    for item in value if isinstance(value, list) else ():
        for inner in item if isinstance(item, tuple) else (item,):
            yield from _uses(inner)


def _own_span(node: yaml.Node | None, key: KeyPath, uses: Counter[int], text: str) -> tuple[int, int] | None:
    """Return the start and end of a key's value, or None if the value is not used only there."""
    import yaml

    for part in key:
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
        else:
            return None
        if node is None or uses[id(node)] > 1:
            return None
    if not isinstance(node, yaml.ScalarNode) or node.style in {"|", ">"}:
        return None
    start, end = node.start_mark.index, node.end_mark.index
    return None if text[start : start + 1] in {"&", "!"} else (start, end)


class _Reader:
    """A reader that builds the top two levels of mappings from events, and skips deeper levels."""

    def __init__(self, events: list[yaml.Event]) -> None:
        self._events = iter(events)

    def document(self) -> Mapping:
        """Return the top mapping, which is the first collection to begin."""
        import yaml

        return next(
            self._mapping(event, depth=0) for event in self._events if isinstance(event, yaml.MappingStartEvent)
        )

    def _mapping(self, start: yaml.MappingStartEvent, *, depth: int) -> Mapping:
        import yaml

        mapping = Mapping(flow=bool(start.flow_style), start=_span(start)[0])
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            value = self._value(next(self._events), depth=depth + 1)
            if isinstance(event, yaml.ScalarEvent):  # a key may also be an alias; none of ours is
                mapping.entries[event.value] = (_span(event)[0], value)
        mapping.end = _span(event)[1]
        return mapping

    def _value(self, event: yaml.Event, *, depth: int) -> Value:
        import yaml

        start, end = _span(event)
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.MappingStartEvent) and depth == 1:
            return Value("mapping", start, end, anchor, self._mapping(event, depth=depth))
        if isinstance(event, yaml.CollectionStartEvent):
            self._pass_over()
            return Value("mapping" if isinstance(event, yaml.MappingStartEvent) else "list", start, end, anchor)
        return Value("alias" if isinstance(event, yaml.AliasEvent) else "scalar", start, end, anchor)

    def _pass_over(self) -> None:
        import yaml

        depth = 1
        while depth:
            event = next(self._events)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)


def _span(event: yaml.Event) -> tuple[int, int]:
    """Return the position of an event in the text, which the parser always sets, although its types do not show it."""
    return cast("yaml.Mark", event.start_mark).index, cast("yaml.Mark", event.end_mark).index


def spell(value: Scalar, *, quotes: str = "") -> str:
    """Return a value as YAML, valid both in a block and in braces.

    Args:
        value: The value to encode.
        quotes: The quotation mark to keep if possible; '' or any other character for none.

    Raises:
        UsageError: The value has bytes that are not text, which YAML cannot represent.
    """
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise UsageError(f"{value!r} is not UTF-8, so a config cannot name it; rename it first")
    tries = [value, "'" + value.replace("'", "''") + "'", _double_quoted(value)]
    if quotes in {"'", '"'}:
        tries.insert(0, tries["'\"".index(quotes) + 1])
    return next(text for text in tries if _reads_as(text, value))


def _double_quoted(value: str) -> str:
    import json

    # YAML understands JSON's escapes; only characters that JSON keeps but YAML forbids or reads as a line end are
    # added.
    return _NOT_IN_YAML.sub(lambda char: f"\\u{ord(char.group()):04x}", json.dumps(value, ensure_ascii=False))


def _reads_as(text: str, value: str) -> bool:
    import yaml

    if _BREAKS.search(text):
        return False
    try:
        # PyYAML accepts plain texts in braces that the standard does not; the flow form is stricter.
        return bool(yaml.safe_load(f"{{k: {text}}}") == {"k": value} and yaml.safe_load(f"k: {text}") == {"k": value})
    except (yaml.YAMLError, ValueError):
        return False


def _trailing_comma(inside: str) -> bool:
    lines = (re.sub(r"(^|\s)#.*", "", line) for line in _BREAKS.split(inside))
    return "".join(lines).rstrip().endswith(",")


def yaml_float(value: float) -> str:
    """Encode a number so that YAML 1.1 reads it as a float: `1e-05` would be text, and `3` an integer."""
    mantissa, exponent, power = repr(float(value)).partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power
