"""What is not known of a save because machines looked apart, too early or not at all; and where they disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity, note
from ckpttool.core.domain.plan import NoResumePoint, Rejection, exit_of
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level, ShardDigest, ShardReport
from ckpttool.core.errors import ExitCode
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Copy, Merge, Seat
from ckpttool.nodes.rules.merged import with_merge, with_warning
from tests.support.inventories import checkpoint, tree

SECOND = 10**9
SAVED = 1000 * SECOND
LATER = SAVED + 3600 * SECOND


def seat(number: int, *, of: int = 2, host: str = "", disk: str = "", shared: bool = False, began: int = LATER) -> Seat:
    return Seat(
        number=number, of=of, run="r", host=host or f"node{number}", disk=disk or f"disk{number}", shared=shared,
        root="output/checkpoint", began_ns=began, ended_ns=began, level=Level.STRUCTURE,
    )  # fmt: skip


def saved(*ranks: int, findings: tuple[Finding, ...] = ()) -> Checkpoint:
    own = checkpoint("10_2", ranks=ranks, findings=findings)
    stamp = FileStamp.on_disk(size=1, mtime_ns=SAVED, inode=1)
    return replace(own, shards=tuple(replace(shard, stamp=stamp) for shard in own.shards))


def merged(*seats: Seat, held: dict[str, tuple[int, ...]] | None = None, **other: object) -> Merge:
    known: dict[str, object] = {
        "source": "parts", "root": "there", "of": max(len(seats), *(each.of for each in seats)), "seats": seats,
        "missing": (), "blind": {}, "unread": (), "left_out": (), "holders": held or {}, "copies": {},
    }  # fmt: skip
    return Merge(**{**known, **other})  # type: ignore[arg-type]


def judged(one: Checkpoint, merge: Merge, *, declared: tuple[int, ...] = (), skew: float = 60.0) -> Inventory:
    return with_merge(tree(one), merge, declared=declared, skew=skew)


def told(inventory: Inventory) -> dict[str, str]:
    found = (*inventory.findings, *inventory.checkpoints[0].findings)
    return {each.code.value: each.severity.word for each in found}


def held(one: Checkpoint, *places: int) -> dict[str, tuple[int, ...]]:
    return {shard.path: (place,) for shard, place in zip(one.shards, places, strict=True)}


LACKS = Finding(
    code=Code.RANK_MISSING, severity=Severity.DAMAGE, message="no folder rank_3", path="rank_3", ranks=(Rank(3),)
)


def test_where_all_looked_nothing_is_to_be_said() -> None:
    one = saved(0, 1)
    found = judged(one, merged(seat(1), seat(2), held=held(one, 0, 1)))
    assert told(found) == {}
    assert found.root == "there"
    assert found.parts is not None
    assert (found.parts.given, found.parts.of, found.parts.missing, found.parts.stale) == (2, 2, (), ())
    assert found.parts.nodes == ("node1", "node2")


@pytest.mark.parametrize("how", [{"missing": (2,)}, {"blind": {2: "EACCES"}}])
def test_a_machine_that_told_nothing_leaves_every_save_unknown(how: dict[str, object]) -> None:
    one = saved(0, 1)
    found = judged(one, merged(seat(1), held=held(one, 0, 0), **how))
    assert [each.severity.word for each in (*found.findings, *found.checkpoints[0].findings)] == ["unknown"] * 2
    assert found.findings[0].remedy == "run on that machine: ckpttool part --part 2/2, and give its file as well"


def test_several_that_told_nothing_are_named_up_to_a_line() -> None:
    one = saved(0)
    found = judged(one, merged(seat(1, of=20), held=held(one, 0), missing=tuple(range(2, 21))))
    assert "2, 3, 4, 5, 6, 7, 8, 9 and 11 more are missing" in found.findings[0].message
    assert "the files of their machines are unknown" in found.findings[0].message


def test_machines_that_could_not_look_and_those_that_have_a_copy_are_named_up_to_a_line() -> None:
    one = saved(0)
    found = judged(one, merged(seat(1, of=99), held=held(one, 0), blind=dict.fromkeys(range(2, 100), "EACCES")))
    assert found.findings[0].message.count("could not list the folder (EACCES)") == 8
    path = one.shards[0].path
    seats = [seat(number, of=50) for number in range(1, 51)]
    merge = merged(*seats, held={path: tuple(range(50))}, copies={path: tuple(map(copy, seats))})
    (alike,) = judged(one, merge).checkpoints[0].findings
    assert alike.message == (
        "is on node1, node10, node11, node12, node13, node14, node15, node16 and 42 more, and the copies are equal "
        "as far as they were checked"
    )


def test_what_lacks_is_unknown_where_a_part_is_missing_and_damage_where_none_is() -> None:
    one = saved(0, 1, 2, findings=(LACKS, note(Code.STRAY_FILE, "a stray")))
    absent = judged(one, merged(seat(1), held=held(one, 0, 0, 0), missing=(2,)))
    assert told(absent) == {"part-missing": "unknown", "rank-missing": "unknown", "stray-file": "note"}
    given = judged(one, merged(seat(1), seat(2), held=held(one, 0, 0, 1)))
    assert told(given) == {"rank-missing": "damage", "stray-file": "note"}


def test_a_stated_number_of_ranks_that_is_there_needs_no_other_machine() -> None:
    one = saved(0, 1)
    found = judged(one, merged(seat(1), held=held(one, 0, 0), missing=(2,)), declared=(2,))
    assert [(each.code.value, each.severity.word) for each in found.findings] == [("part-missing", "note")]
    assert found.checkpoints[0].findings == ()


@pytest.mark.parametrize(
    ("second", "weight"),
    [
        ({}, "unknown"),
        ({"shared": True}, None),
        ({"host": "node1", "disk": "disk1"}, "unknown"),
        ({"host": "node1"}, "unknown"),
    ],
)
def test_who_saw_no_shard_on_a_disk_of_its_own_may_have_lost_the_last_ranks(
    second: dict[str, object], weight: str | None
) -> None:
    one = saved(0, 1)
    merge = merged(seat(1), seat(2, **second), held=held(one, 0, 0))  # type: ignore[arg-type]
    assert told(judged(one, merge)).get("part-missing") == weight
    assert told(judged(one, merge, declared=(2,))) == {}


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(("1/2", "2/2"), None), (("1/2", "2/2", "1/2", "2/2"), "unknown"), (("1/2", None), "unknown")],
)
def test_processes_of_one_machine_may_have_none_of_what_they_share_out_and_two_machines_of_one_name_may_not(
    shares: tuple[str | None, ...], weight: str | None
) -> None:
    """Containers may all have one host's name, and no boot that tells them apart."""
    one = saved(0, 1)
    seats = [
        replace(seat(number, of=len(shares), host="localhost", disk="own"), share=share)
        for number, share in enumerate(shares, 1)
    ]
    assert told(judged(one, merged(*seats, held=held(one, 0, 0)))).get("part-missing") == weight


