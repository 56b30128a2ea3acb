"""A tree in an object store is judged as on a disk, nothing is asked twice, and what the wire does is never damage."""

from __future__ import annotations

import pickle
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.errors import ExitCode
from ckpttool.core.records.manifest import manifest_bytes
from ckpttool.core.storage import above, forget_listings, open_storage
from ckpttool.core.storage.base import Entry, Kind, ReplacedError, Storage
from ckpttool.core.storage.objects import FIRST_READ
from ckpttool.core.storage.stream import read_blocks
from ckpttool.core.verbs.scanning import scan
from ckpttool.core.verbs.sealing import TO_SEAL, seal_checkpoint
from ckpttool.core.verbs.verifying import session_for
from tests.core.storage.test_storage_sees_all import CHANGES, QUESTIONS, TREES, answer, copied, plain
from tests.support.answers import FIXTURES
from tests.support.commands import ask, shard_words
from tests.support.s3_relay import Relay
from tests.support.trees import TreeBuilder, ckpt_bytes, flip, floats, training_scalars

pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")


@pytest.fixture
def bucket(relay: Relay) -> Path:
    return relay.folder / "bucket"


def put(bucket: Path, key: str, data: bytes) -> None:
    path = bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_in_a_store_is_judged_as_the_same_tree_on_a_disk(tree: str, relay: Relay, bucket: Path) -> None:
    folder = copied(tree, bucket)
    for question in QUESTIONS:
        disk, store = answer(question, str(folder)), answer(question, "s3://bucket/tree")
        assert store.code == disk.code in {0, 10, 11, 14}, store.stderr
        assert plain(store) == plain(disk).replace(str(folder), "s3://bucket/tree"), question
    assert relay.asked["HEAD"] == 0


