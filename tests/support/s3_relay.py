"""A relay that speaks as much S3 as a reader needs, over a folder: it counts, delays, cuts, flips and refuses.

It stands for the wire, never for a store: what real ones do is tried with real ones.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    import pytest

PAGE = 1000
"""Names in one answer to a LIST, as everywhere."""


@dataclass(slots=True)
class Relay:
    """What lies where, and what goes wrong on the way."""

    folder: Path
    """Each folder in it is a bucket."""
    delay_seconds: float = 0.0
    """Before each answer."""
    unavailable: Counter[str] = field(default_factory=Counter)
    """By key: how often 503 is answered before anything else."""
    cuts: Counter[str] = field(default_factory=Counter)
    """By key: how often an answer breaks off half-way."""
    flips: frozenset[str] = frozenset()
    """Keys of which one bit arrives otherwise."""
    blind: bool = False
    """Whether conditions are ignored, as some stores do."""
    quoted: bool = True
    """Whether a listing has quotes around its ETags, as on some stores."""
    untagged: bool = False
    """Whether an answer to a GET says no ETag, whatever the listing says."""
    whole: bool = False
    """Whether a range is answered with the whole object and 200, as rclone does."""
    shifted: int = 0
    """How many bytes behind the range that was asked for the one begins that an answer says it has, and has."""
    nameless: bool = False
    """Whether an answer to a range does not say which range it has."""
    looping: bool = False
    """Whether a listing begins anew where it should go on."""
    hollow: bool = False
    """Whether a listing says for ever that more comes, and has nothing."""
    repeated: str = ""
    """A key that every listing has twice."""
    markers: bool = False
    """Whether a listing has an empty object `FOLDER/` for each folder, as consoles and some tools leave it."""
    page: bytes = b""
    """A page for people that is answered to everything with 200, as a proxy does that wants a login."""
    sized: int | None = None
    """What a listing says of the size of every object."""
    asked: Counter[str] = field(default_factory=Counter)
    """How often a LIST, HEAD or GET was asked."""
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """What was asked for: key, first byte, and the byte behind the last."""
    waiting: int = 0
    """How many questions are being answered."""
    most_waiting: int = 0
    """How many were at once."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def path(self, bucket: str, key: str) -> Path:
        return self.folder / bucket / key

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "AKIARELAY",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-prints",
            "AWS_REGION": "us-east-1",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    relay: Relay

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY: else each answer waits for the reader's ACK

    def do_PUT(self) -> None:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        path = self.relay.path(bucket, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(HTTPStatus.OK, b"", {"ETag": f'"{_tag(path)}"'})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.relay.lock:
            self.relay.waiting += 1
            self.relay.most_waiting = max(self.relay.most_waiting, self.relay.waiting)
        time.sleep(self.relay.delay_seconds)
        with self.relay.lock:
            self.relay.waiting -= 1
        self._answer_get()

    def _answer_get(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        what = self.command if key else "LIST"
        with self.relay.lock:
            self.relay.asked[what] += 1
            refused = self.relay.unavailable[key] > 0
            self.relay.unavailable[key] -= refused
        if refused:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")
        elif self.relay.page:
            self._answer(HTTPStatus.OK, self.relay.page, {"Content-Type": "text/html"})
        elif not (self.relay.folder / bucket).is_dir():
            self._refuse(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        elif key:
            self._get(bucket, key)
        else:
            self._list(bucket, {name: values[0] for name, values in parse_qs(parts.query).items()})

    def _refuse(self, status: HTTPStatus, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None, sent: int = -1) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if sent < 0:
            self.wfile.write(body)
            return
        self.wfile.write(body[:sent])
        self.wfile.flush()
        self.close_connection = True

    def _list(self, bucket: str, asked: dict[str, str]) -> None:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        begin = 0 if self.relay.looping else int(asked.get("continuation-token", "0"))
        keys: list[str] = []
        prefixes: list[str] = []
        for key in self._keys(bucket):
            if not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                keys.append(key)
            elif not prefixes or prefixes[-1] != key[: end + 1]:
                prefixes.append(key[: end + 1])
        found = sorted([*((key, True) for key in keys), *((key, False) for key in prefixes)])
        page = [] if self.relay.hollow else found[begin : begin + PAGE]
        more = begin + PAGE < len(found) or self.relay.looping or self.relay.hollow
        lines = [self._line(bucket, key) if is_key else _prefix(key) for key, is_key in page]
        token = f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(lines)}"
        self._answer(HTTPStatus.OK, f"{body}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})

    def _keys(self, bucket: str) -> list[str]:
        top = self.relay.folder / bucket
        keys = []
        for path in top.rglob("*"):
            if path.is_file():
                keys += [str(path.relative_to(top))] * (2 if path.name == self.relay.repeated else 1)
            elif self.relay.markers:
                keys.append(f"{path.relative_to(top)}/")
        return sorted(keys)

    def _line(self, bucket: str, key: str) -> str:
        path = self.relay.path(bucket, key)
        status, tag = path.stat(), _tag(path)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(status.st_mtime))
        when = f"{when}.{status.st_mtime_ns // 1_000_000 % 1000:03}Z"
        size = 0 if key.endswith("/") else status.st_size if self.relay.sized is None else self.relay.sized
        tag = f"&quot;{tag}&quot;" if self.relay.quoted else tag
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><ETag>{tag}</ETag>"
            f"<Size>{size}</Size></Contents>"
        )

    def _get(self, bucket: str, key: str) -> None:
        path = self.relay.path(bucket, key)
        if key.endswith("/") or not path.is_file():
            self._refuse(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        tag, size = f'"{_tag(path)}"', path.stat().st_size
        wanted = self.headers.get("If-Match")
        if wanted not in {None, tag} and not self.relay.blind:
            self._refuse(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
            return
        headers = {} if self.relay.untagged else {"ETag": tag}
        headers["Last-Modified"] = formatdate(path.stat().st_mtime, usegmt=True)
        asked = None if self.relay.whole else re.fullmatch("bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        begin, end = (begin + self.relay.shifted, min(end + self.relay.shifted, size)) if asked else (begin, end)
        if asked and begin >= size:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            return
        if asked and not self.relay.nameless:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        with self.relay.lock:
            self.relay.ranges.append((key, begin, end))
            is_cut = self.relay.cuts[key] > 0
            self.relay.cuts[key] -= is_cut
        status = HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        if key in self.relay.flips and end == size:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._answer(status, data, headers, sent=(end - begin) // 2 if is_cut else -1)


def _prefix(prefix: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"


def _tag(path: Path) -> str:
    status = path.stat()
    return _tag_of(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=100_000)
def _tag_of(path: Path, mtime_ns: int, size: int) -> str:  # noqa: ARG001  the time tells whether the content is the same
    return hashlib.md5(b"" if path.is_dir() else path.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def relay_over(folder: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> Iterator[Relay]:
    """Serve the folders in a folder as buckets; with `monkeypatch`, to this process and what it starts."""
    relay = Relay(folder=folder)
    handler = type("Handler", (_Handler,), {"relay": relay})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    relay.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    if monkeypatch is not None:
        from ckpttool.core.storage import objects

        for name, value in relay.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(objects, "_STORES", {})
        monkeypatch.setattr(objects, "_BUCKETS", {})
    try:
        yield relay
    finally:
        server.shutdown()
        server.server_close()