@pytest.mark.parametrize(
    ("shares", "disks", "weight"),
    [
        (("1/2", "2/2"), ("x", "x"), None),
        (("1/2", "2/2"), ("x", "y"), "unknown"),
        (("1/2", None), ("x", "x"), None),
        (("1/2", None), ("x", "y"), "unknown"),
        ((None, None), ("x", "y"), None),
    ],
)
def test_what_nobody_looked_at_on_a_disk_that_was_shared_out_is_not_missing(
    shares: tuple[str | None, str | None], disks: tuple[str, str], weight: str | None
) -> None:
    one = saved(0, 1, 2, findings=(LACKS,))
    seats = [
        replace(seat(number, disk=disk), share=share)
        for number, (disk, share) in enumerate(zip(disks, shares, strict=True), 1)
    ]
    merge = merged(*seats, held=held(one, 0, 0, 1))
    found = told(judged(one, merge))
    assert (found.get("not-looked-at"), found["rank-missing"]) == (weight, weight or "damage")
    whole = replace(one, findings=())
    assert told(judged(whole, merge, declared=(3,))) == {}
    everywhere = replace(merge, seats=tuple(replace(each, shared=True) for each in seats))
    assert "not-looked-at" not in told(judged(one, everywhere))


@pytest.mark.parametrize(("began", "weight"), [(SAVED - SECOND, "unknown"), (SAVED + 61 * SECOND, None)])
def test_who_looked_before_the_save_was_written_may_have_it_by_now(began: int, weight: str | None) -> None:
    one = saved(0, 1, 2, findings=(LACKS,))
    found = judged(one, merged(seat(1), seat(2, began=began), held=held(one, 0, 0, 0)))
    assert told(found).get("part-stale") == weight
    assert told(found)["rank-missing"] == (weight or "damage")
    assert found.parts is not None
    assert found.parts.stale == ((2,) if weight else ())


