"""Pruning until there is room: which go, of which tree, and that what is missing is said."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.amounts import Amount
from ckpttool.core.domain.node import Space
from ckpttool.core.domain.retention import Aim, PruneOrder, RetentionPolicy
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import CkptToolError, ExitCode
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.core.write.files import locked
from ckpttool.retention.reading_room import size_of
from ckpttool.retention.rules_room import FileUse, Measured, Superseded, TreeUse, needed, planned
from ckpttool.retention.verbs_room import prune_to
from tests.conftest import Golden
from tests.core.commands.test_answers import lines_too_long
from tests.reliability.disks import in_memory, why_not
from tests.retention.test_times import DAY, MONDAY
from tests.support.commands import Said, ask
from tests.support.inventories import checkpoint
from tests.support.programs import program
from tests.support.prunable_trees import WAYS, calls_to_stop_at, files, seal, stopped, whole
from tests.support.s3_relay import relay_over
from tests.support.trees import FIXTURES, Tensor, TreeBuilder

KIB = 1024


# ---- the rule, by itself ----


def superseded(name: int, when: int, *uses: FileUse) -> Superseded:
    save = checkpoint(f"{name}_1", ranks=[0])
    stamp = FileStamp.on_disk(size=1, mtime_ns=when, inode=1)
    return Superseded(checkpoint=replace(save, shards=(replace(save.shards[0], stamp=stamp),)), uses=uses)


def use(identity: Hashable, nbytes: int, *, names: int = 1, uid: int = 0) -> FileUse:
    return FileUse(identity=identity, names=names, nbytes=nbytes, uid=uid, gid=0)


def tree_use(*saves: Superseded, disk: int = 1, trash: Sequence[FileUse] = ()) -> TreeUse:
    return TreeUse(disk=disk, trash=tuple(trash), superseded=saves)


def disks(**free: int) -> Measured:
    return Measured(
        spaces={
            int(disk[1:]): (Space(limit="the disk", free_bytes=nbytes, total_bytes=1000),)
            for disk, nbytes in free.items()
        },
        size=0,
    )


def chosen(trees: Sequence[TreeUse], aim: Aim, measured: Measured) -> list[list[int]]:
    return [[save.step or 0 for save in tree.checkpoints] for tree in needed(trees, aim, measured)]


def free(nbytes: int) -> Aim:
    return Aim(free=Amount(nbytes=ByteCount(nbytes)))


class TestTheRule:
    def test_the_oldest_of_all_trees_go_first_and_no_more_than_needed(self) -> None:
        one = tree_use(superseded(1, 10, use("a", 5)), superseded(2, 30, use("b", 5)))
        two = tree_use(superseded(3, 20, use("c", 5)), superseded(4, 40, use("d", 5)))
        assert chosen([one, two], free(10), disks(d1=0)) == [[1], [3]]
        assert chosen([one, two], free(11), disks(d1=0)) == [[1, 2], [3]]
        assert chosen([one, two], free(11), disks(d1=11)) == [[], []]
        assert chosen([one, two], free(99), disks(d1=0)) == [[1, 2], [3, 4]]

    def test_only_trees_on_a_disk_that_is_short_give_anything(self) -> None:
        one = tree_use(superseded(1, 10, use("a", 5)), disk=1)
        two = tree_use(superseded(2, 20, use("b", 5)), disk=2)
        assert chosen([one, two], free(5), disks(d1=5, d2=0)) == [[], [2]]

    def test_a_share_is_of_each_limit(self) -> None:
        one = tree_use(*(superseded(step, step, use(step, 5)) for step in (1, 2, 3)))
        small = Space(limit="the quota of user 7", free_bytes=0, total_bytes=100, uid=0)
        measured = Measured(spaces={1: (*disks(d1=100).spaces[1], small)}, size=0)
        assert chosen([one], Aim(free=Amount(part=Fraction(10, 100))), measured) == [[1, 2]]

    def test_files_of_another_user_free_nothing_of_a_user_s_quota(self) -> None:
        one = tree_use(superseded(1, 1, use("a", 9, uid=8)), superseded(2, 2, use("b", 9, uid=7)), superseded(3, 3))
        quota = Space(limit="the quota of user 7", free_bytes=0, total_bytes=100, uid=7)
        assert chosen([one], free(9), Measured(spaces={1: (quota,)}, size=0)) == [[1, 2]]

    def test_what_others_share_frees_nothing_and_what_only_these_share_frees_it_with_the_last(self) -> None:
        outside = tree_use(superseded(1, 1, use("a", 9, names=2)), superseded(2, 2, use("b", 9)))
        assert chosen([outside], free(5), disks(d1=0)) == [[2]]
        inside = tree_use(
            superseded(1, 1, use("a", 9, names=2)),
            superseded(2, 2, use("a", 9, names=2)),
            superseded(3, 3, use("c", 9)),
        )
        assert chosen([inside], free(5), disks(d1=0)) == [[1, 2]]

    def test_the_trash_counts_first(self) -> None:
        one = tree_use(superseded(1, 1, use("a", 5)), trash=[use("t", 5)])
        assert chosen([one], free(5), disks(d1=0)) == [[]]
        assert chosen([one], free(6), disks(d1=0)) == [[1]]
        assert [needed([one], free(6), disks(d1=space))[0].trash for space in (0, 5, 6)] == [True, True, False]

    def test_what_a_prune_itself_writes_counts_against_it_if_it_deletes_anything(self) -> None:
        one = replace(tree_use(*(superseded(step, step, use(step, 5)) for step in (1, 2, 3))), own=use("own", 4))
        assert chosen([one], free(6), disks(d1=0)) == [[1, 2]]
        assert chosen([one], free(6), disks(d1=6)) == [[]]

    def test_a_tree_without_times_is_the_last(self) -> None:
        unknown = Superseded(checkpoint=checkpoint("9_1", ranks=[0]), uses=(use("u", 5),))
        assert chosen([tree_use(unknown), tree_use(superseded(1, 1, use("a", 5)))], free(5), disks(d1=0)) == [[], [1]]

    def test_both_aims_hold(self) -> None:
        one = tree_use(*(superseded(step, step, use(step, 5)) for step in (1, 2, 3)))
        measured = replace(disks(d1=0), size=20)
        assert chosen([one], Aim(free=Amount(nbytes=ByteCount(5)), max_size=ByteCount(10)), measured) == [[1, 2]]
        assert chosen([one], Aim(free=Amount(nbytes=ByteCount(15)), max_size=ByteCount(10)), measured) == [[1, 2, 3]]


SAVES = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=3), max_size=5
)  # of each save: the numbers of its files, which may be shared, and their sizes


@given(st.lists(SAVES, min_size=1, max_size=3), st.permutations(range(15)), st.integers(0, 120), st.integers(0, 3))
def test_the_fewest_oldest_are_deleted_that_a_second_rule_finds_enough(
    trees: list[list[list[tuple[int, int]]]], order: list[int], wanted: int, elsewhere: int
) -> None:
    sizes = {number: size for saves in trees for save in saves for number, size in save}
    times = iter(sorted(order[: sum(map(len, trees))]))
    shuffled = [(at, place) for at, saves in enumerate(trees) for place in range(len(saves))]
    shuffled.sort(key=lambda key: (order[key[1]], key))
    when: dict[tuple[int, int], int] = {}
    for at, _ in shuffled:  # within a tree, times grow with the steps
        when[at, sum(known == at for known, _ in when)] = next(times)
    names = Counter(number for saves in trees for save in saves for number in {number for number, _ in save})
    for number in range(elsewhere):  # these also have a name outside
        names[number] += 1
    uses = [
        tree_use(
            *(
                superseded(
                    place + 1,
                    when[at, place],
                    *(use(number, sizes[number], names=names[number]) for number in {number for number, _ in save}),
                )
                for place, save in enumerate(saves)
            )
        )
        for at, saves in enumerate(trees)
    ]

    def freed(gone: Sequence[tuple[int, int]]) -> int:
        held = Counter(number for at, place in gone for number in {number for number, _ in trees[at][place]})
        return sum(sizes[number] for number, count in held.items() if count == names[number])

    everything = sorted(when, key=lambda key: when[key])
    possible = {number for number in sizes if number >= elsewhere}
    useful = [key for key in everything if possible & {number for number, _ in trees[key[0]][key[1]]}]
    enough = next((many for many in range(len(useful) + 1) if freed(useful[:many]) >= wanted), len(useful))
    expected = [[place + 1 for tree, place in useful[:enough] if tree == at] for at in range(len(trees))]
    assert chosen(uses, free(wanted), disks(d1=0)) == [sorted(steps) for steps in expected]
    going = needed(uses, free(wanted), disks(d1=0))
    (reached,) = planned(uses, going, free(wanted), disks(d1=0))[1]
    assert (reached.after, reached.missing) == (freed(useful[:enough]), max(0, wanted - freed(useful[:enough])))


# ---- trees on a disk ----


def grown(folder: Path, *, since: int = 0, saves: int = 4, size: int = 64 * KIB) -> TreeBuilder:
    """A tree with one save a day, of two ranks, each much larger than what a prune itself writes."""
    tree = TreeBuilder(folder).legacy(ranks=2)
    for n in range(1, saves + 1):
        tree.save(
            epoch=10 * n, step=2, tensors=[Tensor("dense.bias", "Float32", (128 * KIB,), bytes([n]) * (512 * KIB))]
        )
        for rank in range(2):
            path = tree.output / tree.shard(rank, 10 * n, 2)
            when = MONDAY + n * DAY + since
            os.utime(path, (when, when))
    (tree.checkpoint / "notes.bin").write_bytes(bytes(size))
    return tree


def one_save(tree: TreeBuilder) -> int:
    """The blocks of one save."""
    return sum((tree.output / tree.shard(rank, 30, 2)).stat().st_blocks * 512 for rank in range(2))


def pruned(*trees: TreeBuilder, options: Sequence[str], last: int = 1) -> Said:
    return ask("prune", *(str(tree.checkpoint) for tree in trees), "--keep-last", str(last), "--json", *options)


def going(result: dict[str, Any]) -> list[str]:
    return [one["name"] for one in result["checkpoints"] if one["fate"] == "go"]


def results(said: Said) -> list[dict[str, Any]]:
    return [one["result"] for one in said.json["trees"]]


def du(*trees: TreeBuilder) -> int:
    seen: set[Hashable] = set()
    return sum(size_of(str(tree.checkpoint), seen, []) for tree in trees)


class TestMaxSize:
    def test_the_oldest_of_both_trees_go_and_each_keeps_its_last(self, tmp_path: Path) -> None:
        one, two = grown(tmp_path / "one"), grown(tmp_path / "two", since=DAY // 2)
        limit = du(one, two) - 2 * one_save(one) - one_save(one) // 2
        said = pruned(one, two, options=[f"--max-size={limit / KIB}K"])
        assert [going(result) for result in results(said)] == [["10_2", "20_2"], ["10_2"]]
        assert said.code == 0
        (space,) = results(said)[0]["space"]
        assert (space["aim"], space["of"], space["before"], space["missing"]) == (
            "max-size",
            "all trees",
            du(one, two),
            0,
        )
        done = pruned(one, two, options=[f"--max-size={limit / KIB}K", "--apply"])
        assert done.code == 0
        assert whole(one) == {"30_2", "40_2"}
        assert whole(two) == {"20_2", "30_2", "40_2"}
        assert pruned(one, two, options=[f"--max-size={(limit + 99 * KIB) / KIB}K", "--apply"]).code == 0
        assert whole(one) == {"30_2", "40_2"}

    def test_where_there_is_enough_nothing_goes(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        said = pruned(one, options=["--max-size=1G", "--apply"])
        assert (said.code, going(said.json)) == (0, [])
        assert {tuple(save["why"]) for save in said.json["checkpoints"]} == {("room",), ("last",)}

    @pytest.mark.parametrize("options", [[], ["--apply"]])
    def test_what_is_missing_is_said_and_the_policy_s_keeps_stay(self, options: list[str], tmp_path: Path) -> None:
        one = grown(tmp_path)
        said = pruned(one, options=["--max-size=1K", "--keep=10_2", *options], last=2)
        assert said.code == ExitCode.DAMAGE
        assert [finding["code"] for finding in said.json["findings"]] == ["room-short"]
        assert going(said.json) == ["20_2"]
        (space,) = said.json["space"]
        assert space["missing"] == space["after"] - KIB > 0
        if options:
            assert space["after"] == du(one)
            assert whole(one) == {"10_2", "30_2", "40_2"}
        else:
            assert whole(one) == {"10_2", "20_2", "30_2", "40_2"}

    def test_a_damaged_one_is_not_deleted_for_room(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        (one.output / one.shard(0, 10, 2)).write_bytes(b"torn")
        os.utime(one.output / one.shard(0, 10, 2), (MONDAY, MONDAY))
        said = pruned(one, options=["--max-size=1K", "--apply"])
        assert going(said.json) == ["20_2", "30_2"]
        assert (one.output / one.shard(0, 10, 2)).read_bytes() == b"torn"

    def test_earlier_trash_counts_and_is_deleted_first(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        assert ask("prune", str(one.checkpoint), "--keep-last", "3", "--trash-days", "7", "--apply", "-q").code == 0
        limit = du(one) - one_save(one) // 2
        said = pruned(one, options=[f"--max-size={limit / KIB}K", "--apply"])
        assert (said.code, going(said.json)) == (0, [])
        assert du(one) <= limit
        assert ask("trash", "list", str(one.checkpoint), "--json").json["trash"] == []

    def test_where_there_is_enough_the_trash_stays(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        assert ask("prune", str(one.checkpoint), "--keep-last", "3", "--trash-days", "7", "--apply", "-q").code == 0
        said = pruned(one, options=["--max-size=1G", "--apply"])
        assert (said.code, going(said.json)) == (0, [])
        assert [entry["goes"] for entry in said.json["trash"]] == [False]
        assert [save["name"] for save in ask("trash", "list", str(one.checkpoint), "--json").json["trash"]] == ["10_2"]

    def test_sparse_files_and_hard_links_count_as_du_counts_them(self, tmp_path: Path) -> None:
        one, two = grown(tmp_path / "one"), grown(tmp_path / "two")
        (one.checkpoint / "sparse").touch()
        os.truncate(one.checkpoint / "sparse", 1 << 40)
        os.link(one.checkpoint / "notes.bin", two.checkpoint / "same.bin")
        said = pruned(one, two, options=["--max-size=1G"])
        assert (said.code, [going(result) for result in results(said)]) == (0, [[], []])
        (space,) = results(said)[0]["space"]
        assert space["before"] == du(one) + du(two) - (one.checkpoint / "notes.bin").stat().st_blocks * 512

    def test_one_whose_files_have_another_name_elsewhere_stays(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        for rank in range(2):
            os.link(one.output / one.shard(rank, 10, 2), tmp_path / f"backup{rank}")
        limit = du(one) - one_save(one) // 2
        said = pruned(one, options=[f"--max-size={limit / KIB}K", "--apply"])
        assert (said.code, going(said.json)) == (0, ["20_2"])
        assert du(one) <= limit

    def test_a_tree_that_is_given_twice_is_refused(self, tmp_path: Path) -> None:
        one = grown(tmp_path)
        (tmp_path / "link").symlink_to(one.checkpoint)
        said = ask("prune", str(one.checkpoint), str(tmp_path / "link"), "--keep-last", "1", "--max-size", "1K")
        assert (said.code, said.stderr.count("\n")) == (2, 1)
        assert "is given twice" in said.stderr

    def test_a_tree_that_cannot_be_read_leaves_the_size_unknown_and_the_others_are_pruned(self, tmp_path: Path) -> None:
        one = grown(tmp_path / "one")
        said = ask(
            "prune", str(one.checkpoint), str(tmp_path / "none"), "--keep-last", "1", "--max-size", "1K", "--json"
        )
        assert said.code == 10
        first, second = said.json["trees"]
        assert (first["exit_code"], second["exit_code"]) == (10, 12)
        assert [finding["code"] for finding in first["result"]["findings"]] == ["room-unknown", "room-short"]
        assert going(first["result"]) == ["10_2", "20_2", "30_2"]
        alone = ask(
            "prune", str(one.checkpoint), str(tmp_path / "none"), "--keep-last", "1", "--max-size", "1G", "--json"
        )
        assert alone.json["trees"][0]["exit_code"] == ExitCode.INCOMPLETE

    def test_a_folder_that_cannot_be_listed_leaves_the_size_unknown_and_the_rest_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = grown(tmp_path)
        known = du(one)
        (one.checkpoint / "closed").mkdir()
        real = os.listdir

        def listdir(place: str) -> list[str]:
            if str(place).endswith("/closed"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
            return real(place)

        monkeypatch.setattr(os, "listdir", listdir)
        limit = known - one_save(one) // 2
        said = pruned(one, options=[f"--max-size={limit / KIB}K"])
        assert (said.code, going(said.json)) == (ExitCode.INCOMPLETE, ["10_2"])
        (finding,) = said.json["findings"]
        assert finding["code"] == "room-unknown"
        assert finding["message"].endswith(f"{one.checkpoint}/closed: Permission denied")

    def test_a_tree_that_is_being_written_keeps_all_and_the_others_give_more(self, tmp_path: Path) -> None:
        one, two = grown(tmp_path / "one"), grown(tmp_path / "two", since=1)
        (one.checkpoint / "rank_1/llama2_7b_rank_1-50_2.tmp").touch()
        limit = du(one, two) - one_save(one) // 2
        said = pruned(one, two, options=[f"--max-size={limit / KIB}K", "--apply"])
        assert said.code == ExitCode.INCOMPLETE
        assert [one["exit_code"] for one in said.json["trees"]] == [14, 0]
        assert whole(one) == {"10_2", "20_2", "30_2", "40_2"}
        assert whole(two) == {"20_2", "30_2", "40_2"}

    def test_a_tree_that_another_ckpttool_changes_is_left_out(self, tmp_path: Path) -> None:
        one, two = grown(tmp_path / "one"), grown(tmp_path / "two")
        (one.checkpoint / ".ckpttool").mkdir()
        with locked(f"{one.checkpoint}/.ckpttool/prune", timeout=0):
            said = pruned(one, two, options=["--max-size=1K", "--apply"])
        assert [tree["exit_code"] for tree in said.json["trees"]] == [13, 10]
        assert whole(one) == {"10_2", "20_2", "30_2", "40_2"}
        assert whole(two) == {"40_2"}


class FakeDisk:
    """A disk that is as full as its trees are large."""

    def __init__(self, patch: pytest.MonkeyPatch, total: int, *trees: TreeBuilder) -> None:
        self._total, self._trees = total, trees
        self.leaks = 0
        """Bytes that deletions do not free."""
        patch.setattr(LocalDisk, "space", lambda *_: self.space())

    def space(self) -> Space:
        free_bytes = self._total - du(*self._trees) - self.leaks
        return Space(limit="the disk", free_bytes=free_bytes, total_bytes=self._total)


class TestFree:
    def test_so_much_is_free_afterwards_not_so_much_freed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = grown(tmp_path)
        disk = FakeDisk(monkeypatch, 8 << 20, one)
        wanted = disk.space().free_bytes + one_save(one) + 1
        said = pruned(one, options=[f"--free={wanted / KIB:.9f}K", "--apply"])
        assert (said.code, going(said.json)) == (0, ["10_2", "20_2"])
        assert disk.space().free_bytes >= wanted
        (space,) = said.json["space"]
        assert (space["aim"], space["of"], space["missing"]) == ("free", "the disk", 0)
        assert space["after"] == disk.space().free_bytes

    def test_a_share_of_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one = grown(tmp_path)
        FakeDisk(monkeypatch, 4 * du(one), one)
        assert going(pruned(one, options=["--free=50%"]).json) == []
        assert going(pruned(one, options=["--free=76%"]).json) == ["10_2"]

    def test_what_is_freed_less_than_planned_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one = grown(tmp_path)
        disk = FakeDisk(monkeypatch, 8 << 20, one)
        wanted = disk.space().free_bytes + one_save(one) // 2

        def leak(*_: object, **__: object) -> None:
            disk.leaks = one_save(one)

        monkeypatch.setattr("ckpttool.retention.execution.tidy", leak)
        said = pruned(one, options=[f"--free={wanted / KIB}K", "--apply"])
        assert (said.code, going(said.json)) == (10, ["10_2"])
        (finding,) = said.json["findings"]
        assert finding["code"] == "room-short"
        assert finding["remedy"].startswith("run again: other programs write to the disk")

    def test_a_quota_that_leaves_less_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one = grown(tmp_path / "run")
        used = du(one) // KIB
        programs(
            tmp_path, monkeypatch, f"Disk quotas for user me (uid {os.getuid()}):\n /dev/q {used} 0 {used} 0 1 0 0 0\n"
        )
        said = pruned(one, options=[f"--free={one_save(one) / KIB / 2}K"])
        assert (said.code, going(said.json)) == (0, ["10_2"])
        disk, quota = said.json["space"]
        assert disk["before"] > quota["before"] == 0
        assert quota["of"] == f"the quota of user {os.getuid()}"

    def test_a_quota_that_nobody_could_read_leaves_the_space_unknown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ckpttool.core.storage.quotas.SECONDS", 0.05)
        one = grown(tmp_path / "run")
        programs(tmp_path, monkeypatch, "", then="sleep 600")
        said = pruned(one, options=["--free=1K"])
        assert said.code == ExitCode.INCOMPLETE
        assert [finding["code"] for finding in said.json["findings"]] == ["room-unknown"]
        assert "quota did not answer" in said.json["findings"][0]["message"]

    def test_the_trash_would_free_nothing(self, tmp_path: Path) -> None:
        said = pruned(grown(tmp_path), options=["--free=1T", "--trash-days=7"])
        assert (said.code, said.stderr.count("\n")) == (2, 1)
        assert "nothing would be freed" in said.stderr

    @pytest.mark.parametrize("text", ["5", "0%", "101%", "x", "-5G", "5X", "1e3G", "10 %", "0G"])
    def test_an_amount_that_is_none_is_answered_in_one_line(self, text: str) -> None:
        for option in ("--free", "--max-size"):
            said = ask("prune", "output", "--keep-last", "1", f"{option}={text}", "-q")
            assert (said.code, said.stderr.count("\n")) == (2, 1)
            assert f"{option} takes a size such as 500GiB" in said.stderr

    @pytest.mark.parametrize("text", ["5TiB", "5TB", "5T", "5t", "5120G", "5.0TiB"])
    def test_sizes_are_powers_of_1024_however_they_are_written(self, text: str, tmp_path: Path) -> None:
        said = pruned(grown(tmp_path), options=[f"--max-size={text}"])
        assert said.json["space"][0]["bytes"] == 5 << 40


def programs(folder: Path, patch: pytest.MonkeyPatch, output: str, *, then: str = "") -> None:
    """A disk `/dev/q` whose quotas are those."""
    place = folder / "bin"
    place.mkdir()
    for name in ("cat", "sh", "sleep"):
        (place / name).symlink_to(str(shutil.which(name)))
    program(place, "quota", output=output, then=then)
    patch.setenv("PATH", str(place))
    patch.setattr("ckpttool.retention.reading_room.mount_table", lambda: "36 35 98:0 / / rw - ext4 /dev/q rw\n")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 8 MiB in memory."""
    reason = why_not(tmp_path, images=False)
    if reason is not None:
        pytest.skip(reason)
    with in_memory(tmp_path / "disk", pages=2048, inodes=2048) as place:
        yield place


