"""What a store tells of an object: which checksum is of the whole of it, who we are there, and what keeps it silent."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ckpttool.api.attesting import open_checksums
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.stored import Claim, CrcName, StoredChecksum
from ckpttool.domain.units import ByteCount
from ckpttool.errors import UsageError
from ckpttool.storage.base import ReplacedError, WithheldError

pytest.importorskip("botocore", reason="stores are asked for their checksums by botocore, which is not installed")
pytest.importorskip("google.auth", reason="Google's store knows us by google-auth, which is not installed")

from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from ckpttool.storage import google_checksums, s3_checksums
from ckpttool.storage.google_checksums import GoogleChecksums
from ckpttool.storage.s3_checksums import S3Checksums

WHOLE = {"ETag": '"15986aaa2edb1a5148af59d63d59e281"', "ContentLength": 5000}
IN_PARTS = {"ETag": '"29ec3fc5ad914a7087b61149da18f9b7-3"', "ContentLength": 5000}
CRC32, CRC64 = (CrcName.CRC32, 0x92C5AAD6), (CrcName.CRC64NVME, 0x457CB4956118222F)


class Double:
    """Answers as botocore's client does."""

    def __init__(self, answer: Mapping[str, object] | Exception) -> None:
        self._answer = answer
        self.asked: dict[str, object] = {}

    def head_object(self, **asked: object) -> Mapping[str, object]:
        self.asked = asked
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def stamp(tag: str = "15986aaa2edb1a5148af59d63d59e281") -> FileStamp:
    return FileStamp(size=ByteCount(5000), token=("etag", tag, ""), modified_ns=1)


def told(
    answer: Mapping[str, object] | Exception, monkeypatch: pytest.MonkeyPatch, *, of: FileStamp | None = None
) -> StoredChecksum:
    monkeypatch.setattr(s3_checksums, "_client", lambda *_: Double(answer))
    return S3Checksums("s3://bucket/run", {}).of("shard.ckpt", of or stamp())


