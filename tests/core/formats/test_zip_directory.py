"""The directory of torch's zip files: real ones give their records, and nothing inconsistent gets through."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.formats.torch import zip_directory
from ckpttool.core.formats.torch.zip_directory import ZipDirectory, read_zip_directory
from tests.support.shard_writers import MemorySource, torch_file


def directory(data: bytes) -> ZipDirectory:
    return read_zip_directory(MemorySource(data))


def codes(data: bytes) -> set[tuple[Row, Severity]]:
    return {(finding.code, finding.severity) for finding in directory(data).findings}


@pytest.fixture(scope="module")
def saved() -> bytes:
    return torch_file({"w": torch.randn(10, 3), "b": torch.zeros(5, dtype=torch.bfloat16), "e": torch.zeros(0)})


def zipped(**records: bytes) -> bytes:
    """Return an archive as Python's zipfile writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_a_real_file_has_the_records_that_zipfile_finds_and_no_finding(saved: bytes) -> None:
    found = directory(saved)
    assert found.findings == ()
    assert found.verifiable
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        assert {entry.name: entry.crc32 for entry in found.entries} == {i.filename: i.CRC for i in archive.infolist()}
        for entry in found.entries:
            assert saved[entry.begin : entry.end] == archive.read(entry.name)
            assert zlib.crc32(saved[entry.begin : entry.end]) == entry.crc32
    assert [entry.begin for entry in found.entries] == sorted(entry.begin for entry in found.entries)
    assert found.bytes_read <= 3 * len(saved)


def test_a_file_with_many_records_is_read_in_a_bounded_number_of_bytes() -> None:
    data = torch_file({f"layers.{i}.weight": torch.randn(5_000) for i in range(200)})
    found = directory(data)
    assert found.findings == ()
    assert len(found.entries) >= 200
    assert found.bytes_read < 2 * 4096 * 220 < len(data)


def test_a_file_without_crcs_is_whole_but_not_verifiable() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        data = torch_file({"w": torch.randn(10)})
    finally:
        torch.serialization.set_crc32_options(True)
    found = directory(data)
    assert found.findings == ()
    assert not found.verifiable


def test_a_file_of_pythons_zipfile_is_accepted_also_without_a_record() -> None:
    found = directory(zipped(**{"a/data.pkl": b"xyz", "a/data/0": bytes(100)}))
    assert found.findings == ()
    assert [entry.name for entry in found.entries] == ["a/data.pkl", "a/data/0"]
    assert directory(zipped()) == ZipDirectory(entries=(), findings=(), bytes_read=22)


# Single faults, each made from the healthy file above.


def places(saved: bytes) -> tuple[int, int, int]:
    """Return where the first and second directory record and the 64-bit end of the archive begin."""
    first = saved.index(b"PK\x01\x02")
    return first, saved.index(b"PK\x01\x02", first + 1), saved.index(b"PK\x06\x06")


def patched(saved: bytes, at: int, layout: str, value: int) -> bytes:
    raw = bytearray(saved)
    struct.pack_into(layout, raw, at, value)
    return bytes(raw)


CENTRAL_FAULTS = {
    "compressed": (10, "<H", 8, Code.UNSUPPORTED_FORMAT, Severity.UNSAFE),
    "encrypted": (8, "<H", 0x0809, Code.UNSUPPORTED_FORMAT, Severity.UNSAFE),
    "other packed size": (20, "<L", 3, Code.HEADER_INVALID, Severity.DAMAGE),
    "on another disk": (34, "<H", 1, Code.UNSUPPORTED_FORMAT, Severity.UNSAFE),
    "folder": (38, "<L", 0x10, Code.HEADER_INVALID, Severity.UNSAFE),
    "other time than the local header": (12, "<H", 1, Code.HEADER_INVALID, Severity.DAMAGE),
    "other crc than the descriptor": (16, "<L", 1, Code.HEADER_INVALID, Severity.DAMAGE),
    "header elsewhere": (42, "<L", 1, Code.HEADER_INVALID, Severity.DAMAGE),
    "header beyond the directory": (42, "<L", 10**6, Code.OFFSETS_NOT_CONTIGUOUS, Severity.DAMAGE),
    "64-bit offset that is not given": (42, "<L", 0xFFFFFFFF, Code.HEADER_INVALID, Severity.DAMAGE),
    "no signature": (0, "<L", 0, Code.HEADER_INVALID, Severity.DAMAGE),
    "longer than the directory": (32, "<H", 60_000, Code.HEADER_INVALID, Severity.DAMAGE),
}


