"""What reading a whole file proved bad stays so for those who look at headers, as long as it is that very file."""

from __future__ import annotations

import math
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.verdict import Level, ShardReport, VerdictWord
from ckpttool.core.records.damaged import Proofs, found_before, read_damaged
from ckpttool.core.verify.report import CLOCKS_DIFFER
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.core.records.test_ledger import STAMP, report
from tests.support.inventories import finding
from tests.support.manifests import reworded
from tests.support.shard_writers import crc_trailer
from tests.support.trees import Tensor, TreeBuilder
from tests.support.verifying import codes, flip, seal_whole, verdicts

NOW = 1_700_000_000.0


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "damaged" / "tree.json")


def bad(path: str = "rank_0/a", **changes: object) -> ShardReport:
    wrong = (finding(Code.CHECKSUM_MISMATCH, severity=Severity.DAMAGE),)
    return replace(report(path, findings=wrong, checksum_matched=False), **changes)  # type: ignore[arg-type]


def keep(place: str, *reports: ShardReport, seal: str | None = None, was_damaged: bool = False) -> None:
    proofs = Proofs(lambda: place, lambda: NOW)
    for each in reports:
        proofs.take(each, seal, was_damaged=was_damaged)
    proofs.save()


def test_damage_is_kept_until_a_look_at_all_of_the_file_finds_it_good(place: str) -> None:
    keep(place, bad(), bad("rank_0/b"), seal="5" * 32)
    known = read_damaged(place)
    assert [(each.path, each.stamp, each.found_at, each.seal) for each in known.values()] == [
        ("rank_0/a", STAMP, int(NOW), "5" * 32),
        ("rank_0/b", STAMP, int(NOW), "5" * 32),
    ]
    keep(place, report(level=Level.STRUCTURE), was_damaged=True)
    keep(place, report(remembered=True), was_damaged=True)
    keep(place, report(checksum_matched=False), was_damaged=True)
    assert sorted(read_damaged(place)) == ["rank_0/a", "rank_0/b"]
    keep(place, report(), was_damaged=True)
    assert sorted(read_damaged(place)) == ["rank_0/b"]


@pytest.mark.parametrize(
    "nothing",
    [
        report(),
        report(findings=(finding(Code.ZERO_TAIL),)),
        bad(stamp=None),
        bad("a\udcff"),
        bad(level=Level.STRUCTURE),
    ],
)
def test_what_proves_no_damage_writes_nothing(place: str, nothing: ShardReport) -> None:
    keep(place, nothing)
    assert not Path(place).parent.exists()


def test_of_an_unchanged_file_it_is_damage_of_a_touched_one_unknown_and_of_a_written_one_nothing(place: str) -> None:
    stamp = replace(STAMP, changed_ns=5)
    keep(place, bad(stamp=stamp))
    known = read_damaged(place)["rank_0/a"]
    said, touched = found_before(known, stamp), found_before(known, replace(stamp, changed_ns=6))
    assert said is not None
    assert touched is not None
    assert (said.severity, touched.severity) == (Severity.DAMAGE, Severity.UNKNOWN)
    assert said.message.startswith("found damaged at 2023-11-14T22:13:20Z, and the file has not changed since: ")
    assert found_before(known, FileStamp.on_disk(size=100, mtime_ns=1, inode=7)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [("damaged/1", "damaged/2"), ('"inode": 7', '"inode": -7'), ('"found_at": 1', '"found_at": 1' + "0" * 15)],
)
def test_a_record_that_cannot_be_believed_says_nothing(place: str, old: str, new: str) -> None:
    keep(place, bad())
    whole = Path(place).read_bytes()
    Path(place).write_bytes(reworded(whole, old, new))
    assert read_damaged(place) == {}
    Path(place).write_bytes(whole[:-9])
    assert read_damaged(place) == {}
    assert read_damaged(None) == {}


def test_where_the_cache_cannot_be_written_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    keep(str(tmp_path / "file" / "tree.json"), bad())
    proofs = Proofs(lambda: None, lambda: NOW)
    proofs.take(bad(), None, was_damaged=False)
    proofs.save()


SHARD = "checkpoint/rank_1/llama2_7b_rank_1_1-30_2.ckpt"


def flipped(root: Path) -> Path:
    """Flip a bit of a tensor: no header says anything of it."""
    flip(root / SHARD, 700)
    return root


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Five saves of four ranks; the newest one's rank 1 is not what was sealed."""
    shutil.copytree(FIXTURES / "sink2_ckpt" / "output", tmp_path / "output")
    seal_whole(tmp_path / "output")
    return flipped(tmp_path / "output")


def word(tree: Path, level: Level = Level.STRUCTURE) -> VerdictWord:
    return verdicts(tree, level, "latest", max_age=3600.0 if level is Level.CHECKSUM else None)[0].word


def resumed(tree: Path) -> str:
    decision = ckpttool.resolve(str(tree)).decision
    assert isinstance(decision, ResumePlan)
    return decision.point.checkpoint.name


def test_no_command_calls_a_checkpoint_good_that_a_check_of_its_content_found_damaged(sealed: Path) -> None:
    assert (word(sealed), resumed(sealed)) == (VerdictWord.STRUCT_OK, "_1-30_2")  # nobody has read it yet
    assert word(sealed, Level.CHECKSUM) is VerdictWord.DAMAGED
    assert (word(sealed), resumed(sealed)) == (VerdictWord.DAMAGED, "_1-25_2")
    newest = ckpttool.scan(str(sealed)).inventory.checkpoints[-1]
    assert [(each.code, each.ranks) for each in newest.findings] == [(Code.FOUND_DAMAGED, (1,))]
    assert word(sealed, Level.CHECKSUM) is VerdictWord.DAMAGED


