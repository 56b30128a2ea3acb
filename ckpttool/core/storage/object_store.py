"""Access to obstore, the client for object stores: opens stores, translates errors, and selects object versions."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import UsageError
from ckpttool.core.storage.base import ReplacedError, WithheldError

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

INSTALL = "pip install 'ckpttool[objects]'"
_PATIENCE = timedelta(seconds=30)
RETRIES: RetryConfig = {"max_retries": 4, "retry_timeout": _PATIENCE}
_CLIENT: ClientConfig = {
    "allow_http": True,  # only if the store's address uses http
    "connect_timeout": _PATIENCE,
    "read_timeout": _PATIENCE,  # per piece; a large object may take longer in total
    "timeout": timedelta(days=1),
}


def opened_store(url: str) -> ObjectStore:
    """Return the store of a bucket, with credentials from the environment.

    Raises:
        UsageError: obstore is not installed, or an environment variable is invalid.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise UsageError(f"reading {url} needs obstore, which is not installed: {INSTALL}") from None
    try:
        return from_url(url, client_options=_CLIENT, retry_config=RETRIES)
    except Exception as error:  # noqa: BLE001  invalid environment variables may cause any exception
        raise UsageError(f"{url} cannot be opened: {reason_of(error)}") from None


class BrokenRulesError(OSError):
    """The store violates its protocol, so that its answers about ranges are unreliable."""


@contextmanager
def in_our_words(place: str) -> Iterator[None]:
    """Convert exceptions of obstore to those of a storage, in one line and without addresses, which may be signed."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise WithheldError(reason_of(error)) from None
    except exceptions.PreconditionError:
        raise ReplacedError("replaced after it was listed") from None
    except exceptions.BaseError as error:
        reason = reason_of(error)
        broken = next((phrase for rule, phrase in _RULES if rule.search(reason)), None)
        if broken is not None:
            raise BrokenRulesError(f"the store violated its protocol: it returned {broken}") from None
        if reason.startswith("the store answers 404"):  # the bucket does not exist
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
        raise OSError(reason) from None


_RULES = (
    (re.compile("non-partial response"), "a range with the whole object (200 instead of 206)"),
    (re.compile(r"Requested [0-9]+\.\.[0-9]+, got [0-9]+\.\.[0-9]+"), "a range other than the requested one"),
    (re.compile("Content-Range"), "a range without its position"),
)
"""Patterns of obstore's messages about a violated rule, each with a description of the rule."""
_STATUS = re.compile(r"status code: (?P<status>[0-9]{3}[A-Za-z -]*)")
_CODE = re.compile(r"<Code>(?P<code>[A-Za-z]{1,60})</Code>")
_ADDRESS = re.compile(r"https?://(?:[^/@\s]*@)?(?P<host>[^/?\s]+)\S*")
_MOST_WORDS = 200


def reason_of(error: Exception) -> str:
    """Return the message of an exception from obstore as one line."""
    text = str(error).partition("\n\nDebug source")[0]
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        why = f" ({code['code']})" if code is not None else ""
        return f"the store answers {status['status'].strip()}{why}"
    host = _ADDRESS.search(text)
    line = " ".join(text.split()).rpartition(" - ")[2]
    if host is not None:
        line = f"no response from {host['host']} ({_ADDRESS.sub('…', line)})"
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}…"


MOST_BYTES = 1 << 53
"""Maximum size of an object in bytes.

No store allows even a hundredth of it, and computations with larger numbers would never end.
"""


def stamp_of(meta: ObjectMeta) -> FileStamp:
    """Return the stamp that shows changes to an object: its size, and its ETag and version or, if unknown, its time.

    Raises:
        BrokenRulesError: The store reports an impossible size.
    """
    if not 0 <= meta["size"] <= MOST_BYTES:
        raise BrokenRulesError(f"the store violated its protocol: it lists an object of {meta['size']} bytes")
    modified_ns = _nanoseconds(meta["last_modified"])
    e_tag = bare_tag(meta.get("e_tag"))
    token = ("etag", e_tag, meta.get("version") or "") if e_tag else ("modified", str(modified_ns), "")
    return FileStamp(size=ByteCount(meta["size"]), token=token, modified_ns=modified_ns)


def _nanoseconds(time_of: datetime) -> int:
    return round(time_of.timestamp() * 1e6) * 1000


def bare_tag(e_tag: str | None) -> str:
    """Return an ETag in the form used for comparison, because some stores list ETags without quotes."""
    return (e_tag or "").removeprefix("W/").strip('"')


def conditions(stamp: FileStamp | None) -> GetOptions:
    """Return the request conditions that select the listed version."""
    if stamp is None or stamp.modified_ns is None:
        return {}
    if stamp.token[0] != "etag":
        return {"if_unmodified_since": datetime.fromtimestamp(stamp.modified_ns / 1e9, timezone.utc)}
    return {"if_match": f'"{stamp.token[1]}"'}


def assert_as_listed(answer: GetResult, stamp: FileStamp | None) -> None:
    """Check that an answer is about the listed version, because some stores ignore conditions.

    Raises:
        ReplacedError: The answer is about a different version.
    """
    if stamp is None:
        return
    meta = answer.meta
    e_tag = bare_tag(meta.get("e_tag"))
    if stamp.token[0] == "etag" and not e_tag:
        raise BrokenRulesError("the store violated its protocol: it returned an object without the ETag that it listed")
    if meta["size"] != stamp.size or (stamp.token[0] == "etag" and e_tag != stamp.token[1]):
        raise ReplacedError(f"replaced after it was listed: {stamp.size} bytes then, {meta['size']} now")
