"""Faults of disks, of our own writes, and of others who write at the same time."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import filelock

from ckpttool.core.domain.verdict import CheckTask
from ckpttool.core.storage.base import ByteSource, Entry, Storage
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.verify import check
from ckpttool.core.verify.observation import Observation
from ckpttool.core.write.files import locked
from tests.faults.scenes import NEWEST, Site, scene

SHARD = f"rank_1/llama2_7b_rank_1{NEWEST}.ckpt"
CONFIG = b"an older config\n"

# --- a disk that does not answer -------------------------------------------------------------------------------------


def _opening(site: Site, happens: Callable[[], None], *, afterwards: bool = False) -> None:
    """Let something happen whenever a shard of rank 1 is opened, before its bytes are read or after."""
    real = LocalStorage.open

    @contextmanager
    def opened(self: LocalStorage, path: str) -> Iterator[ByteSource]:
        if path == SHARD and not afterwards:
            happens()
        with real(self, path) as source:
            yield source
            if path == SHARD and afterwards:
                happens()

    site.patch.setattr(LocalStorage, "open", opened)


def _refused(site: Site, number: int) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number), SHARD)

    _opening(site, refuse)


@scene(20, words=os.strerror(errno.EACCES))
def shard_without_permission(site: Site) -> None:
    _refused(site, errno.EACCES)


@scene(20, words=os.strerror(errno.EIO))
def shard_on_a_bad_sector(site: Site) -> None:
    _refused(site, errno.EIO)


@scene(20, words=os.strerror(errno.ESTALE))
def stale_handle(site: Site) -> None:
    _refused(site, errno.ESTALE)


@scene(20, words=os.strerror(errno.ETIMEDOUT))
def timed_out(site: Site) -> None:
    _refused(site, errno.ETIMEDOUT)


@scene(20, where="rank_2/")
def folder_without_permission(site: Site) -> None:
    real = LocalStorage.entries

    def entries(self: LocalStorage, folder: str) -> list[Entry]:
        if folder == "rank_2":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return real(self, folder)

    site.patch.setattr(LocalStorage, "entries", entries)


@scene(21, words="no answer from the disk within 1 s")
def read_that_hangs(site: Site) -> None:
    """The thread that reads is let go after the test."""
    answered = threading.Event()
    site.held.callback(answered.set)
    real = check._attempt  # noqa: SLF001  the one place through which every look goes

    def hang(task: CheckTask, storage: Storage, look: check.CompareShard) -> Observation:
        if task.path == SHARD:
            answered.wait()
        return real(task, storage, look)

    site.patch.setattr(check, "_attempt", hang)


# --- our own writes that fail ----------------------------------------------------------------------------------------


def an_older_config(site: Site) -> None:
    """A file in the place where the launch config goes."""
    (site.folder / "new.yaml").write_bytes(CONFIG)


def old_and_nothing_beside(site: Site) -> None:
    """The old file is as it was, and no temporary file lies around."""
    assert (site.folder / "new.yaml").read_bytes() == CONFIG
    assert not list(site.folder.rglob("*.tmp"))


def _write_fails(site: Site, number: int) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    site.patch.setattr(os, "write", fail)


@scene(22, words=os.strerror(errno.ENOSPC), prepare=an_older_config, after=old_and_nothing_beside)
def disk_full(site: Site) -> None:
    _write_fails(site, errno.ENOSPC)


@scene(22, words=os.strerror(errno.EDQUOT), prepare=an_older_config, after=old_and_nothing_beside)
def quota_full(site: Site) -> None:
    _write_fails(site, errno.EDQUOT)


@scene(22, words=os.strerror(errno.EFBIG), prepare=an_older_config, after=old_and_nothing_beside)
def file_too_large(site: Site) -> None:
    _write_fails(site, errno.EFBIG)


@scene(22, words=os.strerror(errno.EROFS), prepare=an_older_config, after=old_and_nothing_beside)
def disk_read_only(site: Site) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    site.patch.setattr(os, "open", refuse)


def new_and_nothing_beside(site: Site) -> None:
    """What was written stays, and no temporary file lies around."""
    assert b"resume_training" in (site.folder / "new.yaml").read_bytes()
    assert not list(site.folder.rglob("*.tmp"))


@scene(23, words="could not be flushed to disk", prepare=an_older_config, after=new_and_nothing_beside)
def folder_not_on_the_disk(site: Site) -> None:
    real = os.fsync

    def fail(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    site.patch.setattr(os, "fsync", fail)


# --- others who write at the same time -------------------------------------------------------------------------------


@scene(24)
def shard_that_grows(site: Site) -> None:
    path = site.shard(1)

    def grow() -> None:
        with path.open("ab") as file:
            file.write(b"x")

    _opening(site, grow, afterwards=True)


@scene(24)
def temporary_file(site: Site) -> None:
    (site.checkpoint / "rank_1/llama2_7b_rank_1_1-35_2.tmp").touch()


@scene(25)
def shard_pruned_meanwhile(site: Site) -> None:
    path = site.shard(1)
    _opening(site, lambda: path.unlink(missing_ok=True))


def _held(site: Site, path: str) -> None:
    (site.folder / path).parent.mkdir(exist_ok=True)
    site.held.enter_context(locked(str(site.folder / path), timeout=0))


@scene(26, words="another ckpttool")
def tree_that_another_prunes(site: Site) -> None:
    _held(site, "output/checkpoint/.ckpttool/prune")


OWN_LOCK = "output/checkpoint/.ckpttool/prune"


@scene(27, words="another ckpttool")
def held_by_a_soft_lock(site: Site) -> None:
    no_file_locks(site)
    _held(site, OWN_LOCK)


def no_file_locks(site: Site) -> None:
    """A file system without flock."""
    real = filelock.BaseFileLock.acquire

    def acquire(lock: filelock.BaseFileLock, *arguments: object, **options: object) -> object:
        if isinstance(lock, filelock.FileLock):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return real(lock, *arguments, **options)  # type: ignore[arg-type]  # handed through as they came

    site.patch.setattr(filelock.BaseFileLock, "acquire", acquire)


def nothing_held(site: Site) -> None:
    """The soft lock was given back."""
    assert not list(site.folder.rglob("*.softlock"))


@scene(27, after=nothing_held)
def held_by_nobody(site: Site) -> None:
    no_file_locks(site)
