"""The schemas of the JSON output, as tables of fields for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckpttool.core.render import schemas

Schema = Mapping[str, Any]

_WORDS = {"integer": "whole number", "object": "object", "string": "text", "boolean": "true or false"}


def every() -> str:
    """Return the tables of all documents."""
    return "\n".join(_documents(schemas.names()))


def table_of(name: str) -> str:
    """Return the tables of one document and of its parts."""
    return "\n".join(_documents((name,)))


def _documents(names: Iterable[str]) -> Iterator[str]:
    """Yield a heading and a table for each document, followed by the parts to which the documents refer."""
    parts: dict[str, Schema] = {}
    for name in names:
        schema: Any = schemas.schema(name)
        parts.update((part, stored) for part, stored in schema["$defs"].items() if part not in schemas.names())
        yield from (f"### ckpttool/{name}/1", "", f"{schema['description']}", "", *_table(schema))
    for part, stored in sorted(parts.items()):
        yield from (f"### {_part(part).capitalize()}", "", *_table(stored))


def _table(schema: Schema) -> Iterator[str]:
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for path, kind, about in _below(schema, ""):  # if an object has alternative forms, a field may occur twice
        kinds, abouts = rows.setdefault(path, ([], []))
        kinds.append(kind)
        abouts.append(about)
    yield from ("| field | type | meaning |", "|---|---|---|")
    for path, (kinds, abouts) in rows.items():
        cells = (f"`{path}`", " or ".join(dict.fromkeys(kinds)), "; ".join(dict.fromkeys(filter(None, abouts))))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _fields(node: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield every field below an object or list with its path, its kind and its description."""
    for name, field in node.get("properties", {}).items():
        if name != "schema":
            here = f"{path}{name}"
            kind = _kind(field)
            yield here, kind if name in node.get("required", ()) else f"{kind}; may be left out", _about(field)
            yield from _below(field, here)


def _below(field: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    for choice in field.get("anyOf", (field,)):
        yield from _fields(choice, path and f"{path}.")
        if isinstance(choice.get("items"), Mapping):
            yield from _below(choice["items"], f"{path}[]")


def _about(field: Schema) -> str:
    return str(field.get("description", ""))


def _kind(field: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(choice) for choice in field["anyOf"]))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        title = f"ckpttool/{name}/1" if name in schemas.names() else _part(name)
        return f"[{title}](#{title.replace('/', '').replace(' ', '-')})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join("null" if value is None else f"`{value}`" for value in field["enum"])
    kinds = field.get("type", "any")
    words = [_WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    if field.get("items"):
        words = [word if word != "array" else f"list of {_kind(field['items'])}" for word in words]
    return " or ".join(words)


def _part(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