def test_a_file_that_was_written_anew_is_looked_at_as_any_other(sealed: Path) -> None:
    assert word(sealed, Level.CHECKSUM) is VerdictWord.DAMAGED
    flipped(sealed)
    assert (word(sealed), resumed(sealed)) == (VerdictWord.STRUCT_OK, "_1-30_2")
    assert word(sealed, Level.CHECKSUM) is VerdictWord.VERIFIED


@pytest.mark.parametrize("own_checksum", [False, True])
def test_what_a_sealer_finds_is_known_as_what_a_check_finds(sealed: Path, own_checksum: bool) -> None:
    if own_checksum:  # which it does not match: then no seal is needed to see it
        shutil.rmtree(sealed)
        shutil.copytree(FIXTURES / "sink2_ckpt" / "output", sealed)
        for shard in sealed.glob("checkpoint/rank_*/*.ckpt"):
            shard.write_bytes(shard.read_bytes() + crc_trailer(shard.read_bytes()))
        flipped(sealed)
    assert resumed(sealed) == "_1-30_2"
    (sealing,) = ckpttool.seal(str(sealed)).sealings
    assert {Code.CHECKSUM_MISMATCH, Code.REPLICA_DIFFERS} & {each.code for each in sealing.findings}
    assert (word(sealed), resumed(sealed)) == (VerdictWord.DAMAGED, "_1-25_2")
    ckpttool.seal(str(sealed))  # which compares with the files alone, and finds nothing good
    assert resumed(sealed) == "_1-25_2"


def test_values_that_may_be_meant_are_not_remembered_as_damage(tmp_path: Path) -> None:
    mask = Tensor("attention.mask", "Float32", (2,), struct.pack("<2f", 0.0, -math.inf))
    tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=5, step=2).save(epoch=10, step=2, tensors=[mask])
    assert word(tree.checkpoint, Level.NUMERICS) is VerdictWord.SUSPECT
    assert (word(tree.checkpoint), resumed(tree.checkpoint)) == (VerdictWord.STRUCT_OK, "10_2")


def test_damage_that_copies_tell_is_not_sealed_on_purpose_either(sealed: Path) -> None:
    assert word(sealed, Level.CHECKSUM) is VerdictWord.DAMAGED
    ckpttool.seal(str(sealed), reseal=True)
    assert (word(sealed), resumed(sealed)) == (VerdictWord.DAMAGED, "_1-25_2")


def test_a_copy_into_a_file_that_sets_its_time_back_leaves_it_unknown_until_it_is_read(sealed: Path) -> None:
    assert word(sealed, Level.CHECKSUM) is VerdictWord.DAMAGED
    path = sealed / SHARD
    before = path.stat()
    flipped(sealed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert word(sealed) is VerdictWord.UNREADABLE
    assert word(sealed, Level.CHECKSUM) is VerdictWord.VERIFIED
    assert (word(sealed), resumed(sealed)) == (VerdictWord.STRUCT_OK, "_1-30_2")


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    """Two saves of slices, of which a check of the headers opens only the last slice of each file."""
    shutil.copytree(FIXTURES / "layouts" / "composer_fsdp", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def chosen(tree: Path) -> str:
    decision = ckpttool.resolve(TreeQuestion(path=str(tree)), ResumeQuestion(allow_unknown_health=True)).decision
    assert isinstance(decision, ResumePlan)
    return decision.point.checkpoint.name


def test_damage_to_the_structure_that_no_header_shows_is_remembered(slices: Path) -> None:
    newest = chosen(slices)
    first_record = (slices / newest / "__0_0.distcp").read_bytes().index(b"PK\x01\x02")
    flip(slices / newest / "__0_0.distcp", first_record + 24, 0x40)  # the size of a record in the first slice
    assert (word(slices), chosen(slices)) == (VerdictWord.STRUCT_OK, newest)
    (verdict,) = verdicts(slices, Level.CHECKSUM, "latest")
    assert codes(verdict.findings) == [Code.HEADER_INVALID]
    assert word(slices) is VerdictWord.DAMAGED
    assert chosen(slices) != newest
    (verdict,) = verdicts(slices, Level.CHECKSUM, "latest")
    assert codes(verdict.findings) == [Code.HEADER_INVALID]  # once


def test_damage_that_each_check_of_the_header_shows_needs_no_memory(slices: Path) -> None:
    newest = slices / chosen(slices) / "__0_0.distcp"
    newest.write_bytes(newest.read_bytes()[:-9])
    assert word(slices, Level.CHECKSUM) is VerdictWord.DAMAGED
    (verdict,) = verdicts(slices, Level.STRUCTURE, "latest")
    assert Code.FOUND_DAMAGED not in codes(verdict.findings)


def test_a_file_that_is_newer_than_its_seal_is_named_until_its_content_is_compared(sealed: Path) -> None:
    flipped(sealed)  # as it was sealed
    assert notes(sealed, Level.STRUCTURE) == []
    later = (sealed / SHARD).stat().st_mtime + CLOCKS_DIFFER
    os.utime(sealed / SHARD, (later + 60, later + 60))
    assert notes(sealed, Level.STRUCTURE) == [SHARD.removeprefix("checkpoint/")]
    decision = ckpttool.resolve(str(sealed)).decision
    assert isinstance(decision, ResumePlan)
    assert Code.CHANGED_SINCE_SEAL in codes(decision.point.findings, above=None)
    assert notes(sealed, Level.CHECKSUM) == []


def notes(tree: Path, level: Level) -> list[str | None]:
    (verdict,) = verdicts(tree, level, "latest")
    return [each.path for each in verdict.findings if each.code is Code.CHANGED_SINCE_SEAL]
