"""`--level stored`: what a store keeps of the shards is worth as much as is known of the store, and not a byte more."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.domain.frozen import replace
from ckpttool.domain.stored import CLAIMS, Claim, CrcName, StoreTrial
from ckpttool.domain.verdict import Level
from ckpttool.errors import ExitCode
from ckpttool.records.hashed_json import closed
from ckpttool.records.store_trials import read_trials, trial_bytes, trial_path
from ckpttool.storage import open_storage
from ckpttool.storage.base import WithheldError
from ckpttool.verify.check import check
from tests.support.answers import FIXTURES
from tests.support.commands import Said, ask
from tests.support.s3_relay import Relay
from tests.support.shard_writers import crc_trailer
from tests.support.verifying import task_for

pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")
pytest.importorskip("botocore", reason="stores are asked for their checksums by botocore, which is not installed")
pytest.importorskip("google.auth", reason="Google's store knows us by google-auth, which is not installed")

from ckpttool.storage.google_checksums import GoogleChecksums
from ckpttool.storage.s3_checksums import S3Checksums

TREE = "s3://bucket/run/output"
NAME = "_1-30_2"
SHARDS = [f"run/output/checkpoint/rank_{rank}/llama2_7b_rank_{rank}_1-30_2.safetensors" for rank in range(4)]
CRC32_ALONE = Claim(crc=CrcName.CRC32, in_parts=False)
TRIED = StoreTrial(address="", server="x", tried_at="2026-11-28T00:00:00Z", refused=CLAIMS, taken=())


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of safetensors, sealed on the disk."""
    folder = Path(shutil.copytree(FIXTURES / "sink2_safetensors/output", tmp_path_factory.mktemp("sealed") / "output"))
    assert ask("seal", str(folder), "-q").code == 0
    return folder


