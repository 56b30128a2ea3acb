"""A rank whose file lies on another machine would start without it; one whose file lies right is not spoken of."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import permutations

import pytest

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.placement import Placed, ReadByAll
from ckpttool.core.domain.plan import exit_of
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode
from ckpttool.core.render.answers.plan import plan_document
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Home, Merge, Seat
from ckpttool.nodes.rules.disks import Placement, not_everywhere, placement_of, stale_copies, with_placement
from tests.support.inventories import checkpoint
from tests.support.plans import resume_plan

SAVE = checkpoint(ranks=range(4))
NONE = ReadByAll()
PATHS = [shard.path for shard in SAVE.shards]


def home(host: str, files: str, claims: tuple[int, int] | None = None, *, shared: bool = False) -> Home:
    """One machine with the files of ranks: `01`."""
    return Home(
        host=host,
        root="/data/output",
        shared=shared,
        claims=None if claims is None else tuple(map(Rank, range(claims[0], claims[1] + 1))),
        files={PATHS[int(rank)] for rank in files},
    )


def placed(*homes: Home) -> Placement:
    """Say what is said in any order of the machines."""
    (found, *others) = (placement_of(SAVE, order) for order in permutations(homes))
    assert all(other == found for other in others)
    return found


def ranks(found: Placement) -> dict[str, tuple[int, ...]]:
    return {one.host: one.ranks for one in found.placed}


def test_ranks_whose_files_lie_where_they_start_are_placed_without_a_word() -> None:
    found = placed(home("b", "23", (2, 3)), home("a", "01", (0, 1)))
    assert found.placed == (Placed(ranks=(Rank(0), Rank(1)), host="a"), Placed(ranks=(Rank(2), Rank(3)), host="b"))
    assert found.findings == ()


def test_where_no_machine_claims_ranks_nothing_is_said() -> None:
    assert placed(home("a", "01"), home("b", "23")) == Placement(placed=(), findings=())


def test_two_machines_that_changed_places_name_each_rank_with_the_command_that_mends_it() -> None:
    found = placed(home("a", "01", (2, 3)), home("b", "23", (0, 1)))
    assert [(one.severity, one.ranks, one.expected, one.actual) for one in found.findings] == [
        (Severity.DAMAGE, (0,), "b", "a"),
        (Severity.DAMAGE, (1,), "b", "a"),
        (Severity.DAMAGE, (2,), "a", "b"),
        (Severity.DAMAGE, (3,), "a", "b"),
    ]
    assert found.findings[0].remedy == f"on b: rsync -asR -- a:/data/output/./{PATHS[0]} /data/output/"
    assert ranks(found) == {"b": (0, 1), "a": (2, 3)}


def test_a_copy_where_the_rank_starts_is_enough() -> None:
    assert placed(home("a", "0123", (0, 1)), home("b", "23", (2, 3))).findings == ()


def test_what_lies_on_a_shared_disk_lies_where_every_rank_starts() -> None:
    assert placed(home("a", "0123", (0, 1), shared=True), home("b", "", (2, 3))).findings == ()
    assert len(placed(home("a", "0123", (0, 1)), home("b", "", (2, 3))).findings) == 2


def test_two_processes_of_one_machine_have_one_disk() -> None:
    assert placed(home("a", "01", (2, 3)), home("a", "23", (0, 1))).findings == ()


def test_a_file_that_nobody_has_is_not_elsewhere() -> None:
    assert placed(home("a", "01", (0, 1)), home("b", "2", (2, 3))).findings == ()


def test_ranks_that_nobody_claims_are_a_note_and_have_no_place() -> None:
    found = placed(home("a", "01", (0, 1)), home("b", "23"))
    (only,) = found.findings
    assert (only.severity, only.ranks) == (Severity.NOTE, (2, 3))
    assert ranks(found) == {"a": (0, 1)}


def test_ranks_that_two_machines_claim_are_suspect_and_have_no_place() -> None:
    found = placed(home("a", "012", (0, 2)), home("b", "23", (2, 3)))
    (only,) = found.findings
    assert (only.severity, only.ranks) == (Severity.SUSPECT, (2,))
    assert "a and b each say" in only.message
    assert ranks(found) == {"a": (0, 1), "b": (3,)}


def test_files_that_all_ranks_share_have_no_place() -> None:
    shared = replace(SAVE, shards=tuple(replace(shard, rank=None) for shard in SAVE.shards))
    assert placement_of(shared, [home("a", "0123", (0, 3)), home("b", "", (4, 7))]) == Placement(placed=(), findings=())


def test_all_files_of_a_rank_come_by_one_command() -> None:
    shards = tuple(replace(shard, rank=Rank(0)) for shard in SAVE.shards[:2])
    found = placement_of(replace(SAVE, shards=shards), [home("a", "01"), home("b", "", (0, 0))])
    (only,) = found.findings
    assert only.remedy == (f"on b: rsync -asR -- a:/data/output/./{PATHS[0]} :/data/output/./{PATHS[1]} /data/output/")


@pytest.mark.parametrize("odd", ["it's $HOME `id`", "-e sh", "a\nb", "q;reboot"])
def test_whatever_a_part_calls_its_host_and_folder_the_command_holds_it_as_one_word(odd: str) -> None:
    evil = replace(home(odd, "0123"), root=f"/{odd}")
    (only, *_) = placement_of(SAVE, [evil, home("b", "", (0, 3))]).findings
    assert only.remedy is not None
    words = shlex.split(only.remedy.removeprefix("on b: "))
    assert words == ["rsync", "-asR", "--", f"{odd}:/{odd}/./{PATHS[0]}", "/data/output/"]


def test_what_lies_elsewhere_has_one_code() -> None:
    found: tuple[Finding, ...] = placed(home("a", "01", (2, 3)), home("b", "23")).findings
    assert {one.code for one in found} == {Code.SHARD_ELSEWHERE}


def seat(number: int, claims: tuple[int, ...] | None) -> Seat:
    return Seat(
        number=number,
        of=2,
        run="r",
        host=f"node{number}",
        disk=f"disk {number}",
        shared=False,
        root="/data/output",
        began_ns=0,
        ended_ns=1,
        level=Level.STRUCTURE,
        claims=None if claims is None else tuple(map(Rank, claims)),
    )


def merged(*claims: tuple[int, ...] | None) -> Merge:
    """Two machines, of which the first has the first two ranks' files, and the second the others'."""
    paths = [shard.path for shard in resume_plan().point.checkpoint.shards]
    return Merge(
        source="parts",
        root="/data/output",
        of=2,
        seats=tuple(seat(number, each) for number, each in enumerate(claims, 1)),
        missing=(),
        blind={},
        unread=(),
        left_out=(),
        holders={path: (at // 2,) for at, path in enumerate(paths)},
        copies={},
    )


def test_a_plan_says_where_its_ranks_start_and_one_that_could_not_ends_with_10() -> None:
    plan = resume_plan()
    right = with_placement(plan, merged((0, 1), (2, 3)), NONE)
    assert [(placed.host, placed.ranks) for placed in right.placement] == [("node1", (0, 1)), ("node2", (2, 3))]
    assert right.findings == plan.findings
    assert exit_of(right, strict=False) is ExitCode.OK
    wrong = with_placement(plan, merged((2, 3), (0, 1)), NONE)
    assert [finding.code for finding in wrong.findings[:4]] == [Code.SHARD_ELSEWHERE] * 4
    assert exit_of(wrong, strict=False) is ExitCode.DAMAGE
    assert plan_document(wrong)["placement"] == [  # type: ignore[index, call-overload]
        {"ranks": [0, 1], "host": "node2"},
        {"ranks": [2, 3], "host": "node1"},
    ]


def test_a_plan_of_machines_that_claim_nothing_stays_as_it_is() -> None:
    plan = with_placement(resume_plan(), merged(None, None), NONE)
    assert plan == resume_plan()
    assert "placement" not in plan_document(plan)  # type: ignore[operator]


class TestWhatEveryMachineReads:
    """`.metadata`, the model of all replicas: a machine that lacks one stops, whichever ranks start there."""

    READ = ReadByAll(surely=("s/.metadata", "s/never-saved"), perhaps=("s/__0_0.distcp", "s/__1_0.distcp"))

    @staticmethod
    def seen(*files: str, missing: tuple[int, ...] = (), blind: Mapping[int, str] | None = None) -> Merge:
        """Return what each machine has: `.metadata` by `m`, the slices by their rank."""
        names = {"m": "s/.metadata", "0": "s/__0_0.distcp", "1": "s/__1_0.distcp"}
        held = {path: tuple(at for at, own in enumerate(files) if key in own) for key, path in names.items()}
        seats = merged(*[None] * len(files)).seats
        return replace(
            merged(*[None] * len(files)),
            of=2,
            holders={path: at for path, at in held.items() if at},
            seats_read=seats,
            missing=missing,
            blind=blind or {},
        )

    def test_a_machine_without_it_cannot_start_and_gets_the_command_that_brings_all_it_lacks(self) -> None:
        (damaged, unsure) = not_everywhere(self.READ, self.seen("m0", "1"))[::-1]
        assert (damaged.severity, damaged.code, damaged.path) == (Severity.DAMAGE, Code.SHARD_ELSEWHERE, "s/.metadata")
        assert "node2 lacks s/.metadata: every machine reads this" in damaged.message
        assert damaged.remedy == (
            "on node2: rsync -asR -- node1:/data/output/./s/.metadata :/data/output/./s/__0_0.distcp /data/output/"
        )
        assert (unsure.severity, unsure.path) == (Severity.UNKNOWN, "s/__1_0.distcp")

    def test_one_that_has_the_record_and_lacks_others_slices_is_not_known_to_start(self) -> None:
        found = not_everywhere(self.READ, self.seen("m0", "m1"))
        assert [(one.severity, one.actual) for one in found] == [
            (Severity.UNKNOWN, "node1"),
            (Severity.UNKNOWN, "node2"),
        ]

    def test_where_each_has_all_or_all_see_one_disk_nothing_is_said(self) -> None:
        assert not_everywhere(self.READ, self.seen("m01", "m01")) == ()
        shared = self.seen("m0", "1")
        seats = tuple(replace(seat, shared=True) for seat in shared.seats)
        assert not_everywhere(self.READ, replace(shared, seats=seats, seats_read=seats)) == ()
        one = replace(self.seen("m01", missing=(2,)), seats=seats[:1], seats_read=seats[:1])
        assert not_everywhere(self.READ, one) == ()

    def test_two_processes_that_see_one_folder_have_what_either_was_shown(self) -> None:
        both = self.seen("m0", "1")
        seats = tuple(replace(seat, disk="d", inode=7) for seat in both.seats)
        assert not_everywhere(self.READ, replace(both, seats=seats, seats_read=seats)) == ()

    @pytest.mark.parametrize("inodes", [(7, 8), (None, None)])
    def test_of_two_folders_on_one_disk_each_must_have_it(self, inodes: tuple[int | None, int | None]) -> None:
        both = self.seen("m0", "1")
        seats = tuple(
            replace(seat, disk="d", root=f"/trial/{seat.host}", inode=inode)
            for seat, inode in zip(both.seats, inodes, strict=True)
        )
        damaged = not_everywhere(self.READ, replace(both, seats=seats, seats_read=seats))[-1]
        assert (damaged.severity, damaged.actual) == (Severity.DAMAGE, "node2")

    def test_a_save_that_keeps_nothing_for_all_asks_nothing(self) -> None:
        assert not_everywhere(self.READ, self.seen("0", "1")) == ()
        assert not_everywhere(ReadByAll(perhaps=("s/__0_0.distcp",)), self.seen("0", "1")) == ()

    def test_a_machine_that_has_no_such_folder_lacks_all_of_it(self) -> None:
        seen = self.seen("m01")
        absent = replace(seen.seats[0], number=2, host="node2", disk="other")
        told = replace(seen, of=2, seats_read=(*seen.seats, absent), blind={2: "ENOENT"})
        assert [(one.severity, one.actual) for one in not_everywhere(self.READ, told)] == [(Severity.DAMAGE, "node2")]

    def test_of_one_that_may_not_look_or_was_not_asked_nobody_knows(self) -> None:
        for told in (
            self.seen("m01", missing=(2,)),
            self.seen("m01", blind={2: "EACCES"}),
        ):
            (found,) = not_everywhere(self.READ, told)
            assert (found.severity, found.code) == (Severity.UNKNOWN, NodesCode.PART_MISSING)

    def test_no_command_brings_what_nobody_has(self) -> None:
        damaged = not_everywhere(self.READ, self.seen("m0", ""))[-1]
        assert (damaged.actual, "__1_0" in (damaged.remedy or "")) == ("node2", False)

    def test_a_machine_on_which_no_rank_starts_need_not_have_it(self) -> None:
        seen = self.seen("m01", "")
        idle = (seen.seats[0], replace(seen.seats[1], claims=()))
        assert not_everywhere(self.READ, replace(seen, seats=idle, seats_read=idle)) == ()

    def test_hundreds_that_lack_hundreds_of_files_are_one_sentence_and_one_command(self) -> None:
        slices = tuple(f"s/__{rank}_0.distcp" for rank in range(100))
        seen = self.seen("m", *[""] * 200)
        told = replace(seen, holders={"s/.metadata": (0,), **dict.fromkeys(slices, (0,))})
        (found,) = not_everywhere(ReadByAll(surely=("s/.metadata", *slices)), told)
        assert "node2, node3, node4 and 197 more machines lack" in found.message
        assert "and 98 more files" in found.message
        assert (found.remedy or "").endswith("node1:/data/output/./s /data/output/; and likewise on the other machines")


class TestCopiesThatAreOlder:
    """A machine that has what ranks saved before, and nothing of the save that is chosen."""

    CHOSEN, OLDER = checkpoint("15_2", ranks=range(2)), checkpoint("10_2", ranks=range(2))

    def seen(self, *names: str, **seats: object) -> Merge:
        """Return a look at machines each of which has all ranks' files of these saves: `10 15`."""
        saves = {"15": self.CHOSEN, "10": self.OLDER}
        held = {
            shard.path: tuple(at for at, own in enumerate(names) if word in own.split())
            for word, save in saves.items()
            for shard in save.shards
        }
        own = tuple(replace(seat(number, None), **seats) for number in range(1, len(names) + 1))  # type: ignore[arg-type]
        return replace(merged(*[None] * len(names)), seats=own, seats_read=own, holders=held)

    def told(self, merge: Merge) -> tuple[Finding, ...]:
        return stale_copies(self.CHOSEN, [self.OLDER, self.CHOSEN], merge)

    def test_one_that_lacks_the_chosen_save_is_told_with_the_command_that_brings_it(self) -> None:
        (found,) = self.told(self.seen("10 15", "10"))
        assert (found.severity, found.code, found.actual) == (Severity.UNKNOWN, Code.SHARD_ELSEWHERE, "node2")
        assert "node2 has files of other saves, but none of 15_2" in found.message
        assert "on node2: rsync -asR -- node1:/data/output/./" in (found.remedy or "")
        (several,) = self.told(self.seen("10 15", *["10"] * 5))
        assert "node2, node3, node4 and 2 more machines have" in several.message

    def test_one_that_has_it_or_never_had_any_is_not_spoken_of(self) -> None:
        assert self.told(self.seen("10 15", "15")) == ()
        assert self.told(self.seen("10 15", "")) == ()
        assert self.told(self.seen("10 15", "10", shared=True)) == ()
        assert stale_copies(checkpoint("15_2", ranks=()), [self.OLDER], self.seen("10", "10")) == ()

    def test_where_machines_say_which_ranks_they_start_that_tells_it(self) -> None:
        assert self.told(self.seen("10 15", "10", claims=(Rank(0),))) == ()

    def test_a_plan_of_such_parts_ends_with_14(self) -> None:
        plan = resume_plan()
        chosen = plan.point.checkpoint
        paths = {shard.path: (0,) for shard in chosen.shards}
        older = checkpoint("1_2", ranks=range(2))
        seats = (seat(1, None), seat(2, None))
        held = {**paths, **{shard.path: (0, 1) for shard in older.shards}}
        merge = replace(merged(None, None), seats=seats, seats_read=seats, holders=held)
        assert exit_of(with_placement(plan, merge, NONE, [older, chosen]), strict=False) is ExitCode.INCOMPLETE
