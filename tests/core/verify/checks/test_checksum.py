"""Every byte against every checksum there is: the file's own, its zip records', the manifest's."""

from __future__ import annotations

import io
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.manifest import CHUNK_BYTES, ShardSeal
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.core.verify.check import check
from ckpttool.core.verify.checks.structure import MOST
from ckpttool.core.verify.report import judge
from tests.conftest import FIXTURES
from tests.support.fault_detection import seal_of
from tests.support.hostile_files import CORPUS
from tests.support.shard_writers import crc_trailer, entries_json, safetensors_file
from tests.support.verifying import CKPT, SAFETENSORS, codes, task_for

WITH_CRC = sorted(path for path in (FIXTURES / "crc").iterdir() if path.suffix in {".ckpt", ".safetensors"})


def looked(path: Path, data: bytes | None = None, *, seal: ShardSeal | None = None) -> ShardReport:
    """Check the content of a loose file."""
    if data is not None:
        path.write_bytes(data)
    return judge([check(task_for(path, Level.CHECKSUM, role=ShardRole.UNIFIED, seal=seal))])


def flipped(data: bytes, byte: int, bit: int = 0) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


class TestTheFilesOwn:
    @pytest.mark.parametrize("path", WITH_CRC, ids=lambda path: path.name)
    def test_what_mindspore_wrote_with_a_checksum_is_verified(self, path: Path) -> None:
        report = looked(path)
        assert report.word is VerdictWord.VERIFIED
        assert report.findings == ()

    @pytest.mark.parametrize("path", WITH_CRC, ids=lambda path: path.name)
    def test_a_bit_of_a_tensor_that_flipped_is_damage(self, tmp_path: Path, path: Path) -> None:
        data = path.read_bytes()
        last_data = len(data) - (18 if path.suffix == ".ckpt" else 1)
        report = looked(tmp_path / path.name, flipped(data, last_data))
        assert report.word is VerdictWord.DAMAGED
        assert codes(report.findings) == [Code.CHECKSUM_MISMATCH]
        assert not report.checksum_matched

    def test_a_mismatch_tells_both_numbers(self, tmp_path: Path) -> None:
        data = CKPT.read_bytes()
        (finding,) = looked(tmp_path / "a.ckpt", flipped(data, 1000) + crc_trailer(data)).findings
        assert finding.expected is not None
        assert finding.expected == crc_trailer(data)[-4:].hex()
        assert finding.expected in finding.message
        assert finding.actual == crc_trailer(flipped(data, 1000))[-4:].hex()

    @pytest.mark.parametrize("byte", range(1, 18))
    def test_a_bit_of_the_trailer_itself_that_flipped_is_damage(self, tmp_path: Path, byte: int) -> None:
        data = CKPT.read_bytes()
        data += crc_trailer(data)
        assert looked(tmp_path / "a.ckpt", flipped(data, len(data) - byte)).word is VerdictWord.DAMAGED

    def test_a_stripped_trailer_leaves_a_file_that_was_not_verified(self, tmp_path: Path) -> None:
        report = looked(tmp_path / "a.ckpt", CKPT.read_bytes())
        assert report.word is VerdictWord.STRUCT_OK
        assert [(one.code, one.severity) for one in report.findings] == [(Code.CHECKSUM_MISSING, Severity.NOTE)]
        assert "would not be detected" in report.findings[0].message


