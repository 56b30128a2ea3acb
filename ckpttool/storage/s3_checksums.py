"""What a store that speaks S3 keeps of an object: one HEAD by botocore, with who we are as obstore is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config

from ckpttool.domain.shard import FileStamp
from ckpttool.domain.stored import Claim, CrcName, StoredChecksum
from ckpttool.storage.base import ReplacedError, WithheldError
from ckpttool.storage.fan_out import STORE_WORKERS
from ckpttool.storage.object_store import bare_tag
from ckpttool.storage.stored_checksums import address_of, spelled_crc, whole_crc

_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
"""S3 of Amazon: it refuses what does not fit a checksum that it is told, and computes one where it is told none.

Source: docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
"""
_ADDRESSES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PATIENCE_SECONDS = 30
_TRIES = 5
_TRUE = ("1", "true", "on", "yes", "y")
_NO_PROFILE = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
"""botocore's variables, each with its name in a profile and in the environment: obstore reads neither."""
_FULL, _COMPOSITE = "FULL_OBJECT", "COMPOSITE"
_FIELDS = {crc: f"Checksum{crc.value.upper()}" for crc in CrcName}
_OTHERS = ("ChecksumSHA1", "ChecksumSHA256")


class S3Checksums:
    """What is kept of the objects below a root in a bucket."""

    def __init__(self, root: str, environment: Mapping[str, str] = os.environ) -> None:
        """Take the root; nothing is asked yet."""
        self._bucket, _, start = root.removeprefix("s3://").partition("/")
        self._start = os.path.normpath(f"/{start}").lstrip("/")
        self._endpoint = _first(environment, _ADDRESSES)
        self._region = _first(environment, _REGIONS) or "us-east-1"
        self.address = address_of(self._endpoint or "https://s3.amazonaws.com")
        self.is_known = (urlsplit(self.address).hostname or "").endswith(_AMAZON)
        own = frozenset((name, value) for name, value in environment.items() if name.startswith("AWS_"))
        self._client = _client(own, self._endpoint, self._region, self._bucket)

    def of(self, path: str, stamp: FileStamp) -> StoredChecksum:
        """Ask about one object."""
        with _in_our_words(path):
            answer = self._client.head_object(
                Bucket=self._bucket, Key=self._key(path), ChecksumMode="ENABLED", **_conditions(stamp)
            )
        tag = bare_tag(answer.get("ETag"))
        if answer["ContentLength"] != stamp.size or (stamp.token[0] == "etag" and tag and tag != stamp.token[1]):
            raise ReplacedError(f"replaced since it was listed, {stamp.size} bytes then, {answer['ContentLength']} now")
        return _kept(answer, tag)

    def _key(self, path: str) -> str:
        return f"{self._start}/{path}" if self._start else path

    def server(self) -> str:
        """Return what the store calls itself; empty where it does not say."""
        with _in_our_words(self._bucket):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._start, MaxKeys=1)
        return str(answer["ResponseMetadata"]["HTTPHeaders"].get("server", ""))[:200]

    def takes(self, path: str, data: bytes, claim: Claim, value: int) -> bool:
        """Write an object with a checksum, and tell whether the store took it.

        Raises:
            WithheldError: It does not let us write.
            OSError: It does not answer.
        """
        try:
            with _in_our_words(path):
                self._put(self._key(path), data, claim, value)
        except _RefusedError:
            return False
        return True

    def _put(self, key: str, data: bytes, claim: Claim, value: int) -> None:
        told = {_FIELDS[claim.crc]: spelled_crc(claim.crc, value)}
        place = {"Bucket": self._bucket, "Key": key}
        if not claim.in_parts:
            self._client.put_object(**place, Body=data, **told)
            return
        begun = self._client.create_multipart_upload(
            **place, ChecksumAlgorithm=claim.crc.value.upper(), ChecksumType=_FULL
        )
        place["UploadId"] = begun["UploadId"]
        try:
            part = self._client.upload_part(**place, PartNumber=1, Body=data)
            parts = [{"PartNumber": 1, **{name: part[name] for name in ("ETag", _FIELDS[claim.crc]) if name in part}}]
            self._client.complete_multipart_upload(
                **place, MultipartUpload={"Parts": parts}, ChecksumType=_FULL, **told
            )
        except botocore.exceptions.ClientError:
            with suppress(botocore.exceptions.ClientError):  # some forget it by themselves
                self._client.abort_multipart_upload(**place)
            raise


