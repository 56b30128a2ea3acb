"""One pass tells everything at once, however the file is shared out."""

from __future__ import annotations

import hashlib
import pickle
import random
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ShrankError
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify.kernels import digest as digest_module
from ckpttool.core.verify.kernels import hashes
from ckpttool.core.verify.kernels.digest import PassSink, digest_pass
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import NumericFold, Scratch
from ckpttool.core.verify.kernels.passes import PassResult, Wants, join_passes

CHUNK = 128
ALL = Wants(crc_end=1 << 60, xxh=True, entry_crcs=True, numerics=True)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "CHUNK_BYTES", CHUNK)
        patch.setattr(digest_module, "CHUNK_BYTES", CHUNK)
        yield


def entry(name: str, dtype: DType, *spans: tuple[int, int], shape: tuple[int, ...] | None = None) -> TensorEntry:
    nbytes = sum(end - begin for begin, end in spans)
    return TensorEntry(
        name=name, dtype=dtype, shape=(nbytes * 8 // dtype.bits,) if shape is None else shape, spans=spans
    )


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[TensorEntry]]:
    """A file with tensors of any type at any offset, some in two spans, some empty, with gaps between."""
    entries = []
    at = draw(st.integers(0, 20))
    for index in range(draw(st.integers(0, 6))):
        dtype = draw(st.sampled_from([*FLOATS, DType.I64, DType.U8, DType.BOOL]))
        spans = []
        for _ in range(draw(st.integers(0, 2))):
            begin = at + draw(st.integers(0, 9))
            at = begin + draw(st.integers(0, 25)) * dtype.bits // 8
            spans.append((begin, at))
        entries.append(entry(f"t{index}", dtype, *spans))
    size = at + draw(st.integers(0, 30))
    return random.Random(draw(st.integers())).randbytes(size), entries  # noqa: S311  (no secret)


def fed(
    data: bytes, entries: list[TensorEntry], begin: int, end: int, cuts: list[int], *, wants: Wants = ALL
) -> PassResult:
    sink = PassSink(begin, end, entries=entries, wants=wants)
    for first, last in pairwise([begin, *sorted(cut for cut in cuts if begin < cut < end), end]):
        sink.feed(first, memoryview(data)[first:last])
    return sink.result()


@given(files(), st.lists(st.integers(0, 400)), st.randoms())
def test_one_pass_tells_what_separate_looks_tell(
    file: tuple[bytes, list[TensorEntry]], cuts: list[int], shuffle: random.Random
) -> None:
    data, entries = file
    shuffle.shuffle(entries)
    result = fed(data, entries, 0, len(data), cuts)
    assert result.xxh128 == xxhash.xxh3_128_hexdigest(data)
    assert (result.crc32 or 0) == zlib.crc32(data)
    assert {seen.entry for seen in result.entries} == set(entries)
    for seen in result.entries:
        content = b"".join(data[begin:end] for begin, end in seen.entry.spans)
        assert seen.is_complete
        assert seen.crc32 == zlib.crc32(content)
        if seen.entry.dtype in FLOATS:
            fold = NumericFold(seen.entry.dtype, Scratch())
            fold.feed(0, memoryview(content))
            assert seen.numeric is not None
            expected, stats = fold.partial().stats("weight"), seen.numeric.stats("weight")
            assert (stats.nans, stats.infinities, stats.absmax) == (
                expected.nans,
                expected.infinities,
                expected.absmax,
            )
            assert stats.norm == pytest.approx(expected.norm, rel=1e-5, abs=0)
        else:
            assert seen.numeric is None


@given(files(), st.lists(st.integers(0, 4)), st.randoms())
def test_parts_of_a_file_join_to_what_one_worker_finds(
    file: tuple[bytes, list[TensorEntry]], borders: list[int], shuffle: random.Random
) -> None:
    data, entries = file
    cuts = sorted({border * CHUNK for border in borders if 0 < border * CHUNK < len(data)})
    parts = [fed(data, entries, a, b, []) for a, b in pairwise([0, *cuts, len(data)])]
    parts = [pickle.loads(pickle.dumps(part)) for part in parts]  # noqa: S301  (our own, of a moment ago)
    shuffle.shuffle(parts)
    joined, whole = join_passes(parts), fed(data, entries, 0, len(data), cuts)
    assert joined.chunks == whole.chunks
    assert joined.crc32 == whole.crc32
    assert joined.entries == whole.entries
    assert joined.bytes_read == len(data)


def test_the_hash_of_the_whole_is_not_made_up_from_parts() -> None:
    data = bytes(2 * CHUNK)
    parts = [fed(data, [], a, a + CHUNK, [], wants=Wants(xxh=True, sha256=True)) for a in (0, CHUNK)]
    assert (join_passes(parts).xxh128, join_passes(parts).sha256) == (None, None)
    assert join_passes(parts[:1]).xxh128 == xxhash.xxh3_128_hexdigest(data[:CHUNK])
    assert join_passes(parts[:1]).sha256 == hashlib.sha256(data[:CHUNK]).hexdigest()


