"""Registration of features; the core finds their extensions by kind and names no feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.frozen import dataclass
from ckpttool.features import FEATURES

if TYPE_CHECKING:
    from ckpttool.core.findings import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Extensions that one feature provides.

    All fields are references, so that nothing is imported before it is needed.
    """

    answers: Mapping[str, str] | None = None
    """Module of the document and the table of each answer, by the answer's noun."""
    findings: str | None = None
    """`"module:name"` of the class that lists the feature's kinds of findings, like `core.findings` for the core."""
    parts_reader: str | None = None
    """`"module:name"` of a `trainers.located.PartsReader`."""
    part_traces: str | None = None
    """`"module:name"` of a `trainers.located.PartTraces`; only the first feature with a reference is used."""
    storages: Mapping[str, str] | None = None
    """`"module:name"` of a function that opens a root as a `core.storage.base.Storage`, by the root's scheme."""
    log_evidence: str | None = None
    """`"module:name"` of a `core.verbs.resolving.ReadsLogs`; only the first feature with a reference is used."""
    marks: str | None = None
    """`"module:name"` of a `core.verbs.scanning.ReadsMarks`; only the first feature with a reference is used."""
    starts: str | None = None
    """`"module:name"` of a `core.verbs.launching.CountsStarts`; only the first feature with a reference is used."""
    copies: str | None = None
    """`"module:name"` of a `core.verify.copies.CopiesBegun`; only the first feature with a reference is used."""
    on_passed_over: str | None = None
    """`"module:name"` of a `core.verbs.resolving.PassedOverRule`."""
    before_launch: str | None = None
    """`"module:name"` of a `core.verbs.preflighting.LaunchNotes`."""


def features() -> Iterator[Feature]:
    """Yield all features in their listed order; each is imported only when it is reached."""
    for name in FEATURES:
        yield import_module(f"ckpttool.{name}").FEATURE


def rows() -> Iterator[Row]:
    """Yield all kinds of findings: first those of the core, then those of trainers and features."""
    from ckpttool.core.findings import Code

    yield from Code
    for reference in import_module("ckpttool.trainers").FINDINGS:
        yield from imported(reference)
    for feature in features():
        if feature.findings is not None:
            yield from imported(feature.findings)


@cache
def row_of(code: str) -> Row:
    """Return the row of a code; for a code of the core, no feature is imported.

    Raises:
        ValueError: There is no such code.
    """
    for row in rows():
        if row == code:
            return row
    raise ValueError(f"{code!r} is not the code of a finding")


def imported(reference: str) -> Any:  # noqa: ANN401  the caller knows the protocol of the object
    """Import the object of a reference `"module:name"`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def first_imported(place: Callable[[Feature], str | None]) -> Any:  # noqa: ANN401  as above
    """Import the object that the first feature with a reference provides; None if no feature has a reference.

    `place` returns the reference of a feature.
    """
    reference = next(filter(None, map(place, features())), None)
    return None if reference is None else imported(reference)
