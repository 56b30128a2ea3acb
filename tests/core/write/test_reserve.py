"""The reserve is written beside whatever has its name, never into it, and never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.errors import UnsafeError, WriteFailedError
from ckpttool.core.write.files import append, locked
from ckpttool.core.write.reserve import NAME, keep_reserve, spend_reserve


def test_a_pipe_of_that_name_is_left_alone_and_nobody_waits_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    keep_reserve(str(tmp_path), files=1)
    assert (tmp_path / NAME).is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_second_name_of_a_shard_is_replaced_and_the_shard_is_as_it_was(tmp_path: Path) -> None:
    for content in (b"shard", bytes(1 << 20)):
        shard = tmp_path / "shard.ckpt"
        shard.write_bytes(content)
        (tmp_path / NAME).unlink(missing_ok=True)
        os.link(shard, tmp_path / NAME)
        keep_reserve(str(tmp_path), files=1)
        assert shard.read_bytes() == content
        assert (tmp_path / NAME).stat().st_nlink == 1


def test_a_healthy_reserve_is_written_once_and_spent(tmp_path: Path) -> None:
    keep_reserve(str(tmp_path), files=1)
    first = (tmp_path / NAME).stat()
    assert (first.st_size, first.st_mode & 0o777) == (72 << 10, 0o600)
    keep_reserve(str(tmp_path), files=1)
    assert (tmp_path / NAME).stat().st_ino == first.st_ino
    assert spend_reserve(str(tmp_path))
    assert not spend_reserve(str(tmp_path))


@pytest.mark.parametrize("made", ["link", "symbolic link", "pipe"])
def test_a_lock_is_not_opened_through_a_name_that_is_another_file_s(made: str, tmp_path: Path) -> None:
    shard, lock = tmp_path / "shard.ckpt", tmp_path / "prune.lock"
    shard.write_bytes(b"shard")
    if made == "link":
        os.link(shard, lock)
    elif made == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(shard)
    with (
        pytest.raises(UnsafeError, match="not a regular file"),
        locked(str(tmp_path / "prune"), timeout=0),
    ):
        pass
    assert shard.read_bytes() == b"shard"
    lock.unlink()
    with locked(str(tmp_path / "prune"), timeout=0):
        assert lock.exists()
    with locked(str(tmp_path / "prune"), timeout=0):
        assert lock.exists()


def test_nothing_is_added_to_a_file_that_has_a_second_name(tmp_path: Path) -> None:
    shard, events = tmp_path / "shard.ckpt", tmp_path / "events.jsonl"
    shard.write_bytes(b"shard")
    os.link(shard, events)
    with pytest.raises(WriteFailedError, match="has a second name"):
        append(str(events), b"line")
    assert shard.read_bytes() == b"shard"
    events.unlink()
    append(str(events), b"line")
    append(str(events), b"line")
    assert events.read_bytes() == b"lineline"


def test_what_is_added_lies_behind_what_was_there_and_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    for line in (b"one\n", b"two\n"):
        append(str(path), line)
    assert path.read_bytes() == b"one\ntwo\n"
    assert path not in {each.resolve() for each in Path("/proc/self/fd").iterdir()}
