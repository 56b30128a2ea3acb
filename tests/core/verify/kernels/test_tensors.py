"""Digests of tensors, however a file is read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from xxhash import xxh3_64_digest

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.replicas import PIECE_BYTES, TensorDigests
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.verify.kernels.tensors import TensorHashes, TensorsSeen, join_tensors

NOISE = random.Random(7).randbytes(5 * PIECE_BYTES + 4321)  # noqa: S311


def entry(name: str, *spans: tuple[int, int]) -> TensorEntry:
    return TensorEntry(name=name, dtype=DType.U8, shape=(sum(b - a for a, b in spans),), spans=spans)


def seen(entries: Sequence[TensorEntry], begin: int, end: int, block: int, data: bytes = NOISE) -> TensorsSeen:
    hashes = TensorHashes(entries, begin, end)
    for offset in range(begin, end, block):
        hashes.feed(offset, memoryview(data)[offset : min(offset + block, end)])
    return hashes.result()


def direct(data: bytes) -> bytes:
    if len(data) <= PIECE_BYTES:
        return xxh3_64_digest(data)
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    return xxh3_64_digest(b"".join(xxh3_64_digest(piece) for piece in pieces))


ENTRIES = (
    entry("small", (10, 1010)),
    entry("large", (1010, 3 * PIECE_BYTES)),
    entry("scattered", (3 * PIECE_BYTES + 5, 3 * PIECE_BYTES + 99), (4 * PIECE_BYTES, 5 * PIECE_BYTES + 77)),
    entry("one piece", (5 * PIECE_BYTES + 100, 5 * PIECE_BYTES + 101)),
    entry("empty"),
)


def expected() -> TensorDigests:
    digests = {each.name: direct(b"".join(NOISE[a:b] for a, b in each.spans)) for each in ENTRIES if each.spans}
    return TensorDigests(names=tuple(sorted(digests)), digests=b"".join(digests[name] for name in sorted(digests)))


@pytest.mark.parametrize("block", [997, 512 << 10, len(NOISE)])
def test_a_digest_is_that_of_the_tensors_bytes_whatever_the_blocks(block: int) -> None:
    assert seen(ENTRIES, 0, len(NOISE), block).digests() == expected()


@pytest.mark.parametrize("seed", range(12))
def test_workers_that_share_a_file_find_what_one_would(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    borders = sorted({0, len(NOISE), *(chance.randrange(len(NOISE)) for _ in range(chance.randint(1, 6)))})
    parts = [seen(ENTRIES, begin, end, 512 << 10) for begin, end in pairwise(borders)]
    chance.shuffle(parts)

    assert join_tensors(parts).digests() == expected()


def test_a_tensor_with_a_gap_stays_unknown_and_the_others_do_not() -> None:
    parts = [seen(ENTRIES, 0, 2 * PIECE_BYTES, 4096), seen(ENTRIES, 2 * PIECE_BYTES + 4096, len(NOISE), 4096)]

    assert join_tensors(parts).digests().names == ("one piece", "scattered", "small")


def test_the_same_tensor_has_the_same_digest_wherever_in_a_file_it_lies() -> None:
    moved = bytes(333) + NOISE
    here = seen([entry("w", (0, 2 * PIECE_BYTES + 7))], 0, len(NOISE), 512 << 10).digests()
    there = seen([entry("w", (333, 340), (340, 2 * PIECE_BYTES + 340))], 0, len(moved), 512 << 10, moved).digests()

    assert here == there


def test_one_bit_anywhere_is_another_digest() -> None:
    for place in (0, PIECE_BYTES, len(NOISE) - 1):
        flipped = bytearray(NOISE)
        flipped[place] ^= 1
        whole = [entry("w", (0, len(NOISE)))]
        assert seen(whole, 0, len(NOISE), 512 << 10) != seen(whole, 0, len(NOISE), 512 << 10, bytes(flipped))


def test_a_name_of_two_tensors_tells_nothing_of_either() -> None:
    entries = [entry("w", (0, 9)), entry("w", (9, 12)), entry("b", (12, 13))]

    assert seen(entries, 0, 20, 20).digests().names == ("b",)


def test_spans_that_are_not_in_file_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not in file order"):
        seen([entry("w", (10, 15), (0, 5))], 0, 20, 20)


def test_tensors_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        seen([entry("a", (0, 10)), entry("b", (9, 12))], 0, 20, 20)


def test_tensors_of_several_spans_may_take_turns_with_others() -> None:
    """Whatever blocks and readers there are: no format that is known writes so, and none forbids it."""
    entries = [
        entry("a", (0, 700), (1400, PIECE_BYTES + 5000)),
        entry("b", (700, 1400), (PIECE_BYTES + 5000, len(NOISE))),
    ]
    whole = {each.name: direct(b"".join(NOISE[a:b] for a, b in each.spans)) for each in entries}
    for block in (501, 512 << 10):
        assert seen(entries, 0, len(NOISE), block).digests().by_name == whole
        parts = [seen(entries, 0, 2 * PIECE_BYTES, block), seen(entries, 2 * PIECE_BYTES, len(NOISE), block)]
        assert join_tensors(parts).digests().by_name == whole


def test_a_name_that_no_json_can_hold_has_no_digest() -> None:
    assert seen([entry("w", (0, 9)), entry("\ud800", (9, 12)), entry("ü", (12, 13))], 0, 20, 20).digests().names == (
        "w",
        "ü",
    )


def test_shards_with_the_same_tensors_share_their_names() -> None:
    first, second = (seen(ENTRIES, 0, len(NOISE), 512 << 10).digests() for _ in range(2))

    assert first.names is second.names
