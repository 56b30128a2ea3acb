"""Lines of a part come through what launchers and logs do to them, and what was lost is known to be lost."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.errors import UnsafeError
from ckpttool.records import part_wire
from ckpttool.records.part_wire import LINE_BYTES, PartName, lines_of, parts_in

ONE = PartName(run="12.0", index=1, count=2)
TWO = PartName(run="12.0", index=2, count=2)


def chance_of(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  the same lines for the same seed, no secret


def part(seed: int, size: int = 4000) -> bytes:
    return chance_of(seed).randbytes(size)


@given(st.binary(max_size=3000), st.integers(1, 999_999), st.integers(0, 10**6))
def test_lines_are_short_and_come_back_in_any_order_behind_any_prefix_and_twice(
    content: bytes, index: int, seed: int
) -> None:
    chance = chance_of(seed)
    name = PartName(run="a-b_c.7", index=index, count=999_999)
    lines = list(lines_of(content, name))
    assert all(len(line) == LINE_BYTES and line.endswith(b"\n") and line.isascii() for line in lines)
    sent = [
        chance.choice((b"", b"3: ", b"[1,0]<stdout>:", b"[pod/look-2-x/c] ", b"\xff\x00 ")) + line for line in lines
    ]
    sent += chance.choices([*sent, b"loss 1.0\n", b"", b"ckpttool-part\n"], k=5)
    chance.shuffle(sent)
    received = parts_in(sent)
    assert received.parts == ((name, content),)
    assert received.torn == ()


def test_parts_of_many_processes_are_told_apart_also_within_one_line() -> None:
    mixed = [*lines_of(part(1), ONE), *lines_of(part(2), TWO)]
    chance_of(0).shuffle(mixed)
    assert parts_in(mixed).parts == ((ONE, part(1)), (TWO, part(2)))
    assert parts_in([b" ".join(line.strip() for line in mixed)]).parts == ((ONE, part(1)), (TWO, part(2)))


def test_two_looks_of_one_part_both_come() -> None:
    mixed = [*lines_of(part(1), ONE), *lines_of(part(2), ONE)]
    chance_of(0).shuffle(mixed)
    assert {found for _, found in parts_in(mixed).parts} == {part(1), part(2)}


@pytest.mark.parametrize("at", range(12))
def test_a_part_that_lacks_a_line_is_torn_and_the_other_is_whole(at: int) -> None:
    lines = list(lines_of(part(1), ONE))
    del lines[at]
    received = parts_in([*lines, *lines_of(part(2), TWO)])
    assert received.parts == ((TWO, part(2)),)
    assert received.torn == (ONE,)


def test_a_line_cut_at_any_byte_or_with_any_bit_flipped_is_no_line() -> None:
    (line,) = lines_of(b"short", ONE)
    for cut in range(1, len(line.rstrip())):
        assert parts_in([line[:cut], b"\n", line[cut:]]).parts == ()
    for bit in range(8 * len(line.rstrip())):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        assert parts_in([bytes(flipped)]).parts == ()
    assert parts_in([line]).parts == ((ONE, b"short"),)


def test_a_line_torn_by_another_is_lost_and_the_other_is_not() -> None:
    first, *others = lines_of(part(1), ONE)
    (short,) = lines_of(b"short", TWO)
    received = parts_in([first[:200] + short, first[200:], *others])
    assert received.parts == ((TWO, b"short"),)
    assert received.torn == (ONE,)


def test_no_part_grows_beyond_its_limit_when_it_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(lines_of(bytes(10_000), ONE))
    assert parts_in(lines).parts == ((ONE, bytes(10_000)),)
    monkeypatch.setattr(part_wire, "MOST_PART_BYTES", 9_999)
    assert parts_in(lines).torn == (ONE,)
    with pytest.raises(UnsafeError, match="at most 9999"):
        list(lines_of(bytes(10_000), ONE))


def test_more_lines_than_a_run_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(lines_of(part(1), ONE))
    monkeypatch.setattr(part_wire, "MOST_PARTS_BYTES", 5_000)
    with pytest.raises(UnsafeError, match="give fewer"):
        parts_in(lines)
    monkeypatch.setattr(part_wire, "MOST_PARTS_BYTES", 6_000)
    assert parts_in(lines * 3).parts == ((ONE, part(1)),)  # a line that comes twice counts once


@pytest.mark.parametrize("packed", [b"no deflated bytes", zlib.compress(b"x") + b"more", zlib.compress(b"x" * 99)[:-3]])
def test_lines_that_somebody_else_made_are_no_part(packed: bytes) -> None:
    body = b"ckpttool-part 12.0 1/2 %s 1/1 %s" % (part_wire._key(packed).encode(), b64encode(packed))  # noqa: SLF001
    assert parts_in([b"%s %08x\n" % (body, zlib.crc32(body))]).torn == (ONE,)


def test_text_that_only_speaks_of_parts_begins_none() -> None:
    received = parts_in([b"srun ckpttool-part of a log\n", b"ckpttool-part RUN I/N KEY K/M BASE64 CRC32\n", b"\n"])
    assert received.parts == ()
    assert received.torn == ()
