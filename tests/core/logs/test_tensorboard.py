"""TensorBoard's event files: those that the real packages wrote, and what may become of them."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import LogItem, NoteKind
from ckpttool.core.logs import tensorboard
from ckpttool.core.logs.base import LogSource
from ckpttool.core.logs.tensorboard import TensorBoard
from tests.core.logs.reading import LOGS, Dribble, notes, problems, read, read_log, steps

REAL = LOGS / "tensorboard"
FIELDS = {
    "lm loss": "loss",
    "loss": "loss",
    "train/loss": "loss",
    "grad-norm": "global_norm",
    "grad_norm": "global_norm",
    "gnorm": "global_norm",
    "train/grad_norm": "global_norm",
    "consumed_samples": "consumed_samples",
}

VERSION = b"\x09" + struct.pack("<d", 1.0) + b"\x1a\x0dbrain.Event:2"


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + tensorboard.masked_checksum(length) + data + tensorboard.masked_checksum(data)


def field(key: int, value: bytes) -> bytes:
    assert len(value) < 1 << 14
    size = bytes([len(value)]) if len(value) < 1 << 7 else bytes([len(value) & 0x7F | 0x80, len(value) >> 7])
    return bytes([key]) + size + value


def event(step: bytes, *values: bytes) -> bytes:
    return b"\x10" + step + field(0x2A, b"".join(field(0x0A, value) for value in values))


def scalar(tag: str, value: float) -> bytes:
    return field(0x0A, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, content: bytes) -> bytes:
    return field(0x0A, tag.encode()) + field(0x42, content)


def read_events(*events: bytes) -> list[LogItem]:
    return read(TensorBoard(), b"".join(record(each) for each in (VERSION, *events)))


def losses(items: Sequence[LogItem]) -> list[tuple[int, float | None]]:
    return [(row.step, row.loss) for row in steps(items)]


@pytest.mark.parametrize("name", ["scalars", "tensors", "tag_by_tag", "tensorboardx", "resumed"])
def test_what_the_real_package_reads_in_files_that_it_wrote_is_read(name: str) -> None:
    truth = json.loads((REAL / "values.json").read_text(encoding="utf-8"))[f"{name}.tfevents"]
    expected = {(step, FIELDS[tag]): float(value) for step, tag, value in truth if tag in FIELDS}
    items = list(read_log(str(REAL / f"{name}.tfevents")))
    found = {
        (row.step, shown): float(value)
        for row in steps(items)
        for shown in {*FIELDS.values()}
        if (value := getattr(row, shown)) is not None
    }
    assert {key: repr(value) for key, value in found.items()} == {key: repr(value) for key, value in expected.items()}
    assert problems(items) == []


def test_a_tag_that_goes_back_is_a_resume_with_its_record_as_line() -> None:
    items = list(read_log(str(REAL / "resumed.tfevents")))
    assert losses(items) == [(1, 1.0), (2, 2.125), (3, 3.25), (4, 4.375), (3, 3.5), (4, 4.625), (5, 5.75)]
    (note,) = notes(items)
    assert (note.kind, note.line, note.step, note.previous_step) == (NoteKind.REWIND, 6, 3, 4)


def test_each_step_has_the_time_of_its_event() -> None:
    rows = steps(read_log(str(REAL / "scalars.tfevents")))
    assert [str(row.time)[-5:] for row in rows] == ["30:00", "30:10", "30:20", "30:30"]
    for time in (math.nan, math.inf, 1e300, -1e300):
        (row,) = steps(read_events(b"\x09" + struct.pack("<d", time) + event(b"\x01", scalar("loss", 2.0))))
        assert (row.time, row.loss) == (None, 2.0)


def test_a_zipped_log_and_one_through_a_pipe_are_read(tmp_path: Path) -> None:
    plain = (REAL / "scalars.tfevents").read_bytes()
    zipped = tmp_path / "events.gz"
    zipped.write_bytes(gzip.compress(plain))
    expected = losses(list(read_log(str(REAL / "scalars.tfevents"))))[:2]
    assert losses(list(read_log(str(zipped))))[:2] == expected
    assert losses(list(read_log("-", stdin=io.BufferedReader(io.BytesIO(plain)))))[:2] == expected


@pytest.mark.parametrize("size", [1, 7, 64])
def test_blocks_of_any_size_say_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "BLOCK_BYTES", size)
    data = (REAL / "resumed.tfevents").read_bytes()
    source = LogSource(name="log", stream=Dribble(data, size))
    assert losses(list(TensorBoard().read(source))) == losses(read(TensorBoard(), data))


def test_every_cut_of_a_log_shows_the_steps_before_it_and_says_that_it_is_still_written() -> None:
    data = (REAL / "resumed.tfevents").read_bytes()
    whole = losses(read(TensorBoard(), data))
    ends = {0, *record_ends(data)}
    for size in range(len(data)):
        items = read(TensorBoard(), data[:size])
        assert losses(items) == whole[: len(losses(items))], size
        assert problems(items) == [], size
        assert [note.line for note in notes(items) if note.kind is NoteKind.CUT] == (
            [] if size in ends else [sum(end <= size for end in ends)]
        ), size


def record_ends(data: bytes) -> list[int]:
    ends, at = [], 0
    while at < len(data):
        at += 16 + int.from_bytes(data[at : at + 8], "little")
        ends.append(at)
    return ends


def test_no_changed_byte_makes_a_wrong_number() -> None:
    data = (REAL / "tensors.tfevents").read_bytes()
    key = [(repr(row.step), repr(row)) for row in steps(read(TensorBoard(), data))]
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        items = read(TensorBoard(), damaged)
        told = dict(key)
        assert problems(items), place
        for row in steps(items):
            for shown in {*FIELDS.values()}:
                value = getattr(row, shown)
                assert value is None or f"{shown}={value!r}" in told[repr(row.step)], place


def test_a_record_that_was_changed_is_told_with_its_byte_and_the_next_is_read() -> None:
    data = bytearray((REAL / "scalars.tfevents").read_bytes())
    place = bytes(data).index(b"lm loss")
    begin = max(end for end in record_ends(bytes(data)) if end < place)
    data[place + 10] ^= 1  # within the value
    items = read(TensorBoard(), bytes(data))
    assert [(each.line, each.reason) for each in problems(items)] == [
        (2, f"the record at byte {begin} does not match its checksum")
    ]
    assert losses(items)[:2] == [(1, None), (2, 2.25)]


def test_behind_a_length_that_was_changed_nothing_is_read() -> None:
    data = bytearray((REAL / "scalars.tfevents").read_bytes())
    place = record_ends(bytes(data))[3]
    data[place] ^= 1
    items = read(TensorBoard(), bytes(data))
    (told,) = problems(items)
    assert told.ends_the_log
    assert told.reason.startswith(f"nothing can be read from byte {place} on")
    assert losses(items) == [(1, 2.5)]


def test_a_record_that_is_too_large_is_passed_over_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_RECORD_BYTES", 100)
    picture = field(0x2A, field(0x0A, field(0x0A, b"picture") + field(0x22, b"x" * 200)))
    items = read_events(event(b"\x01", scalar("loss", 2.0)), picture, event(b"\x02", scalar("loss", 1.0)))
    assert losses(items) == [(1, 2.0), (2, 1.0)]
    (told,) = problems(items)
    assert (told.line, told.ends_the_log, "bytes; ckpttool reads at most 100" in told.reason) == (3, False, True)
    cut = b"".join(map(record, (VERSION, picture)))[:-1]
    assert [note.kind for note in notes(read(TensorBoard(), cut))] == [NoteKind.CUT]


def test_a_large_picture_is_not_held_against_its_checksum_and_a_large_record_with_a_value_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorboard, "_SURE_BYTES", 20)
    picture = record(event(b"\x01", field(0x0A, b"picture") + field(0x22, b"x" * 100)))
    value = record(event(b"\x02", scalar("loss", 1.0), field(0x0A, b"y" * 50)))
    wrong = [each[:-1] + bytes([each[-1] ^ 1]) for each in (picture, value)]
    items = read(TensorBoard(), record(VERSION) + b"".join(wrong))
    assert [(each.line, losses(items)) for each in problems(items)] == [(3, [])]


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"\x08\x01\x2d" + struct.pack("<f", 1.5), 1.5),
        (b"\x08\x01" + field(0x2A, struct.pack("<f", 1.5)), 1.5),
        (b"\x08\x02\x31" + struct.pack("<d", 1.1), 1.1),
        (b"\x08\x02" + field(0x32, struct.pack("<d", 1.1)), 1.1),
        (b"\x08\x02" + field(0x22, struct.pack("<d", 1.1)), 1.1),
        (b"\x08\x03\x38\x05", 5),
        (b"\x08\x03" + field(0x3A, b"\x05"), 5),
        (b"\x08\x09\x50" + b"\xff" * 9 + b"\x01", -1),
        (b"\x08\x09" + field(0x52, b"\x96\x01"), 150),
        (b"\x08\x09" + field(0x22, struct.pack("<q", -7)), -7),
        (b"\x08\x01" + field(0x12, b""), 0),  # what is not said is 0
        (b"\x08\x13\x68\x80\x78", 1.0),  # half precision, by its bits
        (b"\x08\x13" + field(0x6A, b"\x80\x84\x03"), -3.0),
        (b"\x08\x13" + field(0x22, struct.pack("<e", 0.1)), struct.unpack("<e", struct.pack("<e", 0.1))[0]),
        (b"\x08\x0e" + field(0x22, b"\xc0\x3f"), 1.5),  # bfloat16
        (b"\x08\x0e\x68\xc0\x7f", 1.5),
        (b"\x08\x0a\x58\x01", 1.0),  # a flag
        (b"\x08\x0a" + field(0x22, b"\x00"), 0.0),
        (b"\x08\x06\x38" + b"\xff" * 9 + b"\x01", -1),
        (b"\x08\x04\x38\x07", 7),
        (b"\x08\x16\x80\x01\x07", 7),
        (b"\x08\x17" + b"\x8a\x01\x02\x96\x01", 150),
        (b"\x08\x08" + field(0x22, b"12345678"), None),  # a complex number
        (b"\x08\x07" + field(0x42, b"text"), None),
        (b"\x08\x01" + field(0x12, field(0x12, b"\x08\x01")) + field(0x2A, struct.pack("<f", 1.5)), None),
        (b"", None),
    ],
)
def test_a_tensor_without_dimensions_is_a_scalar_of_its_type(content: bytes, value: float | None) -> None:
    items = read_events(event(b"\x01", tensor("loss", content), scalar("grad_norm", 1.0)))
    assert ([(row.loss, row.global_norm) for row in steps(items)], problems(items)) == ([(value, 1.0)], [])


@pytest.mark.parametrize(
    "content",
    [
        b"\x08\x01" + field(0x2A, struct.pack("<2f", 1.5, 2.5)),
        b"\x08\x02" + field(0x22, b"1234567"),
        b"\x08\x03" + field(0x3A, b""),
        b"\x08\x03" + field(0x3A, b"\x05\x06"),
        b"\x08\x03" + field(0x3A, b"\x85"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_no_number(content: bytes) -> None:
    items = read_events(event(b"\x01", tensor("loss", content)))
    assert [("is not an event" in each.reason, each.line) for each in problems(items)] == [(True, 2)]
    assert steps(items) == []


WORDS = st.sampled_from(
    [
        event(b"\x01", scalar("loss", 2.0)),
        tensor("loss", b"\x08\x01" + field(0x2A, struct.pack("<f", 1.5))),
        b"\x09" + struct.pack("<d", math.nan),
        b"\x10",
        b"\xff" * 9,
    ]
)


@given(st.lists(st.binary(max_size=20) | WORDS, max_size=6), st.booleans())
def test_whatever_an_event_holds_is_read_or_told(pieces: list[bytes], nested: bool) -> None:
    data = b"".join(pieces)
    hostile = field(0x2A, field(0x0A, data)) if nested else data
    items = read_events(hostile, event(b"\x07", scalar("loss", 3.0)))
    assert losses(items)[-1][0] == 7
    assert all(each.line in {1, 2} for each in problems(items))


def test_a_step_below_zero_is_none() -> None:
    items = read_events(event(b"\xff" * 9 + b"\x01", scalar("loss", 2.0)), event(b"\x01", scalar("loss", 2.0)))
    assert (losses(items), [each.reason for each in problems(items)]) == ([(1, 2.0)], ["the row has no step"])


def test_tags_can_be_named_and_are_told_where_none_is_known() -> None:
    data = b"".join(map(record, (VERSION, event(b"\x01", scalar("my/loss", 2.0)))))
    assert losses(read(TensorBoard(), data, columns={"loss": "my/loss"})) == [(1, 2.0)]
    (told,) = problems(read(TensorBoard(), data))
    assert ("--columns loss=TAG" in told.reason, told.text, told.ends_the_log) == (True, "my/loss", False)
    assert read(TensorBoard(), record(VERSION)) == []


def test_of_two_tags_of_one_field_the_likelier_counts_and_of_two_values_the_last() -> None:
    items = read_events(
        event(b"\x01", scalar("lm loss", 9.0)), event(b"\x01", scalar("loss", 2.0)), event(b"\x01", scalar("loss", 3.0))
    )
    assert losses(items) == [(1, 3.0)]


def test_steps_wait_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_STEPS", 10)
    many = [event(bytes([step]), scalar(tag, step)) for step in range(1, 100) for tag in ("loss", "grad_norm")]
    items = read_events(*many)
    assert [(row.step, row.loss, row.global_norm) for row in steps(items)] == [
        (step, float(step), float(step)) for step in range(1, 100)
    ]
    assert notes(items) == []


def test_the_checksum_is_crc32c_as_it_is_published() -> None:
    """RFC 3720 B.4, and the check value of the catalogue of parametrised CRC algorithms."""
    for data, value in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (b"123456789", 0xE3069283)):
        masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert tensorboard.masked_checksum(data) == struct.pack("<I", masked)
