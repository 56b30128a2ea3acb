"""Extensions of the main job by features: the core finds extensions by kind, and does not name any feature."""

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
    """Extensions of one feature. All fields are references, so that nothing is imported before it is needed."""

    answers: Mapping[str, str] | None = None
    """Noun of an answer -> the module of its document and its table."""
    findings: str | None = None
    """`"module:name"` of the class of its rows: its own kinds of findings, as `core.findings` has the core's."""
    parts_reader: str | None = None
    """`"module:name"` of a `trainers.located.PartsReader`."""
    storages: Mapping[str, str] | None = None
    """Scheme of a root -> `"module:name"` of a function from the root to a `core.storage.base.Storage`."""
    log_evidence: str | None = None
    """`"module:name"` of a `core.verbs.resolving.ReadsLogs`: the first feature that has a reference is used."""
    copies: str | None = None
    """`"module:name"` of a `core.verify.copies.CopiesBegun`: the first feature that has a reference is used."""
    on_passed_over: str | None = None
    """`"module:name"` of a `core.verbs.resolving.PassedOverRule`."""


def features() -> Iterator[Feature]:
    """Yield the features in the listed order; each is imported when it is reached."""
    for name in FEATURES:
        yield import_module(f"ckpttool.{name}").FEATURE


def rows() -> Iterator[Row]:
    """Yield all kinds of findings: the core's, then those of trainers and features."""
    from ckpttool.core.findings import Code

    yield from Code
    for reference in import_module("ckpttool.trainers").FINDINGS:
        yield from imported(reference)
    for feature in features():
        if feature.findings is not None:
            yield from imported(feature.findings)


@cache
def row_of(code: str) -> Row:
    """Return the row of any code; no feature is imported for a code of the core.

    Raises:
        ValueError: The code does not exist.
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
    """Import the first feature's object of a kind, by the reference that `place` returns; None if no feature has it."""
    reference = next(filter(None, map(place, features())), None)
    return None if reference is None else imported(reference)
