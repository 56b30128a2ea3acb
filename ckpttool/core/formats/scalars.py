"""Training scalars that a layout requests, read from a file's tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, damage
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import RequestedScalar, ScalarValues
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.formats.base import quoted
from ckpttool.core.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.core.domain.contents import Value

_PACKING = {
    DType.I32: Struct("<i"),
    DType.I64: Struct("<q"),
    DType.F32: Struct("<f"),
    DType.F64: Struct("<d"),
}
_WHOLE = frozenset({DType.I32, DType.I64})
_ANY_NUMBER = frozenset(_PACKING)
_ONE_ELEMENT = frozenset({(), (1,)})

_Field = tuple[RequestedScalar, int, Struct]
"""A requested scalar, its position in the bytes read, and its binary format."""

_NEIGHBOURS = 4096
"""Maximum distance in bytes of scalars that are read in one call, because a call costs more than extra bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarPlan:
    """Positions of the scalars in a shard, which are the same in every file with the same header."""

    reads: tuple[tuple[int, int, tuple[_Field, ...]], ...] = ()
    """First byte of each read, its length, and its fields."""
    findings: tuple[Finding, ...] = ()
    """Findings about scalars of a wrong type."""

    @property
    def last_read(self) -> int:
        """First byte of the last read; 0 if there are no reads."""
        return self.reads[-1][0] if self.reads else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarReading:
    """Values of a shard's scalars, and their problems."""

    scalars: ScalarValues
    findings: tuple[Finding, ...]
    bytes_read: int


def plan_scalars(entries: Iterable[TensorEntry], requested: Sequence[RequestedScalar]) -> ScalarPlan:
    """Return the positions of the requested scalars; adjacent scalars are read in one call.

    Args:
        entries: The tensors, in file order; each scalar's name occurs at most once.
        requested: The scalars to find.
    """
    by_name = {scalar.name: scalar for scalar in requested}
    findings = []
    fit = []
    for entry in entries:
        if entry.name in by_name:
            wrong = _wrong_type(entry, by_name[entry.name])
            if wrong is None:
                fit.append(entry)
            else:
                findings.append(wrong)
    reads = []
    for group in _neighbours(fit):
        begin, end = group[0].spans[0][0], group[-1].spans[0][1]
        fields = tuple((by_name[entry.name], entry.spans[0][0] - begin, _PACKING[entry.dtype]) for entry in group)
        reads.append((begin, end - begin, fields))
    return ScalarPlan(reads=tuple(reads), findings=tuple(findings))


def read_scalars(source: ByteSource, plan: ScalarPlan) -> ScalarReading:
    """Read the values of the scalars.

    Returns:
        The readable values. A scalar of a wrong type, or with an implausible value, is a finding and stays None. A
        scalar beyond the end of a truncated file is None without a finding, because the truncation is reported
        separately.

    Raises:
        OSError: The disk did not answer.
    """
    findings: list[Finding] = []
    values: list[tuple[str, int | float]] = []
    total = 0
    for begin, length, fields in plan.reads:
        data = source.read(begin, length)
        total += len(data)
        for scalar, first, packing in fields:
            if first + packing.size > len(data):
                continue
            (value,) = packing.unpack_from(data, first)
            if math.isfinite(value) and value >= scalar.least:
                values.append((scalar.name, value if scalar.is_integer else float(value)))
            else:
                message = (
                    f"The training scalar {quoted(scalar.name)} is {value}, not a number of at least {scalar.least}."
                )
                least = f">= {scalar.least}"
                wrong = damage(Code.HEADER_INVALID, message, tensor=scalar.name, expected=least, actual=str(value))
                findings.append(wrong)
    return ScalarReading(scalars=tuple(sorted(values)), findings=(*plan.findings, *findings), bytes_read=total)


_LETTERS = {
    DType.BOOL: "?", DType.U8: "B", DType.I8: "b", DType.U16: "H", DType.I16: "h", DType.U32: "I", DType.I32: "i",
    DType.U64: "Q", DType.I64: "q", DType.F16: "e", DType.F32: "f", DType.F64: "d",
}  # fmt: skip
_MOST_SINGLES = 1024
_MOST_TEXT_BYTES = 1024


def read_single(source: ByteSource, entries: Iterable[TensorEntry]) -> tuple[tuple[str, Value], ...]:
    """Read every one-element tensor and every short text, whatever its name.

    Returns:
        Names and values, in file order; if there are thousands, only the first. A float is returned as the shortest
        decimal with the same bits. Floats of 8 bits or less, and values beyond the end of a truncated file, are left
        out.

    Raises:
        OSError: The disk did not answer.
    """
    values: list[tuple[str, Value]] = []
    for entry in entries:
        if len(values) == _MOST_SINGLES:
            break
        if entry.shape not in _ONE_ELEMENT or len(entry.spans) != 1 or entry.nbytes > _MOST_TEXT_BYTES:
            continue
        data = source.read(entry.spans[0][0], entry.nbytes)
        value = _single(entry.dtype, data) if len(data) == entry.nbytes else None
        if value is not None:
            values.append((entry.name, value))
    return tuple(values)


def _single(dtype: DType, data: bytes) -> Value | None:
    if dtype is DType.STRING:
        return data.decode("utf-32-le", "replace")
    if dtype is DType.BF16:
        dtype, data = DType.F32, bytes(2) + data
    letter = _LETTERS.get(dtype)
    if letter is None:
        return None
    value: Value = unpack(f"<{letter}", data)[0]
    if letter in "ef" and isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        decimals = (float(f"{value:.{digits}g}") for digits in range(1, 9))
        return next((short for short in decimals if pack(f"<{letter}", short) == data), value)
    return value


def _neighbours(entries: Iterable[TensorEntry]) -> Iterator[list[TensorEntry]]:
    group: list[TensorEntry] = []
    for entry in entries:
        if group and entry.spans[0][1] - group[0].spans[0][0] > _NEIGHBOURS:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _wrong_type(entry: TensorEntry, scalar: RequestedScalar) -> Finding | None:
    allowed = _WHOLE if scalar.is_integer else _ANY_NUMBER
    if entry.dtype in allowed and entry.shape in _ONE_ELEMENT and len(entry.spans) == 1:
        return None
    expected = "one element of " + " or ".join(sorted(dtype.value for dtype in allowed))
    actual = f"{entry.dtype.value} {list(entry.shape)}"
    return damage(
        Code.HEADER_INVALID,
        f"The training scalar {quoted(entry.name)} is {actual}, not {expected}.",
        tensor=entry.name,
        expected=expected,
        actual=actual,
    )