def test_a_real_disk_has_the_room_afterwards(disk: Path) -> None:
    one, two = grown(disk / "one", saves=3), grown(disk / "two", since=5, saves=3)
    before = os.statvfs(disk).f_bavail * 4096
    wanted = before + 2 * one_save(one) + 1
    said = pruned(one, two, options=[f"--free={wanted / KIB:.9f}K", "--apply"])
    assert said.code == 0
    assert os.statvfs(disk).f_bavail * 4096 >= wanted
    assert whole(one) == {"30_2"}
    assert whole(two) == {"20_2", "30_2"}


def test_a_full_disk_is_pruned_with_the_reserve_that_a_seal_left(disk: Path) -> None:
    tree = grown(disk, saves=3)
    seal(tree)
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    said = pruned(tree, options=[f"--free={one_save(tree) // 2 / KIB}K", "--apply"])
    assert (said.code, going(said.json)) == (0, ["10_2"])
    assert os.statvfs(disk).f_bavail * 4096 >= one_save(tree) // 2


def test_a_bucket_has_a_size_but_no_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(FIXTURES / "layouts/hf_single", tmp_path / "stores/run/hf_single")
    one = grown(tmp_path / "one")
    with relay_over(tmp_path / "stores", monkeypatch):
        options = ("--keep-last", "1", "--grace", "0", "--json")
        said = ask("prune", "s3://run/hf_single", *options, "--max-size=100K")
        assert (said.code, going(said.json)) == (0, ["checkpoint-4"])
        assert said.json["space"][0]["before"] == sum(save["bytes"] for save in said.json["checkpoints"])
        assert {place["name"] for place in said.json["elsewhere"]} == {"checkpoint-4"}
        refused = ask("prune", "s3://run/hf_single", *options, "--free=1K")
        assert (refused.code, "--free needs a tree on a disk of this machine" in refused.stderr) == (2, True)
        both = ask("prune", "s3://run/hf_single", str(one.checkpoint), *options, "--free=1K")
        assert [tree["exit_code"] for tree in both.json["trees"]] == [2, 0]


