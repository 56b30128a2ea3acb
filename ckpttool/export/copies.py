"""Comparison of the copies that several ranks have of a tensor, if only the user says that they are copies."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.weights import NotExportableError, Piece, Target
from ckpttool.core.verbs.verifying import advance
from ckpttool.export.bands import blocks
from ckpttool.export.cover import covered
from ckpttool.export.sources import Sources
from ckpttool.trainers.export_findings import needs_strategy

_REMEDY = "merge the files with the strategy files of the run; `ckpttool verify --level checksum` looks for damage"


def copies_of(target: Target) -> tuple[Target, ...]:
    """Return a tensor once per copy; pieces with the same box are copies of each other.

    Raises:
        NotExportableError: The pieces of a copy do not cover the tensor exactly once.
    """
    by_box: dict[tuple[int, ...], list[Piece]] = {}
    for piece in target.pieces:
        by_box.setdefault(piece.at + piece.shape, []).append(piece)
    count = max(map(len, by_box.values()), default=1)
    copies: list[Target] = []
    for number in range(count):
        pieces = tuple(same[min(number, len(same) - 1)] for same in by_box.values())
        copies += covered([replace(target, pieces=pieces)])
    return tuple(copies)


def assert_equal(targets: Iterable[Target], sources: Sources) -> int:
    """Compare all copies of each tensor byte by byte, and return the number of copies.

    Raises:
        NotExportableError: Copies differ, or a source is damaged or cannot be read.
    """
    most = 1
    for target in targets:
        first, *others = copies_of(target)
        expected = _digest(first, sources) if others else b""
        for other in others:
            if _digest(other, sources) != expected:
                raise _different(first, other)
        most = max(most, 1 + len(others))
    return most


def _digest(target: Target, sources: Sources) -> bytes:
    digest = blake2b()
    for block in blocks(target, sources):
        digest.update(block)
        advance(len(block))
    return digest.digest()


def _different(one: Target, other: Target) -> NotExportableError:
    paths = " and ".join(target.pieces[0].path for target in (one, other))
    message = f"The weight {one.name!r} is not the same in {paths}: these ranks are not replicas, or one is damaged."
    return needs_strategy(message, path=other.pieces[0].path, remedy=_REMEDY)
