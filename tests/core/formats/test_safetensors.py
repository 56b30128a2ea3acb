"""safetensors, clause by clause. The quoted sentences are those of the format's own description."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import MAX_DIMS, MAX_FINDINGS, Header
from ckpttool.core.formats.safetensors import header as strictly
from ckpttool.core.formats.safetensors.header import DTYPES, parse_strictly
from ckpttool.core.formats.safetensors.shard import HeaderMemory, ParsedHeader, forget_headers
from ckpttool.core.formats.scalars import ScalarPlan
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.shard_writers import MemorySource, compact, entries_json, safetensors_file

W = ("weight", "F32", [2, 3], 24)
B = ("bias", "F32", [2], 8)
TWO = entries_json([B, W])


def read(data: bytes, *, size: int | None = None) -> Header:
    return read_header(MemorySource(data, size=size), named=FormatName.SAFETENSORS, facts=FACTS)


def codes(data: bytes) -> set[Row]:
    """Return the codes of the findings, all of which but notes must be damage."""
    findings = [finding for finding in read(data).findings if finding.severity > Severity.NOTE]
    assert all(finding.severity is Severity.DAMAGE for finding in findings)
    return {finding.code for finding in findings}


def entry(**changes: object) -> bytes:
    """Write a file of one tensor of 4 bytes, with fields changed or (None) left out."""
    fields: dict[str, object] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}
    return safetensors_file({"a": {key: value for key, value in fields.items() if value is not None}}, bytes(4))


def spelled(header: str, data_bytes: int = 4) -> bytes:
    return safetensors_file(header.encode(), bytes(data_bytes))


HEALTHY = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


def test_a_healthy_file_has_its_tensors_and_no_finding() -> None:
    header = read(safetensors_file({"__metadata__": {"format": "ms"}, **TWO}, bytes(32)))
    begin = header.entries[0].spans[0][0]
    assert header.findings == ()
    assert header.metadata == (("format", "ms"),)
    assert [(each.name, each.dtype.value, each.shape) for each in header.entries] == [
        ("bias", "F32", (2,)),
        ("weight", "F32", (2, 3)),
    ]
    assert [each.spans for each in header.entries] == [((begin, begin + 8),), ((begin + 8, begin + 32),)]


def test_a_file_without_tensors_is_healthy() -> None:
    assert read(safetensors_file(b"{}")).findings == ()
    assert read(safetensors_file({"__metadata__": {}})).findings == ()


# --- "8 bytes: N, an unsigned little-endian 64-bit integer, containing the size of the header" -----------------------


def test_a_header_that_is_longer_than_the_file_is_cut() -> None:
    """The format: "N bytes: a JSON UTF-8 string representing the header"."""
    data = spelled(HEALTHY)
    assert codes(data[:-1]) == {Code.SHARD_TRUNCATED}
    assert codes(data[:20]) == {Code.SHARD_TRUNCATED}


def test_a_header_that_shrank_after_it_was_opened_is_cut() -> None:
    data = spelled(HEALTHY)
    assert {finding.code for finding in read(data[:30], size=len(data)).findings} == {Code.SHARD_TRUNCATED}


def test_a_header_above_100_mb_is_refused_by_the_format() -> None:
    """The format: "there is a limit on the size of the header of 100MB"."""
    source = MemorySource((100_000_001).to_bytes(8, "little") + b"{", size=10**12)
    (finding,) = read_header(source, named=FormatName.SAFETENSORS, facts=FACTS).findings
    assert (finding.code, finding.severity) == (Code.HEADER_INVALID, Severity.DAMAGE)
    assert len(source.reads) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [17 << 20, 99_999_992])
def test_a_header_as_long_as_the_format_allows_is_read(size: int) -> None:
    """So long is that of some 200,000 tensors; here blanks fill it, which the format allows at its end."""
    text = compact(entries_json([("w", "U8", [8], 8)]))
    header = read(safetensors_file(text.ljust(size), bytes(8)))
    assert [entry.name for entry in header.entries] == ["w"]
    assert {finding.severity for finding in header.findings} <= {Severity.NOTE}


def spaced(header: object) -> bytes:
    """Spell a header as safetensors itself does not."""
    return json.dumps(header).encode()


@pytest.mark.parametrize("spell", [compact, spaced])
def test_more_keys_than_the_limit_are_refused_but_not_called_damaged(
    spell: Callable[[object], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_headers()  # one that was read before the limit is this low
    monkeypatch.setattr(strictly, "MAX_KEYS", 3)
    assert codes(safetensors_file(spell(TWO), bytes(32))) == set()
    four = entries_json((name, "U8", [8], 8) for name in "abcd")
    for more in (four, {"__metadata__": dict.fromkeys("abcd", "")}):
        header = read(safetensors_file(spell(more), bytes(32)))
        assert [(finding.code, finding.severity) for finding in header.findings] == [(Code.OVER_LIMIT, Severity.UNSAFE)]
        assert header.schema_hash is None


@pytest.mark.parametrize("metadata", [False, True])
def test_both_ways_take_the_same_number_of_keys(monkeypatch: pytest.MonkeyPatch, *, metadata: bool) -> None:
    monkeypatch.setattr(strictly, "MAX_KEYS", 3)
    for count in range(1, 6):
        keys: dict[str, object] = {"__metadata__": {"a": "b"}} if metadata else {}
        text = compact(keys | entries_json((name, "U8", [8], 8) for name in "abcde"[:count])).decode()
        assert (parse_strictly(text, data_begin=64).findings == ()) == (count + metadata <= 3)


def test_a_long_header_that_is_not_ascii_is_refused_for_the_memory_it_would_take() -> None:
    for characters, found in ((17_000_000, []), (25_000_000, [Code.OVER_LIMIT])):
        text = compact({"__metadata__": {"a": "x" * characters + "\U0001f4a3"}} | entries_json([("w", "U8", [8], 8)]))
        assert refusals(safetensors_file(text, bytes(8))) == found


def refusals(data: bytes) -> list[Row]:
    return [finding.code for finding in read(data).findings if finding.severity is Severity.UNSAFE]


def test_a_file_that_goes_on_after_its_last_tensor_has_trailing_bytes() -> None:
    """The format: "the byte buffer needs to be entirely indexed"."""
    assert codes(spelled(HEALTHY, 5)) == {Code.TRAILING_BYTES}
    assert codes(spelled(HEALTHY, 3)) == {Code.SHARD_TRUNCATED}
    assert codes(spelled(HEALTHY, 4)) == set()


# --- "The header data MUST begin with a { character (0x7B). The header data MAY be trailing padded with whitespace" ---


def test_only_spaces_may_pad_the_header() -> None:
    for padding in ["\n", "\t", "\0", "x"]:
        assert codes(spelled(HEALTHY + padding)) == {Code.HEADER_INVALID}
    assert codes(spelled(HEALTHY + "   ")) == set()


def test_a_header_that_does_not_begin_with_a_brace_is_no_safetensors() -> None:
    """The format: "The header data MUST begin with a { character (0x7B)"."""
    assert codes(spelled(" " + HEALTHY)) == {Code.HEADER_INVALID}


# --- "a JSON UTF-8 string" --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "{",
        '{"',
        '{"a',
        '{"a"',
        '{"a":',
        '{"a":{',
        '{"a":{"dtype":"F32"',
        HEALTHY[:-1],
        HEALTHY + "}",
        HEALTHY.replace("}}", "},}"),
        HEALTHY.replace('"a"', "a"),
        HEALTHY.replace('"a"', "'a'"),
        HEALTHY.replace('"a"', '"a\n"'),
        HEALTHY.replace('"a"', '"\\x61"'),
        HEALTHY.replace('"a"', '"\\ud800"'),
        HEALTHY.replace(":{", ":[{"),
        HEALTHY.replace('"F32"', "F32"),
        HEALTHY.replace('"F32"', "null"),
        '{"a":null}',
        '{"a":1}',
        '{"a":"b"}',
        "{}}",
        "{1:2}",
    ],
)
def test_a_header_that_is_no_json_of_this_form_is_invalid(header: str) -> None:
    assert codes(spelled(header)) - {Code.TRAILING_BYTES} == {Code.HEADER_INVALID}


def test_a_header_that_is_no_utf8_is_invalid() -> None:
    raw = HEALTHY.encode().replace(b'"a"', b'"\xff"')
    assert codes(safetensors_file(raw, bytes(4))) == {Code.HEADER_INVALID}
    assert codes(spelled(HEALTHY.replace('"a"', '"ü€😀"'))) == set()


@pytest.mark.parametrize(
    "opening", ["[", '{"a":', '{"a":{"dtype":', '{"a":{"shape":[', '{"__metadata__":{"a":', '[{"a":', "{"]
)
def test_ten_thousand_levels_of_nesting_are_a_finding(opening: str) -> None:
    header = '{"a":' + opening * 10_000 if opening != "{" else opening * 10_000
    assert codes(spelled(header)) - {Code.TRAILING_BYTES} == {Code.HEADER_INVALID}


@pytest.mark.sample(1)
@pytest.mark.parametrize("element", ["[]", "{}", '""', "0", '"a":[]', '"a":{}', '{"a":0}'])
def test_millions_of_empty_values_take_little_memory(element: str) -> None:
    many = ",".join([element] * (16_000_000 // (len(element) + 1)))
    for before in ["{", '{"a":{"shape":[', '{"__metadata__":{', '{"a":[']:
        data = spelled(before + many)
        tracemalloc.start()
        try:
            assert Code.HEADER_INVALID in codes(data)
            assert tracemalloc.get_traced_memory()[1] < 100 * 1024 * 1024
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("cut", ["", '{"a":', '"dtype":"F32","shape":[', '"', '"a":{"dtype":"x","shape":['])
def test_a_hostile_repetition_is_parsed_in_linear_time(cut: str) -> None:
    data = spelled("{" + (cut or '"a":{"dtype":"F32","shape":[') * 100_000)
    assert Code.HEADER_INVALID in codes(data)


# --- "Duplicate keys are disallowed" ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        HEALTHY[:-1] + "," + HEALTHY[1:],
        HEALTHY.replace('"dtype":"F32",', '"dtype":"F32","dtype":"F32",'),
        HEALTHY.replace('"shape":[1],', '"shape":[1],"shape":[1],'),
        HEALTHY.replace("{", '{"__metadata__":{"a":"b","a":"b"},', 1),
        HEALTHY.replace("{", '{"__metadata__":{},"__metadata__":{},', 1),
        HEALTHY[:-1] + ',"\\u0061":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}',
    ],
)
def test_a_repeated_key_is_invalid(header: str) -> None:
    """The format: "Duplicate keys are disallowed. Not all parsers may respect this"."""
    (finding,) = read(spelled(header)).findings
    assert finding.code is Code.HEADER_INVALID
    assert "twice" in finding.message


# --- entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_type_of_the_format_is_known(dtype: str) -> None:
    bits = DTYPES[dtype].bits
    assert codes(safetensors_file(entries_json([("a", dtype, [8], bits)]), bytes(bits))) == set()


@pytest.mark.parametrize("dtype", ["", "F33", "f32", "I4X2", "STRING", "C128", "F32 ", "BOOL\0", "F" * 1000])
def test_an_unknown_type_is_invalid(dtype: str) -> None:
    (finding,) = read(entry(dtype=dtype)).findings
    assert (finding.code, finding.tensor) == (Code.HEADER_INVALID, "a")


@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
def test_an_entry_without_one_of_its_fields_is_invalid(field: str) -> None:
    assert Code.HEADER_INVALID in codes(entry(**{field: None}))


@pytest.mark.parametrize("dim", [True, -1, 1.0, "1", None, [1], 2**64, 10**30, float("nan"), float("inf"), -0.0])
def test_a_dimension_that_is_no_whole_number_is_invalid(dim: object) -> None:
    assert Code.HEADER_INVALID in codes(entry(shape=[dim]))
    assert Code.HEADER_INVALID in codes(entry(data_offsets=[0, dim]))


@pytest.mark.parametrize(
    "number", ["01", "+1", "1e0", "1_0", "0x1", "\u0661", "²", "", " ", "1 1", "1,", ",1", "1" * 5000]
)
def test_a_number_that_json_does_not_spell_so_is_invalid(number: str) -> None:
    shape = HEALTHY.replace("[1]", f"[{number}]") if number.strip() else HEALTHY.replace("[1]", "[1,]")
    assert Code.HEADER_INVALID in codes(spelled(shape))
    assert Code.HEADER_INVALID in codes(spelled(HEALTHY.replace("[0,4]", f"[0,{number}]")))
    assert Code.HEADER_INVALID in codes(spelled(HEALTHY.replace("[0,4]", f"[{number},4]")))


@pytest.mark.parametrize("offsets", [[], [0], [0, 4, 4], [4, 0]])
def test_data_offsets_that_are_no_begin_and_end_are_damage(offsets: list[int]) -> None:
    assert codes(entry(data_offsets=offsets)) & {Code.HEADER_INVALID, Code.OFFSETS_NOT_CONTIGUOUS}


def test_a_tensor_of_more_dimensions_than_anything_holds_is_invalid() -> None:
    assert codes(entry(shape=[1] * MAX_DIMS)) == set()
    assert Code.HEADER_INVALID in codes(entry(shape=[1] * (MAX_DIMS + 1)))
    assert Code.HEADER_INVALID in codes(entry(shape=[1] * 5000))


def test_shape_and_type_must_give_the_bytes_of_the_tensor() -> None:
    """The format: "data_offsets: [BEGIN, END], ... END - BEGIN is the size of the tensor in bytes"."""
    (finding,) = read(entry(shape=[2])).findings
    assert (finding.code, finding.expected, finding.actual) == (Code.HEADER_INVALID, "8 bytes", "4 bytes")
    assert codes(entry(shape=[])) == set()
    assert codes(entry(shape=[1, 1, 1])) == set()


@pytest.mark.parametrize("shape", [[2**63, 4, 0], [2**60, 16], [2**64 - 1]])
def test_a_shape_whose_product_overflows_is_invalid_even_without_elements(shape: list[int]) -> None:
    data = safetensors_file({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    assert codes(data) == {Code.HEADER_INVALID}
    healthy = safetensors_file({"a": {"dtype": "F32", "shape": [0, *shape], "data_offsets": [0, 0]}})
    assert codes(healthy) == set()


@pytest.mark.parametrize(("dtype", "elements"), [("F4", 3), ("F6_E2M3", 2), ("F6_E3M2", 5)])
def test_elements_of_less_than_a_byte_must_fill_whole_bytes(dtype: str, elements: int) -> None:
    bits = DTYPES[dtype].bits
    size = bits * elements // 8
    assert codes(safetensors_file(entries_json([("a", dtype, [elements], size)]), bytes(size))) == {Code.HEADER_INVALID}
    size = bits * elements * 4 // 8
    assert codes(safetensors_file(entries_json([("a", dtype, [elements, 4], size)]), bytes(size))) == set()


# --- "The byte buffer needs to be entirely indexed, and cannot contain holes." ----------------------------------------


@pytest.mark.parametrize(
    ("begins", "word"),
    [((0, 9), "gap"), ((1, 9), "gap"), ((0, 7), "overlaps"), ((0, 0), "overlaps")],
)
def test_a_hole_and_an_overlap_are_damage(begins: tuple[int, int], word: str) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [8], "data_offsets": [begins[0], begins[0] + 8]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [begins[1], begins[1] + 8]},
    }
    (finding,) = read(safetensors_file(header, bytes(begins[1] + 8))).findings
    assert finding.code is Code.OFFSETS_NOT_CONTIGUOUS
    assert word in finding.message


def test_thousands_of_faults_are_told_by_the_first_few() -> None:
    header = entries_json((f"t{number}", "F99", [1], 4) for number in range(5000))
    findings = read(safetensors_file(header, bytes(20_000))).findings
    assert len(findings) == MAX_FINDINGS


# --- "Special key __metadata__ ... free form string-to-string map. Arbitrary JSON is not allowed" ---------------------


@pytest.mark.parametrize("metadata", ["null", "[]", '{"a":1}', '{"a":null}', '{"a":{}}', '{"a":["b"]}', '"a"', "{"])
def test_metadata_that_is_no_map_of_strings_is_invalid(metadata: str) -> None:
    assert Code.HEADER_INVALID in codes(spelled('{"__metadata__":' + metadata + "," + HEALTHY[1:]))


def test_metadata_of_any_text_is_healthy() -> None:
    metadata = {'q"\\': "\n", "ü": "", "dtype": '{"dtype":"F32"}'}
    header = read(safetensors_file({"__metadata__": metadata, **TWO}, bytes(32)))
    assert header.findings == ()
    assert dict(header.metadata) == metadata


# --- the checksum that MindSpore adds --------------------------------------------------------------------------------


def with_crc(crc: object, **metadata: str) -> bytes:
    return safetensors_file({"__metadata__": {"crc_num": crc, "format": "ms", **metadata}, **TWO}, bytes(32))


@pytest.mark.parametrize("crc", [0, 7, 3_973_190_853, 2**32 - 1])
def test_the_checksum_of_mindspore_is_recognised(crc: int) -> None:
    data = with_crc(str(crc))
    header = read(data)
    assert header.findings == ()
    assert header.checksum is not None
    assert (header.checksum.algorithm, header.checksum.value) == ("crc32-entries", crc)
    assert header.checksum.end == len(data)


@pytest.mark.parametrize(
    "crc", ["", "-1", "4294967296", "99999999999999999999", "0x10", "1e5", "²", "\uff11", "a" * 500]
)
def test_a_checksum_that_is_no_crc32_is_invalid(crc: str) -> None:
    header = read(with_crc(crc))
    assert [finding.code for finding in header.findings] == [Code.HEADER_INVALID]
    assert header.checksum is None


def test_headers_that_differ_in_their_checksum_only_are_parsed_once_and_keep_theirs() -> None:
    first, second = read(with_crc("11", remembered="a")), read(with_crc("22", remembered="a"))
    assert first.entries[0].shape is second.entries[0].shape
    assert [dict(each.metadata)["crc_num"] for each in (first, second)] == ["11", "22"]
    assert [each.checksum.value for each in (first, second) if each.checksum] == [11, 22]
    assert codes(with_crc("x", remembered="a")) == {Code.HEADER_INVALID}


def test_a_checksum_key_in_a_broken_header_changes_nothing() -> None:
    assert Code.HEADER_INVALID in codes(spelled('{"__metadata__":{"crc_num":"12"'))
    assert Code.HEADER_INVALID in codes(spelled('{"__metadata__":{"a":"crc_num":"12"}}', 0))


# --- the form in which safetensors writes ----------------------------------------------------------------------------


def notes(header: Mapping[str, object] | bytes, size: int, *, pad: bool = True) -> list[Row]:
    findings = read(safetensors_file(header, bytes(size), pad=pad)).findings
    assert all(finding.severity is Severity.NOTE for finding in findings)
    return [finding.code for finding in findings]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (json.dumps(TWO).encode(), 32),
        (compact(TWO).replace(b"weight", b"\\u0077eight"), 32),
        (compact(TWO).replace(b'"dtype":"F32","shape":[2]', b'"shape":[2],"dtype":"F32"'), 32),
        (compact(entries_json([W, B])), 32),
        (compact(dict(reversed(TWO.items()))), 32),
        (compact(entries_json([("a", "F32", [1], 4), ("b", "I64", [1], 8)])), 12),
        (compact({"__metadata__": {"format": "ms"}, **TWO}).replace(b':"ms"', b': "ms"'), 32),
        (compact({**TWO, "__metadata__": {"format": "ms"}}), 32),
        (compact(TWO) + b" " * 8 + b" " * (-len(compact(TWO)) % 8), 32),
    ],
)
def test_a_valid_header_in_another_form_is_only_a_note(header: bytes, size: int) -> None:
    assert notes(header, size) == [Code.HEADER_NOT_CANONICAL]


def test_a_header_without_padding_is_a_note_where_it_should_have_some() -> None:
    odd = compact(TWO) + b" " * (-len(compact(TWO)) % 8 + 1)
    assert notes(odd, 32, pad=False) == [Code.HEADER_NOT_CANONICAL]


@pytest.mark.parametrize(
    "names", ["ab", ["q\"'", "z\\"], ["a\tb", "c"], ["ü", "€", "😀"], ["\x7f", "\u2028"], ["", "/"]]
)
def test_names_of_any_text_are_canonical(names: list[str]) -> None:
    tensors = [(name, "F32", [1], 4) for name in sorted(names)]
    assert notes(compact(entries_json(tensors)), 4 * len(names)) == []


# --- headers repeat --------------------------------------------------------------------------------------------------


def test_the_same_header_in_a_shorter_file_is_still_found_cut() -> None:
    data = safetensors_file({"remembered": TWO["bias"]}, bytes(8))
    assert codes(data) == set()
    assert codes(data[:-1]) == {Code.SHARD_TRUNCATED}
    assert codes(data + b"\0") == {Code.TRAILING_BYTES}


def put(memory: HeaderMemory, key: bytes, hole: tuple[int, int] | None = None) -> ParsedHeader:
    """Remember a header of these bytes, and return what it parsed to."""
    text = parse_strictly(HEALTHY, data_begin=64)
    parsed = ParsedHeader(
        text=text, data_begin=64, is_canonical=True, requested=(), scalars=ScalarPlan(), last_page=None
    )
    memory.put(bytearray(key), len(key), hole or (len(key), len(key)), parsed)
    return parsed


def get(memory: HeaderMemory, key: bytes, hole: tuple[int, int] | None = None) -> ParsedHeader | None:
    """Ask for a header, with another file's bytes behind it."""
    return memory.get(bytearray(key + b"behind"), len(key), hole or (len(key), len(key)))


