"""Checks of a tensor's pieces before anything is written: each element is in exactly one piece, and in its record.

Offsets and sizes come from files, so nothing here multiplies or allocates by them without a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import add

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.weights import NotExportableError, Piece, Target
from ckpttool.core.formats.base import MAX_NAME_CHARS, quoted
from ckpttool.core.formats.safetensors.header import DTYPES, METADATA_KEY, size_in_bytes
from ckpttool.trainers.export_findings import incomplete, not_understood

FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})
"""The types between which elements can be cast."""

_REMEDY = "check the save with `ckpttool verify`, and export another checkpoint if it is damaged"
_CONVERTER = "export with the trainer's own converter"
_MOST_PIECES = 1_000_000
"""Maximum number of pieces of one tensor; a run with 100,000 ranks has fewer."""


def covered(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Return the targets without replicas, in the same order, after all checks.

    Raises:
        NotExportableError: A tensor cannot be written, or its pieces do not cover it exactly once.
    """
    names: set[str] = set()
    checked: list[Target] = []
    for target in targets:
        if target.name in names:
            raise incomplete(f"Two weights have the name {target.name!r}.", remedy=_REMEDY, tensor=target.name)
        if target.name == METADATA_KEY or len(target.name) > MAX_NAME_CHARS or not _is_text(target.name):
            name = quoted(ascii(target.name)[1:-1])
            raise not_understood(f"The name {name} cannot be written to a safetensors file.", remedy=_CONVERTER)
        names.add(target.name)
        checked.append(_covered(target))
    return tuple(checked)


def _is_text(name: str) -> bool:
    """Return whether a name can be encoded; a pickle may contain one half of a surrogate pair."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _covered(target: Target) -> Target:
    if target.dtype.value not in DTYPES or target.dtype.bits % 8 or size_in_bytes(target.dtype, target.shape) is None:
        kind = f"{target.dtype.value} {list(target.shape)}"
        raise not_understood(f"ckpttool cannot write the weight {target.name!r} of {kind}.", remedy=_CONVERTER)
    if len(target.pieces) > _MOST_PIECES:
        raise _wrong(target, f"has more than {_MOST_PIECES} parts")
    shape = (elements_in(target.shape),) if target.flat else target.shape
    pieces = {piece.at + piece.shape: piece for piece in reversed(target.pieces)}
    boxes = []
    for piece in pieces.values():
        _check_piece(target, piece, shape)
        if 0 not in piece.shape:
            boxes.append(piece)
    elements = sum(elements_in(piece.shape) for piece in boxes)
    expected = elements_in(shape)
    if elements != expected:
        word = "missing" if elements < expected else "recorded twice"
        raise _wrong(target, f"has {expected:,} elements, but its parts have {elements:,}: some are {word}")
    ends = [max(ends) for ends in zip(*(map(add, piece.at, piece.shape) for piece in pieces.values()), strict=True)]
    if pieces and tuple(ends) != shape:  # only a tensor without elements comes here
        raise _wrong(target, f"has the shape {list(shape)}, but its parts end at {ends}")
    boxes.sort(key=lambda piece: piece.at)
    for one, other in _overlaps(boxes):
        raise _wrong(target, f"has two parts that overlap, at {list(one.at)} and {list(other.at)}")
    if not shape:  # a scalar is a run of one element
        boxes = [piece._replace(shape=(1,), stride=(1,), at=(0,)) for piece in boxes]
    return replace(target, pieces=tuple(boxes), flat=target.flat or not shape)


def _check_piece(target: Target, piece: Piece, shape: tuple[int, ...]) -> None:
    """Check that a piece is inside its tensor, and its elements inside its record."""
    if not len(piece.shape) == len(piece.stride) == len(piece.at) == len(shape):
        raise _wrong(target, f"has {len(shape)} axes, but a part of it has {len(piece.shape)}")
    if min((*piece.shape, *piece.stride, *piece.at, piece.begin), default=0) < 0:
        raise _wrong(target, "has a part with a number below zero")
    if any(at + size > length for at, size, length in zip(piece.at, piece.shape, shape, strict=True)):
        raise _wrong(
            target, f"has the shape {list(shape)}; a part at {list(piece.at)} of {list(piece.shape)} exceeds it"
        )
    if piece.dtype is not target.dtype and not {piece.dtype, target.dtype} <= FLOATS:
        raise _wrong(target, f"has the type {target.dtype.value}, but a part of it has {piece.dtype.value}")
    record = piece.record
    if record is not None and 0 not in piece.shape:
        end = piece.begin + span(piece.shape, piece.stride) * (piece.dtype.bits // 8)
        if record.path != piece.path or piece.begin < record.begin or end > record.begin + record.length:
            raise _wrong(target, f"is larger than its stored data in {piece.path}")


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of stored elements from the first to the last element of a box that is not empty."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether the elements are stored in row-major order without gaps."""
    step = 1
    for size, distance in zip(reversed(shape), reversed(stride), strict=True):
        if size > 1 and distance != step:
            return False
        step *= size
    return True


def _overlaps(boxes: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield boxes that share elements, by a sweep along the axis with the most different offsets."""
    if not boxes or not boxes[0].at:
        yield from pairwise(boxes)  # a scalar has one box
        return
    axis = max(range(len(boxes[0].at)), key=lambda number: len({box.at[number] for box in boxes}))
    current: list[Piece] = []
    for box in sorted(boxes, key=lambda piece: piece.at[axis]):
        current = [other for other in current if other.at[axis] + other.shape[axis] > box.at[axis]]
        for other in current:
            if _shares(box, other):
                yield other, box
        current.append(box)


def _shares(one: Piece, other: Piece) -> bool:
    axes = zip(one.at, one.shape, other.at, other.shape, strict=True)
    return all(begin < at + length and at < begin + size for begin, size, at, length in axes)


def _wrong(target: Target, fault: str) -> NotExportableError:
    return incomplete(f"The weight {target.name!r} {fault}.", remedy=_REMEDY, tensor=target.name)