@pytest.mark.parametrize("fault", CENTRAL_FAULTS)
def test_a_fault_in_the_directory_is_found(saved: bytes, fault: str) -> None:
    offset, layout, value, code, severity = CENTRAL_FAULTS[fault]
    broken = patched(saved, places(saved)[0] + offset, layout, value)
    assert (code, severity) in codes(broken)
    assert directory(broken).entries == ()


@pytest.mark.parametrize(
    ("name", "code", "severity"),
    [
        (b"data.pk/", Code.HEADER_INVALID, Severity.UNSAFE),
        (b"data\0pkl", Code.UNSAFE_NAME, Severity.UNSAFE),
        (b"data\xffpkl", Code.HEADER_INVALID, Severity.DAMAGE),
    ],
)
def test_a_name_that_no_file_has_is_refused_or_damage(saved: bytes, name: bytes, code: Row, severity: Severity) -> None:
    assert codes(saved.replace(b"data.pkl", name)) == {(code, severity)}


def test_two_records_of_one_name_are_refused(saved: bytes) -> None:
    broken = saved.replace(b"data/1", b"data/0")
    assert codes(broken) == {(Code.HEADER_INVALID, Severity.UNSAFE)}
    assert "2 records are named" in directory(broken).findings[0].message


def test_records_on_each_other_are_refused(saved: bytes) -> None:
    first, second, _ = places(saved)
    offset = struct.unpack_from("<L", saved, first + 42)[0]
    assert (Code.OFFSETS_NOT_CONTIGUOUS, Severity.UNSAFE) in codes(patched(saved, second + 42, "<L", offset + 1))


def test_a_local_extra_field_that_pushes_the_data_into_the_next_record_is_refused(saved: bytes) -> None:
    assert codes(patched(saved, 28, "<H", 60_000)) == {(Code.OFFSETS_NOT_CONTIGUOUS, Severity.UNSAFE)}


def flipped(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


@pytest.mark.parametrize("offset", [0, 4, 6, 8, 10, 12, 14, 18, 22, 26, 30])
def test_a_local_header_that_disagrees_is_damage(saved: bytes, offset: int) -> None:
    assert codes(flipped(saved, offset, 0x40)) == {(Code.HEADER_INVALID, Severity.DAMAGE)}


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_a_descriptor_that_disagrees_is_damage(saved: bytes, offset: int) -> None:
    at = saved.index(b"PK\x07\x08")
    assert codes(flipped(saved, at + offset)) == {(Code.HEADER_INVALID, Severity.DAMAGE)}


@pytest.mark.parametrize("offset", [0, 4, 16, 20, 24, 32, 40, 48])
def test_a_64_bit_end_that_disagrees_is_damage(saved: bytes, offset: int) -> None:
    assert {severity for _, severity in codes(flipped(saved, places(saved)[2] + offset))} == {Severity.DAMAGE}


@pytest.mark.parametrize("offset", [4, 6, 8, 10, 12, 16])
def test_an_end_that_disagrees_is_damage(saved: bytes, offset: int) -> None:
    assert {severity for _, severity in codes(flipped(saved, len(saved) - 22 + offset))} == {Severity.DAMAGE}


def test_a_directory_that_lost_a_record_is_damage() -> None:
    raw = zipped(a=b"x", b=b"y")
    end = len(raw) - 22
    broken = raw[:end] + struct.pack(
        "<4s4H2LH", *struct.unpack("<4s4H2LH", raw[end:])[:3], 3, 3, *struct.unpack("<4s4H2LH", raw[end:])[5:]
    )
    assert codes(broken) == {(Code.ENTRIES_MISSING, Severity.DAMAGE)}


def test_bytes_between_records_are_suspect_and_the_records_still_told() -> None:
    raw = zipped(a=b"x")
    at = raw.index(b"PK\x01\x02")
    moved = raw[:at] + b"hidden" + raw[at:]
    moved = patched(moved, len(moved) - 6, "<L", at + 6)
    found = directory(moved)
    assert codes(moved) == {(Code.OFFSETS_NOT_CONTIGUOUS, Severity.SUSPECT)}
    assert [entry.name for entry in found.entries] == ["a"]


def test_bytes_before_the_first_record_are_suspect() -> None:
    file = io.BytesIO()
    file.write(b"#!/bin/sh\n")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"x")
    assert codes(file.getvalue()) == {(Code.OFFSETS_NOT_CONTIGUOUS, Severity.SUSPECT)}