def test_a_rank_that_has_older_saves_on_a_machine_is_late_there_alone() -> None:
    one = saved(0, 1, 2, findings=(LACKS,))
    older = checkpoint("5_2", ranks=range(4))
    homes = held(one, 0, 0, 0) | held(older, 0, 0, 0, 1)
    inventory = tree(older, one)
    for late, number in ((seat(1, began=0), ()), (seat(2, began=0), (2,))):
        seats = (late, seat(2)) if late.number == 1 else (seat(1), late)
        parts = with_merge(inventory, merged(*seats, held=homes), declared=(), skew=60).parts
        assert parts is not None
        assert parts.stale == number


@pytest.mark.parametrize("began", [SAVED - SECOND, SAVED + 61 * SECOND])
@pytest.mark.parametrize("older", [(), (2,), (2, 3)])
def test_who_saw_fewer_ranks_of_a_save_than_of_others_or_saw_no_other_may_have_looked_in_its_middle(
    began: int, older: tuple[int, ...]
) -> None:
    """Of the first save of all nobody misses the last rank, which may be under way."""
    one = saved(0, 1, 2)
    homes = held(one, 0, 0, 1)
    saves = [one]
    if older:
        saves = [checkpoint("5_2", ranks=(0, 1, *older)), one]
        homes |= held(saves[0], 0, 0, *(1 for _ in older))
    inventory = with_merge(tree(*saves), merged(seat(1), seat(2, began=began), held=homes), declared=(), skew=60)
    is_late = began < SAVED and older != (2,)
    assert [each.code.value for each in inventory.checkpoints[-1].findings] == (["part-stale"] if is_late else [])
    declared = with_merge(tree(*saves), merged(seat(1), seat(2, began=began), held=homes), declared=(3,), skew=60)
    assert declared.checkpoints[-1].findings == ()


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ((0, 0.9, 1.8, 2.7), None),
        (
            (0, 3.5, 3.6, 0.1),
            "part 1 of 4 (node1), part 4 of 4 (node4) recorded its files 3 hours or more",
        ),
        ((2.5, 0, 2.4, 2.5), "part 2 of 4 (node2) recorded its files 2 hours or more"),
    ],
)
def test_parts_that_a_look_of_the_same_name_left_long_before_are_noted(
    starts: tuple[float, ...], said: str | None
) -> None:
    """Whoever names all looks alike has the part of a machine that is gone since."""
    one = saved(0, 1, 2, 3)
    seats = [seat(number, of=4, began=LATER + int(at * 3600 * SECOND)) for number, at in enumerate(starts, 1)]
    found = judged(one, merged(*seats, held=held(one, 0, 1, 2, 3))).findings
    assert [each.message.partition(" before the other parts")[0] for each in found] == ([said] if said else [])
    assert all(each.severity is Severity.NOTE and each.code is NodesCode.PART_STALE for each in found)
    many = [seat(number, of=30, began=LATER) for number in range(1, 30)]
    (old,) = judged(saved(0), merged(*many, seat(30, began=2 * LATER), held=held(saved(0), 29))).findings[:1]
    assert " and 21 more recorded its files" in old.message


def test_a_save_of_which_no_time_is_known_is_late_nowhere() -> None:
    one = checkpoint("10_2", ranks=(0, 1))
    assert told(judged(one, merged(seat(1, began=0), held=held(one, 0, 0)))) == {}


def test_what_is_no_rank_s_is_on_no_machine_more_than_on_others() -> None:
    one = saved(0)
    shared = replace(one, shards=tuple(replace(shard, rank=None) for shard in one.shards))
    assert told(judged(shared, merged(seat(1), seat(2), held=held(one, 0)))) == {}


def test_a_part_that_is_torn_is_unknown() -> None:
    one = saved(0)
    merge = merged(seat(1), held=held(one, 0), unread=(("x.ckptpart", "is torn"),), left_out=(seat(2),))
    assert told(judged(one, merge)) == {"part-missing": "unknown", "part-stale": "note"}


REPORT = ShardReport(
    path="x", rank=Rank(0), role=ShardRole.FULL, level=Level.STRUCTURE, format=FormatName.MINDSPORE_CKPT,
    stamp=None, scalars=(), schema_hash="aa", tensors=3, checksum_matched=False, bytes_read=ByteCount(1), findings=(),
)  # fmt: skip
STAMP = FileStamp.on_disk(size=9, mtime_ns=SAVED, inode=1)
OTHER = FileStamp.on_disk(size=9, mtime_ns=SAVED + 1, inode=2)


def several(*copies: Copy) -> dict[str, str]:
    one = saved(0)
    path = one.shards[0].path
    seats = tuple(copy.seat for copy in copies)
    merge = merged(*seats, held={path: tuple(range(len(copies)))}, copies={path: copies})
    return told(judged(one, merge))


