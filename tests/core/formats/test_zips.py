"""A chain of archives is walked from its end: each record is found, and what is wrong is said with its slice."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.torch import zips
from ckpttool.core.formats.torch.dcp import slice_names
from ckpttool.core.formats.torch.zip_end import archive_begin
from ckpttool.core.formats.torch.zips import archives_of, read_zips, slice_of, zips_contents
from ckpttool.core.storage.local import LocalStorage
from tests.support.shard_writers import MemorySource
from tests.support.trainer_trees import LAYOUTS

FILE = LAYOUTS / "dcp_fsdp2_4ranks" / "step_000015" / "__3_0.distcp"
REAL = sorted(LAYOUTS.rglob("*.distcp"))


def source(data: bytes) -> MemorySource:
    return MemorySource(data)


def begins(data: bytes) -> list[int]:
    """Where the slices of a healthy file begin, first to last."""
    found, end = [], len(data)
    while end:
        begin, _ = archive_begin(source(data), end)
        assert begin is not None
        found.append(begin)
        end = begin
    return found[::-1]


@pytest.mark.sample(12)
@pytest.mark.parametrize("path", REAL, ids=lambda path: "/".join(path.parts[-3:]))
def test_real_files_are_walked_to_their_beginning_and_every_record_is_as_it_was_saved(path: Path) -> None:
    data = path.read_bytes()
    found = read_zips(source(data), thoroughly=True)
    assert found.findings == ()
    assert found.verifiable
    assert [begin for begin, _ in archives_of(source(data))] == begins(data)
    assert {slice_of(entry.name) for entry in found.entries} == set(begins(data))
    assert all(zlib.crc32(data[entry.begin : entry.end]) == entry.crc32 for entry in found.entries)


def test_of_a_quick_look_the_last_slice_is_all() -> None:
    data = FILE.read_bytes()
    found = read_zips(source(data), thoroughly=False)
    assert (found.findings, {slice_of(entry.name) for entry in found.entries}) == ((), {begins(data)[-1]})
    assert found.bytes_read < 4096


@pytest.mark.parametrize("keep", [9000, 30, 10, 1])
@pytest.mark.parametrize("thoroughly", [True, False])
def test_a_cut_file_is_said_to_be_cut_where_it_ends(keep: int, *, thoroughly: bool) -> None:
    found = read_zips(source(FILE.read_bytes()[:keep]), thoroughly=thoroughly)
    assert [finding.code for finding in found.findings] == [Code.SHARD_TRUNCATED]
    assert found.findings[0].severity is Severity.DAMAGE
    assert f"byte {keep}" in found.findings[0].message
    assert found.entries == ()


def test_a_file_that_was_cut_between_two_slices_looks_whole_by_itself() -> None:
    data = FILE.read_bytes()
    assert read_zips(source(data[: begins(data)[3]]), thoroughly=True).findings == ()


@pytest.mark.parametrize("at", [1, 3, -2])
def test_a_page_of_zeros_is_found_with_the_slice_that_it_lies_in(at: int) -> None:
    data = bytearray(FILE.read_bytes())
    begin = begins(bytes(data))[at]
    data[begin - 40 : begin] = bytes(40)
    found = read_zips(source(bytes(data)), thoroughly=True)
    assert found.findings[0].severity is Severity.DAMAGE
    assert f"byte {begin}" in found.findings[0].message
    assert read_zips(source(bytes(data)), thoroughly=False).findings == ()


def test_a_header_that_disagrees_is_named_with_its_slice() -> None:
    data = bytearray(FILE.read_bytes())
    begin = begins(bytes(data))[2]
    data[begin + 31] ^= 1
    found = read_zips(source(bytes(data)), thoroughly=True)
    assert [finding.message.startswith(f"In the slice at byte {begin}: ") for finding in found.findings] == [True]


def test_findings_end_after_as_many_as_a_file_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(FILE.read_bytes())
    for begin in begins(bytes(data)):
        data[begin + 31] ^= 1
    monkeypatch.setattr(zips, "MAX_FINDINGS", 2)
    assert len(read_zips(source(bytes(data)), thoroughly=True).findings) == 2


def test_a_file_of_too_many_slices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "MOST_SLICES", 3)
    assert [finding.code for finding in read_zips(source(FILE.read_bytes()), thoroughly=True).findings] == [
        Code.OVER_LIMIT
    ]


def test_archives_with_short_ends_are_walked_too() -> None:
    def archive(text: str) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as written:
            written.writestr("archive/data.pkl", b"N.")
            written.writestr("archive/data/0", text)
        return out.getvalue()

    chain = archive("one") + archive("two")
    found = read_zips(source(chain), thoroughly=True)
    assert found.findings == ()
    assert [entry.name.partition(" ")[0] for entry in found.entries] == ["archive/data.pkl", "archive/data/0"] * 2


@pytest.mark.parametrize(
    "end", [b"", b"PK\x05\x06", struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 1 << 20, 1 << 20, 0)]
)
def test_an_end_that_is_none_or_leads_before_the_file_is_no_end(end: bytes) -> None:
    data = b"x" * 50 + end
    assert archive_begin(source(data), len(data))[0] is None


@pytest.mark.parametrize(
    ("name", "at"),
    [("archive/data/0 of the slice at byte 7", 7), ("archive/data/0", None), ("a of the slice at byte ", None)],
)
def test_a_records_name_tells_its_slice(name: str, at: int | None) -> None:
    assert slice_of(name) == at


@pytest.mark.parametrize("named", [FormatName.TORCH_ZIPS, FormatName.TORCH_ZIP])
def test_the_name_says_whether_a_chain_was_meant(named: FormatName) -> None:
    header = read_header(source(FILE.read_bytes()), named=named)
    assert (header.format, header.findings) == (named, ())


def test_what_the_slices_of_a_file_hold_is_told_with_their_places_in_the_file() -> None:
    """A tensor of torch's own record of the save, and values."""
    data = FILE.read_bytes()
    found = read_zips(source(data), thoroughly=True)
    names = slice_names(LocalStorage(str(FILE.parent)), FILE.name)
    contents = zips_contents(source(data), found.entries, names)
    assert contents.unread == 0
    tensors = {entry.name: entry for entry in contents.entries}
    assert tensors.keys() <= {*names.values()}
    assert len(tensors) + len({name for name, _ in contents.values}) >= len(names)
    places = {(entry.begin, entry.end) for entry in found.entries}
    assert {span for entry in tensors.values() for span in entry.spans} <= places
    unnamed = zips_contents(source(data), found.entries, {})
    assert {entry.name for entry in unnamed.entries} == {
        f"slice at byte {begin}" for begin, name in names.items() if name in tensors
    }
