"""CRC32: joined pieces, runs of zeros, and MindSpore's checksum over tensors, against files that MindSpore wrote."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.kernels.crc import EntryBytes, crc32, crc32_of_zeros, entries_crc, join_crc32
from ckpttool.core.verify.kernels.digest import digest_pass
from ckpttool.core.verify.kernels.passes import PassResult, Wants
from tests.conftest import FIXTURES

CRC = FIXTURES / "crc"
SAFETENSORS = sorted(path.name for path in CRC.glob("*.safetensors"))
CKPTS = sorted(path.name for path in CRC.glob("*.ckpt"))


@given(st.binary(), st.binary(), st.integers(0, 2**32 - 1))
def test_crc_is_the_one_of_zlib(first: bytes, second: bytes, start: int) -> None:
    assert crc32(first, start) == zlib.crc32(first, start)
    assert crc32(memoryview(second), crc32(first)) == zlib.crc32(first + second)


@given(st.lists(st.binary(), max_size=6))
def test_joining_pieces_gives_the_crc_of_the_whole_in_any_grouping(pieces: list[bytes]) -> None:
    from_left, length = 0, 0
    for piece in pieces:
        from_left, length = join_crc32(from_left, crc32(piece), len(piece)), length + len(piece)
    from_right, right_length = 0, 0
    for piece in reversed(pieces):
        from_right, right_length = join_crc32(crc32(piece), from_right, right_length), right_length + len(piece)
    assert from_left == from_right == zlib.crc32(b"".join(pieces))


@given(st.integers(0, 5000))
def test_crc_of_zeros_is_that_of_so_many_zero_bytes(count: int) -> None:
    assert crc32_of_zeros(count) == zlib.crc32(bytes(count))


@given(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
def test_crc_of_more_zeros_than_memory_holds_joins_like_any_other(first: int, second: int) -> None:
    assert join_crc32(crc32_of_zeros(first), crc32_of_zeros(second), second) == crc32_of_zeros(first + second)


@pytest.mark.parametrize("count", [-1, 2**63])
def test_a_count_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes"):
        crc32_of_zeros(count)


def tensors_of(path: Path) -> tuple[int, list[TensorEntry]]:
    """Return `crc_num` and the tensors of a small safetensors file."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    recorded = int(header.pop("__metadata__")["crc_num"])
    entries = [
        TensorEntry(
            name=name,
            dtype=DType(row["dtype"]),
            shape=tuple(row["shape"]),
            spans=((begin + row["data_offsets"][0], begin + row["data_offsets"][1]),),
        )
        for name, row in header.items()
    ]
    return recorded, entries


def passed(path: Path, entries: list[TensorEntry]) -> PassResult:
    with LocalStorage(str(path.parent)).open(path.name) as source:
        return digest_pass(source, entries=entries, wants=Wants(entry_crcs=True))


@pytest.mark.parametrize("name", SAFETENSORS)
def test_the_crc_of_tensors_is_the_one_that_mindspore_wrote(name: str) -> None:
    recorded, entries = tensors_of(CRC / name)
    assert passed(CRC / name, entries).entries_crc().matches(recorded)
    assert passed(CRC / name, entries[::-1]).entries_crc().matches(recorded)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_flipped_bit_of_any_byte_of_tensor_data_changes_the_crc_of_tensors(name: str, tmp_path: Path) -> None:
    recorded, entries = tensors_of(CRC / name)
    raw = bytearray((CRC / name).read_bytes())
    copy = tmp_path / "flipped"
    for entry in entries:
        for at in (at for begin, end in entry.spans for at in range(begin, end)):
            raw[at] ^= 1 << at % 8
            copy.write_bytes(raw)
            raw[at] ^= 1 << at % 8
            assert not passed(copy, entries).entries_crc().matches(recorded), (entry.name, at)


def test_an_integer_without_dimensions_enters_as_so_many_zeros_as_its_value_says() -> None:
    recorded, entries = tensors_of(CRC / "with_scalars.safetensors")
    crc = passed(CRC / "with_scalars.safetensors", entries).entries_crc()
    assert crc.as_written == recorded != crc.as_stored


def test_a_repaired_writer_that_sums_the_stored_bytes_is_accepted_too() -> None:
    data = (7).to_bytes(8, "little")
    crc = entries_crc([EntryBytes(name="n", crc32=zlib.crc32(data), nbytes=8, integer=7)])
    assert crc.matches(zlib.crc32(b"n" + data))
    assert crc.matches(zlib.crc32(b"n" + bytes(7)))
    assert not crc.matches(zlib.crc32(b"n" + bytes(8)))


def test_a_negative_integer_enters_with_its_bytes() -> None:
    crc = entries_crc([EntryBytes(name="n", crc32=zlib.crc32(b"\xff" * 8), nbytes=8, integer=-1)])
    assert crc.as_written == crc.as_stored == zlib.crc32(b"n" + b"\xff" * 8)


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=20), max_size=6), st.randoms())
def test_the_order_in_the_file_does_not_matter(tensors: dict[str, bytes], random: object) -> None:
    rows = [EntryBytes(name=name, crc32=zlib.crc32(data), nbytes=len(data)) for name, data in tensors.items()]
    shuffled = sorted(rows, key=lambda _: random.random())  # type: ignore[attr-defined]
    whole = 0
    for name in sorted(tensors):
        whole = zlib.crc32(tensors[name], zlib.crc32(name.encode(), whole))
    assert entries_crc(shuffled).as_stored == whole


def test_a_name_that_no_file_system_can_spell_does_not_raise() -> None:
    assert entries_crc([EntryBytes(name="\ud800", crc32=0, nbytes=0)]).as_stored


@pytest.mark.parametrize("name", CKPTS)
def test_the_crc_before_the_trailer_is_the_one_that_mindspore_wrote(name: str) -> None:
    raw = (CRC / name).read_bytes()
    assert raw[-17:-10] == b"crc_num"
    with LocalStorage(str(CRC)).open(name) as source:
        assert digest_pass(source, wants=Wants(crc_end=len(raw) - 17)).crc32 == int.from_bytes(raw[-10:], "big")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CKPTS)
def test_a_flipped_bit_of_any_byte_before_the_trailer_changes_the_crc(name: str, tmp_path: Path) -> None:
    raw = bytearray((CRC / name).read_bytes())
    recorded = int.from_bytes(raw[-10:], "big")
    for at in range(len(raw) - 17):
        raw[at] ^= 1 << at % 8
        (tmp_path / "flipped").write_bytes(raw)
        raw[at] ^= 1 << at % 8
        with LocalStorage(str(tmp_path)).open("flipped") as source:
            assert digest_pass(source, wants=Wants(crc_end=len(raw) - 17)).crc32 != recorded