@pytest.mark.parametrize("spelled", ["tree/", "tree/checkpoint/rank_0", "tree/./checkpoint"])
def test_a_tree_is_found_from_wherever_it_is_named(spelled: str, relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    said = ask("resolve", f"s3://bucket/{spelled}", "--format", "json")
    assert said.code == 0
    assert said.json["root"] == "s3://bucket/tree/checkpoint"
    assert relay.asked["LIST"] <= 7


def test_a_whole_tree_is_listed_once_and_no_object_asked_about(relay: Relay, bucket: Path) -> None:
    for rank in range(501):
        put(bucket, f"run/checkpoint/rank_{rank}/meta.json", b"{}")
        put(bucket, f"run/checkpoint/rank_{rank}/llama_rank_{rank}-1_1.ckpt", b"\0")
    assert ask("scan", "s3://bucket/run/checkpoint").code == 0
    assert relay.asked["LIST"] == 2 + 1
    assert relay.asked["HEAD"] == 0


def test_what_is_not_there_is_no_tree_and_a_store_that_fails_is_unknown(
    relay: Relay, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied("sink2_ckpt/output", bucket)
    assert ask("resolve", "s3://bucket/treee").code == ExitCode.UNKNOWN_LAYOUT
    assert ask("resolve", "s3://buckett/tree").code == ExitCode.UNKNOWN_LAYOUT
    relay.unavailable[""] = 1000
    monkeypatch.setattr("ckpttool.core.storage.object_store.RETRIES", {"max_retries": 1})
    monkeypatch.setattr("ckpttool.core.storage.objects._STORES", {})
    said = ask("resolve", "s3://bucket/tree")
    assert said.code == ExitCode.INCOMPLETE
    assert "the store answers 503 Service Unavailable (SlowDown)" in said.stderr
    assert "secret" not in said.stderr
    assert "AKIA" not in said.stderr


@pytest.mark.parametrize("page", [b"<html><body>Log in, please</body></html>", b"<!DOCTYPE html><p>Log in</p>"])
@pytest.mark.parametrize("command", ["resolve", "verify"])
def test_a_proxys_page_is_no_word_that_nothing_is_there(command: str, page: bytes, relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    relay.page = page
    assert ask(command, "s3://bucket/tree").code == ExitCode.INCOMPLETE


def test_a_size_that_no_object_has_ends_the_answer_at_once(relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    relay.sized = 2**63 - 1
    said = ask("resolve", "s3://bucket/tree")
    assert said.code == ExitCode.INCOMPLETE
    assert "an object of 9223372036854775807 bytes" in " ".join(said.stderr.split())


@pytest.mark.parametrize("command", ["resolve", "preflight"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "https"])
def test_a_signature_in_an_address_is_refused_and_never_shown(scheme: str, command: str) -> None:
    said = ask(command, f"{scheme}://bucket/tree?X-Amz-Credential=AKIA0&X-Amz-Signature=0123abcd")
    assert said.code in {ExitCode.USAGE, ExitCode.INCOMPLETE}
    assert "0123abcd" not in said.stdout + said.stderr
    assert "AKIA0" not in said.stdout + said.stderr


def test_a_key_that_comes_twice_makes_the_listing_worth_nothing(relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    relay.repeated = "llama2_7b_rank_1-10_2.ckpt"
    said = ask("resolve", "s3://bucket/tree")
    assert said.code == ExitCode.INCOMPLETE
    assert "twice" in said.stderr


@pytest.mark.parametrize(
    ("breach", "said"),
    [
        ({"whole": True}, "a range with the whole object (200 instead of 206)"),
        ({"shifted": 5}, "a range other than the requested one"),
        ({"nameless": True}, "a range without its position"),
        ({"untagged": True}, "an object without the ETag that it listed"),
    ],
    ids=["whole", "shifted", "nameless", "untagged"],
)
def test_a_store_that_breaks_a_rule_is_unknown_and_asked_for_nothing_more(
    breach: dict[str, bool | int], said: str, relay: Relay, bucket: Path
) -> None:
    copied("sink2_ckpt/output", bucket)
    healthy = ask("resolve", "s3://bucket/tree")
    for name, value in breach.items():
        setattr(relay, name, value)
    relay.asked.clear()
    answer = ask("resolve", "s3://bucket/tree", "--format", "json")
    shards = len([*(bucket / "tree").rglob("*.ckpt")])
    assert (healthy.code, answer.code) == (0, ExitCode.INCOMPLETE)
    assert f"the store violated its protocol: it returned {said}" in answer.stdout
    assert relay.asked["GET"] < shards, "a read that is known to fail costs money all the same"
    checked = ask("verify", "s3://bucket/tree", "--level", "checksum", "--checkpoint", "all", "--format", "json")
    assert checked.code == ExitCode.INCOMPLETE
    assert shard_words(checked) == {"unreadable"}
    preflight = ask("preflight", "s3://bucket/tree", "--config", str(FIXTURES / "configs" / "pretrain_sink2.yaml"))
    assert "nothing-to-resume" not in preflight.stdout + preflight.stderr


@pytest.mark.parametrize("quoted", [True, False])
def test_an_etag_is_the_same_with_quotes_and_without(quoted: bool, relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    relay.quoted = quoted
    assert ask("verify", "s3://bucket/tree", "--level", "checksum").code == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("place", ["s3://bucket/tree", "s3://bucket"])
@pytest.mark.parametrize("breach", ["looping", "hollow"])
def test_a_listing_that_does_not_end_is_left_and_proves_nothing(
    breach: str, place: str, relay: Relay, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied("sink2_ckpt/output", bucket)
    assert ask("resolve", place).code == 0
    monkeypatch.setattr("ckpttool.core.storage.object_listing.LISTING_SECONDS", 0.5)
    setattr(relay, breach, True)
    said = ask("resolve", place)
    relay.looping = relay.hollow = False  # what was left behind still asks
    assert said.code == ExitCode.INCOMPLETE
    assert "twice" in said.stderr or "no end of a listing within 0.5 s" in said.stderr


def shard_of(bucket: Path, size: int) -> bytes:
    data = bytes(range(256)) * (size // 256) + b"end"
    put(bucket, "run/shard.ckpt", data)
    return data


def test_small_reads_cost_one_request_and_a_long_one_another(relay: Relay, bucket: Path) -> None:
    data = shard_of(bucket, 5 << 20)
    with open_storage("s3://bucket/run").open("shard.ckpt") as source:
        assert source.read(0, 8) == data[:8]
        assert source.read(100, 60_000) == data[100:60_100]
        assert relay.ranges == [("run/shard.ckpt", 0, FIRST_READ)]
        assert source.read(len(data) - 100, 200) == data[-100:]
        assert b"".join(bytes(block) for _, block in read_blocks(source, 1000, len(data))) == data[1000:]
    assert len(relay.ranges) == 3
    assert relay.asked == {"LIST": 1, "GET": 3}


def test_an_object_that_is_replaced_is_never_mixed(relay: Relay, bucket: Path) -> None:
    shard_of(bucket, 5 << 20)
    for blind in (False, True):
        relay.blind = blind
        forget_listings("s3://bucket")
        with open_storage("s3://bucket/run").open("shard.ckpt") as source:
            source.read(0, 8)
            put(bucket, "run/shard.ckpt", bytes([blind]) * ((5 << 20) + 3))
            with pytest.raises(ReplacedError):
                source.read(1 << 20, 8)


@pytest.mark.parametrize("cuts", [1, 3])
def test_a_stream_that_breaks_off_goes_on_where_it_was(
    cuts: int, relay: Relay, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpttool.core.storage.objects._PAUSE_SECONDS", 0.0)
    data = shard_of(bucket, 12 << 20)
    with open_storage("s3://bucket/run").open("shard.ckpt") as source:
        relay.cuts["run/shard.ckpt"] = cuts
        assert b"".join(bytes(block) for _, block in read_blocks(source, 0, len(data))) == data
    assert relay.cuts["run/shard.ckpt"] == 0


def test_503_is_waited_for(relay: Relay, bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    relay.unavailable[""] = 1
    relay.unavailable["tree/checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt"] = 2
    assert ask("verify", "s3://bucket/tree", "--level", "checksum", "--checkpoint", "all").code == 0


def test_a_store_that_stays_busy_is_unreadable_and_never_damage(
    relay: Relay, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied("sink2_ckpt/output", bucket)
    monkeypatch.setattr("ckpttool.core.storage.object_store.RETRIES", {"max_retries": 1})
    relay.unavailable["tree/checkpoint/rank_0/llama2_7b_rank_0_1-30_2.ckpt"] = 1000
    said = ask("verify", "s3://bucket/tree", "--format", "json")
    assert said.code == ExitCode.INCOMPLETE
    assert '"unreadable"' in said.stdout
    assert "503" in said.stdout


def test_a_bit_that_arrives_otherwise_is_found(relay: Relay, bucket: Path) -> None:
    copied("async_ckpt/output", bucket)
    shard = max((bucket / "tree").rglob("*.ckpt"))
    asked = ["verify", "s3://bucket/tree", "--level", "checksum", "--checkpoint", "all"]
    healthy = ask(*asked)
    relay.flips = frozenset({str(shard.relative_to(bucket))})
    assert (healthy.code, ask(*asked).code) == (0, ExitCode.DAMAGE)


@pytest.mark.parametrize("markers", [False, True])
def test_folders_are_what_lies_in_them_and_what_a_tool_left_for_them(markers: bool, relay: Relay, bucket: Path) -> None:
    put(bucket, "run/tree/rank_0/shard.ckpt", b"x")
    put(bucket, "run/tree/done", b"")
    (bucket / "run/tree/rank_1").mkdir()
    relay.markers = markers
    folders = {Entry("rank_0", Kind.FOLDER), *([Entry("rank_1", Kind.FOLDER)] if markers else [])}
    storage = open_storage("s3://bucket/run/tree")
    assert {*storage.entries("")} == {*folders, Entry("done", Kind.FILE)}
    assert storage.small_file("done", limit=9) == b""
    assert storage.entries("rank_1") == [] if markers else not any(e.name == "rank_1" for e in storage.entries(""))


def test_what_lies_above_is_listed_by_names_alone(relay: Relay, bucket: Path) -> None:
    put(bucket, "run/tree/rank_0/shard.ckpt", b"x")
    for number in range(1500):
        put(bucket, f"run/other/{number}", b"")
    put(bucket, "run/health.json", b"[]")
    assert open_storage("s3://bucket/run/tree").kind("") is Kind.FOLDER
    output: Storage = open_storage(above("s3://bucket/run/tree"))
    assert {entry.name for entry in output.entries("")} == {"tree", "other", "health.json"}
    assert output.small_file("health.json", limit=9) == b"[]"
    assert relay.asked == {"LIST": 2, "GET": 1}


def test_a_storage_goes_to_another_process_by_its_name_alone(bucket: Path) -> None:
    put(bucket, "run/tree/rank_0/shard.ckpt", b"x")
    storage = open_storage("s3://bucket/run/tree")
    assert storage.kind("rank_0/shard.ckpt") is Kind.FILE
    sent = pickle.dumps(storage)
    assert not re.search(rb"secret|AKIA|127\.0", sent)
    assert pickle.loads(sent).kind("rank_0/shard.ckpt") is Kind.FILE  # noqa: S301  it is our own


def test_a_launch_needs_a_copy_on_a_disk_and_says_which_files(bucket: Path, tmp_path: Path) -> None:
    folder = copied("sink2_ckpt/output", bucket)
    asked = ["launch", "s3://bucket/tree", "--config", str(FIXTURES / "configs" / "pretrain_sink2.yaml")]
    asked += ["--output", str(tmp_path / "new.yaml")]
    refused = ask(*asked)
    assert refused.code == ExitCode.USAGE
    assert "--load-checkpoint" in refused.stderr
    plan = ask("resolve", "s3://bucket/tree", "--format", "json").json
    copies = plan["copy"]
    assert isinstance(copies, list)
    assert {path for path in copies if path.endswith(".ckpt")} == {
        str(path.relative_to(folder / "checkpoint")) for path in folder.rglob("*_1-30_2.ckpt")
    }
    copy = tmp_path / "copy"
    for path in copies[1:]:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "checkpoint" / path, copy / path)
    lacking = ask(*asked, "--load-checkpoint", str(copy))
    assert (lacking.code, copies[0] in " ".join(lacking.stderr.split())) == (ExitCode.USAGE, True)
    shutil.copytree(folder / "checkpoint", copy, dirs_exist_ok=True)
    said = ask(*asked, "--load-checkpoint", str(copy))
    assert said.code == 0, said.stdout + said.stderr
    assert str(copy) in (tmp_path / "new.yaml").read_text()
    assert ask("launch", str(folder), *asked[2:], "--load-checkpoint", str(copy), "--force").code == ExitCode.USAGE


@pytest.mark.parametrize("command", [["seal", "--reseal"], *CHANGES[1:]], ids=" ".join)
def test_nothing_in_a_store_is_replaced(command: list[str], bucket: Path) -> None:
    folder = copied("health_pp2/output", bucket)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = ask(command[0], "s3://bucket/tree", *command[1:])
    assert said.code == ExitCode.UNSAFE, said.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def seals(bucket: Path) -> list[Path]:
    return sorted((bucket / "tree/checkpoint/.ckpttool/seals").rglob("*.json"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("tree", ["sink2_ckpt/output", "newfmt_4rank/output"])
def test_what_is_sealed_in_a_store_lies_beside_and_damage_is_found_by_it(tree: str, relay: Relay, bucket: Path) -> None:
    folder = copied(tree, bucket)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert ask("seal", "s3://bucket/tree", "--checkpoint", "all").code == 0
    written = [path for path in folder.rglob("*") if path.is_file() and path not in before]
    assert written
    assert all("/.ckpttool/seals/" in str(path) for path in written)
    assert {path: path.read_bytes() for path in before} == before
    assert ask("seal", "s3://bucket/tree", "--checkpoint", "all").code == 0
    assert len([path for path in folder.rglob("*.json") if "/.ckpttool/seals/" in str(path)]) == len(written)
    look = ["verify", "s3://bucket/tree", "--level", "checksum", "--checkpoint", "all", "--format", "json"]
    healthy = ask(*look)
    assert healthy.code == 0
    checkpoints = healthy.json["checkpoints"]
    assert isinstance(checkpoints, list)
    assert {shard["verdict"] for each in checkpoints for shard in each["shards"]} == {"verified"}
    shard = max(path for path in before if path.suffix in {".ckpt", ".safetensors"})
    relay.flips = frozenset({str(shard.relative_to(bucket))})
    damaged = ask(*look)
    assert (damaged.code, '"checksum-mismatch"' in damaged.stdout) == (ExitCode.DAMAGE, True)


def test_two_that_seal_at_once_lose_nothing_of_each_other(bucket: Path) -> None:
    folder = copied("sink2_ckpt/output", bucket)
    (last,) = folder.rglob("llama2_7b_rank_3_1-30_2.ckpt")
    content = last.read_bytes()
    assert ask("seal", "s3://bucket/tree").code == 0
    (first,) = seals(bucket)
    kept = first.read_bytes()
    first.unlink()
    assert ask("seal", "s3://bucket/tree").code == 0
    first.write_bytes(kept)
    assert len(seals(bucket)) == 2
    assert ask("verify", "s3://bucket/tree", "--level", "checksum").code == 0
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said = ask("seal", "s3://bucket/tree")
    assert said.code == ExitCode.DAMAGE
    assert len(seals(bucket)) == 2, "what differs from what was sealed first is not sealed anew"


def test_what_another_sealed_meanwhile_is_kept_where_what_was_read_differs(bucket: Path) -> None:
    builder = TreeBuilder(bucket).legacy(ranks=1).save(epoch=1, step=2)
    assert ask("seal", "s3://bucket/output").code == 0
    (other,) = (builder.checkpoint / ".ckpttool" / "seals").rglob("*.json")
    kept = other.read_bytes()
    other.unlink()
    shard = builder.output / builder.shard(0, 1, 2)
    flip(shard, shard.stat().st_size // 2)
    question = TreeQuestion(path="s3://bucket/output", sizes=True)
    tree = scan(question)
    (checkpoint,) = tree.inventory.checkpoints
    with closing(session_for(tree, TO_SEAL)) as session:
        verdict = session.verdict(checkpoint)
    other.write_bytes(kept)
    forget_listings("s3://bucket")
    answer = seal_checkpoint(scan(question), checkpoint, verdict, now=1_700_000_000.0)
    assert [each.code for each in answer.findings] == [Code.CHECKSUM_MISMATCH]
    assert answer.manifest is not None
    assert manifest_bytes(answer.manifest) == kept
    assert not answer.written


def test_a_seal_that_was_torn_is_unknown_and_blesses_nothing(bucket: Path) -> None:
    copied("sink2_ckpt/output", bucket)
    assert ask("seal", "s3://bucket/tree").code == 0
    (torn,) = seals(bucket)
    torn.write_bytes(torn.read_bytes()[:-40])
    assert ask("verify", "s3://bucket/tree", "--level", "checksum").code == ExitCode.INCOMPLETE
    assert ask("seal", "s3://bucket/tree").code == ExitCode.INCOMPLETE
    assert len(seals(bucket)) == 1


def test_where_a_walk_led_in_one_object_all_is_asked_for_at_once_in_the_next(relay: Relay, bucket: Path) -> None:
    for rank in range(4):
        layers = [floats(f"layer.{layer}", (100, 100), seed=rank) for layer in range(30)]
        shard = ckpt_bytes([*layers, *training_scalars(epoch=1, true_step=1)])
        put(bucket, f"tree/rank_{rank}/llama_rank_{rank}-1_1.ckpt", shard)
    relay.delay_seconds = 0.01
    look = ["verify", "s3://bucket/tree", "--format", "json"]
    said = ask(*look)
    assert said.code == 0, said.stderr
    on_disk = ask("verify", str(bucket / "tree"), "--format", "json")
    assert plain(said).replace("s3://bucket", str(bucket)) == plain(on_disk)
    forget_listings("s3://bucket")
    for rank in range(3):
        relay.most_waiting = 0
        path = f"tree/rank_{rank}/llama_rank_{rank}-1_1.ckpt"
        data = (bucket / path).read_bytes()
        with open_storage("s3://bucket/tree").open(path.removeprefix("tree/")) as source:
            for offset in range(FIRST_READ, len(data) - 100, len(data) // 40):
                assert source.read(offset, 50) == data[offset : offset + 50]
        assert (relay.most_waiting > 1) is (rank > 0), "the first one is walked through step by step"