def test_the_answer_is_the_golden_one(here: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(here)

    def one_mebibyte(status: os.stat_result) -> FileUse:  # as the blocks of a file differ between disks
        return use((status.st_dev, status.st_ino), 0 if stat.S_ISDIR(status.st_mode) else 1 << 20)

    monkeypatch.setattr("ckpttool.retention.reading_room._use", one_mebibyte)
    monkeypatch.setattr("ckpttool.retention.verbs_room.own_bytes", lambda _: 0)
    for name, size in (("room", "10M"), ("room-short", "3M")):
        options = ("output", "--keep-last", "1", "--keep-daily", "2", "--max-size", size)
        said = ask("prune", *options)
        golden(f"prune/{name}.txt", said.stdout)
        assert lines_too_long(said) == []
        golden(f"prune/{name}.json", ask("prune", *options, "--json").stdout)


# ---- stopped anywhere ----


def pair(folder: Path) -> list[TreeBuilder]:
    """Two sealed trees."""
    trees = [grown(folder / "one", saves=3), grown(folder / "two", since=1, saves=3)]
    for tree in trees:
        seal(tree)
    return trees


def prune_both(trees: Sequence[TreeBuilder]) -> None:
    """Prune both until each has only its last save."""
    paths = [str(tree.checkpoint) for tree in trees]
    aim = Aim(max_size=ByteCount(1))
    for answer in prune_to(paths, RetentionPolicy(keep_last=1), PruneOrder(apply=True), aim=aim):
        if isinstance(answer, CkptToolError):
            raise answer


@pytest.mark.no_cover
@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
def test_wherever_it_stops_what_remains_is_whole_and_the_next_one_finishes(
    way: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    original = pair(tmp_path / "original")
    undisturbed = copies(original, tmp_path / "undisturbed")
    everything = [whole(tree) for tree in undisturbed]
    prune_both(undisturbed)
    expected = [files(tree) for tree in undisturbed]
    for nth in calls_to_stop_at(way, request.config):
        trees = copies(original, tmp_path / str(nth))
        stop = stopped(partial(prune_both, trees), nth, way)
        if not stop.happened:
            assert nth > 40
            return
        for tree, all_of_it in zip(trees, everything, strict=True):
            assert {"30_2"} <= whole(tree) <= all_of_it
        prune_both(trees)
        assert [files(tree) for tree in trees] == expected, f"stopped at call {nth}, {stop.calls[nth - 1]}"
        shutil.rmtree(tmp_path / str(nth))
    pytest.fail("more calls than two prunes should need")


def copies(trees: Sequence[TreeBuilder], folder: Path) -> list[TreeBuilder]:
    made = []
    for tree in trees:
        copy = TreeBuilder(folder / tree.base.name)
        shutil.copytree(tree.output, copy.output)
        made.append(copy)
    return made


def test_a_disk_that_fails_for_one_tree_does_not_stop_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = grown(tmp_path / "one"), grown(tmp_path / "two", since=1)
    real = os.rename

    def rename(source: str, target: str, **places: int) -> None:
        if (one.checkpoint / ".ckpttool/prune.json").exists() and not (
            two.checkpoint / ".ckpttool/prune.json"
        ).exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target, **places)

    monkeypatch.setattr(os, "rename", rename)
    said = pruned(one, two, options=["--max-size=1K", "--apply"])
    assert [tree["exit_code"] for tree in said.json["trees"]] == [1, 10]
    assert json.dumps(said.json["trees"][0]["error"]).count("stopped while moving") == 1
    monkeypatch.undo()
    assert whole(one) == {"10_2", "20_2", "30_2", "40_2"}
    assert whole(two) == {"40_2"}
