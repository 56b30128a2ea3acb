"""The door to all formats: content decides, the name only disagrees."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import FORMATS, read_header
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.scalars import FACTS, state_in
from tests.conftest import FIXTURES
from tests.support.shard_writers import MemorySource, entries_json, record, safetensors_file, torch_file

CKPT = FormatName.MINDSPORE_CKPT
SAFETENSORS = FormatName.SAFETENSORS

HEALTHY_CKPT = record("weight", [2], "Float32", bytes(8))
HEALTHY_SAFETENSORS = safetensors_file(entries_json([("weight", "F32", [2], 8)]), bytes(8))


def _named(path: Path) -> FormatName:
    return SAFETENSORS if path.suffix == ".safetensors" else CKPT


REAL = sorted(
    path
    for path in FIXTURES.rglob("*")
    if path.suffix in {".ckpt", ".safetensors"}
    and "strategy" not in str(path.relative_to(FIXTURES))  # how tensors are cut, no tensors
    and "layouts" not in path.parts  # of other trainers, some on purpose not whole: their truth stands beside them
    and "resumed_runs" not in path.parts  # a save of Lightning, beside its logs
    and not {"export", "loader_states"}.intersection(path.parts)  # of other libraries, for one purpose each
)


def test_every_shard_that_a_real_trainer_wrote_is_without_a_finding() -> None:
    storage = LocalStorage(str(FIXTURES))
    assert len(REAL) > 100
    for path in REAL:
        with storage.open(path.relative_to(FIXTURES).as_posix()) as source:
            header = read_header(source, named=_named(path), facts=FACTS)
        assert header.findings == (), path
        assert header.format is _named(path)
        assert header.schema_hash is not None
        last = max(end for entry in header.entries for _, end in entry.spans)
        assert last == path.stat().st_size - (17 if header.checksum and header.format is CKPT else 0), path


def test_the_scalars_of_a_real_shard_are_read_from_its_content() -> None:
    for suffix, fixture in [("ckpt", "sink2_ckpt"), ("safetensors", "sink2_safetensors")]:
        path = FIXTURES / fixture / "output/checkpoint/rank_2" / f"llama2_7b_rank_2-15_2.{suffix}"
        scalars = state_in(read_header(MemorySource(path.read_bytes()), named=_named(path), facts=FACTS).scalars)
        assert (scalars.epoch_num, scalars.step_num, scalars.global_step) == (15, 30, 30)
        assert (scalars.loss_scale, scalars.global_batch_size) == (65536.0, 8)


def test_the_same_tensors_have_the_same_schema_hash_in_both_formats() -> None:
    shards = [(HEALTHY_CKPT, CKPT), (HEALTHY_SAFETENSORS, SAFETENSORS)]
    hashes = {read_header(MemorySource(data), named=named, facts=FACTS).schema_hash for data, named in shards}
    assert len(hashes) == 1
    other = read_header(MemorySource(record("weight", [1, 2], "Float32", bytes(8))), named=CKPT)
    assert other.schema_hash not in hashes


@pytest.mark.parametrize("named", [CKPT, SAFETENSORS])
def test_a_file_without_bytes_is_empty(named: FormatName) -> None:
    header = read_header(MemorySource(b""), named=named, facts=FACTS)
    assert [finding.code for finding in header.findings] == [Code.SHARD_EMPTY]
    assert header.format is named


@pytest.mark.parametrize("size", [1, 9, 4096, 4097, 9000, 100_000])
@pytest.mark.parametrize("named", [CKPT, SAFETENSORS])
def test_a_file_of_zeros_is_zeroed_whatever_its_size(size: int, named: FormatName) -> None:
    header = read_header(MemorySource(bytes(size)), named=named, facts=FACTS)
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.SHARD_ZEROED, Severity.DAMAGE)
    assert header.bytes_read <= 8192


@pytest.mark.parametrize("named", [CKPT, SAFETENSORS])
def test_a_file_whose_first_bytes_alone_are_zero_is_zeroed_and_one_of_other_bytes_is_not(named: FormatName) -> None:
    rest = b"x" * 9000
    codes = {
        zeros: [each.code for each in read_header(MemorySource(bytes(zeros) + rest), named=named, facts=FACTS).findings]
        for zeros in (5, 10, 600)
    }
    assert codes == {5: [Code.HEADER_INVALID], 10: [Code.SHARD_ZEROED], 600: [Code.SHARD_ZEROED]}


@pytest.mark.parametrize(
    ("data", "named"),
    [(HEALTHY_CKPT, SAFETENSORS), (HEALTHY_SAFETENSORS, CKPT)],
)
def test_a_shard_under_the_other_formats_suffix_is_named_wrong_but_read(data: bytes, named: FormatName) -> None:
    header = read_header(MemorySource(data), named=named, facts=FACTS)
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.NAME_DISAGREES, Severity.DAMAGE)
    assert header.format is not named
    assert [entry.name for entry in header.entries] == ["weight"]


@pytest.mark.parametrize("named", [CKPT, SAFETENSORS])
def test_unknown_content_is_damage_and_its_first_bytes_are_told(named: FormatName) -> None:
    header = read_header(MemorySource(b"hello world"), named=named, facts=FACTS)
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.HEADER_INVALID, Severity.DAMAGE)
    assert "68 65 6c 6c 6f" in finding.message
    assert header.format is named


@pytest.mark.parametrize("size", range(1, 10))
def test_a_file_too_short_for_any_format_is_truncated(size: int) -> None:
    for data, named in [(HEALTHY_SAFETENSORS, SAFETENSORS), (HEALTHY_CKPT, CKPT)]:
        (finding,) = read_header(MemorySource(data[:size]), named=named, facts=FACTS).findings
        assert (finding.code, finding.severity) == (Code.SHARD_TRUNCATED, Severity.DAMAGE)


@pytest.mark.parametrize(
    ("data", "format_"),
    [
        (torch_file({"a": torch.zeros(3)}), FormatName.TORCH_ZIP),
        (torch_file({"a": torch.zeros(3)}, _use_new_zipfile_serialization=False), FormatName.TORCH_PICKLE),
        (pickle.dumps({"a": 1}), FormatName.TORCH_PICKLE),
    ],
    ids=["archive", "legacy", "pickle"],
)
def test_a_torch_file_is_unsupported_and_not_called_damaged(data: bytes, format_: FormatName) -> None:
    header = read_header(MemorySource(data), named=CKPT, facts=FACTS)
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN)
    assert header.format is format_
    assert header.entries == ()


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x010A, 0x0A0A, 0x0A, 0x5ED8])
def test_a_header_length_that_looks_like_another_formats_mark_does_not_mislead(length: int) -> None:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    data = safetensors_file(header.ljust(length) if length > len(header) else b"{}".ljust(length), pad=False)
    found = read_header(MemorySource(data + b"1" * (length > len(header))), named=SAFETENSORS)
    assert found.format is SAFETENSORS
    assert all(finding.severity is Severity.NOTE for finding in found.findings)


def test_every_format_is_listed_once_and_by_its_own_name() -> None:
    # A chain begins as a single archive does, and a store's values as they like: the name says what was meant.
    by_name = {FormatName.TORCH_ZIPS, FormatName.OCDBT}
    assert {each.name for each in FORMATS} == set(FormatName) - by_name
    assert len(FORMATS) == len(set(FormatName) - by_name)