@pytest.mark.parametrize(
    ("answer", "crcs", "of_parts", "in_parts"),
    [
        # SeaweedFS 4.48 says no type of what was put in one piece.
        ({**WHOLE, "ChecksumCRC32": "ksWq1g=="}, (CRC32,), (), False),
        ({**WHOLE, "ChecksumCRC64NVME": "RXy0lWEYIi8=", "ChecksumType": "FULL_OBJECT"}, (CRC64,), (), False),
        ({**IN_PARTS, "ChecksumCRC32": "ksWq1g==", "ChecksumType": "FULL_OBJECT"}, (CRC32,), (), True),
        # What boto3's upload_file makes where nothing else is asked for.
        ({**IN_PARTS, "ChecksumCRC32": "No2/lw==-3", "ChecksumType": "COMPOSITE"}, (), ("CRC32 No2/lw==-3",), True),
        ({**IN_PARTS, "ChecksumSHA256": "a-3", "ChecksumType": "COMPOSITE"}, (), ("SHA256 a-3",), True),
        # A store that does not say of what it is, and whose value does not look it.
        ({**IN_PARTS, "ChecksumCRC32": "No2/lw=="}, (), ("CRC32 No2/lw==",), True),
        ({**WHOLE, "ChecksumCRC32": "No2/lw==-3"}, (), ("CRC32 No2/lw==-3",), False),
        ({**WHOLE, "ChecksumCRC32": "ksWq", "ChecksumType": "FULL_OBJECT"}, (), ("CRC32 ksWq",), False),
        ({**WHOLE, "ChecksumSHA256": "a", "ChecksumType": "FULL_OBJECT"}, (), (), False),
        (WHOLE, (), (), False),
    ],
)
def test_a_checksum_counts_only_where_it_is_of_the_whole_object(
    answer: Mapping[str, object],
    crcs: tuple[tuple[CrcName, int], ...],
    of_parts: tuple[str, ...],
    in_parts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tag = str(answer["ETag"]).strip('"')
    kept = told(answer, monkeypatch, of=stamp(tag))
    assert (kept.crcs, kept.of_parts, kept.in_parts) == (crcs, of_parts, in_parts)


def test_the_question_is_bound_to_what_was_listed_and_so_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    double = Double(WHOLE)
    monkeypatch.setattr(s3_checksums, "_client", lambda *_: double)
    S3Checksums("s3://bucket/run/checkpoint", {}).of("rank_0/shard.ckpt", stamp())
    assert double.asked == {
        "Bucket": "bucket",
        "Key": "run/checkpoint/rank_0/shard.ckpt",
        "ChecksumMode": "ENABLED",
        "IfMatch": '"15986aaa2edb1a5148af59d63d59e281"',
    }
    for other in ({**WHOLE, "ETag": '"another"'}, {**WHOLE, "ContentLength": 5001}):
        with pytest.raises(ReplacedError):
            told(other, monkeypatch)


def refusal(status: int, code: str) -> ClientError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "HeadObject")  # type: ignore[arg-type,unused-ignore]  # more than is asked for


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (refusal(404, "404"), FileNotFoundError, "No such file"),
        (refusal(403, "403"), WithheldError, "the store answers 403 Forbidden"),
        (refusal(403, "InvalidAccessKeyId"), WithheldError, "(InvalidAccessKeyId)"),
        (refusal(412, "PreconditionFailed"), ReplacedError, "replaced"),
        (refusal(503, "SlowDown"), OSError, "the store answers 503 Service Unavailable (SlowDown)"),
        (refusal(599, "Odd"), OSError, "the store answers 599 (Odd)"),
        (NoCredentialsError(), WithheldError, "nothing tells who we are"),
        (EndpointConnectionError(endpoint_url="http://user:secret@host"), OSError, "no answer from the store"),
    ],
)
def test_what_keeps_a_store_from_answering_is_said_without_its_address(
    error: Exception, kind: type[OSError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind) as caught:
        told(error, monkeypatch)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_whoever_obstore_is_told_we_are_is_who_asks() -> None:
    own = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    there = S3Checksums("s3://bucket/run", {**own, "AWS_ENDPOINT_URL": "http://u:p@Store.example:9000/x"})
    assert (there.address, there.is_known) == ("http://store.example:9000", False)
    of_s3 = {"AWS_ENDPOINT_URL": "http://one.example", "AWS_ENDPOINT_URL_S3": "https://other.example"}
    assert S3Checksums("s3://bucket/run", {**own, **of_s3}).address == "https://other.example"


@pytest.mark.parametrize(
    ("address", "is_known"),
    [
        (None, True),
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://bucket.vpce-1a2b.s3.eu-west-1.vpce.amazonaws.com", True),
        ("https://amazonaws.com.example.org", False),
        ("https://myamazonaws.com", False),
        ("http://127.0.0.1:8333", False),
    ],
)
def test_only_of_amazon_it_is_known_beforehand_that_it_compares(
    address: str | None, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_checksums, "_client", lambda *_: Double(WHOLE))
    assert S3Checksums("s3://bucket/run", {} if address is None else {"AWS_ENDPOINT_URL": address}).is_known is is_known


def test_no_profile_is_read_and_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As obstore, which reads none: else two of us would ask."""
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = PROFILE\naws_secret_access_key = p\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    checksums = S3Checksums("s3://bucket/run", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MARK": "none"})
    with pytest.raises(WithheldError, match="nothing tells who we are"):
        checksums.of("shard.ckpt", stamp())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "secret" not in repr(S3Checksums("s3://bucket/run"))


@pytest.mark.parametrize(
    ("answer", "taken"),
    [(None, True), (refusal(400, "BadDigest"), False)],
)
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_wrong_claim_that_is_refused_leaves_nothing_half_done(
    answer: ClientError | None, taken: bool, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, dict[str, object]]] = []

    class Writes:
        def __getattr__(self, name: str) -> object:
            def call(**asked: object) -> dict[str, object]:
                done.append((name, asked))
                if answer is not None and name in {"put_object", "complete_multipart_upload"}:
                    raise answer
                return {"UploadId": "1", "ETag": "e"}

            return call

    monkeypatch.setattr(s3_checksums, "_client", lambda *_: Writes())
    claim = Claim(crc=CrcName.CRC32, in_parts=in_parts)
    assert S3Checksums("s3://bucket/run", {}).takes("x", b"data", claim, 0x92C5AAD6) is taken
    names = [name for name, _ in done]
    if in_parts:
        last = [] if taken else ["abort_multipart_upload"]
        assert names == ["create_multipart_upload", "upload_part", "complete_multipart_upload", *last]
    else:
        assert names == ["put_object"]
    assert any(asked.get("ChecksumCRC32") == "ksWq1g==" for _, asked in done)


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers


GOOGLE = {"ETag": '"tag"', "Content-Length": "5000", "X-Goog-Hash": "crc32c=xW0Brw==,md5=2K1xa4GRpsBt/B8uPatcdQ=="}


def told_by_google(status: int, headers: Mapping[str, str], tmp_path: Path) -> StoredChecksum:
    account = tmp_path / "account.json"
    account.write_text(json.dumps({"gcs_base_url": "http://127.0.0.1:1", "disable_oauth": True}))
    checksums = GoogleChecksums("gs://bucket/run", {"GOOGLE_SERVICE_ACCOUNT": str(account)})
    assert not checksums.is_known
    asked: list[tuple[str, str]] = []

    def request(method: str, url: str) -> Answer:
        asked.append((method, url))
        return Answer(status, headers)

    setattr(checksums._http, "request", request)  # noqa: B010,SLF001  what answers there, in place of the wire
    kept = checksums.of("rank_0/a b.ckpt", stamp("tag"))
    assert asked == [("HEAD", "http://127.0.0.1:1/bucket/run/rank_0/a%20b.ckpt")]
    return kept


def test_google_tells_the_crc32c_of_the_whole_object(tmp_path: Path) -> None:
    kept = told_by_google(200, GOOGLE, tmp_path)
    assert kept.crcs == ((CrcName.CRC32C, 0xC56D01AF),)
    assert told_by_google(200, {**GOOGLE, "X-Goog-Hash": "md5=2K1xa4GRpsBt/B8uPatcdQ=="}, tmp_path).crcs == ()
    packed = {**GOOGLE, "Content-Length": "70", "X-Goog-Stored-Content-Length": "5000"}
    assert told_by_google(200, packed, tmp_path).crcs == kept.crcs


@pytest.mark.parametrize(
    ("status", "changed", "kind"),
    [
        (200, {"ETag": '"other"'}, ReplacedError),
        (200, {"Content-Length": "1"}, ReplacedError),
        (404, {}, FileNotFoundError),
        (403, {}, WithheldError),
        (500, {}, OSError),
        (599, {}, OSError),
    ],
)
def test_what_google_answers_otherwise_is_no_checksum(
    status: int, changed: Mapping[str, str], kind: type[OSError], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        told_by_google(status, {**GOOGLE, **changed}, tmp_path)


def test_an_account_that_is_none_is_one_line_without_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "account.json").write_text('{"private_key": "secret"')
    for environment in (
        {"GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "account.json")},
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '["secret"]'},
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "secret", "client_email": "a", "token_uri": "b"}'},
        {"GOOGLE_SERVICE_ACCOUNT_PATH": str(tmp_path / "none.json")},
    ):
        with pytest.raises(UsageError) as caught:
            GoogleChecksums("gs://bucket/run", environment)
        assert "who we are cannot be told" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_google_store_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"gcs_base_url": "http://127.0.0.1:1", "disable_oauth": True}
    monkeypatch.setattr(google_checksums, "_RETRIES", 0)
    checksums = GoogleChecksums("gs://bucket", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)})
    with pytest.raises(OSError, match="no answer from the store"):
        checksums.of("x", stamp())


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_what_is_not_installed_is_named_with_the_way_to_get_it(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, module = {"s3": ("botocore", "s3_checksums"), "gs": ("google", "google_checksums")}[scheme]
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ckpttool.storage.{module}", raising=False)
    with pytest.raises(UsageError, match=rf"{name}, which is not installed: pip install 'ckpttool\[attest\]'"):
        open_checksums(f"{scheme}://bucket/run")


@pytest.mark.parametrize("root", ["/data/run", "az://container/run", "parts://x"])
def test_where_no_store_keeps_its_own_checksum_the_level_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match="--level checksum reads every byte"):
        open_checksums(root)
