"""The JSON that scripts read: versioned, stable, and with the same bytes for the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import PartsGiven
    from ckpttool.core.domain.finding import Finding

Document: TypeAlias = "Mapping[str, Document] | Sequence[Document] | str | int | float | bool | None"


def dumps(document: Document) -> str:
    """Encode a document in ASCII, so that any file name survives any terminal, pipe and log."""
    return "".join(pieces(document))


def as_read(document: Document) -> Any:  # noqa: ANN401  what a script gets
    """Return the values that a script gets when it parses a document."""
    return json.loads(dumps(document))


class EncodedList(Sequence[Document]):
    """A list with one member per rank that encodes itself without a document for each member."""

    def encoded(self, line: str) -> str:
        """Encode all members, on lines with this indent."""
        raise NotImplementedError


_LEAVES = frozenset({str, int, float, bool, type(None)})
_LISTS = frozenset({list, tuple, dict})


def pieces(document: Document) -> list[str]:
    """Encode a document as `dumps` does, in separate pieces, so that the text is not in memory twice for many ranks."""
    return list(_encode(document, "\n"))


def _encode(value: Document, line: str) -> Iterator[str]:
    """Encode a value as `json.dumps(indent=2)` does, in a third of the time: an indent rules out the fast encoder.

    Args:
        value: The value to encode.
        line: A line end and the indentation of the next line.
    """
    inner = f"{line}  "
    if isinstance(value, EncodedList):
        yield f"[{inner}{value.encoded(inner)}{line}]" if value else "[]"
    elif not value or isinstance(value, str) or not isinstance(value, (Mapping, Sequence)):
        yield _flat(inner)(value)
    elif isinstance(value, Mapping):
        if _is_flat(value.values()):
            yield f"{{{inner}{_flat(inner)(value)[1:-1]}{line}}}"
            return
        start = "{"
        for key, item in value.items():
            yield f"{start}{inner}{_flat(inner)(key)}: "
            yield from _encode(item, inner)
            start = ","
        yield f"{line}}}"
    elif _is_flat(value):
        yield f"[{inner}{_flat(inner)(value)[1:-1]}{line}]"
    elif all(type(item) is dict and item and _is_flat(item.values()) for item in value):
        # Line ends in texts are escaped, so the replaced part is always between two objects.
        members = _flat(f"{inner}  ")(value)[2:-2].replace(f"}},{inner}  {{", f"{inner}}},{inner}{{{inner}  ")
        yield f"[{inner}{{{inner}  {members}{inner}}}{line}]"
    else:
        start = "["
        for item in value:
            yield f"{start}{inner}"
            yield from _encode(item, inner)
            start = ","
        yield f"{line}]"


def _is_flat(values: Iterable[Document]) -> bool:
    """Return whether every value fits on one line, so that the encoder can handle all values at once."""
    return all(type(value) in _LEAVES or (type(value) in _LISTS and not value) for value in values)


@cache
def _flat(line: str) -> Callable[[object], str]:
    """Return an encoder for a value that puts the members on separate lines and leaves out the outer brackets."""
    return json.JSONEncoder(check_circular=False, allow_nan=False, separators=(f",{line}", ": ")).encode


def finding_document(finding: Finding) -> dict[str, Document]:
    """Encode one finding with all its fields, so that a script need not check which fields exist."""
    return {
        "code": finding.code.value,
        "severity": finding.severity.word,
        "message": finding.message,
        "path": finding.path,
        "tensor": finding.tensor,
        "expected": finding.expected,
        "actual": finding.actual,
        "remedy": finding.remedy,
        "line": finding.line,
        "ranks": list(finding.ranks),
    }


def members(document: Document, place: str = "") -> Iterator[tuple[str, Document]]:
    """Yield every member by its dotted name, `resume.step` or `rejected.0.name`, outer members first."""
    if isinstance(document, Mapping):
        named: Iterable[tuple[str, Document]] = document.items()
    elif isinstance(document, Sequence) and not isinstance(document, str):
        named = ((str(index), item) for index, item in enumerate(document))
    else:
        return
    inside = [(f"{place}{name}", value) for name, value in named]
    yield from inside
    for name, value in inside:
        yield from members(value, f"{name}.")


def one_line(value: Document) -> str | None:
    """Encode a value for scripts: text is unchanged, other values become JSON, multi-line text becomes None."""
    if isinstance(value, str):
        return value if value.isprintable() else None
    return json.dumps(value)


def parts_document(given: PartsGiven | None) -> dict[str, Document]:
    """Encode the parts on which an answer is based; empty if this machine read the tree itself."""
    if given is None:
        return {}
    record: Document = {
        "given": given.given,
        "of": given.of,
        "missing": list(given.missing),
        "stale": list(given.stale),
        "nodes": list(given.nodes),
    }
    return {"parts": record}
