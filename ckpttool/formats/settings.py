"""A parsed YAML config as a list of settings that rules can look at without knowing YAML."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.domain.settings import KeyPath, Nested, Setting, Settings, Value
from ckpttool.formats.safe_yaml import Document


def settings_of(document: Document, *, path: str) -> Settings:
    """Return every setting of a config, aliases written out.

    Args:
        document: As `parse_document` gives it, which bounds its depth and its size.
        path: The file, as the user gave it.
    """
    spelt = {text.path: text.text for text in (*document.plain, *document.numbers)}
    entries = tuple(
        Setting(key=key, value=value, line=document.lines.get(key), spelt=spelt.get(key))
        for key, value in _flat((), document.data)
    )
    return Settings(path=path, entries=entries)


def _flat(key: KeyPath, value: object) -> Iterator[tuple[KeyPath, Value]]:
    """Yield a value and all below it."""
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
