"""What is remembered is what was verified, of that very file, not long ago; in doubt the file is read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity, note
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport, VerdictWord
from ckpttool.core.records import ledger as ledger_module
from ckpttool.core.records.ledger import Ledger, ledger_place, load, lookup, save
from ckpttool.core.write.files import locked
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.inventories import finding
from tests.support.manifests import reworded, seal

NOW = 1_700_000_000.5
HOUR = 3600.0
WRITTEN = int((NOW - 10) * 1e9)
STAMP = FileStamp.on_disk(size=100, mtime_ns=WRITTEN, inode=7)


def task(path: str = "rank_0/a", **changes: object) -> CheckTask:
    made = CheckTask(
        facts=FACTS,
        root="/tree",
        path=path,
        rank=Rank(3),
        role=ShardRole.FULL,
        named_format=FormatName.MINDSPORE_CKPT,
        level=Level.CHECKSUM,
        cost=ByteCount(100),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def report(path: str = "rank_0/a", **changes: object) -> ShardReport:
    made = ShardReport(
        path=path,
        rank=Rank(3),
        role=ShardRole.FULL,
        level=Level.CHECKSUM,
        format=FormatName.MINDSPORE_CKPT,
        stamp=STAMP,
        scalars=(("epoch_num", 1), ("loss_scale", 0.5), ("step_num", 2)),
        schema_hash="5" * 32,
        tensors=9,
        checksum_matched=True,
        bytes_read=ByteCount(120),
        findings=(),
        embedded_checksum=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "ckpttool" / "ledger" / "tree.json")


def recalled(
    place: str, asked: CheckTask | None = None, stamp: FileStamp = STAMP, *, later: float = 60.0, max_age: float = HOUR
) -> ShardReport | None:
    return lookup(load(place), asked or task(), stamp, now=NOW + later, max_age=max_age)


def test_a_good_report_comes_back_without_a_byte_read(place: str) -> None:
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place) == report(bytes_read=ByteCount(0), remembered=True)
    found = recalled(place)
    assert found is not None
    assert found.word is VerdictWord.VERIFIED


@pytest.mark.parametrize(
    "stamp",
    [
        replace(STAMP, size=ByteCount(101)),
        FileStamp.on_disk(size=100, mtime_ns=WRITTEN + 1, inode=7),
        FileStamp.on_disk(size=100, mtime_ns=WRITTEN, inode=8),
    ],
)
def test_a_file_that_changed_is_not_recalled(place: str, stamp: FileStamp) -> None:
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place, stamp=stamp) is None


def test_what_is_older_than_asked_is_not_recalled_nor_what_lies_in_the_future(place: str) -> None:
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place, later=HOUR - 1) is not None
    assert recalled(place, later=HOUR + 1) is None
    assert recalled(place, later=-10) is None
    assert recalled(place, later=1, max_age=0) is None


@pytest.mark.parametrize("asked", [task(level=Level.STRUCTURE), task(level=Level.NUMERICS), task(hashes=True)])
def test_who_wants_headers_numbers_or_digests_gets_them_from_the_file(place: str, asked: CheckTask) -> None:
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place, asked) is None


def test_it_counts_only_for_the_seal_that_it_was_compared_with(place: str) -> None:
    one, other = seal(chunks=(1,)), seal(chunks=(2,))
    save(place, [report()], seals={"rank_0/a": one}, began=NOW)
    assert recalled(place, task(seal=one)) is not None
    assert recalled(place, task(seal=other)) is None
    assert recalled(place, task()) is None
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place, task(seal=one)) is None


@pytest.mark.parametrize(
    "bad",
    [
        report(findings=(finding(severity=Severity.SUSPECT),)),
        report(findings=(note(Code.ZERO_TAIL, "n" * 2000),)),
        report(findings=(finding(Code.CHECKSUM_MISMATCH),), checksum_matched=False),
        report(checksum_matched=False),
        report(stamp=None),
        report(format=None),
        report(tensors=None),
    ],
)
def test_only_good_reports_are_remembered_and_any_other_makes_forget(place: str, bad: ShardReport) -> None:
    save(place, [bad], seals={}, began=NOW)
    assert recalled(place) is None
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place) is not None
    save(place, [bad], seals={}, began=NOW)
    assert recalled(place) is None


def test_a_note_keeps_no_shard_from_the_ledger_and_is_said_again(place: str) -> None:
    notes = (
        note(Code.HEADER_NOT_CANONICAL, "not as it is written", path="rank_0/a", expected="1", remedy="none"),
        note(Code.ZERO_TAIL, "zeros", path="rank_0/a", tensor="w"),
    )
    save(place, [report(findings=notes), report("rank_0/b")], seals={}, began=NOW)
    found, without = recalled(place), recalled(place, task("rank_0/b"))
    assert found is not None
    assert without is not None
    assert (found.findings, without.findings) == (notes, ())


def test_a_look_at_the_header_says_nothing_about_what_was_verified(place: str) -> None:
    save(place, [report()], seals={}, began=NOW)
    save(place, [report(level=Level.STRUCTURE, checksum_matched=False)], seals={}, began=NOW)
    assert recalled(place) is not None
    save(place, [report(level=Level.STRUCTURE, findings=(finding(),))], seals={}, began=NOW)
    assert recalled(place) is None


@pytest.mark.parametrize(("before", "kept"), [(-1.0, False), (0.0, False), (1.9, False), (2.1, True)])
def test_a_file_written_just_before_it_was_read_is_not_remembered(place: str, before: float, kept: bool) -> None:
    stamp = FileStamp.on_disk(size=100, mtime_ns=int((NOW - before) * 1e9), inode=7)
    save(place, [report(stamp=stamp)], seals={}, began=NOW)
    assert (recalled(place, stamp=stamp) is not None) is kept


@pytest.mark.parametrize("modified_ns", [None, WRITTEN])
def test_a_file_that_lies_on_no_disk_is_read_each_time(place: str, modified_ns: int | None) -> None:
    stamp = FileStamp(size=ByteCount(100), token=("etag",), modified_ns=modified_ns)
    save(place, [report(stamp=stamp), report("rank_0/b")], seals={}, began=NOW)
    assert recalled(place, stamp=stamp) is None
    assert recalled(place, task("rank_0/b")) is not None


def test_what_was_recalled_does_not_become_younger(place: str) -> None:
    save(place, [report()], seals={}, began=NOW)
    found = recalled(place)
    assert found is not None
    save(place, [found], seals={}, began=NOW + 60)
    assert recalled(place, later=HOUR + 1) is None


def test_a_path_that_json_cannot_hold_is_read_each_time(place: str) -> None:
    save(place, [report("rank_0/\udcff"), report("rank_0/ß\n")], seals={}, began=NOW)
    assert recalled(place, task("rank_0/\udcff")) is None
    assert recalled(place, task("rank_0/ß\n")) is not None


def test_those_verified_last_stay_where_there_are_too_many(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_SHARDS", 3)
    for index in range(5):
        save(place, [report(str(index))], seals={}, began=NOW + index)
    assert sorted(load(place).shards) == ["2", "3", "4"]


def test_a_flipped_bit_or_a_truncation_makes_a_ledger_that_knows_nothing(place: str) -> None:
    save(place, [report()], seals={"rank_0/a": seal()}, began=NOW)
    path = Path(place)
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):  # every byte, and each bit of it somewhere
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert load(place) == Ledger(), bit
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        assert load(place) == Ledger(), length
    save(place, [report()], seals={}, began=NOW)
    assert recalled(place) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ledger/1", "ledger/2"),
        ('"tensors": 9', '"tensors": "9"'),
        ('"mindspore-ckpt"', '"zip"'),
        ('"inode": 7', '"inode": null'),
        ('"shards": [', '"shards": [1, '),
        ('"zero_tail": false', '"zero_tail": false, "notes": [{"code": "of-tomorrow", "message": "m"}]'),
    ],
)
def test_a_ledger_of_another_version_knows_nothing_whatever_its_hash(place: str, old: str, new: str) -> None:
    save(place, [report()], seals={}, began=NOW)
    Path(place).write_bytes(reworded(Path(place).read_bytes(), old, new))
    assert load(place) == Ledger()


def test_without_a_place_nothing_is_known_and_nothing_written() -> None:
    assert load(None) == Ledger()
    save(None, [report()], seals={}, began=NOW)


def test_where_the_cache_cannot_be_written_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    place = str(tmp_path / "file" / "ledger.json")
    save(place, [report()], seals={}, began=NOW)
    assert load(place) == Ledger()


def test_a_link_in_the_place_of_the_ledger_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "ledger.json").symlink_to(tmp_path / "precious")
    save(str(tmp_path / "ledger.json"), [report()], seals={}, began=NOW)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_who_cannot_have_the_lock_goes_without(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE_SECONDS", 0.0)
    save(place, [report("a")], seals={}, began=NOW)
    with locked(place, timeout=0):
        save(place, [report("b")], seals={}, began=NOW)
    assert sorted(load(place).shards) == ["a"]


def test_nothing_new_writes_nothing(place: str) -> None:
    save(place, [], seals={}, began=NOW)
    assert not Path(place).exists()
    save(place, [report()], seals={}, began=NOW)
    before = Path(place).stat().st_ino
    save(place, [report()], seals={}, began=NOW)
    save(place, [report("never-known", checksum_matched=False)], seals={}, began=NOW)
    assert Path(place).stat().st_ino == before


def test_writers_beside_one_another_lose_nothing(place: str) -> None:
    def write(index: int) -> None:
        save(place, [report(str(index))], seals={}, began=NOW)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(write, range(12)))
    assert sorted(load(place).shards, key=int) == [str(index) for index in range(12)]


def test_the_ledger_lies_in_the_users_cache_and_only_he_can_look(tmp_path: Path) -> None:
    place = ledger_place("/some/tree", {"XDG_CACHE_HOME": str(tmp_path / "cache")}, disk="sda")
    assert place is not None
    save(place, [report()], seals={}, began=NOW)
    assert Path(place).parent == tmp_path / "cache" / "ckpttool" / "ledger"
    assert Path(place).parent.stat().st_mode & 0o077 == 0


def test_without_a_cache_of_its_own_the_ledger_is_in_the_home_and_without_a_home_nowhere(tmp_path: Path) -> None:
    home = str(tmp_path)
    expected = f"{home}/.cache/ckpttool/ledger"
    for environment in ({"HOME": home}, {"HOME": home, "XDG_CACHE_HOME": "relative"}):
        place = ledger_place("/tree", environment, disk="sda")
        assert place is not None
        assert os.path.dirname(place) == expected  # noqa: PTH120  it is a text
    assert ledger_place("/tree", {}, disk="sda") is None
    assert ledger_place("/tree", {"HOME": "relative"}, disk="sda") is None


@pytest.mark.parametrize("without", [(), ("XDG_CACHE_HOME",)])
def test_no_test_leaves_a_ledger_in_the_home_of_who_runs_it(
    without: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = ledger_place("/tree", {name: text for name, text in os.environ.items() if name not in without}, disk="sda")
    assert place is not None
    assert Path(place).is_relative_to(tmp_path_factory.getbasetemp())
    assert not Path(place).parent.exists()


def test_a_tree_has_one_ledger_whichever_way_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to("tree")

    def place_of(root: Path) -> str | None:
        return ledger_place(str(root), {"XDG_CACHE_HOME": "/cache"}, disk="sda")

    straight = place_of(tmp_path / "tree")
    assert straight == place_of(tmp_path / "link")
    assert straight == place_of(tmp_path / "tree" / ".." / "tree")
    assert straight != place_of(tmp_path)


def test_what_one_machine_verified_on_its_own_disk_is_not_another_machines_under_the_same_path(tmp_path: Path) -> None:
    def place_on(disk: str) -> str | None:
        return ledger_place("/data/run", {"XDG_CACHE_HOME": str(tmp_path)}, disk=disk)

    save(place_on("node 0"), [report()], seals={}, began=NOW)
    assert recalled(place_on("node 0") or "") is not None
    assert recalled(place_on("node 1") or "") is None