def copy(where: Seat, report: ShardReport | None = REPORT, stamp: FileStamp = STAMP) -> Copy:
    return Copy(seat=where, stamp=stamp, report=report)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (REPORT, {}),
        (None, {}),
        (replace(REPORT, schema_hash="bb"), {"nodes-disagree": "suspect"}),
        (replace(REPORT, findings=(LACKS,)), {"nodes-disagree": "suspect"}),
        (replace(REPORT, findings=(LACKS,), level=Level.CHECKSUM), {}),
    ],
)
def test_two_looks_at_one_file_of_one_disk_see_the_same(other: ShardReport | None, said: dict[str, str]) -> None:
    assert several(copy(seat(1, disk="d")), copy(seat(2, disk="d"), other)) == said


@pytest.mark.parametrize(
    ("field", "same", "another"),
    [
        ("digest", ShardDigest(xxh3_128="a", chunks=()), ShardDigest(xxh3_128="b", chunks=())),
        ("tensor_digests", TensorDigests(names=("a",), digests=b"1"), TensorDigests(names=("a",), digests=b"2")),
    ],
)
def test_digests_tell_two_looks_apart_where_both_took_them(field: str, same: object, another: object) -> None:
    def with_one(value: object) -> ShardReport:
        return replace(REPORT, **{field: value})  # type: ignore[arg-type]

    first = copy(seat(1, disk="d"), with_one(same))
    for value, said in ((same, {}), (another, {"nodes-disagree": "suspect"}), (None, {})):
        assert several(first, copy(seat(2, disk="d"), with_one(value))) == said


def test_two_looks_from_one_machine_are_told_apart_by_their_parts() -> None:
    one = saved(0)
    copies = (copy(seat(1, host="a", disk="d")), copy(seat(2, host="a", disk="d"), stamp=OTHER))
    merge = merged(seat(1), seat(2), held={one.shards[0].path: (0, 1)}, copies={one.shards[0].path: copies})
    (found,) = judged(one, merge).checkpoints[0].findings
    assert found.message.startswith("differed between the checks on part 1 of 2 (a) and part 2 of 2 (a)")


def test_a_file_that_changed_between_two_looks_is_unknown() -> None:
    assert several(copy(seat(1, disk="d")), copy(seat(2, disk="d"), stamp=OTHER)) == {
        "changed-while-reading": "unknown"
    }


@pytest.mark.parametrize(
    ("report", "stamp", "weight"),
    [
        (REPORT, STAMP, "note"),
        (REPORT, replace(STAMP, size=ByteCount(8)), "suspect"),
        (replace(REPORT, tail_hash="cc"), STAMP, "suspect"),
        (None, STAMP, "suspect"),
    ],
)
def test_copies_on_two_disks_are_a_note_where_alike_and_doubtful_where_not(
    report: ShardReport | None, stamp: FileStamp, weight: str
) -> None:
    assert several(copy(seat(1)), copy(seat(2), report, stamp)) == {"rank-on-several-nodes": weight}


def test_copies_of_which_none_was_looked_at_are_no_rank_s_for_certain() -> None:
    assert several(copy(seat(1), None), copy(seat(2), None)) == {"rank-on-several-nodes": "note"}


def test_two_disks_of_one_machine_are_called_so() -> None:
    one = saved(0)
    path = one.shards[0].path
    copies = (copy(seat(1, host="a")), copy(seat(2, host="a"), replace(REPORT, rank=None, tensors=4)))
    merge = merged(seat(1), seat(2), held={path: (0, 1)}, copies={path: copies})
    (found,) = judged(one, merge).checkpoints[0].findings
    assert found.message.startswith("is on two disks of a, and the copies differ")


def test_one_export_mounted_by_two_addresses_is_one_disk() -> None:
    first, second = copy(seat(1, disk="a:/x", shared=True)), copy(seat(2, disk="b:/x", shared=True))
    assert several(first, second) == {}
    assert several(first, replace(second, stamp=OTHER)) == {"rank-on-several-nodes": "note"}


def shared_out(*divided: dict[str, str], disks: str = "xx", shares: str = "12") -> Merge:
    one = saved(0, 1, 2)
    seats = [
        replace(seat(number, disk=disk), share=f"{share}/2" if share != "-" else None)
        for number, (disk, share) in enumerate(zip(disks, shares, strict=True), 1)
    ]
    return merged(*seats, held=held(one, 0, 0, 1), divided=divided)