def _kept(answer: Mapping[str, Any], tag: str) -> StoredChecksum:
    """Sort what an answer tells by what it is of.

    Where the store does not say, an object in one piece has but one checksum that it can be; whatever ends in `-N`, and
    all of what was put together from parts, may be a checksum of checksums.
    """
    kind, in_parts = answer.get("ChecksumType"), "-" in tag
    is_whole = kind == _FULL or (kind is None and not in_parts)
    told = {crc: str(answer[field]) for crc, field in _FIELDS.items() if answer.get(field)}
    crcs = {crc: value for crc, text in told.items() if is_whole and (value := whole_crc(crc, text)) is not None}
    others = [f"{crc.value.upper()} {text}" for crc, text in told.items() if crc not in crcs]
    if kind == _COMPOSITE:  # of SHA-1 and SHA-256 nothing is recorded that they could be compared with
        others += [f"{name.removeprefix('Checksum')} {answer[name]}" for name in _OTHERS if answer.get(name)]
    return StoredChecksum(crcs=tuple(sorted(crcs.items())), of_parts=tuple(others), in_parts=in_parts)


def _conditions(stamp: FileStamp) -> dict[str, str]:
    return {"IfMatch": f'"{stamp.token[1]}"'} if stamp.token[0] == "etag" else {}


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


@lru_cache(maxsize=4)  # a second to make; who we are is a part of the key
def _client(own: frozenset[tuple[str, str]], endpoint: str | None, region: str, bucket: str) -> Any:  # noqa: ANN401
    """Return a client that is who obstore is: from the environment, else the role of the machine; no profile."""
    environment = dict(own)
    is_own = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in _TRUE
    if is_own and endpoint is not None:  # there the address names the bucket already
        endpoint = endpoint.replace(f"://{bucket}.", "://", 1)
    unsigned = environment.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE
    session = botocore.session.Session(session_vars=_NO_PROFILE)
    return session.create_client(
        "s3",
        region_name=region,
        endpoint_url=endpoint,
        config=Config(
            signature_version=UNSIGNED if unsigned else None,
            s3={"addressing_style": "virtual" if is_own else "path"},
            retries={"total_max_attempts": _TRIES, "mode": "standard"},
            connect_timeout=_PATIENCE_SECONDS,
            read_timeout=_PATIENCE_SECONDS,
            max_pool_connections=STORE_WORKERS,
            request_checksum_calculation="when_required",
        ),
    )


class _RefusedError(OSError):
    """The store says that what it was sent is wrong, or that it knows no such thing."""


@contextmanager
def _in_our_words(place: str) -> Iterator[None]:
    """Turn what botocore raises into what a storage promises: a status, and nothing of the address."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        raise _os_error(status, str(error.response.get("Error", {}).get("Code", "")), place) from None
    except botocore.exceptions.NoCredentialsError:
        raise WithheldError("nothing tells who we are") from None
    except botocore.exceptions.BotoCoreError as error:
        raise OSError(f"no answer from the store ({type(error).__name__})") from None


def _os_error(status: int, code: str, place: str) -> OSError:
    name = "" if code in {"", str(status)} else f" ({code})"
    try:
        told = f"the store answers {status} {HTTPStatus(status).phrase}{name}"
    except ValueError:
        told = f"the store answers {status}{name}"
    if status == HTTPStatus.NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}:
        return WithheldError(told)
    if status == HTTPStatus.PRECONDITION_FAILED:
        return ReplacedError("replaced since it was listed")
    return _RefusedError(told) if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED} else OSError(told)