def test_the_memory_of_headers_is_bounded_and_gives_back_only_what_it_was_given() -> None:
    memory = HeaderMemory(limit=100)
    for number in range(50):
        put(memory, b"%02d" % number + bytes(28))
    held = [number for number in range(50) if get(memory, b"%02d" % number + bytes(28))]
    assert held == [47, 48, 49]
    assert get(memory, b"49" + bytes(27)) is None
    assert get(memory, b"49" + bytes(28), (0, 1)) is None


def test_a_header_above_the_limit_is_remembered_alone_and_makes_room_for_the_next() -> None:
    memory = HeaderMemory(limit=100)
    put(memory, b"small")
    large = put(memory, bytes(101))
    assert get(memory, bytes(101)) is large
    assert get(memory, b"small") is None
    again = put(memory, b"small")
    assert get(memory, b"small") is again
    assert get(memory, bytes(101)) is None


def test_a_header_that_is_asked_for_again_and_again_is_forgotten_in_its_turn() -> None:
    memory = HeaderMemory(limit=100)
    put(memory, b"a" * 60)
    assert get(memory, b"a" * 60)
    put(memory, b"b" * 60)
    assert get(memory, b"a" * 60) is None
    memory.clear()
    assert get(memory, b"b" * 60) is None


def test_what_stands_in_the_hole_makes_no_difference_and_all_else_does() -> None:
    memory = HeaderMemory(limit=100)
    parsed = put(memory, b"abc123def", (3, 6))
    assert memory.get(bytearray(b"abc9def"), 7, (3, 4)) is parsed
    assert memory.get(bytearray(b"abc123def"), 9, (9, 9)) is None
    assert memory.get(bytearray(b"abx123def"), 9, (3, 6)) is None
    assert memory.get(bytearray(b"abc123dex"), 9, (3, 6)) is None


