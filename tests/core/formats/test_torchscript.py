"""The source that TorchScript deflates is inflated piece by piece, and compared with its CRC32."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.core.formats.torch import torchscript as torchscript_code
from ckpttool.core.formats.torch.torchscript import look_at_code
from ckpttool.core.formats.torch.zip_directory import Deflated, ZipDirectory, ZipEntry, read_zip_directory
from ckpttool.core.verify.check import check
from ckpttool.core.verify.report import judge
from tests.support.shard_writers import MemorySource
from tests.support.verifying import task_for


def script() -> bytes:
    file = io.BytesIO()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    traced = torch.jit.trace(model, torch.ones(1, 2))
    torch.jit.save(traced, file)
    return file.getvalue()


def archive(code: bytes, *, name: str = "model/code/a.py", constants: bool = True) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr(zipfile.ZipInfo("model/data.pkl"), b"\x80\2}.")  # of 1980: the clock must not make bytes
        if constants:
            written.writestr(zipfile.ZipInfo("model/constants.pkl"), b"\x80\2).")
        written.writestr(zipfile.ZipInfo(name), code, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def looked(data: bytes) -> tuple[ZipDirectory, list[Finding]]:
    directory = read_zip_directory(MemorySource(data))
    return directory, [*directory.findings, *look_at_code(MemorySource(data), directory.deflated)[0]]


pytestmark = pytest.mark.filterwarnings("ignore")  # that TorchScript is on its way out

TEXT = b"".join(b"def forward_%d(self): return %d\n" % (number, number * number) for number in range(20_000))


class TestHealthy:
    @pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
    def test_what_torch_jit_save_wrote_is_whole(self, tmp_path: Path, level: Level) -> None:
        path = tmp_path / "model.pt"
        path.write_bytes(script())
        report = judge([check(task_for(path, level, role=ShardRole.UNIFIED))])
        assert report.word is (VerdictWord.VERIFIED if level is Level.CHECKSUM else VerdictWord.STRUCT_OK)
        assert [one for one in report.findings if one.severity > Severity.NOTE] == []

    def test_its_deflated_records_are_those_that_zipfile_finds(self) -> None:
        data = script()
        with zipfile.ZipFile(io.BytesIO(data)) as theirs:
            deflated = {one.filename: one.file_size for one in theirs.infolist() if one.compress_type}
        directory, found = looked(data)
        assert {one.record.name: one.size for one in directory.deflated} == deflated
        assert found == []

    @pytest.mark.parametrize("code", [b"", b"a", TEXT])
    def test_source_of_whatever_length_is_whole(self, code: bytes) -> None:
        directory, found = looked(archive(code))
        assert found == []
        assert len(directory.deflated) == 1


class TestDamage:
    def test_every_byte_of_the_source_that_changed_is_found(self) -> None:
        data = archive(TEXT[:3000])
        (one,) = looked(data)[0].deflated
        for at in range(one.record.begin, one.record.end - 1):  # of the last byte some bits mean nothing
            changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
            (found,) = looked(changed)[1]
            assert (found.code, found.severity) == (Code.CHECKSUM_MISMATCH, Severity.DAMAGE)
            assert "'model/code/a.py' is damaged" in found.message

    def test_a_size_that_is_not_that_of_the_source_is_found(self) -> None:
        data = archive(TEXT)
        for wrong in (len(TEXT) - 1, len(TEXT) + 1, 0):
            old, new = len(TEXT).to_bytes(4, "little"), wrong.to_bytes(4, "little")
            (found,) = looked(data.replace(old, new))[1]
            assert f"it does not decompress to {wrong} bytes" in found.message

    def test_a_source_that_goes_on_behind_its_end_is_found(self) -> None:
        data = archive(b"")
        (one,) = looked(data)[0].deflated
        odd = Deflated(record=ZipEntry(name="a", crc32=0, begin=one.record.begin, end=one.record.end + 3), size=0)
        (found,), _ = look_at_code(MemorySource(data), [odd])
        assert "does not decompress to 0 bytes" in found.message

    def test_a_source_that_breaks_off_is_found(self) -> None:
        data = archive(TEXT)
        (one,) = looked(data)[0].deflated
        cut = Deflated(
            record=ZipEntry(name="a", crc32=0, begin=one.record.begin, end=one.record.end - 9), size=one.size
        )
        (found,), nbytes = look_at_code(MemorySource(data), [cut])
        assert "it is truncated" in found.message
        assert nbytes == cut.record.end - cut.record.begin

    def test_more_than_anybody_writes_is_not_inflated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torchscript_code, "MOST_BYTES", 1000)
        (found,) = looked(archive(TEXT))[1]
        assert (found.code, found.severity) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN)

    def test_a_bomb_is_left_after_what_it_said_of_its_size(self) -> None:
        code = bytes(32 << 20)
        data = archive(code).replace(len(code).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
        (found,) = looked(data)[1]
        assert found.severity is Severity.DAMAGE


class TestOthers:
    @pytest.mark.parametrize(
        "data",
        [
            archive(TEXT, constants=False),
            archive(TEXT, name="model/data/0"),
            archive(TEXT, name="code/a.py"),
            archive(TEXT, name="model/more/code/a.py"),
        ],
    )
    def test_deflated_records_of_other_archives_are_refused(self, data: bytes) -> None:
        directory, found = looked(data)
        assert [(one.code, one.severity) for one in found] == [(Code.UNSUPPORTED_FORMAT, Severity.UNSAFE)]
        assert (directory.entries, directory.deflated) == ((), ())
