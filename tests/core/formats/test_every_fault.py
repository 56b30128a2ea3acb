"""Every single-bit flip and every truncation of real shards: nothing raises, and nothing false is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import Header
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.conftest import FIXTURES
from tests.support.shard_writers import MemorySource, crc_trailer, number, record, safetensors_file

CKPT = (FIXTURES / "sink2_ckpt/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt").read_bytes()
CKPT_WITH_CRC = CKPT + crc_trailer(CKPT)
SAFETENSORS = (FIXTURES / "sink2_safetensors/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.safetensors").read_bytes()

SHARDS = pytest.mark.parametrize(
    ("data", "named"),
    [
        pytest.param(CKPT, FormatName.MINDSPORE_CKPT, id="ckpt"),
        pytest.param(CKPT_WITH_CRC, FormatName.MINDSPORE_CKPT, id="ckpt-with-crc"),
        pytest.param(SAFETENSORS, FormatName.SAFETENSORS, id="safetensors"),
    ],
)


def read(data: bytes, named: FormatName) -> Header:
    return read_header(MemorySource(data), named=named, facts=FACTS)


def is_damaged(header: Header) -> bool:
    return any(finding.severity >= Severity.DAMAGE for finding in header.findings)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.sample(1)
@SHARDS
def test_no_bit_of_what_a_header_says_can_flip_unseen(data: bytes, named: FormatName) -> None:
    """A flip outside the tensors' data is a finding, or it changes what siblings are compared by."""
    healthy = read(data, named)
    in_data = {place for entry in healthy.entries for begin, end in entry.spans for place in range(begin, end)}
    # Of a byte of data one bit, for they all are alike.
    for bit in (bit for bit in range(8 * len(data)) if bit // 8 not in in_data or bit % 8 == bit // 8 % 8):
        header = read(flipped(data, bit), named)
        if bit // 8 in in_data:
            assert replace(header, scalars=healthy.scalars, findings=()) == healthy
        else:
            same = (header.schema_hash, header.metadata, header.checksum) == (
                healthy.schema_hash,
                healthy.metadata,
                healthy.checksum,
            )
            assert header.findings or not same, f"bit {bit} flipped unseen"


@pytest.mark.sample(2)
@SHARDS
def test_every_truncation_is_damage_but_between_two_records(data: bytes, named: FormatName) -> None:
    healthy = read(data, named)
    # A `.ckpt` that ends with a record, or without its checksum, is a valid file.
    boundaries = {entry.spans[-1][1] for entry in healthy.entries if named is FormatName.MINDSPORE_CKPT}
    for length in range(len(data)):
        header = read(data[:length], named)
        assert is_damaged(header) is (length not in boundaries), length
        assert header.entries == healthy.entries[: len(header.entries)]


@pytest.mark.sample(1)
@SHARDS
def test_every_zeroed_tail_that_reaches_the_header_is_damage(data: bytes, named: FormatName) -> None:
    healthy = read(data, named)
    last_data_begin = healthy.entries[-1].spans[0][0]
    for begin in range(last_data_begin):
        header = read(data[:begin] + bytes(len(data) - begin), named)
        if named is FormatName.MINDSPORE_CKPT or begin < healthy.entries[0].spans[0][0] - 8:
            assert is_damaged(header), begin


@SHARDS
@given(st.data())
def test_no_change_of_any_bytes_raises(data: bytes, named: FormatName, draw: st.DataObject) -> None:
    begin = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(begin, min(len(data), begin + 40)))
    instead = draw.draw(st.binary(max_size=40))
    read(data[:begin] + instead + data[end:], named)


@given(st.binary(max_size=300), st.sampled_from(FormatName))
def test_no_file_at_all_raises(data: bytes, named: FormatName) -> None:
    header = read(data, named)
    # An empty safetensors file is legal, and a store's data have no header: its nodes say where each value lies.
    without_findings = {FormatName.SAFETENSORS, FormatName.OCDBT}
    assert header.findings or header.entries or header.format in without_findings


@given(st.binary(max_size=200))
def test_no_safetensors_header_at_all_raises(rest: bytes) -> None:
    read(safetensors_file(b"{" + rest, b""), FormatName.SAFETENSORS)


@given(st.binary(max_size=200), st.booleans())
def test_no_record_at_all_raises(rest: bytes, behind_another: bool) -> None:
    read((number("epoch_num", 1) if behind_another else b"") + b"\x0a" + rest, FormatName.MINDSPORE_CKPT)


_TENSORS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
        st.lists(st.integers(0, 5), max_size=4).filter(lambda dims: dims != [0]),
        st.sampled_from(
            [("Int8", "I8", 1), ("BFloat16", "BF16", 2), ("Float32", "F32", 4), ("Complex128", "C128", 16)]
        ),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda tensor: tensor[0],
)


@given(_TENSORS, st.booleans(), st.integers(1, 30))
def test_what_is_written_is_read_back(
    tensors: list[tuple[str, list[int], tuple[str, str, int], bool]], crc: bool, cut: int
) -> None:
    data = b""
    expected = []
    for name, dims, (type_, dtype, width), packed in tensors:
        size = width
        for dim in dims:
            size *= dim
        begins = range(0, size, cut) or [0]
        data += b"".join(record(name, dims, type_, bytes(min(cut, size - at)), packed=packed) for at in begins)
        expected.append((name, dtype, tuple(dims), size, len(begins)))
    if tensors and crc:
        data += crc_trailer(data)
    header = read(data or record("a", [1], "Int8", b"1"), FormatName.MINDSPORE_CKPT)
    wrong_scalars = {"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size"}
    assert [finding for finding in header.findings if finding.tensor not in wrong_scalars] == []
    assert (header.checksum is not None) is bool(tensors and crc)
    if tensors:
        entries = [(e.name, e.dtype.value, e.shape, e.nbytes, len(e.spans)) for e in header.entries]
        assert entries == expected