@pytest.fixture
def bucket(relay: Relay, sealed: Path) -> Path:
    """The same, uploaded."""
    shutil.copytree(sealed, relay.folder / "bucket/run/output")
    for key in SHARDS:
        keep(relay, key)
    return relay.folder / "bucket"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the relay pass for a store of which it is documented that it compares."""
    monkeypatch.setattr("ckpttool.storage.s3_checksums._AMAZON", ("127.0.0.1",))


def keep(relay: Relay, key: str, *, value: int | None = None, **more: str) -> None:
    """Let the store keep a CRC32 of an object; the right one, where none is given."""
    right = zlib.crc32((relay.folder / "bucket" / key).read_bytes())
    text = base64.b64encode((right if value is None else value).to_bytes(4, "big")).decode()
    relay.kept[key] = {"x-amz-checksum-crc32": text, "x-amz-checksum-type": "FULL_OBJECT", **more}


def verify(*options: str, root: str = TREE) -> Said:
    return ask("verify", root, "--level", "stored", "--format", "json", *options)


def verdict(said: Said) -> tuple[str, list[tuple[str, str]]]:
    """The word of the one checkpoint, and code and weight of each finding, one of a kind."""
    checkpoints = said.json["checkpoints"]
    assert isinstance(checkpoints, list)
    (only,) = checkpoints
    return only["verdict"], sorted({(each["code"], each["severity"]) for each in only["findings"]})


@pytest.mark.usefixtures("known", "bucket")
def test_what_a_store_compared_and_was_sealed_is_attested_by_one_request_a_shard(relay: Relay) -> None:
    structure = ask("verify", TREE, "--format", "json")
    before = relay.asked.copy()
    said = verify()
    assert said.code == 0
    assert verdict(said) == ("attested", [])
    assert relay.asked["HEAD"] == len(SHARDS)
    assert relay.asked["GET"] - before["GET"] == before["GET"], "headers and the manifest, as at structure"
    assert said.json["bytes_read"] == structure.json["bytes_read"]
    chosen = ask("resolve", TREE, "--level", "stored", "--format", "json").json
    assert chosen["evidence"] == "stored"
    assert chosen["resume"]["verdict"] == "attested"


@pytest.mark.usefixtures("known", "bucket")
def test_what_arrived_otherwise_than_it_was_sealed_is_damage_and_its_neighbours_are_not(relay: Relay) -> None:
    keep(relay, SHARDS[2], value=1)
    said = verify()
    assert said.code == ExitCode.DAMAGE
    assert verdict(said) == ("damaged", [("store-checksum-differs", "damage")])
    assert [shard["verdict"] for shard in said.json["checkpoints"][0]["shards"]] == [
        "attested",
        "attested",
        "damaged",
        "attested",
    ]
    chosen = ask("resolve", TREE, "--level", "stored", "--format", "json")
    assert chosen.code == 0
    assert chosen.json["resume"]["name"] != NAME


@pytest.mark.usefixtures("bucket")
def test_a_store_of_which_nothing_is_known_attests_nothing_and_condemns_nothing(relay: Relay) -> None:
    assert verdict(verify()) == ("struct-ok", [("store-unreliable", "note")])
    assert verify().code == 0
    keep(relay, SHARDS[2], value=1)
    assert verdict(verify()) == ("suspect", [("store-checksum-differs", "suspect"), ("store-unreliable", "note")])


@pytest.mark.usefixtures("known", "bucket")
def test_a_checksum_of_parts_is_shown_and_not_used(relay: Relay) -> None:
    for key in SHARDS:
        relay.kept[key] = {"x-amz-checksum-crc32": "No2/lw==-3", "x-amz-checksum-type": "COMPOSITE"}
    said = verify()
    assert verdict(said) == ("struct-ok", [("checksum-missing", "note")])
    assert "CRC32 No2/lw==-3" in said.stdout
    assert "ChecksumType=FULL_OBJECT" in said.stdout


@pytest.mark.usefixtures("known", "bucket")
def test_an_etag_that_is_the_md5_of_the_bytes_says_nothing_to_us(relay: Relay) -> None:
    relay.kept.clear()
    assert verdict(verify()) == ("struct-ok", [("checksum-missing", "note")])


@pytest.mark.usefixtures("known")
def test_a_checksum_that_nothing_is_recorded_for_attests_nothing(relay: Relay, bucket: Path) -> None:
    (seal,) = (bucket / "run/output/checkpoint/.ckpttool").glob("*.manifest.json")
    seal.unlink()
    assert verdict(verify()) == ("struct-ok", [("checksum-missing", "note")])
    relay.kept[SHARDS[0]] = {"x-amz-checksum-crc64nvme": "RXy0lWEYIi8="}
    assert verdict(verify()) == ("struct-ok", [("checksum-missing", "note")])


@pytest.mark.usefixtures("known")
def test_a_manifest_that_cannot_be_believed_is_never_taken_for_none(bucket: Path) -> None:
    (seal,) = (bucket / "run/output/checkpoint/.ckpttool").glob("*.manifest.json")
    seal.write_bytes(seal.read_bytes()[:-9])
    said = verify()
    assert said.code == ExitCode.INCOMPLETE
    assert ("manifest-unreadable", "unknown") in verdict(said)[1]


@pytest.mark.usefixtures("known")
def test_a_ckpt_that_carries_a_crc_is_attested_without_a_manifest(relay: Relay) -> None:
    folder = Path(shutil.copytree(FIXTURES / "sink2_ckpt/output", relay.folder / "bucket/crc"))
    keys = []
    for shard in folder.glob("checkpoint/rank_*/*_1-30_2.ckpt"):
        shard.write_bytes(shard.read_bytes() + crc_trailer(shard.read_bytes()))
        keys.append(str(shard.relative_to(relay.folder / "bucket")))
        keep(relay, keys[-1])
    assert len(keys) == 4
    look = ("--checkpoint", NAME)
    assert verdict(verify(*look, root="s3://bucket/crc")) == ("attested", [])
    keep(relay, keys[1], value=1)
    assert verdict(verify(*look, root="s3://bucket/crc")) == ("damaged", [("store-checksum-differs", "damage")])


@pytest.mark.parametrize("name", ["bf16", "split", "tensors", "with_scalars"])
def test_the_crc_in_a_file_that_mindspore_wrote_tells_that_of_the_whole_file(name: str) -> None:
    path = FIXTURES / "crc" / f"{name}.ckpt"
    assert check(task_for(path, Level.STRUCTURE)).report.file_crc32 == zlib.crc32(path.read_bytes())


@pytest.mark.usefixtures("known", "bucket")
def test_an_object_that_is_another_one_than_was_listed_is_unstable(relay: Relay) -> None:
    keep(relay, SHARDS[1], ETag='"another"')
    said = verify()
    assert said.code == ExitCode.INCOMPLETE
    assert verdict(said) == ("unstable", [("changed-while-reading", "unknown")])


@pytest.mark.usefixtures("known", "bucket")
def test_what_the_store_withholds_is_unknown_and_never_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise WithheldError("the store answers 403 Forbidden")

    monkeypatch.setattr(S3Checksums, "of", refused)
    said = verify()
    assert said.code == ExitCode.INCOMPLETE
    assert verdict(said) == ("unreadable", [("unreadable", "unknown")])
    assert ask("resolve", TREE, "--checkpoint", NAME, "--level", "stored").code == ExitCode.INCOMPLETE


@pytest.mark.usefixtures("known")
def test_of_a_shard_that_is_cut_the_store_is_not_asked(relay: Relay, bucket: Path) -> None:
    path = bucket / SHARDS[3]
    path.write_bytes(path.read_bytes()[:-100])
    said = verify()
    assert said.code == ExitCode.DAMAGE
    assert relay.asked["HEAD"] == len(SHARDS) - 1


@pytest.mark.usefixtures("known", "bucket")
def test_of_a_part_of_the_shards_no_checkpoint_is_attested(relay: Relay) -> None:
    said = verify("--subset", "1/2")
    only = said.json["checkpoints"][0]
    assert {shard["verdict"] for shard in only["shards"]} == {"attested"}
    assert only["verdict"] == "struct-ok"
    assert relay.asked["HEAD"] == len(only["shards"]) < len(SHARDS)


@pytest.mark.usefixtures("bucket")
def test_a_dry_run_counts_the_requests_and_asks_nothing(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    said = verify("--dry-run")
    assert (said.json["requests"], said.json["tasks"]) == (2 * len(SHARDS), len(SHARDS))
    assert relay.asked["HEAD"] == 0


@pytest.mark.usefixtures("known")
def test_prune_does_not_take_attested_for_proof(relay: Relay, bucket: Path) -> None:
    assert ask("seal", str(bucket / "run/output"), "--checkpoint", "20_2", "-q").code == 0
    for rank in range(4):
        keep(relay, f"run/output/checkpoint/rank_{rank}/llama2_7b_rank_{rank}-20_2.safetensors")
    order = ("prune", TREE, "--keep-last", "1", "--grace", "0", "--format", "json", "--level")
    whys = {
        level: {each["name"]: (each["verdict"], each["why"]) for each in ask(*order, level).json["checkpoints"]}
        for level in ("stored", "checksum")
    }
    assert whys["stored"][NAME] == ("attested", ["last"])
    assert whys["stored"]["20_2"] == ("attested", ["unproven"])
    assert whys["checksum"][NAME] == ("verified", ["last"])
    assert whys["checksum"]["20_2"][1] == ["replaced"]
    assert whys["stored"]["15_2"][1] == whys["checksum"]["15_2"][1] == ["replaced"]


@pytest.mark.usefixtures("known", "bucket")
def test_a_report_and_a_watch_say_it_in_the_same_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    assert ask("report", TREE, "--level", "stored", "--format", "markdown", "--output", str(page)).code == 0
    assert "attested" in page.read_text()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert f"{NAME} is good (attested)" in ask("watch", TREE, "--level", "stored", "--once").stdout


@pytest.mark.parametrize(
    "asked",
    [
        ("verify",),
        ("verify", "--dry-run"),
        ("resolve",),
        ("prune", "--keep-last", "1"),
        ("watch", "--once"),
        ("part", "--part", "1/1", "--out", "parts/"),
    ],
)
def test_a_disk_keeps_no_checksum_and_says_so_in_one_line(
    asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = shutil.copytree(FIXTURES / "sink2_ckpt/output", tmp_path / "run")
    said = ask(asked[0], str(folder), "--level", "stored", *asked[1:])
    assert said.code == ExitCode.USAGE
    assert "and here is none; --level checksum reads every byte" in said.stderr
    assert said.stdout == ""


def test_a_comparison_knows_no_such_level(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "sink2_ckpt/output", tmp_path / "run")
    said = ask("diff", "10_2", "15_2", "--tree", str(folder), "--level", "stored")
    assert (said.code, "what a store keeps tells no difference" in said.stderr) == (ExitCode.USAGE, True)


@pytest.mark.usefixtures("bucket")
def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.delitem(sys.modules, "ckpttool.storage.s3_checksums", raising=False)
    said = verify()
    assert said.code == ExitCode.USAGE
    assert said.stderr.splitlines()[-1].endswith("not installed: pip install 'ckpttool[attest]'")


def test_google_s_own_checksum_is_compared_with_the_one_that_was_sealed(
    relay: Relay, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = pytest.importorskip("awscrt.checksums", reason="CRC32C is computed by awscrt, which is not installed")
    for name, value in relay.google(tmp_path / "account.json").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ckpttool.storage.google_checksums._KNOWN", "127.0.0.1")
    for key in SHARDS:
        value = checksums.crc32c((bucket / key).read_bytes())
        text = base64.b64encode(value.to_bytes(4, "big")).decode()
        relay.kept[key] = {"X-Goog-Hash": f"crc32c={text},md5=AAAA"}
    root = TREE.replace("s3:", "gs:")
    assert verdict(verify(root=root)) == ("attested", [])
    relay.kept[SHARDS[0]] = {"X-Goog-Hash": "crc32c=AAAAAA=="}
    assert verdict(verify(root=root)) == ("damaged", [("store-checksum-differs", "damage")])


# ------------------------------------------------------------------------------------------------- trials of a store


def tried(bucket: Path, relay: Relay, trial: StoreTrial, *, seconds: float = -60) -> None:
    """Let a trial lie in the tree, so many seconds after the shards came."""
    came = (bucket / SHARDS[0]).stat().st_mtime
    trial = replace(trial, address=trial.address or relay.url)
    path = bucket / "run/output/checkpoint" / trial_path(trial.tried_at, f"{abs(hash(seconds)) % 10**16:016x}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(trial_bytes(trial))
    os.utime(path, (came + seconds, came + seconds))


def same_age(bucket: Path) -> None:
    for key in SHARDS:
        os.utime(bucket / key, (1_700_000_000, 1_700_000_000))


def test_a_store_that_refused_wrong_checksums_before_the_upload_attests(relay: Relay, bucket: Path) -> None:
    same_age(bucket)
    tried(bucket, relay, TRIED)
    assert verdict(verify()) == ("attested", [])
    keep(relay, SHARDS[2], value=1)
    assert verdict(verify()) == ("damaged", [("store-checksum-differs", "damage")])


@pytest.mark.parametrize(
    ("trial", "seconds", "why"),
    [
        (TRIED, 60, "it was uploaded before"),
        (replace(TRIED, address="http://elsewhere.example"), -60, "is not known"),
        (replace(TRIED, refused=(Claim(crc=CrcName.CRC32, in_parts=True),)), -60, "is not known"),
        (replace(TRIED, refused=(Claim(crc=CrcName.CRC64NVME, in_parts=False),)), -60, "is not known"),
        (replace(TRIED, refused=(), taken=(CRC32_ALONE,)), -60, "took a wrong one"),
    ],
)
def test_a_trial_counts_for_what_it_tried_where_it_tried_it_and_for_what_came_after_it(
    trial: StoreTrial, seconds: float, why: str, relay: Relay, bucket: Path
) -> None:
    same_age(bucket)
    tried(bucket, relay, trial, seconds=seconds)
    said = verify()
    assert verdict(said) == ("struct-ok", [("store-unreliable", "note")])
    assert why in said.stdout


def test_a_store_that_ever_took_a_wrong_checksum_is_not_believed_again(relay: Relay, bucket: Path) -> None:
    same_age(bucket)
    tried(bucket, relay, TRIED, seconds=-60)
    tried(bucket, relay, replace(TRIED, refused=(), taken=(CRC32_ALONE,)), seconds=60)
    assert verdict(verify()) == ("struct-ok", [("store-unreliable", "note")])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Claim, bool], bool]], list[tuple[str, str, bool]]]:
    """A store that takes what a rule says; its writes come back: path, claim, and whether that was right."""

    def ruled(rule: Callable[[Claim, bool], bool]) -> list[tuple[str, str, bool]]:
        written: list[tuple[str, str, bool]] = []

        def takes(_: S3Checksums, path: str, data: bytes, claim: Claim, value: int) -> bool:
            from awscrt import checksums

            right = {CrcName.CRC32: zlib.crc32, CrcName.CRC32C: checksums.crc32c}.get(claim.crc, checksums.crc64nvme)
            is_right = right(data) == value
            written.append((path, claim.word, is_right))
            assert claim in json.loads(data)["taken"] or claim.word in json.loads(data)["taken"]
            return rule(claim, is_right)

        monkeypatch.setattr(S3Checksums, "takes", takes)
        monkeypatch.setattr(S3Checksums, "server", lambda _: "a store 1.0")
        return written

    pytest.importorskip("awscrt", reason="two of three checksums are computed by awscrt, which is not installed")
    return ruled


Store = Callable[[Callable[[Claim, bool], bool]], list[tuple[str, str, bool]]]


def test_a_store_that_compares_is_seen_to_and_is_not_tried_again(relay: Relay, bucket: Path, store: Store) -> None:
    written = store(lambda _, is_right: is_right)
    said = verify("--try-store")
    assert said.code == 0
    assert verdict(said) == ("struct-ok", [("store-unreliable", "note")]), "it was uploaded before"
    assert "refuses a wrong crc32, crc32-in-parts, crc32c" in said.stderr
    assert [(word, is_right) for _, word, is_right in written] == [
        (claim.word, is_right) for claim in CLAIMS for is_right in (False, True)
    ]
    assert len({path for path, _, _ in written}) == 1, "one object, however much is tried"
    ((_, trial),) = read_trials(open_storage(str(bucket / "run/output/checkpoint")), relay.url)
    assert (trial.refused, trial.taken, trial.server) == (CLAIMS, (), "a store 1.0")
    verify("--try-store")
    assert len(written) == 2 * len(CLAIMS)
    for key in SHARDS:  # uploaded again
        os.utime(bucket / key)
    assert verdict(verify()) == ("attested", [])


def test_a_store_that_takes_any_claim_is_seen_to_and_attests_nothing(relay: Relay, bucket: Path, store: Store) -> None:
    store(lambda *_: True)
    assert "takes a wrong crc32, crc32-in-parts" in verify("--try-store").stderr
    for key in SHARDS:
        os.utime(bucket / key)
    assert verdict(verify()) == ("struct-ok", [("store-unreliable", "note")])
    ((_, trial),) = read_trials(open_storage(str(bucket / "run/output/checkpoint")), relay.url)
    assert (trial.refused, trial.taken) == ((), CLAIMS)


@pytest.mark.usefixtures("bucket")
def test_a_store_that_refuses_right_checksums_too_is_not_known_to_compare(store: Store) -> None:
    store(lambda claim, is_right: is_right and claim.crc is CrcName.CRC32)
    said = verify("--try-store")
    assert "refuses a wrong crc32, crc32-in-parts, tried on" in said.stderr
    store(lambda *_: False)


@pytest.mark.usefixtures("known", "bucket")
def test_a_store_of_which_it_is_documented_is_not_tried(store: Store) -> None:
    written = store(lambda *_: True)
    assert "nothing was tried" in verify("--try-store").stderr
    assert written == []


@pytest.mark.usefixtures("bucket")
def test_a_store_that_lets_nobody_write_is_not_tried(store: Store) -> None:
    def withheld(*_: object) -> bool:
        raise WithheldError("the store answers 403 Forbidden")

    store(withheld)
    said = verify("--try-store")
    assert (said.code, "was not tried: the store answers 403" in said.stderr) == (ExitCode.INCOMPLETE, True)


def test_a_trial_is_of_what_a_store_keeps_and_of_nothing_else(
    relay: Relay, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("verify", str(bucket / "run"), "--try-store").code == ExitCode.USAGE
    assert verify("--try-store", root=str(bucket / "run")).code == ExitCode.USAGE
    for name, value in relay.google(tmp_path / "account.json").items():
        monkeypatch.setenv(name, value)
    assert not GoogleChecksums("gs://bucket").is_known
    said = verify("--try-store", root=TREE.replace("s3:", "gs:"))
    assert (said.code, "a store that speaks S3 alone" in said.stderr) == (ExitCode.USAGE, True)


# ----------------------------------------------------------------------------------------------- seals in the store


def test_a_seal_in_a_store_adds_what_an_older_one_lacks_and_then_nothing_more(bucket: Path) -> None:
    folder = bucket / "run/output"
    (seal,) = (folder / "checkpoint/.ckpttool").glob("*.manifest.json")
    assert b'"crc32"' in seal.read_bytes()
    body = re.sub(r', "crc[0-9a-z]+": "[0-9a-f]+"', "", seal.read_text())
    seal.write_bytes(closed(body.rpartition(',\n  "hash"')[0]))
    for _ in range(2):
        assert ask("seal", TREE, "-q").code == 0
    added = list((folder / "checkpoint/.ckpttool/seals").rglob("*.json"))
    assert len(added) == 1
    assert b'"crc32"' in added[0].read_bytes()
