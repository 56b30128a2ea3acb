"""Where results may be written beside the answer: never over anything but an earlier one of the same kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ckpttool.errors import UsageError
from ckpttool.storage.base import ByteSource
from ckpttool.storage.local import LocalStorage


def assert_replaceable(path: str, *, option: str, is_ours: Callable[[ByteSource], bool], what: str) -> None:
    """Refuse a target that is not ours, before anything is done for what cannot be written.

    Args:
        path: The target.
        option: Whose it is.
        is_ours: Tells from the content of a file that holds some.
        what: We write there, in the plural.

    Raises:
        UsageError: Its folder is not there, or something else stands in its place.
    """
    target = Path(path)
    assert_folder(path, option=option)
    if os.path.lexists(path) and not _is_ours(target, is_ours):
        raise UsageError(f"{option} {path!r} exists and holds no {what} of ours; name a new file")


def assert_folder(path: str, *, option: str) -> None:
    """Refuse a target whose folder is not there: a slip of the pen, and no fault of the disk.

    Raises:
        UsageError: It is not.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path!r}: there is no folder {str(folder)!r}")


def lies_under(path: str, root: str) -> bool:
    """Tell whether a path is in a tree, by its name or by where links lead."""
    by_name = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))  # noqa: PTH100  links as they are
    return by_name or _resolved(path).is_relative_to(_resolved(root))


def same_file(one: str, other: str) -> bool:
    """Tell whether two paths are one file, which need not be there yet."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return _resolved(one) == _resolved(other)


def _resolved(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):  # a loop of links, which what stands in the target's place is then told for
        return Path(os.path.abspath(path))  # noqa: PTH100  as above


def _is_ours(target: Path, is_ours: Callable[[ByteSource], bool]) -> bool:
    """Tell whether a file begins with one of our lines; an empty one holds nothing that could be lost."""
    if target.is_symlink():
        return False
    try:
        with LocalStorage(str(target.parent)).open(target.name) as source:
            return source.stamp.size == 0 or is_ours(source)
    except (OSError, ValueError, RecursionError):
        return False