@pytest.mark.parametrize("more", [1, 100, 60_000])
def test_appended_bytes_are_damage(saved: bytes, more: int) -> None:
    assert codes(saved + b"x" * more) == {(Code.TRAILING_BYTES, Severity.DAMAGE)}


def test_more_appended_than_the_end_is_searched_in_is_no_archive(saved: bytes) -> None:
    assert codes(saved + b"x" * 70_000) == {(Code.SHARD_TRUNCATED, Severity.DAMAGE)}


def test_a_comment_is_suspect(saved: bytes) -> None:
    with_comment = patched(saved, len(saved) - 2, "<H", 5) + b"hello"
    assert codes(with_comment) == {(Code.TRAILING_BYTES, Severity.SUSPECT)}
    assert directory(with_comment).entries == directory(saved).entries
    assert codes(with_comment[:-1]) == {(Code.SHARD_TRUNCATED, Severity.DAMAGE)}


def test_every_truncation_is_found(saved: bytes) -> None:
    for length in range(len(saved)):
        assert {severity for _, severity in codes(saved[:length])} & {Severity.DAMAGE, Severity.UNSAFE}, length


def unconstrained(saved: bytes) -> set[int]:
    """Return the bytes that no header binds: data (the CRC32 binds them), padding, and fields without a meaning."""
    free: set[int] = set()
    for entry in directory(saved).entries:
        free.update(range(entry.begin, entry.end))
    at = saved.find(b"PK\x03\x04")
    while at >= 0:
        names, extras = struct.unpack_from("<2H", saved, at + 26)
        free.update(range(at + 30 + names, at + 30 + names + extras))
        at = saved.find(b"PK\x03\x04", at + 4)
    at = saved.find(b"PK\x01\x02")
    while at >= 0:
        free.update([at + 4, at + 5, at + 36, at + 37, *range(at + 38, at + 42)])  # made by, attributes
        at = saved.find(b"PK\x01\x02", at + 4)
    wide = places(saved)[2]
    return free | set(range(wide + 12, wide + 16))  # versions


def test_every_flipped_bit_of_a_header_that_means_anything_is_found(saved: bytes) -> None:
    free = unconstrained(saved)
    raw = bytearray(saved)
    for at in (at for at in range(len(raw)) if at not in free):
        for bit in range(8):
            raw[at] ^= 1 << bit
            assert codes(bytes(raw)), (at, bit)
            raw[at] ^= 1 << bit


@given(st.data())
def test_no_damage_raises_or_gives_records_outside_the_file(data: st.DataObject) -> None:
    raw = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 0xFF, 0x50]))
    end = 0
    for entry in directory(bytes(raw)).entries:
        assert end <= entry.begin <= entry.end <= len(raw)
        end = entry.end


def build(records: list[tuple[bytes, bytes]], *, wide: bool, far: int = 0) -> bytes:
    """Lay out an archive as torch does, with 64-bit fields and descriptors where `wide`."""
    body, central = b"", b""
    for name, content in records:
        offset, crc = len(body) + far, zlib.crc32(content)
        extra = struct.pack("<HHQ", 1, 8, offset) if wide else b""
        body += struct.pack("<4s5H3L2H", b"PK\x03\x04", 0, 0x0808, 0, 0, 0, 0, 0, 0, len(name), len(extra))
        body += name + extra + content
        body += struct.pack("<4sLQQ" if wide else "<4sLLL", b"PK\x07\x08", crc, len(content), len(content))
        shown = 0xFFFFFFFF if wide else offset
        sizes = (crc, len(content), len(content), len(name), len(extra))
        central += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 0, 0, 0x0808, 0, 0, 0, *sizes, 0, 0, 0, 0, shown)
        central += name + extra
    count, begin = len(records), len(body) + far
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 798, 45, 0, 0, count, count, len(central), begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + len(central), 1)
    narrow = min(begin, 0xFFFFFFFF)
    return (
        body
        + central
        + end64
        + locator
        + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(central), narrow, 0)
    )


SMALL = build([(b"a/data.pkl", b"xyz"), (b"a/data/0", bytes(40))], wide=False)


