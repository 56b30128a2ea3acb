"""A streamed file is there whole or not at all, and its digests are of what was handed to the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import CkptToolError, NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.write.stream import Block, Streamed, stream
from tests.core.write.test_files import fail_nth, names

BLOCKS: list[Block] = [b"first", bytearray(b"second" * 1000), memoryview(b"third")]
CONTENT = b"".join(bytes(block) for block in BLOCKS)
TEMPORARY = "x.tmp"


def put(target: Path, blocks: list[Block] | None = None) -> Streamed:
    content = BLOCKS if blocks is None else blocks
    size = ByteCount(sum(memoryview(block).nbytes for block in content))
    return stream(str(target), content, size=size, temporary=TEMPORARY)


def test_the_file_holds_the_blocks_and_its_digest_is_theirs(tmp_path: Path) -> None:
    done = put(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert done == Streamed(
        size=ByteCount(len(CONTENT)),
        xxh3_128=xxh3_128_hexdigest(CONTENT),
        chunks=(xxh3_128_hexdigest(CONTENT),),
    )
    assert names(tmp_path) == {"x"}


def test_every_64_mib_has_its_digest_wherever_the_blocks_end(tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * (2 * CHUNK_BYTES >> 20) + b"tail"
    border = CHUNK_BYTES - 5
    done = put(tmp_path / "x", [content[:border], content[border : border + 7], content[border + 7 :]])
    chunks = [content[begin : begin + CHUNK_BYTES] for begin in range(0, len(content), CHUNK_BYTES)]
    assert done.chunks == tuple(map(xxh3_128_hexdigest, chunks))
    assert done.xxh3_128 == xxh3_128_hexdigest(content)


def test_an_empty_file_has_no_chunks_and_one_of_whole_chunks_no_empty_one(tmp_path: Path) -> None:
    assert put(tmp_path / "x", []).chunks == ()
    assert len(put(tmp_path / "x", [bytes(CHUNK_BYTES)]).chunks) == 1


@pytest.mark.parametrize("call", ["open", "fstatvfs", "write", "fsync", "replace", "close"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_fails_leaves_the_old_file_or_the_new_one_and_nothing_else(
    call: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    for nth in (1, 2, 3):
        target.write_bytes(b"old")
        with monkeypatch.context() as patch:
            fail_nth(patch, call, nth, error)
            failed: CkptToolError | None = None
            try:
                put(target)
            except CkptToolError as caught:
                failed = caught
        assert names(tmp_path) == {"x"}
        is_new = failed is None or isinstance(failed, NotDurableError)
        assert target.read_bytes() == (CONTENT if is_new else b"old"), (call, nth)


def test_a_disk_without_room_is_told_before_a_byte_is_written(tmp_path: Path) -> None:
    blocks = iter([b"first"])
    with pytest.raises(WriteFailedError, match="bytes and the disk has"):
        stream(str(tmp_path / "x"), blocks, size=ByteCount(1 << 62), temporary=TEMPORARY)
    assert list(blocks) == [b"first"]
    assert names(tmp_path) == set()


def test_blocks_of_another_size_than_announced_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="were announced"):
        stream(str(tmp_path / "x"), [b"abc"], size=ByteCount(4), temporary=TEMPORARY)
    assert names(tmp_path) == set()


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / TEMPORARY).write_bytes(b"torn" * 10_000)
    put(tmp_path / "x")
    assert names(tmp_path) == {"x"}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"old")
    (tmp_path / "x").symlink_to(other)
    with pytest.raises(UnsafeError):
        put(tmp_path / "x")
    assert (other.read_bytes(), names(tmp_path)) == (b"old", {"x", "other"})


def test_a_folder_that_is_not_there_is_an_error_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(WriteFailedError, match="No such file"):
        put(tmp_path / "gone" / "x")
