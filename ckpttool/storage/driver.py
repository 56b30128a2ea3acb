"""Which schemes a driver of fsspec reads, how it is opened, and what it says in our words."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import ByteCount
from ckpttool.errors import UsageError
from ckpttool.storage.base import Kind, ReplacedError, UntoldError, WithheldError
from ckpttool.storage.driver_lanes import FileSystem, Lanes, UnreachableError

_SPEAK_S3 = frozenset({"bos", "ceph", "cos", "cosn", "ks3", "minio", "obs", "oci", "oss", "swift", "tos", "tosfs"})
"""Stores that can be asked as S3, without a driver."""
_OUR_OWN = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("abfs", "abfss", "adl", "azure", "wasb", "wasbs"), "az"),
}
"""Other names of stores that are read without a driver."""
_REFUSED = {
    **dict.fromkeys(("file", "local", "asynclocal"), "a folder of this machine is named by its path alone"),
    **dict.fromkeys(("http", "https"), "a web server does not tell what lies in a folder"),
    **dict.fromkeys(
        (
            *(
                "async_wrapper",
                "asyncwrapper",
                "blockcache",
                "cached",
                "dask",
                "dir",
                "filecache",
                "generic",
                "libarchive",
            ),
            *("reference", "simplecache", "tar", "zip"),
        ),
        "what lies in another place's copy or archive is not what a training saved",
    ),
    **dict.fromkeys(
        ("data", "dvc", "gist", "git", "github", "jlab", "jupyter", "memory", "pyscript"), "no training saves there"
    ),
}
"""Schemes that fsspec knows and ckpttool does not read, with the reason."""


def opened_driver(scheme: str, place: str) -> tuple[Lanes, str, Mapping[str, Any]]:
    """Return the way to a server, how its driver spells the topmost folder there, and what it is opened with.

    Nothing is connected yet. Of what it is opened with, which holds secrets, the environment and fsspec's own config
    files tell it.

    Args:
        scheme: As `sftp`.
        place: What stands between `://` and the next slash; no password is in it.

    Raises:
        UsageError: It is not read, or what reads it is not installed.
    """
    url = f"{scheme}://{place}"
    kind = _class_of(scheme, url)
    from fsspec.config import apply_config

    try:
        options = kind._get_kwargs_from_urls(f"{url}/")  # noqa: SLF001  fsspec's seam for drivers, underscore and all
        top = kind._strip_protocol(f"{url}/")  # noqa: SLF001  as above
        known = apply_config(kind, dict(options))
    except Exception as error:  # noqa: BLE001  any driver, any error
        raise UsageError(f"{url} cannot be opened: {reason_of(error)}") from None

    def connect() -> FileSystem:
        made: FileSystem = kind(**options, skip_instance_cache=True)
        return made

    return Lanes(connect, is_shared=bool(kind.async_impl)), str(top).rstrip("/"), known


def _class_of(scheme: str, url: str) -> Any:  # noqa: ANN401  a class of a package without types
    own, why = _OUR_OWN.get(scheme), _REFUSED.get(scheme)
    if own is not None:
        raise UsageError(f"{url}: say {own}:// for this store")
    if why is not None:
        raise UsageError(f"{url} is not read: {why}")
    other_way = "set AWS_ENDPOINT_URL and say s3://" if scheme in _SPEAK_S3 else "mount it or copy it"
    try:
        from fsspec import get_filesystem_class
    except ImportError:
        way = f"pip install 'ckpttool[fsspec]' and the driver for {scheme}; or {other_way}"
        raise UsageError(f"{url} is read by fsspec, which is not installed: {way}") from None
    try:
        return get_filesystem_class(scheme)
    except ValueError:
        raise UsageError(f"{url}: no installed driver of fsspec reads {scheme}://; {other_way}") from None
    except Exception as error:  # noqa: BLE001  a driver is somebody else's module
        raise UsageError(
            f"{url}: its driver cannot be loaded ({reason_of(error)}): install what it asks for, or {other_way}"
        ) from None


# -------------------------------------------------------------------------------------------------------- what it says

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)
_SECRET_KEYS = re.compile("pass|secret|token|key|cred|auth|sas|sign", re.IGNORECASE)
_MOST_WORDS = 200
_SHORTEST_SECRET = 4


@contextmanager
def in_our_words(place: str, secrets: Mapping[str, Any]) -> Iterator[None]:
    """Turn what a driver raises into what a storage promises: nobody knows in how many ways it may fail.

    Args:
        place: What was asked about, as a user spells it.
        secrets: What the driver was opened with: nothing of it is ever told.
    """
    try:
        yield
    except (ReplacedError, UntoldError, WithheldError, IsADirectoryError, NotADirectoryError):
        raise
    except TimeoutError as error:
        raise TimeoutError(reason_of(error, secrets)) from None
    except PermissionError as error:
        raise WithheldError(reason_of(error, secrets)) from None
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
    except UnreachableError as error:
        if isinstance(error.__cause__, ImportError):
            raise UsageError(f"{place}: its driver lacks a package ({reason_of(error.__cause__)})") from None
        raise OSError(f"no connection ({reason_of(error.__cause__ or error, secrets)})") from None
    except Exception as error:  # noqa: BLE001  any driver, any error
        raise OSError(f"its driver says: {reason_of(error, secrets)}") from None


def reason_of(error: BaseException, secrets: Mapping[str, Any] | None = None) -> str:
    """Return what an error says in one line, without addresses, which may be signed, and without secrets."""
    said = isinstance(error, OSError) and error.strerror
    text = " ".join(str(said or error).split()) or type(error).__name__
    for secret in _secrets_in(secrets or {}):
        text = text.replace(secret, "…")
    text = _ADDRESS.sub("…", text)
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"


def _secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts among options, longest first, that stand under a name of secrets, however deep."""
    found: list[str] = []

    def gather(value: object, *, is_secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                gather(inner, is_secret=is_secret or bool(_SECRET_KEYS.search(str(name))))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                gather(inner, is_secret=is_secret)
        elif is_secret and isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            found.append(value)

    gather(options, is_secret=False)
    yield from sorted(found, key=len, reverse=True)


# ----------------------------------------------------------------------------------------------- what it tells of files

_TAGS = frozenset({
    "blobid", "checksum", "contentmd5", "crc32c", "etag", "fileid", "generation", "inode", "md5", "oid", "sha",
    "sha256", "unique", "versionid",
})  # fmt: skip
_TIMES = frozenset({
    "lastmodified", "lastwritetime", "modificationtime", "modified", "modify", "mtime", "timemodified", "updated",
})  # fmt: skip
"""What drivers call the state of a file, and when it was written, without case and underscores. None is read by all."""

Told = Mapping[str, Any]
"""What a driver tells of one file or folder: `name`, `type`, `size`, and whatever else it calls its own."""

_KINDS = {"file": Kind.FILE, "directory": Kind.FOLDER, "dir": Kind.FOLDER}


def kind_of(told: Told) -> Kind:
    """Return what a driver says that lies there; of a link, and of a word that is none of fsspec's: lost."""
    mode = told.get("unix.mode")
    if told.get("islink") is True or (isinstance(mode, str) and mode[:1] == "l"):
        return Kind.LOST
    return _KINDS.get(str(told.get("type")), Kind.LOST)


def stamp_of(told: Told) -> FileStamp | None:
    """Return what tells whether a file stays the same; None where nothing but its size does, or not even that."""
    size = told.get("size")
    if isinstance(size, str) and size.isdecimal():
        size = int(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        return None
    state = state_of(told)
    if not state:
        return None
    times = (_nanoseconds(value) for name, value in told.items() if _plain(name) in _TIMES)
    modified_ns = next((time for time in times if time is not None), None)
    token = ("driver", *(part for name, value in sorted(state.items()) for part in (name, value)))
    return FileStamp(size=ByteCount(size), token=token, modified_ns=modified_ns)


def state_of(told: Told) -> dict[str, str]:
    """Return all that tells whether a file stays the same, besides its size, by what the driver calls it."""
    found = {}
    for name, value in told.items():
        if _plain(name) in _TAGS | _TIMES and value is not None and value != "":
            found[_plain(name)] = _spelled(value)
    return found


def _plain(name: object) -> str:
    return str(name).replace("_", "").replace("-", "").lower()


def _spelled(value: object) -> str:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).astimezone(timezone.utc).isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value).removeprefix("W/").strip('"')


_MS_FROM, _NS_FROM = 1e11, 1e17
"""A time in seconds is smaller until the year 5138, one in milliseconds as well."""


def _nanoseconds(value: object) -> int | None:
    """Return a time as nanoseconds since 1970; None where nobody says how it is meant."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        return None
    seconds = value / 1e9 if value >= _NS_FROM else value / 1e3 if value >= _MS_FROM else value
    return round(seconds * 1e6) * 1000


def _parsed(text: str) -> datetime | None:
    with suppress(ValueError):
        if re.fullmatch(r"[0-9]{14}(\.[0-9]+)?", text):  # RFC 3659, in UTC
            return datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
        return datetime.fromisoformat(re.sub(r"(?i)z\Z", "+00:00", text))
    return None
