"""What one file says about itself, without a tensor being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.core.formats import read_header
from ckpttool.core.verify.check import check
from ckpttool.core.verify.checks.structure import metadata_hash
from tests.support.shard_writers import MemorySource, entries_json, safetensors_file
from tests.support.trees import floats, safetensors_bytes, shard_bytes, training_scalars, weights
from tests.support.verifying import CKPT, SAFETENSORS, codes, task_for

PAGE = 4096
STATE = training_scalars(epoch=10, true_step=20)


def looked(path: Path, data: bytes, *, role: ShardRole = ShardRole.FULL) -> ShardReport:
    path.write_bytes(data)
    return check(task_for(path, role=role)).report


class TestSizes:
    @pytest.mark.parametrize("source", [CKPT, SAFETENSORS])
    def test_a_file_that_is_written_twice_is_damaged(self, tmp_path: Path, source: Path) -> None:
        data = source.read_bytes()
        path = tmp_path / source.name
        assert looked(path, data * 2).word is VerdictWord.DAMAGED
        assert looked(path, data).word is VerdictWord.STRUCT_OK

    def test_an_empty_file_is_damaged(self, tmp_path: Path) -> None:
        assert codes(looked(tmp_path / "a.ckpt", b"").findings) == [Code.SHARD_EMPTY]

    @pytest.mark.parametrize("size", [1, 9, PAGE, PAGE + 1, 100_000])
    @pytest.mark.parametrize("name", ["a.ckpt", "a.safetensors", "a.pt"])
    def test_a_file_of_zeros_is_damaged_whatever_it_should_have_been(
        self, tmp_path: Path, size: int, name: str
    ) -> None:
        assert codes(looked(tmp_path / name, bytes(size)).findings) == [Code.SHARD_ZEROED]


class TestTails:
    """The last page is only looked at here; whether it may be zero its siblings say."""

    def zero_tail(self, path: Path, *, tail: int, fmt: str = "safetensors") -> bool:
        numbers = [1.0] * 2048
        numbers[2048 - tail // 4 :] = [0.0] * (tail // 4)
        tensors = [*weights(), floats("zz", [2048], values=numbers)]
        data = safetensors_bytes(tensors) if fmt == "safetensors" else shard_bytes(tensors, "ckpt")
        return looked(path, data, role=ShardRole.MODEL).zero_tail

    def test_a_page_of_zeros_at_the_end_is_seen_and_a_shorter_one_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        assert self.zero_tail(path, tail=PAGE)
        assert self.zero_tail(path, tail=8192)
        assert not self.zero_tail(path, tail=PAGE - 4)
        assert not self.zero_tail(path, tail=0)

    def test_in_a_ckpt_too(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ckpt"
        assert self.zero_tail(path, tail=PAGE, fmt="ckpt")
        assert not self.zero_tail(path, tail=PAGE - 4, fmt="ckpt")

    def test_of_a_smaller_file_all_tensor_data_must_be_zero(self, tmp_path: Path) -> None:
        data = safetensors_bytes(weights())
        begin = 8 + int.from_bytes(data[:8], "little")
        zeros = bytes(len(data) - begin)
        assert looked(tmp_path / "a.safetensors", data[:begin] + zeros, role=ShardRole.MODEL).zero_tail
        assert not looked(tmp_path / "a.safetensors", data[:begin] + b"\1" + zeros[1:], role=ShardRole.MODEL).zero_tail

    def test_the_page_that_ends_with_a_training_scalar_is_looked_at_as_a_whole(self, tmp_path: Path) -> None:
        """In a file of F32 the optimizer's counter stands last: a lost page sets it to 0, which is legal by itself."""
        counter = training_scalars(epoch=10, true_step=20, optimizer_step=0)
        tensors = [*counter, floats("zz", [2048], values=[0.0] * 2048)]
        assert looked(tmp_path / "a.safetensors", safetensors_bytes(tensors)).zero_tail

    def test_replicas_have_the_same_page_and_other_slices_do_not(self, tmp_path: Path) -> None:
        tails = [
            looked(tmp_path / f"{seed}.ckpt", shard_bytes([*weights(seed=seed), *STATE], "ckpt")).tail_hash
            for seed in (1, 1, 2)
        ]
        assert tails[0] == tails[1] != tails[2]
        assert None not in tails

    def test_a_file_without_tensors_has_no_tail(self, tmp_path: Path) -> None:
        report = looked(tmp_path / "a.safetensors", safetensors_file({}), role=ShardRole.MODEL)
        assert (report.zero_tail, report.tail_hash) == (False, None)


