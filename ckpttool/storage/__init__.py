"""Where bytes come from: `open_storage` opens a root however it is spelled, and all reading goes through it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ckpttool.errors import UnsafeError, UsageError
from ckpttool.storage.base import Kind, Storage
from ckpttool.storage.local import LocalStorage


def _objects(root: str) -> Storage:
    from ckpttool.storage.objects import ObjectStorage

    return ObjectStorage(root)


def _lent(root: str) -> Storage:
    from ckpttool.storage.recorded import opened

    return opened(root)


OBJECT_STORES = ("s3", "gs", "az")

STORAGES: dict[str, Callable[[str], Storage]] = {
    "": LocalStorage,
    **dict.fromkeys(OBJECT_STORES, _objects),
    **dict.fromkeys(("parts", "noted"), _lent),
}
"""Who opens a root, by the scheme before its `://`; a folder has none."""

_SCHEME = r"([a-z][a-z0-9+.-]*)://(?s:(.*))"


def open_storage(root: str) -> Storage:
    """Return what reads below a root; nothing has been looked for yet.

    Raises:
        UsageError: It is spelled as a place of which nothing is known here.
    """
    scheme, _ = _split(root)
    opener = STORAGES.get(scheme)
    if opener is None:
        raise UsageError(
            f"{root}: ckpttool reads folders, s3://, gs:// and az://, not {scheme}://: mount it or copy it; "
            "where its store speaks S3, set AWS_ENDPOINT_URL and say s3://"
        )
    return opener(root)


def look_anew(root: str) -> None:
    """Forget what was listed of a root where listings are kept: another question is asked."""
    if not is_local(root):
        from ckpttool.storage.objects import forget

        forget(root)


def path_text(path: object, what: str) -> str:
    """Return a path as text.

    Raises:
        UsageError: It is none, or of bytes.
    """
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise UsageError(f"{what} is a path as text, not {path!r}")
    return text


def is_folder(root: str) -> bool:
    """Tell whether a root can be listed; False where nothing is there, and where nobody may look."""
    try:
        return open_storage(root).kind("") is Kind.FOLDER
    except OSError:
        return False


def is_local(root: str) -> bool:
    """Tell whether a root is spelled as a folder of this machine, where others find it, too."""
    return not _split(root)[0]


def is_object_store(root: str) -> bool:
    """Tell whether a root lies in an object store: to load from it, it has to be copied to a disk."""
    return _split(root)[0] in OBJECT_STORES


def assert_changeable(root: str) -> None:
    """See that a root is a folder of this machine: nothing is written anywhere else.

    Raises:
        UnsafeError: It is not.
    """
    if root.startswith("parts://"):
        raise UnsafeError(
            "what machines wrote down of a tree is only read: run this on the machine that has the files, or where all "
            "of them are seen"
        )
    if not is_local(root):
        raise UnsafeError(f"{root} is only read: ckpttool changes nothing but folders of this machine")


def shortest(root: str) -> str:
    """Return the same root without `.` and `..`, which are taken out by their letters, links or not."""
    scheme, path = _split(root)
    if not scheme:
        return os.path.normpath(root)
    bucket, _, inside = path.partition("/")
    inside = os.path.normpath(f"/{inside}").lstrip("/")  # there is nothing above a bucket
    return f"{scheme}://{bucket}/{inside}" if inside else f"{scheme}://{bucket}"


def above(root: str) -> str:
    """Return the folder in which a root lies, as it is spelled; `/` and a bucket lie in none but themselves."""
    return shortest(os.path.join(root, os.pardir))


def as_spelled_there(path: str | None, root: str, there: str) -> str | None:
    """Return a path in or right above a root as the machines spell it on which the tree lies; another one as it is.

    Args:
        path: As `root` begins it; None stays so.
        root: As the tree is opened here.
        there: As it is called there.
    """
    if path is None or root == there or not path.startswith(above(root)):
        return path
    return os.path.normpath(os.path.join(there, os.path.relpath(path, root)))


def _split(root: str) -> tuple[str, str]:
    match = re.fullmatch(_SCHEME, root) if "://" in root else None  # folders need no pattern compiled
    return ("", root) if match is None else (match[1], match[2])