class TestTorch:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        path = tmp_path / "model.pt"
        torch.save({"a": torch.arange(5000.0), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.zeros(0)}, path)
        return path

    def test_a_model_that_torch_saved_is_verified_and_never_unpickled(self, model: Path) -> None:
        report = looked(model)
        assert report.word is VerdictWord.VERIFIED
        assert (report.format, report.tensors) == (FormatName.TORCH_ZIP, 3)
        assert report.findings == ()

    @pytest.mark.parametrize("record", ["data/0", "data/1", "version"])
    def test_a_bit_of_any_record_that_flipped_is_damage_and_the_record_is_named(self, model: Path, record: str) -> None:
        report = looked(model, flipped(model.read_bytes(), self.place_of(model, record)))
        assert codes(report.findings) == [Code.CHECKSUM_MISMATCH]
        assert f"'model/{record}'" in report.findings[0].message

    def test_no_bit_of_the_pickle_flips_unseen(self, model: Path) -> None:
        data, begin = model.read_bytes(), self.place_of(model, "data.pkl")
        for byte in range(begin, begin + 60):
            report = looked(model, flipped(data, byte, byte % 8))
            assert report.word in {VerdictWord.DAMAGED, VerdictWord.UNSAFE}
            assert any("'model/data.pkl'" in finding.message for finding in report.findings)

    @staticmethod
    def place_of(model: Path, record: str) -> int:
        data = model.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return data.index(archive.read(f"model/{record}"))

    def test_records_without_a_single_crc_are_not_verified_and_not_damaged(self, model: Path) -> None:
        torch.serialization.set_crc32_options(compute_crc32=False)
        try:
            torch.save({"a": torch.arange(50.0)}, model)
        finally:
            torch.serialization.set_crc32_options(compute_crc32=True)
        report = looked(model)
        assert report.word is VerdictWord.STRUCT_OK
        assert [one.code for one in report.findings] == [Code.CHECKSUM_MISSING]
        assert "all 0: not computed" in report.findings[0].message
        assert not report.embedded_checksum

    @pytest.mark.parametrize("cut", [1, 22, 100, 5000])
    def test_a_cut_archive_is_damaged(self, model: Path, cut: int) -> None:
        assert looked(model, model.read_bytes()[:-cut]).word is VerdictWord.DAMAGED

    def test_a_squeezed_archive_is_refused_and_not_inflated(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.pt"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb/data/0", bytes(50 << 20))
        report = looked(path)
        assert report.word is VerdictWord.UNSAFE
        assert report.bytes_read < 1 << 20

    @pytest.mark.parametrize("level", [Level.STRUCTURE, Level.CHECKSUM])
    @pytest.mark.parametrize(
        ("made", "name"),
        [
            *(("pickle.pt", name) for name in ("old.pth", "old.pt", "old.ckpt", "old.safetensors", ".metadata")),
            ("pickle-in-a-zip.pt", "evil.pt"),
        ],
    )
    def test_a_pickle_that_would_run_a_program_is_unsafe_and_is_not_run(
        self, tmp_path: Path, made: str, name: str, level: Level
    ) -> None:
        path = tmp_path / name
        CORPUS[made](path)
        report = judge([check(task_for(path, level, role=ShardRole.UNIFIED))])
        assert report.word is VerdictWord.UNSAFE
        assert codes(report.findings) == [Code.UNSAFE_PICKLE]
        assert "'posix.system'" in report.findings[0].message
        assert sorted(tmp_path.iterdir()) == [path]

    def test_a_pickle_that_runs_nothing_is_unsupported(self, tmp_path: Path) -> None:
        path = tmp_path / "old.pth"
        torch.save({"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
        assert looked(path).word is VerdictWord.UNSUPPORTED

    def test_classes_that_nobody_knows_are_noted_and_the_file_is_verified(self, tmp_path: Path) -> None:
        path = tmp_path / "args.pt"
        torch.save({"args": Namespace(lr=1.0), "own": ShardRole.FULL, "w": torch.zeros(3)}, path)
        report = looked(path)
        assert report.word is VerdictWord.VERIFIED
        assert [(one.code, one.severity) for one in report.findings] == [(Code.UNSAFE_PICKLE, Severity.NOTE)]
        assert "'ckpttool.core.domain.shard.ShardRole'" in report.findings[0].message

    def test_a_torch_file_under_the_name_of_a_rank_is_unsupported(self, model: Path, tmp_path: Path) -> None:
        path = tmp_path / "llama_rank_0-10_2.ckpt"
        model.rename(path)
        report = judge([check(task_for(path, Level.CHECKSUM))])
        assert codes(report.findings) == [Code.UNSUPPORTED_FORMAT]
        assert report.word is VerdictWord.UNSUPPORTED

    def test_more_wrong_records_than_anybody_reads_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "many.pt"
        torch.save({str(number): torch.full((2,), 7.0) for number in range(40)}, path)
        data = path.read_bytes().replace(torch.full((2,), 7.0).numpy().tobytes(), b"\0" * 8)
        report = looked(path, data)
        assert len(report.findings) == MOST + 1
        assert "more findings of this kind" in report.findings[-1].message


class TestTheManifest:
    """Two chunks and a bit; tensors lie across their borders."""

    @pytest.fixture(scope="class")
    @staticmethod
    def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShardSeal]:
        sizes = {"a first": CHUNK_BYTES // 2, "b across": CHUNK_BYTES, "c last": CHUNK_BYTES}
        header = entries_json([(name, "U8", [size], size) for name, size in sizes.items()])
        path = tmp_path_factory.mktemp("big") / "model.safetensors"
        head = safetensors_file(header)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + sum(sizes.values()))
        return path, seal_of(path.name, path.read_bytes())

    def broken(self, big: tuple[Path, ShardSeal], byte: int, observed: Callable[[Path], ShardReport]) -> ShardReport:
        path = big[0]
        with path.open("r+b") as file:
            file.seek(byte)
            before = file.read(1)
            file.seek(byte)
            file.write(bytes([before[0] ^ 1]))
            file.flush()
            report = observed(path)
            file.seek(byte)
            file.write(before)
        return report

    def test_a_file_that_is_what_was_sealed_is_verified(self, big: tuple[Path, ShardSeal]) -> None:
        path, seal = big
        assert len(seal.chunks) == 3
        assert looked(path, seal=seal).word is VerdictWord.VERIFIED

    @pytest.mark.parametrize(
        ("chunk", "tensors"), [(0, "'a first', 'b across'"), (1, "'b across', 'c last'"), (2, "'c last'")]
    )
    def test_a_mismatch_names_the_chunk_and_the_tensors_in_it(
        self, big: tuple[Path, ShardSeal], chunk: int, tensors: str
    ) -> None:
        report = self.broken(big, chunk * CHUNK_BYTES + 1000, lambda path: looked(path, seal=big[1]))
        (finding,) = report.findings
        assert (finding.code, report.word) == (Code.CHECKSUM_MISMATCH, VerdictWord.DAMAGED)
        assert f"chunk {chunk}, with {tensors})" in finding.message
        assert big[1].first_seen in finding.message

    @pytest.mark.parametrize("is_whole", [True, False])
    def test_tensors_that_the_manifest_knows_are_not_hashed_again_and_count_where_all_of_it_is_as_sealed(
        self, tmp_path: Path, *, is_whole: bool
    ) -> None:
        data = SAFETENSORS.read_bytes()
        known = looked(tmp_path / "a.safetensors", data).tensor_digests
        seal = replace(seal_of("a", data), tensors=known)
        path = tmp_path / "b.safetensors"
        path.write_bytes(data if is_whole else flipped(data, len(data) - 100))
        observed = check(task_for(path, Level.CHECKSUM, seal=seal))
        assert observed.content is not None
        assert observed.content.tensors is None
        assert judge([observed]).tensor_digests == (known if is_whole else None)

    def test_tensors_are_hashed_where_the_manifest_knows_none_or_is_of_another_file(self, tmp_path: Path) -> None:
        data = SAFETENSORS.read_bytes()
        seal = seal_of("a", data)
        known = looked(tmp_path / "a.safetensors", data, seal=seal).tensor_digests
        other = data.replace(b"dense.bias", b"dense.bics")
        assert known is not None
        report = looked(tmp_path / "b.safetensors", other, seal=replace(seal, tensors=known))
        assert report.word is VerdictWord.DAMAGED
        assert report.tensor_digests is not None
        assert len(report.tensor_digests) == len(known)
        assert report.tensor_digests.names != known.names

    def test_another_size_is_told_instead_of_chunks(self, big: tuple[Path, ShardSeal]) -> None:
        path, seal = big
        report = looked(path, seal=replace(seal, size=ByteCount(seal.size + 1)))
        assert [one.expected for one in report.findings] == [str(seal.size + 1)]
        assert report.word is VerdictWord.DAMAGED

    def test_many_tensors_in_a_chunk_are_counted(self, tmp_path: Path) -> None:
        data = SAFETENSORS.read_bytes()
        report = looked(tmp_path / "a.safetensors", flipped(data, len(data) - 100), seal=seal_of("a", data))
        assert "and 16 more tensors" in report.findings[0].message

    def test_it_also_covers_what_a_file_of_its_own_checksum_leaves_open(self, tmp_path: Path) -> None:
        """`crc_num` in safetensors covers names and data, not the spelling of the header."""
        path = next(one for one in WITH_CRC if one.name == "tensors.safetensors")
        data = path.read_bytes()
        other = data.replace(b'"format":"ms"', b'"format":"pt"')
        assert looked(tmp_path / "a.safetensors", other).word is VerdictWord.VERIFIED
        assert looked(tmp_path / "a.safetensors", other, seal=seal_of("a", data)).word is VerdictWord.DAMAGED

    def test_an_encrypted_file_is_as_it_was_and_still_nobody_knows_what_is_in_it(self, tmp_path: Path) -> None:
        data = b"\xd8\x5e\x3a\x7f" + bytes(range(256)) * 20
        report = looked(tmp_path / "a.ckpt", data, seal=seal_of("a", data))
        assert report.checksum_matched
        assert report.word is VerdictWord.UNSUPPORTED
        changed = looked(tmp_path / "a.ckpt", flipped(data, 500), seal=seal_of("a", data))
        assert changed.word is VerdictWord.DAMAGED
