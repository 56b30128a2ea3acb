"""The parts of protobuf's wire format that occur in the files that ckpttool reads."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_VARINT_BYTES = 10
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class WireError(ValueError):
    """The bytes are not protobuf."""


def varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it.

    Raises:
        IndexError: The buffer ends within the varint.
        WireError: The bytes are not a varint.
    """
    value = buffer[at]
    if value < 0x80:  # noqa: PLR2004  a single byte, as in nearly all cases
        return value, at + 1
    value &= 0x7F
    for place in range(1, _MAX_VARINT_BYTES):
        byte = buffer[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004
            if not byte:  # writers do not pad numbers
                break
            return value, at + place + 1
    raise WireError("a number is not terminated")


def varints(packed: bytes) -> Iterator[int]:
    """Yield the numbers of a packed field.

    Raises:
        WireError: The bytes are not varints.
    """
    at = 0
    try:
        while at < len(packed):
            value, at = varint(packed, at)
            yield value
    except IndexError:
        raise WireError("a field ends within a number") from None


def signed(value: int) -> int:
    """Return the value of a varint in a field of type int32 or int64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message in order, each with its key: eight times the field number plus the wire type.

    Values with a length or a fixed width are yielded as bytes, and varints as unsigned numbers.

    Raises:
        WireError: The bytes are not a message.
    """
    at, end = 0, len(message)
    try:
        while at < end:
            key, at = varint(message, at)
            kind = key & 7
            if kind == _VARINT:
                value, at = varint(message, at)
                yield key, value
                continue
            if kind == _LENGTH:
                length, at = varint(message, at)
            elif kind in _FIXED:
                length = _FIXED[kind]
            else:
                raise WireError(f"wire type {kind} does not exist")
            if length > end - at:
                raise WireError("a field extends beyond its message")
            yield key, message[at : at + length]
            at += length
    except IndexError:
        raise WireError("a message ends within a number") from None
