"""One pass over a file: every byte once, one buffer, and a page cache left as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.storage import stream
from ckpttool.core.storage.base import ShrankError
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks, was_cached
from tests.support.shard_writers import MemorySource


def empty(size: int) -> MemorySource:
    """A file of so many zeros."""
    return MemorySource(bytes(size))


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path: Path) -> bool | None:
    with path.open("rb") as file:
        return was_cached(file.fileno(), 0, path.stat().st_size)


def test_the_blocks_of_a_real_file_are_its_bytes(tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK_BYTES + 12_345)
    (tmp_path / "shard").write_bytes(data)
    with LocalStorage(str(tmp_path)).open("shard") as source:
        blocks = [(offset, bytes(block)) for offset, block in read_blocks(source, 0, len(data))]
    assert b"".join(block for _, block in blocks) == data
    assert [offset for offset, _ in blocks] == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]


@given(begin=st.integers(0, 3 * BLOCK_BYTES), length=st.integers(0, 3 * BLOCK_BYTES))
def test_blocks_cover_any_range_once_and_end_at_whole_mebibytes(begin: int, length: int) -> None:
    source = empty(6 * BLOCK_BYTES)
    expected = begin
    for offset, block in read_blocks(source, begin, begin + length):
        assert offset == expected
        assert 0 < len(block) <= BLOCK_BYTES
        expected += len(block)
        assert expected == begin + length or expected % BLOCK_BYTES == 0
    assert expected == begin + length


def test_blocks_of_a_size_that_is_asked_for_are_counted_from_the_first_byte() -> None:
    source = empty(1_000)
    assert [(offset, len(block)) for offset, block in read_blocks(source, 7, 1_000, size=400)] == [
        (7, 400),
        (407, 400),
        (807, 193),
    ]


@pytest.mark.parametrize("size", [0, -1, BLOCK_BYTES + 1])
def test_blocks_larger_than_a_block_or_without_a_byte_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a block has 1 to"):
        list(read_blocks(empty(10), 0, 10, size=size))


def test_a_file_that_shrank_is_told_with_the_place_where_it_ends() -> None:
    source = MemorySource(bytes(BLOCK_BYTES + 10), size=3 * BLOCK_BYTES)
    blocks = read_blocks(source, 0, 3 * BLOCK_BYTES)
    assert next(blocks)[0] == 0
    with pytest.raises(ShrankError) as caught:
        next(blocks)
    assert (caught.value.offset, caught.value.expected_end) == (BLOCK_BYTES + 10, 3 * BLOCK_BYTES)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize(("begin", "end"), [(5, 4), (-1, 3)])
def test_a_range_that_is_none_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        list(read_blocks(empty(10), begin, end))


@pytest.mark.parametrize(("size", "taken"), [(10, 10), (BLOCK_BYTES, BLOCK_BYTES), (3 * BLOCK_BYTES, BLOCK_BYTES)])
def test_a_tiny_file_takes_no_more_memory_than_it_has_bytes_and_a_large_one_a_block(size: int, taken: int) -> None:
    for _, block in read_blocks(empty(size), 0, size):
        assert len(memoryview(block.obj)) == taken


def test_a_buffer_too_small_for_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer"):
        list(read_blocks(empty(10), 0, 10, buffer=memoryview(bytearray(9))))


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(8 * BLOCK_BYTES))
    drop(path)
    if cached(path) is not False:
        pytest.skip("this file system does not tell what is cached, or keeps it")
    return path


def read_through(path: Path) -> None:
    with LocalStorage(str(path.parent)).open(path.name) as source:
        for _ in read_blocks(source, 0, 8 * BLOCK_BYTES):
            pass


@pytest.fixture
def told_uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer for the kernel: to ask it makes it read ahead, so that a loaded machine says "cached" the second time."""
    monkeypatch.setattr(stream, "was_cached", lambda *_: False)


@pytest.mark.usefixtures("told_uncached")
def test_a_file_that_was_not_cached_is_not_cached_afterwards(big_file: Path) -> None:
    read_through(big_file)
    assert cached(big_file) is False


def test_a_file_that_was_cached_stays_cached(big_file: Path) -> None:
    big_file.read_bytes()
    read_through(big_file)
    assert cached(big_file) is True


@pytest.mark.usefixtures("told_uncached")
def test_what_was_read_is_dropped_long_before_the_end(big_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "DROP_BYTES", 2 * BLOCK_BYTES)
    dropped: list[tuple[int, int]] = []

    def advise(_fd: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            dropped.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    with LocalStorage(str(big_file.parent)).open(big_file.name) as source:
        blocks = read_blocks(source, 0, 8 * BLOCK_BYTES)
        for _ in range(4):
            next(blocks)
        assert dropped == [(0, 2 * BLOCK_BYTES)]
        blocks.close()  # type: ignore[attr-defined]  # a generator: who stops early must not leave pages behind
    assert sum(length for _, length in dropped) == 3 * BLOCK_BYTES


def test_a_file_system_that_does_not_tell_gives_neither_yes_nor_no(
    big_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert cached(big_file) is None


def test_where_the_system_has_no_such_read_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shard").write_bytes(b"x")
    monkeypatch.delattr(os, "RWF_NOWAIT")
    assert cached(tmp_path / "shard") is None
