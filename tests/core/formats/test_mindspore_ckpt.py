"""MindSpore's `.ckpt`: the wire format, tensors in several records, the checksum, and what bounds the walk."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import MAX_DIMS, MAX_FINDINGS, Header
from ckpttool.core.formats.mindspore import shard as mindspore_ckpt
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.shard_writers import MemorySource, crc_trailer, delimited, map_record, record, tensor_body, varint

W = record("weight", [2, 3], "Float32", bytes(range(24)))
B = record("bias", [2], "Float32", bytes(8))


def read(data: bytes, *, size: int | None = None) -> Header:
    return read_header(MemorySource(data, size=size), named=FormatName.MINDSPORE_CKPT, facts=FACTS)


def codes(data: bytes) -> list[Row]:
    """Return the codes of the findings, all of which must be damage."""
    findings = read(data).findings
    assert all(finding.severity is Severity.DAMAGE for finding in findings)
    return [finding.code for finding in findings]


def test_a_healthy_file_has_its_tensors_and_no_finding() -> None:
    header = read(W + B)
    assert header.findings == ()
    assert header.checksum is None
    weight, bias = header.entries
    assert (weight.name, weight.dtype, weight.shape) == ("weight", DType.F32, (2, 3))
    assert weight.spans == ((len(W) - 24, len(W)),)
    assert (bias.name, bias.shape, bias.spans) == ("bias", (2,), ((len(W + B) - 8, len(W + B)),))


def test_a_scalar_has_no_dims_or_the_single_dim_zero_of_old_writers() -> None:
    header = read(record("a", [], "Float32", bytes(4)) + record("b", [0], "Float32", bytes(4)))
    assert header.findings == ()
    assert [entry.shape for entry in header.entries] == [(), ()]


def test_a_tensor_without_elements_is_healthy() -> None:
    header = read(record("a", [0], "Float32", b"") + record("b", [3, 0], "Float32", b"") + W)
    assert header.findings == ()
    assert [entry.shape for entry in header.entries] == [(0,), (3, 0), (2, 3)]


@pytest.mark.parametrize(
    ("type_", "dtype", "size"),
    [
        ("Bool", DType.BOOL, 1),
        ("Int4", DType.I4X2, 1),
        ("Int8", DType.I8, 1),
        ("Int16", DType.I16, 2),
        ("Int32", DType.I32, 4),
        ("Int64", DType.I64, 8),
        ("UInt8", DType.U8, 1),
        ("UInt16", DType.U16, 2),
        ("UInt32", DType.U32, 4),
        ("UInt64", DType.U64, 8),
        ("Float16", DType.F16, 2),
        ("Float32", DType.F32, 4),
        ("Float64", DType.F64, 8),
        ("BFloat16", DType.BF16, 2),
        ("Float8E4M3FN", DType.F8_E4M3, 1),
        ("Float8E5M2", DType.F8_E5M2, 1),
        ("HiFloat8", DType.HIF8, 1),
        ("Complex64", DType.C64, 8),
        ("Complex128", DType.C128, 16),
    ],
)
def test_every_type_of_mindspore_has_its_size(type_: str, dtype: DType, size: int) -> None:
    header = read(record("a", [3], type_, bytes(3 * size)))
    assert header.findings == ()
    assert header.entries[0].dtype is dtype
    assert codes(record("a", [3], type_, bytes(3 * size + 1))) == [Code.HEADER_INVALID]
    assert codes(record("a", [3], type_, bytes(3 * size - 1))) == [Code.HEADER_INVALID]


def test_a_text_has_any_length_and_four_bytes_a_character() -> None:
    header = read(
        record("word", [0], "str", "héllo".encode("utf-32-le")) + record("random_op", [0], "random_op", b"abc")
    )
    assert header.findings == ()
    assert [(entry.dtype, entry.shape, entry.nbytes) for entry in header.entries] == [
        (DType.STRING, (), 20),
        (DType.OPAQUE, (), 3),
    ]
    assert codes(record("word", [0], "str", b"12345")) == [Code.HEADER_INVALID]


def test_texts_of_different_length_have_the_same_schema() -> None:
    assert len({read(record("word", [0], "str", bytes(size))).schema_hash for size in (4, 40)}) == 1


# --- one tensor in several records -----------------------------------------------------------------------------------


def pieces(*sizes: int, tag: str = "big", dims: Sequence[int] = (6,)) -> bytes:
    return b"".join(record(tag, dims, "Float32", bytes(size)) for size in sizes)


def test_the_records_of_a_split_tensor_are_one_tensor_of_several_spans() -> None:
    header = read(W + pieces(16, 4, 4) + B)
    assert header.findings == ()
    assert [entry.name for entry in header.entries] == ["weight", "big", "bias"]
    big = header.entries[1]
    assert (big.shape, big.nbytes, [end - begin for begin, end in big.spans]) == ((6,), 24, [16, 4, 4])


@pytest.mark.parametrize(
    "wrong",
    [
        pieces(16, 4) + B,  # a piece is missing in the middle
        pieces(16, 4, 8) + B,  # one byte too many
        pieces(16) + B,
        pieces(16, 0, 8) + B,  # an empty piece is none
        pieces(16) + B + pieces(8),  # the pieces do not follow each other
        pieces(16) + record("big", [5], "Float32", bytes(8)) + B,
        pieces(16) + record("big", [6], "Int32", bytes(8)) + B,
    ],
)
def test_pieces_that_do_not_add_up_are_damage(wrong: bytes) -> None:
    found = codes(W + wrong)
    assert found
    assert set(found) == {Code.HEADER_INVALID}


def test_a_file_that_ends_between_the_pieces_of_a_tensor_is_cut() -> None:
    assert codes(W + pieces(16, 4)) == [Code.SHARD_TRUNCATED]
    assert codes(W + pieces(16, 4) + crc_trailer(W + pieces(16, 4))) == [Code.HEADER_INVALID]


def test_a_name_that_stands_twice_is_invalid() -> None:
    assert codes(W + B + W) == [Code.HEADER_INVALID]
    assert codes(W + W) == [Code.HEADER_INVALID]
    assert codes(pieces(24, 24)) == [Code.HEADER_INVALID]


# --- where the file ends ---------------------------------------------------------------------------------------------


def test_a_file_cut_between_two_records_is_a_valid_file() -> None:
    header = read((W + B)[: len(W)])
    assert header.findings == ()
    assert [entry.name for entry in header.entries] == ["weight"]


@pytest.mark.parametrize("length", range(len(W) + 1, len(W + B)))
def test_a_file_cut_inside_a_record_is_truncated(length: int) -> None:
    header = read((W + B)[:length])
    assert [finding.code for finding in header.findings] == [Code.SHARD_TRUNCATED]
    assert [entry.name for entry in header.entries] == ["weight"]
    assert header.schema_hash is None


def test_a_file_that_was_cut_after_it_was_opened_is_truncated() -> None:
    assert [finding.code for finding in read(W, size=len(W) + 100).findings] == [Code.SHARD_TRUNCATED]


def test_the_checksum_behind_the_records_is_recognised() -> None:
    header = read(W + B + crc_trailer(W + B))
    assert header.findings == ()
    assert header.checksum is not None
    assert header.checksum.algorithm == "crc32-file"
    assert header.checksum.value == zlib.crc32(W + B)
    assert header.checksum.end == len(W + B)


@pytest.mark.parametrize("length", range(1, 17))
def test_a_cut_checksum_is_truncated(length: int) -> None:
    header = read(W + crc_trailer(W)[:length])
    assert [finding.code for finding in header.findings] == [Code.SHARD_TRUNCATED]
    assert header.checksum is None


def test_bytes_behind_the_checksum_are_trailing() -> None:
    assert codes(W + crc_trailer(W) + b"x") == [Code.TRAILING_BYTES]
    assert codes(W + crc_trailer(W) + B) == [Code.TRAILING_BYTES]


def test_a_checksum_of_more_than_32_bits_is_invalid() -> None:
    assert codes(W + b"crc_num" + (2**32).to_bytes(10, "big")) == [Code.HEADER_INVALID]
    assert codes(W + b"crc_num" + (2**32 - 1).to_bytes(10, "big")) == []


@pytest.mark.parametrize("zeros", [1, 17, 5000, 300_000])
def test_zeros_behind_the_last_record_are_a_zero_tail(zeros: int) -> None:
    assert codes(W + bytes(zeros)) == [Code.ZERO_TAIL]


def test_other_bytes_behind_the_last_record_are_trailing() -> None:
    assert codes(W + b"garbage that is no record") == [Code.TRAILING_BYTES]
    assert codes(W + b"\xff") == [Code.TRAILING_BYTES]


def test_a_record_whose_first_byte_is_damaged_is_told_from_trailing_bytes() -> None:
    (finding,) = read(W + b"\x0b" + B[1:] + W).findings
    assert (finding.code, finding.expected, finding.actual) == (Code.HEADER_INVALID, "0a", "0b")


# --- the wire format -------------------------------------------------------------------------------------------------


def framed(body: bytes, *, tag: bytes = b"\x0a\x01a", key: int = 0x12) -> bytes:
    return delimited(0x0A, tag + delimited(key, body))


HEALTHY_BODY = tensor_body([2], b"Int8", b"12")


@pytest.mark.parametrize(
    "wrong",
    [
        framed(HEALTHY_BODY, tag=b"\x12\x01a"),
        framed(HEALTHY_BODY, tag=b"\x08\x01"),
        framed(HEALTHY_BODY, key=0x22),
        framed(HEALTHY_BODY + b"\x20\x01"),
        framed(HEALTHY_BODY)[:-1] + b"",
        framed(tensor_body([2], b"Int8", b"12")[2:]),  # without its dims: one element, two bytes
        framed(delimited(0x1A, b"12") + delimited(0x12, b"Int8")),
        framed(b"\x08\x02" + delimited(0x12, b"Int8")),
        framed(b"\x08\x02" + delimited(0x1A, b"12")),
        framed(b"\x08\x02" + delimited(0x12, b"Int8") + b"\x20\x02"),
        framed(b"\x08\x02" + delimited(0x12, b"I" * 65) + delimited(0x1A, b"12")),
        framed(b"\x08" + varint(2**64 - 1) + delimited(0x12, b"Int8") + delimited(0x1A, b"12")),
        framed(b"\x08\x82\x00" + delimited(0x12, b"Int8") + delimited(0x1A, b"12")),
        framed(b"\x08" + b"\x80" * 10 + b"\x01" + delimited(0x12, b"Int8") + delimited(0x1A, b"12")),
        framed(b"\x0a\x01\x82" + b"\x01" + delimited(0x12, b"Int8") + delimited(0x1A, b"12")),
        framed(b"\x08\x01" + b"\x0a\x01\x02" + delimited(0x12, b"Int8") + delimited(0x1A, b"12")),
        framed(b""),
        delimited(0x0A, b""),
        delimited(0x0A, b"\x0a\x01a"),
        delimited(0x0A, b"\x0a\x01a\x12"),
        delimited(0x0A, delimited(0x12, HEALTHY_BODY) + b"\x0a\x01a"),
        b"\x0a" + varint(len(framed(HEALTHY_BODY))) + framed(HEALTHY_BODY)[2:],
    ],
)
def test_a_record_that_mindspore_never_writes_is_damage(wrong: bytes) -> None:
    assert codes(W + wrong)
    assert codes(wrong + W)


@pytest.mark.parametrize("type_", ["", "Gloat32", "float32", "Float", "Float32\0", "String", "\u20ac"])
def test_an_unknown_type_is_invalid_and_the_walk_goes_on(type_: str) -> None:
    header = read(record("a", [1], type_, bytes(4)) + W)
    (finding,) = header.findings
    assert (finding.code, finding.tensor) == (Code.HEADER_INVALID, "a")
    assert [entry.name for entry in header.entries] == ["weight"]


def test_a_name_that_is_no_utf8_is_invalid_and_shown_escaped() -> None:
    (finding,) = read(record(b"\xff\xfea", [1], "Float32", bytes(4)) + W).findings
    assert finding.code is Code.HEADER_INVALID
    assert "\\xff" in finding.message


def test_a_map_parameter_is_not_supported_but_no_damage() -> None:
    header = read(W + map_record("table") + B)
    (finding,) = header.findings
    assert (finding.code, finding.severity, finding.tensor) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN, "table")
    assert [entry.name for entry in header.entries] == ["weight", "bias"]


@pytest.mark.parametrize("mark", [0x7F3A5ED8, 0x7F3A5ED9, 0x7F3A5EDA])
def test_an_encrypted_file_is_not_supported_but_no_damage(mark: int) -> None:
    header = read(struct.pack("<I", mark) + bytes(range(100)))
    (finding,) = header.findings
    assert (finding.code, finding.severity) == (Code.UNSUPPORTED_FORMAT, Severity.UNKNOWN)


# --- bounds ----------------------------------------------------------------------------------------------------------


def over_limit(data: bytes) -> bool:
    findings = read(data).findings
    return [(finding.code, finding.severity) for finding in findings] == [(Code.OVER_LIMIT, Severity.UNSAFE)]


def test_a_name_of_64_kib_is_read_and_a_longer_one_refused() -> None:
    assert read(W + record("n" * 65_536, [1], "Int8", b"1") + B).findings == ()
    assert over_limit(W + record("n" * 65_537, [1], "Int8", b"1"))


@pytest.mark.parametrize("packed", [False, True])
def test_64_dimensions_are_read_and_more_refused(packed: bool) -> None:
    assert codes(record("a", [1] * MAX_DIMS, "Int8", b"1", packed=packed)) == []
    assert over_limit(record("a", [1] * (MAX_DIMS + 1), "Int8", b"1", packed=packed))


def test_more_records_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspore_ckpt, "_MAX_RECORDS", 2)
    assert read(W).findings == ()
    assert over_limit(W + B + record("c", [1], "Int8", b"1"))


def test_thousands_of_faults_are_told_by_the_first_few() -> None:
    header = read(b"".join(record(f"t{number}", [9, 2], "Int8", b"1") for number in range(3000)))
    assert len(header.findings) == MAX_FINDINGS + 1
    assert header.schema_hash is None


def test_two_thousand_different_shapes_are_read() -> None:
    header = read(b"".join(record(f"t{number}", [number, 1], "Int8", bytes(number)) for number in range(1, 2000)))
    assert header.findings == ()
    assert [entry.shape[0] for entry in header.entries] == list(range(1, 2000))


def test_big_tensors_are_not_read() -> None:
    tensors = [record(f"layer{number}.weight", [1 << 20], "Int8", bytes(1 << 20)) for number in range(8)]
    source = MemorySource(b"".join(tensors))
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    assert header.findings == ()
    assert len(header.entries) == 8
    assert len(source.reads) == 8
    assert header.bytes_read == sum(min(length, len(source.data) - begin) for begin, length in source.reads) < 10_000


def test_small_tensors_take_few_reads() -> None:
    source = MemorySource(b"".join(record(f"t{number}", [100], "Int8", bytes(100)) for number in range(2000)))
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    assert header.findings == ()
    assert len(header.entries) == 2000
    assert len(source.reads) < 8


def test_a_tensor_of_more_than_4_gib_in_one_record_is_stepped_over() -> None:
    content = 5 * 2**30
    tensor = b"\x08" + varint(content) + delimited(0x12, b"Int8") + b"\x1a" + varint(content)
    value = delimited(0x0A, b"huge") + b"\x12" + varint(len(tensor) + content) + tensor
    head = b"\x0a" + varint(len(value) + content) + value

    class Sparse(MemorySource):
        def read(self, offset: int, length: int) -> bytes:
            self.reads.append((offset, length))
            return (
                (head + bytes(length))[offset : offset + length]
                if offset < len(head)
                else B[offset - len(head) - content :]
            )

    source = Sparse(b"", size=len(head) + content + len(B))
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    assert header.findings == ()
    assert [entry.nbytes for entry in header.entries] == [content, 8]
