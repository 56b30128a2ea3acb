"""Folders of small files, each put in place atomically."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ckpttool.core.errors import NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.write.files import close, ensure_folder, replace


def foreign(path: str, expected: Collection[str]) -> tuple[str, ...]:
    """Return the entries of a folder, excluding these names; empty if the folder does not exist.

    Raises:
        UnsafeError: The path is not a folder.
        WriteFailedError: The folder cannot be listed.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise UnsafeError(f"{path!r} is not a folder")
        return tuple(sorted(name for name in os.listdir(path) if name not in expected))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise WriteFailedError(f"{path!r} cannot be listed: {error.strerror or error}") from error


@contextmanager
def filled(path: str) -> Iterator[str]:
    """Yield a folder to fill, which gets its name when it is complete, so that no reader sees a partial folder.

    If a folder of that name already exists, that folder is yielded.

    Args:
        path: The folder.

    Raises:
        WriteFailedError: The folder could not be created or renamed; no part of it remains.
    """
    if os.path.lexists(path):
        yield path
        return
    parent, name = os.path.split(os.path.abspath(path))
    new = os.path.join(parent, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        ensure_folder(new)
        yield new
        os.rename(new, path)
    except OSError as error:
        raise WriteFailedError(f"cannot write the folder {path!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    _confirm(parent, path)


def place(path: str, files: Mapping[str, bytes], *, instead_of: Iterable[str] = ()) -> None:
    """Put a folder with these files in place atomically.

    Args:
        path: The folder; its parent must exist.
        files: Content by name.
        instead_of: Names of files that an existing folder may contain; a folder that contains anything else stays.

    Raises:
        UnsafeError: The folder exists and contains other files.
        WriteFailedError: The folder could not be written; the old content is unchanged.
        NotDurableError: The folder is in place, but the disk did not confirm the change.
    """
    parent, name = os.path.split(path)
    new = os.path.join(parent, f".{name}.{secrets.token_hex(8)}.tmp")
    old = f"{new}.old"
    remaining = foreign(path, {*instead_of})
    if remaining:
        raise UnsafeError(f"{path!r} also contains {remaining[0]!r}: it is not replaced")
    try:
        ensure_folder(new)
        for file, content in files.items():
            replace(os.path.join(new, file), content, overwrite=False, backup=False)
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(new, path)
    except OSError as error:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
        raise WriteFailedError(f"cannot write the folder {path!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    with suppress(OSError):
        shutil.rmtree(old)
    _confirm(parent, path)


def _confirm(parent: str, path: str) -> None:
    try:
        handle = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            close(handle)
    except OSError as error:
        raise NotDurableError(
            f"{path!r} was written, but a power failure may undo it: {error.strerror or error}"
        ) from error