class Far(MemorySource):
    """The bytes of an archive behind a hole of several GiB that is there but never made."""

    def __init__(self, data: bytes, hole: int) -> None:
        super().__init__(data, size=hole + len(data))
        self.hole = hole

    def read(self, offset: int, length: int) -> bytes:
        if offset < self.hole:
            return bytes(min(length, self.hole - offset))
        return super().read(offset - self.hole, length)


@pytest.mark.parametrize("far", [0, 5 << 30])
def test_records_behind_4_gib_are_found_where_they_are(far: int) -> None:
    data = build([(b"a/0", b"x" * 9), (b"a/1", b"y" * 3)], wide=True, far=far)
    found = read_zip_directory(Far(data, far))
    assert [(entry.name, data[entry.begin - far : entry.end - far]) for entry in found.entries] == [
        ("a/0", b"x" * 9),
        ("a/1", b"y" * 3),
    ]
    assert {finding.severity for finding in found.findings} <= {Severity.SUSPECT}  # the hole before the first record


def far_record(*, kind: int = 1) -> tuple[bytes, int]:
    """Return an archive with one record of 5 GiB behind 7 GiB of nothing, and where its bytes begin."""
    size, offset, name = 5 << 30, 7 << 30, b"a/0"
    local_extra = struct.pack("<HHQQ", 1, 16, 0, 0)
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 0, 0x0808, 0, 0, 0, 0, 0, 0, len(name), len(local_extra))
    extra = struct.pack("<HHL", 99, 4, 0) + struct.pack("<HHQQQ", kind, 24, size, size, offset)
    fields = (7, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF)
    central = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 0, 0, 0x0808, 0, 0, 0, *fields) + name + extra
    begin = offset + len(local) + len(name) + len(local_extra) + size + 24
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0, 45, 0, 0, 1, 1, len(central), begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + len(central), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), 0xFFFFFFFF, 0)
    tail = struct.pack("<4sLQQ", b"PK\x07\x08", 7, size, size) + central + end64 + locator + end
    return local + name + local_extra + tail, offset


class Hollow(MemorySource):
    """The archive of `far_record`, whose 12 GiB of nothing are never made."""

    HEAD = 53

    def __init__(self, data: bytes, offset: int) -> None:
        self.offset, self.tail_at = offset, offset + self.HEAD + (5 << 30)
        super().__init__(data, size=self.tail_at + len(data) - self.HEAD)

    def read(self, offset: int, length: int) -> bytes:
        if offset >= self.tail_at:
            return self.data[self.HEAD :][offset - self.tail_at :][:length]
        return self.data[: self.HEAD][offset - self.offset :][:length]


def test_64_bit_sizes_are_taken_from_the_extra_field() -> None:
    found = read_zip_directory(Hollow(*far_record()))
    assert [(entry.begin, entry.end - entry.begin) for entry in found.entries] == [((7 << 30) + 53, 5 << 30)]
    assert {finding.code for finding in found.findings} == {Code.OFFSETS_NOT_CONTIGUOUS}


def test_64_bit_sizes_that_are_nowhere_are_damage() -> None:
    found = read_zip_directory(Hollow(*far_record(kind=2)))
    assert {finding.severity for finding in found.findings} == {Severity.DAMAGE}


def test_a_directory_larger_than_the_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_directory, "MAX_DIRECTORY_BYTES", 10)
    assert codes(SMALL) == {(Code.OVER_LIMIT, Severity.UNSAFE)}


def test_findings_of_a_hostile_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_directory, "MAX_FINDINGS", 3)
    raw = bytearray(build([(b"%02d" % i, bytes(50)) for i in range(20)], wide=False))
    at = raw.find(b"PK\x01\x02")
    while at >= 0:
        struct.pack_into("<L", raw, at + 42, 0)
        at = raw.find(b"PK\x01\x02", at + 4)
    assert len(directory(bytes(raw)).findings) == 3


MISREAD: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "one byte": lambda: b"P",
    "only an end": lambda: b"PK\x05\x06" + bytes(10),
    "zeros": lambda: bytes(5000),
    "a locator that points at itself": lambda: struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1) + SMALL[-22:],
}


@pytest.mark.parametrize("name", MISREAD)
def test_what_is_no_archive_is_damage(name: str) -> None:
    assert {severity for _, severity in codes(MISREAD[name]())} == {Severity.DAMAGE}
