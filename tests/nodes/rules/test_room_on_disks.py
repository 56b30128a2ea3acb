"""The next saves go to the disks of several machines: each must have room for its own share of them."""

from __future__ import annotations

from collections.abc import Mapping

from ckpttool.core.decide.preflight import disk_findings
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Room
from ckpttool.core.domain.preflight import DiskNeed, NextSaves
from ckpttool.core.domain.verdict import Level
from ckpttool.nodes.model import Merge, Seat
from ckpttool.nodes.rules.disks import needs_of

COMING = NextSaves(folder="/data/output/", inside=(), count=2, stays=None)
SIZES = {"rank_0/x": 100, "rank_1/x": 100, "rank_2/x": 100}


def seat(number: int, free: int | None = 1000, *, shared: bool = False, files: int | None = 10) -> Seat:
    return Seat(
        number=number, of=2, run="r", host=f"node{number}", disk=f"disk{number}", shared=shared, root="/data/output",
        began_ns=0, ended_ns=1, level=Level.STRUCTURE,
        room=None if free is None else Room(free_bytes=free, free_files=files),
    )  # fmt: skip


def merge(*seats: Seat, held: Mapping[str, tuple[int, ...]] | None = None) -> Merge:
    """Two machines, of which the first has two ranks' files, and the second one's."""
    return Merge(
        source="parts", root="/data/output", of=2, seats=seats, missing=(), blind={}, unread=(), left_out=(),
        holders=held or {"rank_0/x": (0,), "rank_1/x": (0,), "rank_2/x": (1,)}, copies={},
    )  # fmt: skip


def needs(given: Merge) -> tuple[DiskNeed, ...]:
    found = needs_of(COMING, given, SIZES)
    assert not isinstance(found, Finding), found
    return found


def test_each_disk_needs_room_for_the_files_that_lie_on_it_and_the_one_with_the_least_is_first() -> None:
    found = needs(merge(seat(1), seat(2)))
    assert [(one.host, one.save_bytes, one.save_files) for one in found] == [("node1", 200, 2), ("node2", 100, 1)]
    assert [finding for one in found for finding in disk_findings(one)] == []


def test_one_machine_without_room_stops_the_launch_though_the_others_have_plenty() -> None:
    found = needs(merge(seat(1, 400), seat(2, 199, files=1)))
    assert found[0].host == "node2"
    lacking = disk_findings(found[0])
    assert [finding.code for finding in lacking] == [Code.DISK_SPACE_LOW, Code.DISK_INODES_LOW]
    assert all("on node2" in finding.message for finding in lacking)
    assert disk_findings(found[1]) == ()


def test_a_folder_that_is_closed_on_one_machine_is_named_with_it() -> None:
    closed = replace(seat(2), unwritable=("/data/output/rank_2",))
    (finding,) = (finding for one in needs(merge(seat(1), closed)) for finding in disk_findings(one))
    assert finding.code is Code.FOLDER_NOT_WRITABLE
    assert "/data/output/rank_2 on node2" in finding.message


def test_what_all_machines_see_is_one_disk_and_nobodys_own() -> None:
    (only,) = needs(merge(seat(1, shared=True), seat(2, 900, shared=True)))
    assert (only.host, only.save_bytes, only.free_bytes) == (None, 300, 900)


def test_a_machine_with_none_of_the_files_needs_no_room() -> None:
    (only,) = needs(merge(seat(1), seat(2, 0), held=dict.fromkeys(SIZES, (0,))))
    assert only.host == "node1"


def test_a_disk_that_counts_no_inodes_lacks_none() -> None:
    assert {one.free_files for one in needs(merge(seat(1, files=None), seat(2, files=None)))} == {None}


def test_what_a_machine_does_not_say_nobody_knows() -> None:
    found = needs_of(COMING, merge(seat(1), seat(2, None)), SIZES)
    assert isinstance(found, Finding)
    assert found.code is Code.DISK_UNKNOWN
    assert "node2" in found.message


def test_of_another_folder_than_the_tree_nobody_knows() -> None:
    found = needs_of(replace(COMING, folder="/other"), merge(seat(1), seat(2)), SIZES)
    assert isinstance(found, Finding)
    assert (found.code, found.path) == (Code.DISK_UNKNOWN, "/other")
