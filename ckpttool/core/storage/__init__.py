"""Storage backends. `open_storage` opens a root of any kind, and all reads go through this function."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ckpttool.core.errors import UnsafeError, UsageError
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.core.storage.local import LocalStorage


def _objects(root: str) -> Storage:
    from ckpttool.core.storage.objects import ObjectStorage

    return ObjectStorage(root)


OBJECT_STORES = ("s3", "gs", "az")

STORAGES: dict[str, Callable[[str], Storage]] = {
    "": LocalStorage,
    **dict.fromkeys(OBJECT_STORES, _objects),
}
"""Function that opens a root, by the scheme before `://`; a folder has no scheme. Features may add schemes."""

_SAME_STORES = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("abfs", "abfss", "adl", "azure", "wasb", "wasbs"), "az"),
}
"""Schemes that other programs use for the supported object stores."""
_S3_COMPATIBLE = frozenset(
    {"bos", "ceph", "cos", "cosn", "ks3", "minio", "obs", "oci", "oss", "r2", "swift", "tos", "tosfs"}
)
"""Schemes of S3-compatible stores, which have their own address."""

_WITH_CREDENTIALS = r"[^/@:]*:(?![0-9]+(?:/|\Z))[^@]*@(?s:.*)"
"""Pattern of a URL, after `://`, that includes a password."""
_TO_HIDE = r"(://[^/@:\s]*:)(?![0-9]+(?:[/\s]|\Z))[^@\s]*@"
_SIGNED = r"(?i)([?&](?:x-amz-|x-goog-)?(?:signature|security-token|credential|sig|token)=)[^&\s]+"
"""Pattern of a URL's signature, which gives access to an object."""
_SCHEME = r"([a-z][a-z0-9+.-]*)://(?s:(.*))"


def open_storage(root: str) -> Storage:
    """Return the storage for a root, without reading anything yet.

    Raises:
        UsageError: The form of the root is unknown.
    """
    return _opener(root)(root)


def _opener(root: str) -> Callable[[str], Storage]:
    """Return the function that opens a root.

    Raises:
        UsageError: No storage supports the root, or it includes a password or signature.
    """
    scheme, path = _split(root)
    if scheme and re.fullmatch(_WITH_CREDENTIALS, path):
        raise UsageError(
            f"{scheme}:// with a password is refused, because it is visible in the process list: set it in the "
            f"environment"
        )
    if scheme and re.search(_SIGNED, path):
        raise UsageError(
            f"{scheme}:// with a signature is refused, because it is visible in the process list: give the "
            f"folder, and set the credentials in the environment"
        )
    opener = STORAGES.get(scheme) or _of_feature(scheme)
    if opener is None:
        raise UsageError(f"{root} cannot be read: {_other_scheme(scheme)}")
    return opener


def _of_feature(scheme: str) -> Callable[[str], Storage] | None:
    from ckpttool.core.extensions import first_imported  # few roots have this form

    opener: Callable[[str], Storage] | None = first_imported(lambda feature: (feature.storages or {}).get(scheme))
    return opener


def _other_scheme(scheme: str) -> str:
    if scheme in _SAME_STORES:
        return f"write {_SAME_STORES[scheme]}:// for this store"
    if scheme in _S3_COMPATIBLE:
        return (
            "this store has an S3 interface: set AWS_ENDPOINT_URL to its address and give the folder as "
            "s3://BUCKET/FOLDER"
        )
    if scheme == "file":
        return "give only the path of the folder"
    return "mount it or copy it to a disk, and give that folder"


def without_passwords(text: str) -> str:
    """Return a text without the passwords and signatures in URLs, because commands may contain these."""
    return re.sub(_SIGNED, r"\1…", re.sub(_TO_HIDE, r"\1…@", text))


def forget_listings(root: str) -> None:
    """Drop the cached listings of a root, so that the next command sees its current contents."""
    if is_object_store(root):
        from ckpttool.core.storage.objects import forget

        forget(root)


def path_text(path: object, label: str) -> str:
    """Return a path as text.

    Raises:
        UsageError: The value is not a path, or is a path of bytes.
    """
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise UsageError(f"{label} must be a path, not {path!r}")
    return text


def is_folder(root: str) -> bool:
    """Return whether a root can be listed; False if the root does not exist or is not readable."""
    try:
        return open_storage(root).kind("") is Kind.FOLDER
    except OSError:
        return False


def is_local(root: str) -> bool:
    """Return whether a root has the form of a path on this machine; other machines may see the same folder."""
    return not _split(root)[0]


def is_object_store(root: str) -> bool:
    """Return whether a root is in an object store, where `seal` can add files, but loading needs a copy on disk."""
    return _split(root)[0] in OBJECT_STORES


def assert_changeable(root: str) -> None:
    """Raise an error unless a root is a folder on this machine, because nothing is written anywhere else.

    Raises:
        UnsafeError: The root is not a folder on this machine.
    """
    if root.startswith("parts://"):
        raise UnsafeError(
            "nothing can be changed through the parts of a tree: run this on the machine that has the files, or "
            "on one that sees all of them"
        )
    if not is_local(root):
        raise UnsafeError(f"{root} is read-only: ckpttool changes only folders of this machine")


def shortest(root: str) -> str:
    """Return a root without `.` and `..`, which are removed from the text without following links.

    Raises:
        UsageError: No storage supports the root, or it contains a password or signature.
    """
    _opener(root)
    scheme, path = _split(root)
    if not scheme:
        return os.path.normpath(root)
    bucket, _, inside = path.partition("/")
    inside = os.path.normpath(f"/{inside}").lstrip("/")  # there is nothing above a bucket
    return f"{scheme}://{bucket}/{inside}" if inside else f"{scheme}://{bucket}"


def above(root: str) -> str:
    """Return the parent folder of a root, in the same form; `/` and a bucket are their own parents."""
    return shortest(os.path.join(root, os.pardir))


def path_on_machines(path: str | None, root: str, machine_root: str) -> str | None:
    """Return the path that the tree's machines use for a path in or directly above a root.

    Any other path is returned unchanged.

    Args:
        path: A path that begins with `root`; None is returned unchanged.
        root: The path of the tree on this machine.
        machine_root: The path of the tree on its machines.
    """
    if path is None or root == machine_root or not path.startswith(above(root)):
        return path
    return os.path.normpath(os.path.join(machine_root, os.path.relpath(path, root)))


def _split(root: str) -> tuple[str, str]:
    match = re.fullmatch(_SCHEME, root) if "://" in root else None  # folders do not need a compiled pattern
    return ("", root) if match is None else (match[1], match[2])