class TestMetadata:
    def report(self, path: Path, metadata: dict[str, str]) -> ShardReport:
        return looked(path, safetensors_bytes([*weights(), *STATE], metadata))

    @pytest.mark.parametrize(
        "metadata",
        [
            {"crc_nul": "123"},
            {"crc_ntm": "123"},
            {"foreat": "ms"},
            {"format": "mr"},
            {"format": "ls"},
            {"remove_redundanay": "True"},
            {"remove_redundancy": "Fadse"},
        ],
    )
    def test_words_one_bit_away_from_what_mindspore_writes_are_damage(
        self, tmp_path: Path, metadata: dict[str, str]
    ) -> None:
        assert self.report(tmp_path / "a.safetensors", metadata).word is VerdictWord.DAMAGED

    @pytest.mark.parametrize(
        "metadata",
        [
            {"format": "ms", "remove_redundancy": "False"},
            {"format": "ms", "remove_redundancy": "True"},
            {"format": "pt"},
            {"format": "np"},
            {"format": "mlx"},
            {"crc": "123", "crc_number": "4"},
            {"Format": "a training of ours", "date": "2026-01-01", "": ""},
            {"modelspec.title": "crc_nul"},
        ],
    )
    def test_words_that_anybody_may_write_are_left_alone(self, tmp_path: Path, metadata: dict[str, str]) -> None:
        report = self.report(tmp_path / "a.safetensors", metadata)
        assert codes(report.findings) == ([Code.HEADER_INVALID] if "Format" in metadata else [])

    def test_the_checksum_is_no_part_of_what_siblings_have_in_common(self) -> None:
        texts: list[dict[str, str]] = [{"format": "ms", "crc_num": "1"}, {"format": "ms", "crc_num": "22"}, {"a": "ms"}]
        hashes = [
            metadata_hash(read_header(MemorySource(safetensors_bytes(weights(), text)), named=FormatName.SAFETENSORS))
            for text in texts
        ]
        assert hashes[0] == hashes[1] != hashes[2]

    def test_a_file_without_free_text_has_none_to_compare(self, tmp_path: Path) -> None:
        assert looked(tmp_path / "a.safetensors", safetensors_bytes([*weights(), *STATE])).metadata_hash is None


def test_a_header_spelled_by_another_tool_is_noted_and_changes_no_verdict(tmp_path: Path) -> None:
    header = str(entries_json([("a", "U8", [8], 8)])).replace("'", '"').encode()
    report = looked(tmp_path / "a.safetensors", safetensors_file(header, b"12345678"), role=ShardRole.MODEL)
    assert codes(report.findings, above=None) == [Code.HEADER_NOT_CANONICAL]
    assert report.word is VerdictWord.STRUCT_OK
    assert [one.severity for one in report.findings] == [Severity.NOTE]


@pytest.mark.parametrize("level", Level)
def test_a_damaged_header_keeps_its_content_from_being_read(tmp_path: Path, level: Level) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(CKPT.read_bytes()[:-1])
    look = check(task_for(path, level))
    assert look.content is None
    assert (look.report.schema_hash, look.report.tensors) == (None, None)
    assert look.report.word is VerdictWord.DAMAGED
