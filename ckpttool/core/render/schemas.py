"""The JSON Schemas of the output: files next to this package, each combined with the files to which it refers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

from ckpttool.core.render.json import Document

_FOLDER = files("ckpttool") / "schemas"
_SUFFIX = ".json"


def names() -> tuple[str, ...]:
    """Return the documents that have a schema: the noun in `ckpttool/NOUN/1`."""
    stored = (file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX))
    return tuple(sorted(name for name in stored if "title" in _read(name)))  # the other files are parts of documents


def schema(name: str) -> dict[str, Document]:
    """Return the self-contained schema of a document."""
    parts: dict[str, Document] = {}
    document = _put_together(_read(name), parts)
    return {**document, "$defs": dict(sorted(parts.items()))}


def list_text() -> str:
    """List every document with its description."""
    entries = names()
    width = max(map(len, entries)) + 2
    return "\n".join(f"{name:{width}}{_read(name)['description']}" for name in entries)


def list_document() -> Document:
    """Return `ckpttool/schemas/1`, every document with its description."""
    entries = [{"name": name, "about": _read(name)["description"]} for name in names()]
    return {"schema": "ckpttool/schemas/1", "schemas": [*entries]}


def _read(name: str) -> dict[str, Document]:
    stored: dict[str, Document] = json.loads((_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))
    return stored


def _put_together(stored: Mapping[str, Document], parts: dict[str, Document]) -> dict[str, Document]:
    return {key: _resolved(key, value, parts) for key, value in stored.items()}


def _resolved(key: str, value: Document, parts: dict[str, Document]) -> Document:
    """Replace a reference to a file with a reference to a part of this schema."""
    if key == "$ref" and isinstance(value, str):
        name = value.removesuffix(_SUFFIX)
        if name not in parts:
            parts[name] = None  # reserved, so that a part may refer to itself
            parts[name] = _put_together(_read(name), parts)
        return f"#/$defs/{name}"
    if isinstance(value, Mapping):
        return _put_together(value, parts)
    if isinstance(value, list):
        return [_resolved("", item, parts) for item in value]
    return value
