"""Protobuf's wire format."""

from __future__ import annotations

import pytest

from ckpttool.core.formats.protobuf import WireError, fields, signed, varints


def test_fields_come_in_their_order_with_their_keys() -> None:
    message = b"\x08\x96\x01" + b"\x11" + bytes(range(8)) + b"\x1a\x02hi" + b"\x25abcd" + b"\x08\x00"
    assert list(fields(message)) == [(0x08, 150), (0x11, bytes(range(8))), (0x1A, b"hi"), (0x25, b"abcd"), (0x08, 0)]
    assert list(fields(b"")) == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x1a\x03hi", "beyond its message"),
        (b"\x25abc", "beyond its message"),
        (b"\x08\x96", "ends within a number"),
        (b"\x08", "ends within a number"),
        (b"\x0b", "wire type 3 does not exist"),
        (b"\x08" + b"\xff" * 10, "is not terminated"),
        (b"\x08\x80\x00", "is not terminated"),
    ],
)
def test_what_is_no_message_is_no_field(message: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        list(fields(message))


def test_a_negative_number_is_read_as_one() -> None:
    ((_, value),) = fields(b"\x10" + b"\xff" * 9 + b"\x01")
    assert isinstance(value, int)
    assert [signed(value), signed(7), signed((1 << 63) - 1)] == [-1, 7, (1 << 63) - 1]


def test_packed_numbers_come_one_by_one() -> None:
    assert list(varints(b"\x01\xac\x02\x00")) == [1, 300, 0]
    with pytest.raises(WireError, match="ends within"):
        list(varints(b"\x01\xac"))