def test_what_is_forgotten_is_parsed_again() -> None:
    data = safetensors_file({"forgotten": TWO["bias"]}, bytes(8))
    first, again = read(data), read(data)
    forget_headers()
    assert again.entries is first.entries
    assert read(data).entries is not first.entries
    assert read(data).entries == first.entries


def test_a_header_that_is_put_twice_counts_once() -> None:
    memory = HeaderMemory(limit=100)
    first = [put(memory, b"a" * 40) for _ in range(10)][-1]
    put(memory, b"b" * 40)
    assert get(memory, b"a" * 40) is first


def test_threads_share_the_memory() -> None:
    files = [
        safetensors_file(entries_json([(f"{number}", "U8", [number], number)]), bytes(number)) for number in range(64)
    ]

    def wrong(_: int) -> list[int]:
        return [number for number, data in enumerate(files * 5) if read(data).entries[0].shape != (number % 64,)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(wrong, range(4))) == [[]] * 4


def test_a_header_that_we_spell_is_the_one_that_safetensors_writes() -> None:
    tensors = [("scale", DType.F32, ()), ("weight", DType.F32, (2, 3)), ("n", DType.I64, ()), ("none", DType.U8, (0,))]
    head, entries = strictly.encoded_header(tensors)
    header = read(head + bytes(36))
    assert (header.findings, header.entries) == ((), entries)
    assert [each.name for each in entries] == ["n", "scale", "weight", "none"]
    assert len(head) % 8 == 0
    assert read(strictly.encoded_header([])[0]).entries == ()


@pytest.mark.parametrize("dtype", [DType.C128, DType.F4], ids=lambda dtype: dtype.value)
def test_what_fits_into_no_file_is_not_spelled(dtype: DType) -> None:
    with pytest.raises(ValueError, match="is too large for any safetensors file"):
        strictly.encoded_header([("odd", dtype, (1,))])


# --- spelled anew ----------------------------------------------------------------------------------------------------


def test_a_header_takes_other_metadata_and_keeps_its_tensors() -> None:
    text = compact({"__metadata__": {"b": "1", "a": "2"}, **TWO}).decode()
    assert strictly.metadata_in(text) == (("b", "1"), ("a", "2"))
    assert strictly.metadata_in(compact(TWO).decode()) is None
    for metadata in (None, (("crc_num", "7"), ("é", '"')), ()):
        head = strictly.with_metadata(text, metadata)
        assert (len(head) - 8) % 8 == 0
        again = read(head + bytes(32))
        assert ({finding.code for finding in again.findings}, dict(again.metadata)) == (set(), dict(metadata or ()))
        assert [entry.name for entry in again.entries] == ["bias", "weight"]
    with pytest.raises(strictly.InvalidHeaderError):
        strictly.with_metadata(text[:-1], None)