def test_a_gap_between_parts_is_refused() -> None:
    data = bytes(3 * CHUNK)
    parts = [fed(data, [], a, a + CHUNK, []) for a in (0, 2 * CHUNK)]
    with pytest.raises(ValueError, match="do not join"):
        join_passes(parts)
    with pytest.raises(ValueError, match="no parts"):
        join_passes([])


def test_a_gap_inside_a_tensor_is_refused() -> None:
    data, entries = bytes(3 * CHUNK), [entry("w", DType.F32, (0, 3 * CHUNK))]
    first, last = (fed(data, entries, a, a + CHUNK, []).entries[0] for a in (0, 2 * CHUNK))
    with pytest.raises(ValueError, match="a part ends at byte 128, the next begins at 256"):
        first.join(last)


def test_parts_that_did_not_look_at_numbers_join_without_them() -> None:
    data, entries = bytes(2 * CHUNK), [entry("w", DType.F32, (0, 2 * CHUNK))]
    first, last = (fed(data, entries, a, a + CHUNK, [], wants=Wants(entry_crcs=True)).entries[0] for a in (0, CHUNK))
    assert (first.join(last).crc32, first.join(last).numeric) == (zlib.crc32(data), None)
    first, last = (fed(data, entries, a, a + CHUNK, [], wants=Wants(numerics=True)).entries[0] for a in (0, CHUNK))
    assert first.join(last).crc32 is None
    assert first.join(last).numeric is not None


def test_what_was_not_asked_for_is_none() -> None:
    result = fed(bytes(8), [entry("w", DType.F32, (0, 8))], 0, 8, [], wants=Wants())
    assert (result.chunks, result.crc32, result.xxh128, result.entries) == ((), None, None, ())
    seen = fed(bytes(8), [entry("w", DType.F32, (0, 8))], 0, 8, [], wants=Wants(numerics=True)).entries[0]
    assert seen.crc32 is None
    assert seen.numeric is not None


def test_overlapping_spans_are_refused() -> None:
    neighbours = [entry("a", DType.U8, (0, 8)), entry("b", DType.U8, (8, 9))]
    assert len(fed(bytes(20), neighbours, 0, 20, []).entries) == 2
    with pytest.raises(ValueError, match="b overlaps a at byte 7"):
        PassSink(0, 20, entries=[entry("a", DType.U8, (0, 8)), entry("b", DType.U8, (7, 9))], wants=ALL)


def test_spans_of_a_tensor_that_run_backwards_are_refused() -> None:
    sink = PassSink(0, 20, entries=[entry("a", DType.U8, (10, 15), (0, 5))], wants=ALL)
    with pytest.raises(ValueError, match="not in file order"):
        sink.feed(0, memoryview(bytes(20)))


def test_blocks_that_do_not_follow_one_another_are_refused() -> None:
    with pytest.raises(ValueError, match="expected byte 0, got 5"):
        PassSink(0, 20, entries=[], wants=ALL).feed(5, memoryview(bytes(5)))


def test_an_integer_without_dimensions_is_told_with_its_value() -> None:
    data = (-5).to_bytes(8, "little", signed=True) + (2**63 + 1).to_bytes(8, "little") + bytes(8)
    entries = [
        entry("a", DType.I64, (0, 8), shape=()),
        entry("b", DType.U64, (8, 16), shape=()),
        entry("c", DType.I64, (16, 24), shape=(1,)),
    ]
    result = fed(data, entries, 0, 24, [3, 11])
    assert [seen.integer for seen in result.entries] == [-5, 2**63 + 1, None]
    # Neither can be a count of bytes, so both enter as they are stored.
    assert result.entries_crc().as_written == result.entries_crc().as_stored


def test_a_crc_over_tensors_that_were_not_all_read_is_refused() -> None:
    cut = fed(bytes(20), [entry("a", DType.U8, (0, 20))], 0, 10, [])
    with pytest.raises(ValueError, match="a: no CRC32 of the whole tensor"):
        cut.entries_crc()


def test_a_file_is_read_once_for_everything(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * CHUNK + 5)  # noqa: S311  (no secret)
    (tmp_path / "shard").write_bytes(data)
    with LocalStorage(str(tmp_path)).open("shard") as source:
        result = digest_pass(source, entries=[entry("w", DType.F32, (9, 309))], wants=ALL)
        part = digest_pass(source, wants=Wants(xxh=True), span=(CHUNK, 2 * CHUNK))
    assert result.bytes_read == len(data)
    assert result.xxh128 == xxhash.xxh3_128_hexdigest(data)
    assert part.chunks[0].xxh128 == result.chunks[1].xxh128


def test_a_file_that_shrinks_under_the_pass_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(100))
    with LocalStorage(str(tmp_path)).open("shard") as source:
        (tmp_path / "shard").write_bytes(bytes(99))
        with pytest.raises(ShrankError, match="ends at byte 99, expected 100"):
            digest_pass(source, wants=ALL)