@pytest.mark.parametrize(
    ("merge", "weight"),
    [
        (shared_out({"": "a"}, {"": "a"}), None),
        (shared_out({"": "a"}, {"": "b"}), "unknown"),
        (shared_out({"": "a"}, {}), "unknown"),
        (shared_out({"": "a"}, {"": "b"}, shares="1-"), None),
        (shared_out({"rank_0/x": "a"}, {"rank_0/x": "b"}), "unknown"),
        (shared_out({"other/x": "a"}, {"other/x": "b"}), None),
    ],
)
def test_who_shared_files_out_and_saw_other_names_left_some_to_nobody(merge: Merge, weight: str | None) -> None:
    one = saved(0, 1, 2, findings=(LACKS,))
    (own,) = judged(one, merge).checkpoints
    found = {each.code.value: each for each in own.findings}
    assert ("not-looked-at" in found) is (weight is not None)
    assert found["rank-missing"].severity.word == (weight or "damage")
    assert ("restore" in (found["rank-missing"].remedy or "")) is False


@pytest.mark.parametrize(
    ("disks", "inodes", "weight"),
    [
        ("xx", (1, 1), None),
        ("xy", (1, 1), None),
        ("xy", (1, 2), "unknown"),
        ("xx", (1, 2), None),
        ("xy", (1, None), None),
    ],
)
def test_two_exports_of_like_names_are_no_disk_that_was_shared_out(
    disks: str, inodes: tuple[int | None, ...], weight: str | None
) -> None:
    """A mirror under the same path has the same names, and older files."""
    merge = shared_out({"": "a"}, {"": "a"}, disks=disks)
    seats = [replace(each, shared=True, inode=inode) for each, inode in zip(merge.seats, inodes, strict=True)]
    found = told(judged(saved(0, 1, 2), replace(merge, seats=tuple(seats))))
    assert found.get("not-looked-at") == weight


def test_a_save_that_is_whole_by_a_word_for_it_lacks_nothing_that_was_shared_out_apart() -> None:
    merge = shared_out({"": "a"}, {"": "b"})
    assert told(judged(saved(0, 1, 2), merge)) == {"not-looked-at": "unknown"}
    assert told(judged(saved(0, 1, 2), merge, declared=(3,))) == {"not-looked-at": "note"}
    elsewhere = replace(merge, seats=tuple(replace(each, disk=f"own {each.number}") for each in merge.seats))
    assert NodesCode.NOT_LOOKED_AT not in {
        each.code for each in judged(saved(0, 1, 2), elsewhere, declared=(3,)).findings
    }


CHANGED = Finding(code=Code.CHANGED_WHILE_READING, severity=Severity.UNKNOWN, message="was another file", path="x")
TWICE = Finding(code=NodesCode.RANK_ON_SEVERAL_NODES, severity=Severity.SUSPECT, message="lies on a and b", path="x")
RECORD = Finding(code=Code.UNREADABLE, severity=Severity.UNKNOWN, message="cannot be read", path="10_2/common.json")


@pytest.mark.parametrize(
    ("reasons", "is_open"),
    [
        ((CHANGED,), True),
        ((TWICE,), True),
        ((RECORD,), True),
        ((CHANGED, TWICE, note(Code.STRAY_FILE, "a stray")), True),
        ((CHANGED, LACKS), False),
        ((replace(RECORD, path="10_2/other.json"),), False),
        ((replace(RECORD, path="10_2/other.json"), CHANGED), True),
        ((LACKS,), False),
    ],
)
def test_what_machines_saw_otherwise_is_never_nothing_to_resume_from(
    reasons: tuple[Finding, ...], is_open: bool
) -> None:
    merge = merged(seat(1), seat(2), different=frozenset({"10_2/common.json"}))
    broken = Rejection(checkpoint=saved(0), reasons=(LACKS,))
    none = NoResumePoint(
        root="there",
        evidence=Level.STRUCTURE,
        rejected=(broken, Rejection(checkpoint=saved(0), reasons=reasons)),
        findings=(),
    )
    doubted = with_warning(none, merge)
    assert [(each.code.value, each.severity.word) for each in doubted.findings] == [
        ("nodes-disagree", "unknown") for _ in range(is_open)
    ]
    is_unread = RECORD.code in {each.code for each in reasons}  # which leaves open what it is, on one machine, too
    is_known = not (is_open or is_unread)
    assert exit_of(doubted, strict=False) is (ExitCode.NOTHING_TO_RESUME if is_known else ExitCode.INCOMPLETE)


def test_where_a_part_is_missing_nobody_asks_what_the_others_left_to_each_other() -> None:
    merge = replace(shared_out({"": "a"}, {"": "b"}), missing=(3,))
    assert told(judged(saved(0, 1, 2), merge)) == {"part-missing": "unknown"}
