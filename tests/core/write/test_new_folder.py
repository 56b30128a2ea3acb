"""A new folder is there whole or not at all, wherever its writer stops, and the next writer begins anew."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ckpttool.core.errors import CkptToolError, LockedError, NotDurableError, UnsafeError, UsageError, WriteFailedError
from ckpttool.core.write import new_folder as module
from ckpttool.core.write.new_folder import assert_new, new_folder
from tests.core.write.test_files import fail_nth

FILES = {"a": b"first" * 1000, "b": b"", "c": b"third"}
CALLS = [
    "mkdir",
    "open",
    "fstat",
    "lstat",
    "listdir",
    "fstatvfs",
    "write",
    "fsync",
    "close",
    "readv",
    "rename",
    "unlink",
]


def fill(path: Path, files: dict[str, bytes] | None = None) -> None:
    contents = FILES if files is None else files
    with new_folder(str(path), size=sum(map(len, contents.values()))) as folder:
        for name, content in contents.items():
            folder.write(name, [content[:3], content[3:]], size=len(content))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_folder_holds_the_files_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty")
    assert contents(tmp_path / "empty") == FILES


@pytest.mark.sample(8)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whatever_fails_leaves_the_whole_folder_or_nothing(
    call: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for nth in range(1, 12):
        target = tmp_path / str(nth) / "out"
        target.parent.mkdir()
        failed: CkptToolError | None = None
        with monkeypatch.context() as patch:
            fail_nth(patch, call, nth, error)
            try:
                fill(target)
            except CkptToolError as caught:
                failed = caught
        seen.add(type(failed))
        is_there = failed is None or isinstance(failed, NotDurableError)
        assert target.exists() == is_there, (nth, failed)
        if is_there:
            assert {name: content for name, content in contents(target).items() if name in FILES} == FILES
        fill(tmp_path / str(nth) / "next")
        if not is_there:
            fill(target)
            assert contents(target) == FILES
    assert seen <= {type(None), WriteFailedError, NotDurableError}


class Killed(BaseException):
    """Ends the process, as far as the disk can see."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("after", [False, True])
def test_a_killed_writer_leaves_the_whole_folder_or_none_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    for nth in range(1, 200):
        target = tmp_path / str(nth) / "out"
        target.parent.mkdir()
        with monkeypatch.context() as patch:
            dying = Dying(patch, nth, after=after)
            with suppress(Killed):
                fill(target)
            dying.release()
        if target.exists():
            assert {name: content for name, content in contents(target).items() if name in FILES} == FILES
        else:
            fill(target)
            assert contents(target) == FILES
        assert [path.name for path in target.parent.iterdir()] == ["out"]
        if dying.calls < nth:
            assert nth > 15
            return
    pytest.fail("more calls than a folder should need")


class Dying:
    """Kills at the n-th call that changes the disk: neither that one nor any after it is done, not even a clean-up."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int, *, after: bool) -> None:
        self.calls = 0
        self._handles: list[int] = []
        for name in ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, partial(self._called, getattr(os, name), name, nth, after))
        patch.setattr(module, "close", self._handles.append)

    def _called(
        self, real: object, name: str, nth: int, is_after: bool, *arguments: object, **options: object
    ) -> object:
        self.calls += 1
        if self.calls < nth or (self.calls == nth and is_after):
            result = real(*arguments, **options)  # type: ignore[operator]
            if self.calls < nth:
                return result
            if name == "open":
                self._handles.append(result)
        raise Killed

    def release(self) -> None:
        """Let the locks go, as the end of a process does."""
        for handle in self._handles:
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def test_a_disk_that_returns_other_bytes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.readv

    def flipped(handle: int, buffers: list[memoryview]) -> int:
        length = real(handle, buffers)
        if length:
            buffers[0][0] ^= 1
        return length

    monkeypatch.setattr(os, "readv", flipped)
    with pytest.raises(WriteFailedError, match="a different content for a than was written"):
        fill(tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_two_writers_of_one_folder_exclude_each_other(tmp_path: Path) -> None:
    with new_folder(str(tmp_path / "out"), size=1) as folder:
        with pytest.raises(LockedError, match="another ckpttool is writing"):
            fill(tmp_path / "out")
        folder.write("a", [b"x"], size=1)
    assert contents(tmp_path / "out") == {"a": b"x"}


def test_without_locks_an_unfinished_folder_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EBADF, "no locks on folders")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    fill(tmp_path / "out")
    (tmp_path / "next.part").mkdir()
    with pytest.raises(LockedError, match="if none is running"):
        fill(tmp_path / "next")


def test_nothing_of_a_user_is_replaced_or_deleted(tmp_path: Path) -> None:
    for name in ("out", "out2.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("kept")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("out", "out2", "file", "link"):
        with pytest.raises(UsageError, match="exists"):
            fill(tmp_path / name)
    assert (tmp_path / "out" / "mine").read_text() == (tmp_path / "out2.part" / "mine").read_text() == "kept"
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "out3.part").symlink_to(tmp_path / "out")
    with pytest.raises(WriteFailedError):
        fill(tmp_path / "out3")
    assert contents(tmp_path / "out") == {"mine": b"kept"}


def test_a_folder_in_an_unfinished_one_is_for_a_person(tmp_path: Path) -> None:
    (tmp_path / "out.part" / "inner").mkdir(parents=True)
    (tmp_path / "out.part" / ".ckpttool-writing").touch()
    with pytest.raises(UnsafeError, match="is not a file"):
        fill(tmp_path / "out")


def test_a_disk_without_room_is_told_before_a_byte_is_written(tmp_path: Path) -> None:
    with pytest.raises(WriteFailedError, match="bytes and the disk has"), new_folder(str(tmp_path / "x"), size=1 << 62):
        pytest.fail("there is no room")
    assert [*tmp_path.iterdir()] == []


def test_an_error_of_the_caller_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise LookupError

    with pytest.raises(LookupError), new_folder(str(tmp_path / "x"), size=1) as folder:
        folder.write("a", broken(), size=1)
    with (
        pytest.raises(ValueError, match="1 bytes were announced, but 2"),
        new_folder(str(tmp_path / "x"), size=1) as new,
    ):
        new.write("a", [b"xy"], size=1)
    assert [*tmp_path.iterdir()] == []


def test_a_parent_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="create that folder first"):
        fill(tmp_path / "no" / "out")
    with pytest.raises(UsageError, match="/no' is not a folder"):
        assert_new(str(tmp_path / "no" / "out"))
    assert_new(str(tmp_path / "out"))
