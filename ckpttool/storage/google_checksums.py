"""What Google's store keeps of an object: one HEAD, whose answer tells the CRC32C of the whole of it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import google.auth
import google.auth.exceptions
import urllib3
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.urllib3 import AuthorizedHttp
from google.oauth2 import service_account

from ckpttool.domain.shard import FileStamp
from ckpttool.domain.stored import CrcName, StoredChecksum
from ckpttool.errors import UsageError
from ckpttool.storage.base import ReplacedError, WithheldError
from ckpttool.storage.fan_out import STORE_WORKERS
from ckpttool.storage.object_store import bare_tag
from ckpttool.storage.stored_checksums import address_of, whole_crc

_GOOGLE = "https://storage.googleapis.com"
_KNOWN = ".googleapis.com"
_READ_ONLY = ("https://www.googleapis.com/auth/devstorage.read_only",)
_PATIENCE_SECONDS = 30.0
_RETRIES = urllib3.Retry(total=4, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False)
_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")


class GoogleChecksums:
    """What is kept of the objects below a root in a bucket.

    The store computes the CRC32C of each object itself, and refuses an upload that states another one.
    Source: cloud.google.com/storage/docs/data-validation
    """

    def __init__(self, root: str, environment: Mapping[str, str] = os.environ) -> None:
        """Take the root; nothing is asked yet.

        Raises:
            UsageError: The environment tells nonsense of who we are.
        """
        self._bucket, _, start = root.removeprefix("gs://").partition("/")
        self._start = os.path.normpath(f"/{start}").lstrip("/")
        try:
            account = _account(environment)
            credentials = _credentials(account)
        except (OSError, ValueError, google.auth.exceptions.GoogleAuthError) as error:
            raise UsageError(f"{root}: who we are cannot be told ({type(error).__name__})") from None
        self._base = str(account.get("gcs_base_url") or _GOOGLE).rstrip("/")
        self.address = address_of(self._base)
        self.is_known = (urlsplit(self.address).hostname or "").endswith(_KNOWN)
        self._http = AuthorizedHttp(
            credentials, http=urllib3.PoolManager(maxsize=STORE_WORKERS, timeout=_PATIENCE_SECONDS, retries=_RETRIES)
        )

    def of(self, path: str, stamp: FileStamp) -> StoredChecksum:
        """Ask about one object, where the listing came from: its ETag is the same there."""
        key = f"{self._start}/{path}" if self._start else path
        place = f"{self._base}/{quote(self._bucket)}/{quote(key)}"
        try:
            answer = self._http.request("HEAD", place)
        except (urllib3.exceptions.HTTPError, google.auth.exceptions.GoogleAuthError) as error:
            raise OSError(f"no answer from the store ({type(error).__name__})") from None
        if answer.status != HTTPStatus.OK:
            raise _os_error(answer.status, path)
        told = answer.headers
        size = int(told.get("X-Goog-Stored-Content-Length") or told.get("Content-Length") or -1)
        tag = bare_tag(told.get("ETag"))
        if size != stamp.size or (stamp.token[0] == "etag" and tag and tag != stamp.token[1]):
            raise ReplacedError(f"replaced since it was listed, {stamp.size} bytes then, {size} now")
        hashes = (each.strip().partition("=") for each in told.get("X-Goog-Hash", "").split(","))
        value = whole_crc(CrcName.CRC32C, next((text for name, _, text in hashes if name == "crc32c"), ""))
        crcs = () if value is None else ((CrcName.CRC32C, value),)
        return StoredChecksum(crcs=crcs, of_parts=(), in_parts=False)


def _account(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the service account that obstore is given; empty where it is given none."""
    text = environment.get("GOOGLE_SERVICE_ACCOUNT_KEY")
    path = next((environment[name] for name in _FILES if environment.get(name)), None)
    if text is None and path is not None:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    account = json.loads(text) if text else {}
    if not isinstance(account, dict):
        raise ValueError("not a service account")  # noqa: TRY004  its type is JSON's
    return account


def _credentials(account: dict[str, Any]) -> Any:  # noqa: ANN401  the library has no types
    if account.get("disable_oauth"):
        return AnonymousCredentials()
    if account:
        return service_account.Credentials.from_service_account_info(account, scopes=_READ_ONLY)
    return google.auth.default(scopes=_READ_ONLY)[0]


def _os_error(status: int, path: str) -> OSError:
    if status == HTTPStatus.NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    try:
        told = f"the store answers {status} {HTTPStatus(status).phrase}"
    except ValueError:
        told = f"the store answers {status}"
    return WithheldError(told) if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED} else OSError(told)
