"""Unpack an archive of ckpttool into a new folder."""

from __future__ import annotations

import os
from datetime import datetime
from zipfile import ZipFile, ZipInfo

from ckpttool.core.errors import UsageError, WriteFailedError
from ckpttool.core.write.files import ensure_folder, replace


def unpack(archive: ZipFile, folder: str, *, newest: float) -> None:
    """Write every file of an archive, with the time differences recorded in it.

    Args:
        archive: An archive of ckpttool, whose names are not checked.
        folder: The folder, which is created if it does not exist and must be empty. Files in it are never overwritten.
        newest: The mtime of the newest file, in seconds since 1970.

    Raises:
        UsageError: The folder is not empty, or something else has its name.
        WriteFailedError: A file could not be written; the files written until then stay.
    """
    try:
        taken = os.path.islink(folder) or (os.path.lexists(folder) and bool(os.listdir(folder)))
    except NotADirectoryError:
        taken = True
    except OSError as error:
        raise WriteFailedError(f"{folder!r} cannot be listed: {error.strerror or error}") from error
    if taken:
        raise UsageError(f"{folder!r} already exists, and nothing is overwritten: give a new folder")
    files = archive.infolist()
    late = max(_written(file) for file in files) - newest
    for file in files:
        path = os.path.join(folder, file.filename)
        ensure_folder(os.path.dirname(path))
        replace(path, archive.read(file), overwrite=False, backup=False)
        os.utime(path, (_written(file) - late,) * 2)


def _written(file: ZipInfo) -> float:
    return datetime(*file.date_time).timestamp()  # noqa: DTZ001  only how far two are apart counts
