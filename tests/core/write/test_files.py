"""Proves that a write is all or nothing, whatever fails and whoever else writes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from ckpttool.core.errors import (
    CkptToolError,
    ExitCode,
    LockedError,
    NotDurableError,
    UnsafeError,
    UsageError,
    WriteFailedError,
)
from ckpttool.core.write.files import ensure_folder, locked, remove, replace, sweep

OLD, NEW = b"old content\n", b"the new content, which is longer\n" * 100
FAILING = ("open", "write", "fchmod", "fsync", "link", "replace")


@pytest.fixture
def umask_022() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def fail_nth(patch: pytest.MonkeyPatch, call: str, nth: int, error: int) -> None:
    """Let the nth call of `os.<call>` fail, and all the others through."""
    real: Callable[..., object] = getattr(os, call)
    calls = 0

    def failing(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    patch.setattr(os, call, failing)


def attempt(target: Path, *, overwrite: bool) -> CkptToolError | None:
    try:
        replace(str(target), NEW, overwrite=overwrite, backup=True)
    except CkptToolError as failure:
        return failure
    return None


def test_a_name_without_a_folder_is_written_where_we_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replace("new.yaml", NEW, overwrite=False, backup=False)
    assert (tmp_path / "new.yaml").read_bytes() == NEW


@pytest.mark.usefixtures("umask_022")
def test_a_new_file_gets_what_the_umask_leaves(tmp_path: Path) -> None:
    replace(str(tmp_path / "new"), NEW, overwrite=False, backup=False)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_an_overwritten_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "config"
    target.write_bytes(OLD)
    target.chmod(mode)
    replace(str(target), NEW, overwrite=True, backup=True)
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "config.bak").stat().st_mode) == mode


def test_an_overwritten_file_stays_as_a_backup_only_where_asked(tmp_path: Path) -> None:
    target = tmp_path / "config"
    target.write_bytes(OLD)
    replace(str(target), b"second", overwrite=True, backup=True)
    assert (tmp_path / "config.bak").read_bytes() == OLD
    replace(str(target), b"third", overwrite=True, backup=True)
    assert (tmp_path / "config.bak").read_bytes() == b"second"
    replace(str(target), b"fourth", overwrite=True, backup=False)
    assert (tmp_path / "config.bak").read_bytes() == b"second"
    assert names(tmp_path) == {"config", "config.bak"}


def test_a_backup_that_is_the_very_file_already_does_no_harm(tmp_path: Path) -> None:
    target = tmp_path / "config"
    target.write_bytes(OLD)
    (tmp_path / "config.bak").hardlink_to(target)
    replace(str(target), NEW, overwrite=True, backup=True)
    assert ((tmp_path / "config.bak").read_bytes(), target.read_bytes()) == (OLD, NEW)
    assert names(tmp_path) == {"config", "config.bak"}


def test_an_existing_file_is_a_usage_error_unless_it_may_go(tmp_path: Path) -> None:
    target = tmp_path / "config"
    target.write_bytes(OLD)
    with pytest.raises(UsageError, match="--force"):
        replace(str(target), NEW, overwrite=False, backup=True)
    assert target.read_bytes() == OLD
    assert names(tmp_path) == {"config"}


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_clobbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    target = tmp_path / "config"
    real = os.fsync

    def fsync_and_appear(fd: int) -> None:
        real(fd)
        target.write_bytes(OLD)

    monkeypatch.setattr(os, "fsync", fsync_and_appear)
    if not links:
        fail_nth(monkeypatch, "link", 1, errno.EPERM)
    with pytest.raises(UsageError, match="already exists"):
        replace(str(target), NEW, overwrite=False, backup=False)
    assert target.read_bytes() == OLD
    assert names(tmp_path) == {"config"}


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_files_are_written_and_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(error, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "config"
    replace(str(target), OLD, overwrite=False, backup=True)
    target.chmod(0o640)
    replace(str(target), NEW, overwrite=True, backup=True)
    assert ((tmp_path / "config.bak").read_bytes(), target.read_bytes()) == (OLD, NEW)
    assert stat.S_IMODE((tmp_path / "config.bak").stat().st_mode) == 0o640
    assert names(tmp_path) == {"config", "config.bak"}


def test_without_hard_links_a_failing_rename_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_nth(monkeypatch, "link", 1, errno.EPERM)
    fail_nth(monkeypatch, "replace", 1, errno.EIO)
    with pytest.raises(WriteFailedError):
        replace(str(tmp_path / "config"), NEW, overwrite=False, backup=False)
    assert names(tmp_path) == set()


def test_a_failing_copy_of_the_backup_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_bytes(OLD)
    fail_nth(monkeypatch, "link", 1, errno.EPERM)
    fail_nth(monkeypatch, "write", 2, errno.ENOSPC)
    with pytest.raises(WriteFailedError, match="No space left"):
        replace(str(tmp_path / "config"), NEW, overwrite=True, backup=True)
    assert names(tmp_path) == {"config"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_whatever_call_fails_the_file_is_the_old_one_or_the_new_one_and_nothing_lies_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int, *, overwrite: bool
) -> None:
    target = tmp_path / "config"
    if overwrite:
        target.write_bytes(OLD)
        target.chmod(0o640)
    for nth in range(1, 8):
        with monkeypatch.context() as patch:
            fail_nth(patch, call, nth, error)
            failure = attempt(target, overwrite=overwrite)
        assert names(tmp_path) <= {"config", "config.bak"}
        if failure is None or isinstance(failure, NotDurableError):
            assert failure is None or (call == "fsync" and failure.exit_code is ExitCode.NOT_DURABLE)
            assert target.read_bytes() == NEW
            return
        assert isinstance(failure, WriteFailedError)
        assert os.strerror(error) in str(failure)
        assert "\n" not in str(failure)
        assert target.read_bytes() == OLD if overwrite else not target.exists()
    pytest.fail("more calls than a write should need")


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def failing(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(WriteFailedError):
        replace(str(tmp_path / "config"), NEW, overwrite=False, backup=False)
    assert len(calls) == 1


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace(str(tmp_path / "config"), NEW, overwrite=False, backup=False)
    assert names(tmp_path) == set()


def test_short_writes_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    replace(str(tmp_path / "config"), NEW, overwrite=False, backup=False)
    assert (tmp_path / "config").read_bytes() == NEW


def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(OLD)
    (tmp_path / "config").symlink_to(elsewhere)
    with pytest.raises(UnsafeError, match="symbolic link"):
        replace(str(tmp_path / "config"), NEW, overwrite=True, backup=True)
    assert elsewhere.read_bytes() == OLD


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config")
    with pytest.raises(UnsafeError, match="not a regular file"):
        replace(str(tmp_path / "config"), NEW, overwrite=True, backup=True)
    assert (tmp_path / "config").is_fifo()


@pytest.mark.parametrize("name", ["folder", "folder/", "folder/.", "folder/..", "nowhere/config"])
def test_a_folder_or_a_name_in_no_folder_is_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteFailedError, match="cannot write") as failure:
        replace(f"{tmp_path}/{name}", NEW, overwrite=True, backup=True)
    assert "\n" not in str(failure.value)


def test_temporary_names_that_are_all_taken_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "always-the-same")
    (tmp_path / ".ckpttool-always-the-same.tmp").write_bytes(b"of another process")
    with pytest.raises(WriteFailedError, match="temporary name"):
        replace(str(tmp_path / "config"), NEW, overwrite=False, backup=False)
    assert (tmp_path / ".ckpttool-always-the-same.tmp").read_bytes() == b"of another process"


def test_a_lock_that_is_held_keeps_a_second_writer_out_until_it_is_released(tmp_path: Path) -> None:
    path = str(tmp_path / "health_ckpts.json")
    with (
        locked(path, timeout=0),
        pytest.raises(LockedError, match="another ckpttool") as failure,
        locked(path, timeout=0),
    ):
        pytest.fail("two held one lock")
    assert failure.value.exit_code is ExitCode.LOCKED
    with locked(path, timeout=0):
        pass


def test_a_lock_is_released_when_its_holder_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(str(tmp_path / "file"), timeout=0):
        raise RuntimeError
    with locked(str(tmp_path / "file"), timeout=0):
        pass


def test_no_update_is_lost_between_writers_that_lock(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_bytes(b"0")

    def count(_: int) -> None:
        for _ in range(20):
            with locked(str(path), timeout=30):
                replace(str(path), str(int(path.read_bytes()) + 1).encode(), overwrite=True, backup=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert path.read_bytes() == b"80"


@pytest.mark.parametrize(
    "refusal", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.ENOSYS, "-"), NotImplementedError("flock")]
)
def test_without_file_locks_a_soft_lock_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    real = filelock.BaseFileLock.acquire

    def acquire(lock: filelock.BaseFileLock, *arguments: object, **options: object) -> object:
        if isinstance(lock, filelock.FileLock):
            raise refusal
        return real(lock, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(filelock.BaseFileLock, "acquire", acquire)
    path = str(tmp_path / "file")
    with locked(path, timeout=0):
        assert "file.softlock" in names(tmp_path)
        with pytest.raises(LockedError), locked(path, timeout=0):
            pytest.fail("two held one lock")
    assert "file.softlock" not in names(tmp_path)


def test_a_filelock_that_knows_no_options_of_ours_still_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = filelock.FileLock

    def old(path: str, *, timeout: float) -> filelock.BaseFileLock:
        return real(path, timeout=timeout)

    monkeypatch.setattr(filelock, "FileLock", old)
    with (
        locked(str(tmp_path / "file"), timeout=0),
        pytest.raises(LockedError),
        locked(str(tmp_path / "file"), timeout=0),
    ):
        pytest.fail("two held one lock")


def test_a_lock_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteFailedError, match="cannot lock"), locked(str(tmp_path / "file" / "below"), timeout=0):
        pytest.fail("held a lock inside a file")


def test_a_folder_is_made_with_those_above_it_and_may_be_there_already(tmp_path: Path, umask_022: None) -> None:  # noqa: ARG001
    path = tmp_path / "a" / "b" / "c"
    ensure_folder(str(path), mode=0o700)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)] == [0o700, 0o700]
    ensure_folder(str(path))
    ensure_folder(str(tmp_path / "d"))
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o755


def test_a_new_folder_is_brought_to_the_disk_by_the_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    ensure_folder(str(tmp_path / "a" / "b"))
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino]


@pytest.mark.parametrize("target", ["file", "nowhere"])
def test_a_folder_is_not_made_where_a_file_or_a_link_is(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / target)
    (tmp_path / "to-a-folder").symlink_to(tmp_path / "folder")
    for name in ("file", "file/below", "link", "link/below", "to-a-folder"):
        with pytest.raises(WriteFailedError, match="cannot make the folder") as failure:
            ensure_folder(str(tmp_path / name))
        assert "\n" not in str(failure.value)
    assert names(tmp_path / "folder") == set()


def test_a_folder_made_by_two_at_once_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def other_is_faster(path: str, mode: int = 0o777) -> None:
        real(path, mode)
        raise FileExistsError(errno.EEXIST, "File exists")

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "mkdir", other_is_faster)
    ensure_folder(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()


@pytest.mark.parametrize("call", ["mkdir", "fsync"])
def test_a_folder_that_cannot_be_made_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fail_nth(monkeypatch, call, 1, errno.EROFS)
    with pytest.raises(WriteFailedError, match="Read-only file system"):
        ensure_folder(str(tmp_path / "a"))


def test_a_folder_in_a_folder_that_was_deleted_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(WriteFailedError, match="No such file or directory"):
        ensure_folder("a/b")


@pytest.mark.usefixtures("umask_022")
def test_a_new_file_gets_the_mode_that_is_asked_for_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    target = tmp_path / "meta.json"
    replace(str(target), OLD, overwrite=True, backup=False, mode=0o640)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    target.chmod(0o600)
    replace(str(target), NEW, overwrite=True, backup=False, mode=0o640)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_removed_file_is_gone_and_one_that_was_never_there_is_no_error(tmp_path: Path) -> None:
    target = tmp_path / "journal"
    target.write_bytes(OLD)
    for _ in range(2):
        remove(str(target))
        assert names(tmp_path) == set()
    remove(str(tmp_path / "nowhere/journal"))


def test_a_file_that_cannot_be_removed_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "journal"
    target.write_bytes(OLD)
    for call in ("open", "unlink"):
        with monkeypatch.context() as patch:
            fail_nth(patch, call, 1, errno.EACCES)
            with pytest.raises(WriteFailedError, match="cannot remove"):
                remove(str(target))
        assert target.exists()
    fail_nth(monkeypatch, "fsync", 1, errno.EIO)
    with pytest.raises(NotDurableError, match="a power failure may restore it"):
        remove(str(target))
    assert not target.exists()


def test_only_our_own_temporary_files_are_swept(tmp_path: Path) -> None:
    own = ".ckpttool-0123456789abcdef.tmp"
    others = {"x.tmp", ".ckpttool-0123.tmp", f"{own}.bak", "tmpab12cd34", f"x{own}"}
    for name in {own, *others}:
        (tmp_path / name).touch()
    sweep(str(tmp_path))
    assert names(tmp_path) == others
    sweep(str(tmp_path / "nowhere"))
