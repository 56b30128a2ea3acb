"""What was verified goes to the ledger seldom, whatever ends the session, and counts only for the very same file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict
from ckpttool.core.records import ledger
from ckpttool.core.records.ledger import SAVE_SECONDS, Memory
from ckpttool.core.storage.local import LocalStorage
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.core.records.test_ledger import report
from tests.support.fault_detection import with_crc
from tests.support.trees import TreeBuilder
from tests.support.verifying import flip, found


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TreeBuilder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = TreeBuilder(tmp_path).legacy(ranks=2, fmt="safetensors")
    for epoch in range(1, 7):
        tree.save(epoch=epoch, step=2)
    for path in tree.checkpoint.rglob("*.safetensors"):
        tree.file(str(path.relative_to(tree.output)), with_crc("", path.read_bytes()))
    return tree


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports each write of the ledger was handed."""
    written: list[int] = []
    really = ledger.save

    def save(
        place: str | None, reports: Iterable[ShardReport], *, seals: Mapping[str, ShardSeal], began: float
    ) -> None:
        several = list(reports)
        written.append(len(several))
        really(place, several, seals=seals, began=began)

    monkeypatch.setattr(ledger, "save", save)
    return written


def events(tree: TreeBuilder, name: str = "all") -> Iterable[ShardReport | Verdict]:
    scanned = ckpttool.scan(TreeQuestion(path=str(tree.output), sizes=True))
    return ckpttool.verify(scanned, CheckQuestion(level=Level.CHECKSUM, name=name, max_age=3600.0))


def verdicts(tree: TreeBuilder, name: str = "all") -> list[Verdict]:
    return [event for event in events(tree, name) if isinstance(event, Verdict)]


def test_a_session_over_many_checkpoints_writes_the_ledger_once(tree: TreeBuilder, saves: list[int]) -> None:
    assert len(verdicts(tree)) == 6
    assert saves == [12]
    assert sum(one.bytes_read for one in verdicts(tree)) == 0


def test_a_long_session_writes_it_now_and_then(saves: list[int], tmp_path: Path) -> None:
    now = [1000.0]
    own = Memory(LocalStorage(str(tmp_path)), str(tmp_path / "c" / "l.json"), max_age=60.0, clock=lambda: now[0])
    for number in range(10):
        now[0] += SAVE_SECONDS / 4
        own.remember([report(str(number))], {})
    own.save()
    assert saves == [5, 5, 0]


def test_what_was_read_before_an_interrupt_is_not_read_again(tree: TreeBuilder) -> None:
    def interrupted() -> None:
        for count, _ in enumerate(events(tree)):
            if count == 4:  # two checkpoints, and a shard of the third
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    remembered = [sum(each.remembered for each in one.reports) for one in verdicts(tree)]
    assert remembered[:2] == [2, 2]
    assert sum(remembered) in {4, 5}


def test_a_shard_of_which_there_is_but_a_note_is_not_read_again_and_the_note_stays(tree: TreeBuilder) -> None:
    path = tree.shard(1, 6, 2)
    data = (tree.output / path).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    padded = end.to_bytes(8, "little") + data[8:end] + b" " * 8 + data[end:]
    tree.file(path, padded)
    (first,), (again,) = verdicts(tree, "6_2"), verdicts(tree, "6_2")
    assert [finding.code for finding in first.findings] == [Code.HEADER_NOT_CANONICAL]
    assert again.findings == first.findings
    assert [report.remembered for report in again.reports] == [True, True]


def test_a_file_that_changed_in_place_is_read_though_its_time_was_set_back(tree: TreeBuilder) -> None:
    """As `rsync --inplace -t` from a damaged copy does: size, mtime and inode are the old ones."""
    verdicts(tree, "6_2")
    path = tree.output / tree.shard(1, 6, 2)
    before = path.stat()
    flip(path, -100)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (verdict,) = verdicts(tree, "6_2")
    assert [code for code, _ in found([verdict])] == [Code.CHECKSUM_MISMATCH]


def test_a_stamp_is_the_same_where_only_rights_changed(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"x")
    before = LocalStorage(str(tmp_path)).stamp("shard")
    os.utime(path, ns=(0, before.modified_ns or 0))
    path.chmod(0o600)
    after = LocalStorage(str(tmp_path)).stamp("shard")
    assert before == after
    assert hash(before) == hash(after)
    assert before.changed_ns != after.changed_ns
    assert before != replace(before, size=ByteCount(2))
    assert before != "shard"
