"""What real stores keep of objects, however they were uploaded: nothing is attested that no store compared."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpttool.errors import ExitCode
from tests.nightly.borrowing import trainer_python
from tests.nightly.object_servers import BUCKET, Server, server
from tests.support.answers import FIXTURES
from tests.support.commands import Said, ask
from tests.support.shard_writers import crc_trailer

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts object stores: --nightly")
for package in ("obstore", "botocore", "awscrt", "google.auth"):
    pytest.importorskip(package, reason=f"{package} is not installed")

NAME = "_1-30_2"
SHARDS = [f"checkpoint/rank_{rank}/llama2_7b_rank_{rank}_1-30_2.safetensors" for rank in range(4)]

_UPLOAD_FILE = """
import os, sys, boto3
from boto3.s3.transfer import TransferConfig
bucket, place, folder, *more = sys.argv[1:]
client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
extra = dict(word.split("=") for word in more)
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
for root, _, names in os.walk(folder):
    for name in names:
        path = os.path.join(root, name)
        client.upload_file(path, bucket, f"{place}/{os.path.relpath(path, folder)}", ExtraArgs=extra, Config=parts)
"""


@pytest.fixture(scope="module")
def boto3(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("boto3") / "venv", "boto3", "awscrt", borrows=False)


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("seaweedfs", tmp_path_factory.mktemp("store") / "seaweedfs") as store:
        yield store


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Server], Any]:
    def known(store: Server) -> Any:  # noqa: ANN401  botocore has no types
        from ckpttool.storage import objects

        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(objects, "_STORES", {})
        monkeypatch.setattr(objects, "_BUCKETS", {})
        from ckpttool.storage.s3_checksums import S3Checksums

        return S3Checksums(store.url)._client if store.url.startswith("s3:") else None  # noqa: SLF001  as a client is

    return known


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A tree of shards of some MiB, so that boto3 sends them in parts, sealed on the disk."""
    folder = Path(shutil.copytree(FIXTURES / "sink2_safetensors/output", tmp_path / "tree"))
    assert ask("seal", str(folder), "-q").code == 0
    return folder


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 12 MiB with a CRC of its own, as MindSpore writes one."""
    from tests.support.trees import ckpt_bytes, floats, training_scalars

    folder = tmp_path / "large"
    for rank in range(2):
        body = ckpt_bytes([floats("w", (3 << 20,), seed=rank), *training_scalars(epoch=1, true_step=1)])
        path = folder / f"checkpoint/rank_{rank}/llama_rank_{rank}-1_1.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(body + crc_trailer(body))
    return folder


@pytest.fixture
def uploaded(seaweedfs: Server, known: Callable[[Server], Any], boto3: str, large: Path) -> Callable[..., Any]:
    """Let a store be tried where a tree will lie, and boto3's `upload_file` bring it."""

    def uploaded(place: str, *more: str) -> Any:  # noqa: ANN401  as `known`
        client = known(seaweedfs)
        put(client, large, place)
        verify(f"{seaweedfs.url}/{place}", "--try-store")
        command = [boto3, "-c", _UPLOAD_FILE, BUCKET, place, str(large), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return client

    return uploaded


def put(client: Any, folder: Path, place: str, **claims: Callable[[bytes], str]) -> None:  # noqa: ANN401
    """Put each file by one request, with what is claimed of its bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data, key = path.read_bytes(), f"{place}/{path.relative_to(folder)}"
            client.put_object(Bucket=BUCKET, Key=key, Body=data, **{name: of(data) for name, of in claims.items()})


def right(crc: str) -> Callable[[bytes], str]:
    from awscrt import checksums

    from ckpttool.domain.stored import CrcName
    from ckpttool.storage.stored_checksums import spelled_crc

    compute = {"crc32": zlib.crc32, "crc32c": checksums.crc32c, "crc64nvme": checksums.crc64nvme}[crc]
    return lambda data: spelled_crc(CrcName(crc), compute(data))


def verify(root: str, *options: str) -> Said:
    return ask("verify", root, "--level", "stored", "--format", "json", *options)


def verdict(said: Said) -> tuple[str, list[str]]:
    only = said.json["checkpoints"][0]
    return only["verdict"], sorted({each["code"] for each in only["findings"]})


@pytest.mark.parametrize("crc", ["crc32", "crc32c", "crc64nvme"])
def test_what_seaweedfs_compared_is_attested_once_it_was_seen_to_compare(
    crc: str, seaweedfs: Server, known: Callable[[Server], Any], sealed: Path
) -> None:
    client, root, claim = known(seaweedfs), f"{seaweedfs.url}/{crc}", {f"Checksum{crc.upper()}": right(crc)}
    put(client, sealed, crc, **claim)
    assert verdict(verify(root)) == ("struct-ok", ["store-unreliable"])
    said = verify(root, "--try-store")
    every = "crc32, crc32-in-parts, crc32c, crc32c-in-parts, crc64nvme, crc64nvme-in-parts"
    assert f"refuses a wrong {every}, tried on" in said.stderr
    assert verdict(said) == ("struct-ok", ["store-unreliable"]), "it was uploaded before"
    trials = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{crc}/checkpoint/.ckpttool/store-trials/")["Contents"]
    assert len(trials) == 1
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{crc}/")
    put(client, sealed, crc, **claim)
    assert verdict(verify(root)) == ("attested", [])
    chosen = ask("resolve", root, "--level", "stored", "--format", "json").json["resume"]
    assert (chosen["name"], chosen["verdict"]) == (NAME, "attested")
    # Another file under the name of a shard, sent as it is: its own checksum is right, and it is not what was sealed.
    data = (sealed / SHARDS[1]).read_bytes()
    data = data[:-1] + bytes([data[-1] ^ 1])
    told = {name: of(data) for name, of in claim.items()}
    client.put_object(Bucket=BUCKET, Key=f"{crc}/{SHARDS[1]}", Body=data, **told)
    said = verify(root)
    assert said.code == ExitCode.DAMAGE
    assert verdict(said) == ("damaged", ["store-checksum-differs"])


@pytest.mark.parametrize("crc", ["crc32", "crc32c", "crc64nvme"])
def test_seaweedfs_refuses_what_does_not_fit_its_checksum(
    crc: str, seaweedfs: Server, known: Callable[[Server], Any]
) -> None:
    from botocore.exceptions import ClientError

    client = known(seaweedfs)
    with pytest.raises(ClientError, match="BadDigest"):
        client.put_object(
            Bucket=BUCKET, Key="wrong", Body=b"data", **{f"Checksum{crc.upper()}": right(crc)(b"other data")}
        )
    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket=BUCKET, Key="wrong")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["ChecksumAlgorithm=CRC32", "ChecksumType=FULL_OBJECT"], ("attested", [])),
        (["ChecksumAlgorithm=CRC32"], ("struct-ok", ["checksum-missing"])),
        ([], ("struct-ok", ["checksum-missing"])),
    ],
)
def test_what_upload_file_sends_in_parts_is_attested_where_the_whole_was_asked_for(
    more: list[str],
    expected: tuple[str, list[str]],
    seaweedfs: Server,
    uploaded: Callable[..., Any],
) -> None:
    place = f"parts-{len(more)}"
    client = uploaded(place, *more)
    head = client.head_object(Bucket=BUCKET, Key=f"{place}/checkpoint/rank_0/llama_rank_0-1_1.ckpt")
    assert head["ETag"].endswith('-3"')
    said = verify(f"{seaweedfs.url}/{place}")
    assert verdict(said) == expected, said.stdout
    assert ("of its parts, not of the whole" in said.stdout) == (expected[0] == "struct-ok")


def test_crc64nvme_of_upload_file_is_of_the_whole_in_any_case(
    seaweedfs: Server, uploaded: Callable[..., Any], large: Path
) -> None:
    assert ask("seal", str(large), "-q").code == 0
    uploaded("nvme", "ChecksumAlgorithm=CRC64NVME")
    assert verdict(verify(f"{seaweedfs.url}/nvme")) == ("attested", [])


def test_wrong_credentials_are_unknown_and_nothing_of_them_is_printed(
    seaweedfs: Server, known: Callable[[Server], Any], sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(known(seaweedfs), sealed, "secret", ChecksumCRC32=right("crc32"))
    from ckpttool.storage.s3_checksums import S3Checksums

    def other(root: str) -> S3Checksums:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
        return S3Checksums(root)

    monkeypatch.setattr("ckpttool.api.attesting.open_checksums", other)
    said = verify(f"{seaweedfs.url}/secret")
    assert said.code == ExitCode.INCOMPLETE
    assert verdict(said)[0] == "unreadable"
    assert "the store answers 403 Forbidden" in said.stdout
    assert not any(word in said.stdout + said.stderr for word in ("not-the-secret", "AKIA", "a-secret"))


def test_moto_takes_any_checksum_so_it_attests_nothing(
    tmp_path: Path, known: Callable[[Server], Any], sealed: Path
) -> None:
    with server("moto", tmp_path / "moto") as store:
        client = known(store)
        put(client, sealed, "tree")
        said = verify(f"{store.url}/tree", "--try-store")
        assert "takes a wrong crc32" in said.stderr
        assert "refuses" not in said.stderr
        for path in SHARDS:
            data = (sealed / path).read_bytes()
            place = {"Bucket": BUCKET, "Key": f"tree/{path}"}
            upload = client.create_multipart_upload(**place, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
            place["UploadId"] = upload["UploadId"]
            part = client.upload_part(**place, PartNumber=1, Body=data)
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
            client.complete_multipart_upload(**place, MultipartUpload=parts, ChecksumType="FULL_OBJECT")
        said = verify(f"{store.url}/tree")
        assert verdict(said)[0] == "struct-ok"
        assert said.code == 0


def test_the_crc32c_of_a_store_that_answers_as_google_s_is_compared(
    tmp_path: Path, known: Callable[[Server], Any], sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server("fake-gcs", tmp_path / "gcs") as store:
        known(store)
        for path in sorted(sealed.rglob("*")):
            if path.is_file():
                store.put(f"tree/{path.relative_to(sealed)}", path.read_bytes())
        assert verdict(verify(f"{store.url}/tree")) == ("struct-ok", ["store-unreliable"])
        monkeypatch.setattr("ckpttool.storage.google_checksums._KNOWN", "127.0.0.1")
        assert verdict(verify(f"{store.url}/tree")) == ("attested", [])
        data = bytearray((sealed / SHARDS[2]).read_bytes())
        data[-1] ^= 1
        store.put(f"tree/{SHARDS[2]}", bytes(data))
        assert verdict(verify(f"{store.url}/tree")) == ("damaged", ["store-checksum-differs"])
