"""Digests of a range and of each chunk of it, in whatever blocks it comes."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.verify.kernels import hashes
from ckpttool.core.verify.kernels.hashes import ChunkedDigest, crc32_of_chunks

CHUNK = 64


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "CHUNK_BYTES", CHUNK)
        yield


def fed(data: bytes, cuts: list[int], *, begin: int = 0, crc_end: int | None = None, xxh: bool = True) -> ChunkedDigest:
    digest = ChunkedDigest(begin, want_xxh=xxh, crc_end=crc_end)
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for first, last in pairwise(borders):
        digest.feed(memoryview(data)[first:last])
    return digest


@given(st.binary(max_size=400), st.lists(st.integers(0, 400)), st.integers(0, 450))
def test_whole_and_chunks_have_the_hashes_of_their_bytes(data: bytes, cuts: list[int], crc_end: int) -> None:
    digest = fed(data, cuts, crc_end=crc_end)
    assert digest.xxh128() == xxhash.xxh3_128_hexdigest(data)
    chunks = digest.chunks()
    assert [(chunk.begin, chunk.end) for chunk in chunks] == [
        (begin, min(begin + CHUNK, len(data))) for begin in range(0, len(data), CHUNK)
    ]
    for chunk in chunks:
        assert chunk.xxh128 == xxhash.xxh3_128_hexdigest(data[chunk.begin : chunk.end])
        assert chunk.crc32 == zlib.crc32(data[chunk.begin : min(chunk.end, crc_end)])
    assert (crc32_of_chunks(chunks) or 0) == zlib.crc32(data[:crc_end])


@given(st.binary(max_size=300), st.integers(0, 5), st.integers(0, 300))
def test_parts_cut_at_chunks_give_the_chunks_of_one_pass(data: bytes, border: int, crc_end: int) -> None:
    cut = min(border * CHUNK, len(data))
    halves = fed(data[:cut], [], crc_end=crc_end).chunks() + fed(data[cut:], [], begin=cut, crc_end=crc_end).chunks()
    assert halves == fed(data, [], crc_end=crc_end).chunks()


def test_what_was_not_asked_for_is_none() -> None:
    digest = fed(b"abc", [], xxh=False)
    assert digest.xxh128() is None
    assert [(chunk.xxh128, chunk.crc32) for chunk in digest.chunks()] == [(None, None)]
    assert crc32_of_chunks(digest.chunks()) is None
    assert crc32_of_chunks(()) is None


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK])
def test_a_range_inside_one_chunk_is_hashed_once_for_both(length: int) -> None:
    digest = ChunkedDigest(0, want_xxh=True, crc_end=None, single=True)
    digest.feed(memoryview(bytes(length)))
    assert digest.xxh128() == digest.chunks()[0].xxh128 == xxhash.xxh3_128_hexdigest(bytes(length))


def test_a_range_that_leaves_the_chunk_it_promised_is_refused() -> None:
    digest = ChunkedDigest(0, want_xxh=True, crc_end=None, single=True)
    with pytest.raises(ValueError, match="single chunk was announced"):
        digest.feed(memoryview(bytes(CHUNK + 1)))


def test_chunks_with_one_missing_have_no_crc() -> None:
    chunks = fed(bytes(3 * CHUNK), [], crc_end=999).chunks()
    with pytest.raises(ValueError, match="do not join"):
        crc32_of_chunks((chunks[0], chunks[2]))
