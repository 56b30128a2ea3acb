"""Parts of many machines: where a prune says that files would go, and saves of which one machine let its files go."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.node import Mount, Reach
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.machines import MachinesOfParts
from ckpttool.nodes.model import PartQuestion
from tests.support.machines import Fleet
from tests.support.prunable_trees import legacy, newer
from tests.support.trees import TreeBuilder

GOING = ["10_2", "15_2", "20_2", "_1-25_2"]


def four_ranks(tmp_path: Path) -> TreeBuilder:
    return legacy(tmp_path, ranks=4)


def fleet_of(tmp_path: Path, make: Callable[[Path], object] = four_ranks) -> Fleet:
    """Return two machines that have looked at a tree."""
    make(tmp_path)
    fleet = Fleet(tmp_path)
    fleet.look()
    return fleet


def proposed(fleet: Fleet, last: int = 1) -> Pruning:
    return ckpttool.prune(fleet.question, RetentionPolicy(keep_last=last), PruneOrder(grace=0.0))


def let_go(fleet: Fleet, number: int, paths: str, *names: str) -> None:
    """Move what one machine has of saves to its trash, as a prune of its own folder does.

    Args:
        fleet: The machines.
        number: Which of them.
        paths: A pattern of the files or folders of a save, with `{}` for its name.
        names: The saves.
    """
    since = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with fleet.on(number):
        for name in names:
            for path in sorted(fleet.tree.glob(paths.format(name))):
                place = fleet.tree / f".ckpttool/trash/{since}-{name}" / path.relative_to(fleet.tree)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)


def halves(fleet: Fleet) -> list[str | None]:
    """Look anew, and return what is said to be half gone; nothing of that is listed."""
    fleet.look()
    inventory = ckpttool.scan(fleet.question).inventory
    found = [finding.path for finding in inventory.findings if finding.code is NodesCode.HALF_GONE]
    assert not {*found} & {save.name for save in inventory.checkpoints if save.prefix == "llama2_7b"}
    return found


class TestHalfGone:
    @pytest.mark.parametrize(
        ("make", "paths", "names"),
        [(four_ranks, "rank_*/llama2_7b_rank_?*-{}.ckpt", ["10_2", "15_2"]), (newer, "{}", ["iteration_00000010"])],
    )
    def test_what_one_machine_let_go_and_another_has_is_told_and_counts_for_nothing(
        self, make: Callable[[Path], TreeBuilder], paths: str, names: list[str], tmp_path: Path
    ) -> None:
        fleet = fleet_of(tmp_path, make)
        assert halves(fleet) == []
        chosen = ckpttool.resolve(fleet.question).to_dict()["resume"]
        let_go(fleet, 1, paths, *names)
        assert halves(fleet) == names
        assert ckpttool.resolve(fleet.question).to_dict()["resume"] == chosen
        let_go(fleet, 0, paths, *names)
        assert halves(fleet) == []

    def test_half_of_a_checkpoint_never_goes(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        assert [save.name for save in reversed(proposed(fleet).plan.going)] == GOING
        let_go(fleet, 1, "rank_*/llama2_7b_rank_?*-{}.ckpt", "10_2", "15_2")
        fleet.look()
        assert [save.name for save in reversed(proposed(fleet).plan.going)] == GOING[2:]

    def test_what_came_back_is_whole_again(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        let_go(fleet, 1, "rank_*/llama2_7b_rank_?*-{}.ckpt", "10_2", "15_2")
        fleet.restore_all(1)
        assert halves(fleet) == []
        assert len(ckpttool.scan(fleet.question).inventory.checkpoints) == 5

    @pytest.mark.parametrize("ranks", [2, 1])
    def test_a_save_that_was_written_anew_under_its_name_is_no_half(self, ranks: int, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        for number in range(2):
            let_go(fleet, number, "rank_*/llama2_7b_rank_?*-{}.ckpt", "10_2")
            with fleet.on(number):
                here = sorted(int(path.name.removeprefix("rank_")) for path in fleet.tree.glob("rank_*"))
                TreeBuilder(tmp_path).legacy(ranks=4, sparse=True).save(epoch=10, step=2, ranks=here[:ranks])
                for path in fleet.tree.glob("rank_*/*-10_2.ckpt"):
                    os.utime(path, (time.time() + 5, time.time() + 5))
        assert halves(fleet) == []
        (save,) = (save for save in ckpttool.scan(fleet.question).inventory.checkpoints if save.name == "10_2")
        assert (Code.SHARD_MISSING in {finding.code for finding in save.findings}) == (ranks == 1)

    def test_another_training_s_save_of_the_same_name_is_another(self, tmp_path: Path) -> None:
        four_ranks(tmp_path)
        TreeBuilder(tmp_path).legacy(ranks=4, sparse=True, prefix="llama2_7b_more").save(epoch=10, step=2)
        fleet = Fleet(tmp_path)
        let_go(fleet, 1, "rank_*/llama2_7b_rank_?-{}.ckpt", "10_2")
        assert halves(fleet) == ["10_2"]
        left = {(save.prefix, save.name) for save in ckpttool.scan(fleet.question).inventory.checkpoints}
        assert ("llama2_7b_more", "10_2") in left
        assert ("llama2_7b", "10_2") not in left

    def test_what_lies_in_the_trash_is_not_looked_at_again(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        assert fleet.look() == 20
        before = sum(part.stat().st_size for part in fleet.parts.iterdir())
        for number in range(2):
            let_go(fleet, number, "rank_*/llama2_7b_rank_?*-{}.ckpt", "10_2", "15_2")
        assert fleet.look() == 12
        assert sum(part.stat().st_size for part in fleet.parts.iterdir()) < before


def proposed_at(fleet: Fleet, *trees: Path) -> list[tuple[str, str, int]]:
    """Let each machine look at the tree at a path of its own; return where how many files of each save would go."""
    for number, tree in enumerate(trees):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda number=number: f"node{number}")
            ckpttool.library.part(
                PartQuestion(
                    tree=TreeQuestion(path=str(tree)),
                    check=CheckQuestion(name="all"),
                    out=f"{fleet.parts}/",
                    part=f"{number + 1}/{len(trees)}",
                    run="own-paths",
                )
            )
    question = TreeQuestion(path=str(fleet.parts), root=str(fleet.tree))
    places = ckpttool.prune(question, RetentionPolicy(keep_last=1), PruneOrder(grace=0.0)).elsewhere or ()
    return [(str(place.host), place.checkpoint, len(place.paths)) for place in places]


def test_two_folders_on_one_disk_are_those_of_two_machines(tmp_path: Path) -> None:
    """So that a trial on one machine shows what two machines show."""
    four_ranks(tmp_path)
    fleet = Fleet(tmp_path)
    places = proposed_at(fleet, *(disk / "checkpoint" for disk in fleet.disks))
    assert places == [(f"node{number}", name, 2) for number in range(2) for name in GOING]


class TestOneDisk:
    """Two machines that see one disk: what would go is said of one of them."""

    @pytest.fixture
    def fleet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
        """Both see the first machine's disk."""
        four_ranks(tmp_path)
        fleet = Fleet(tmp_path, of=1)
        fleet.of, fleet.disk_of, fleet.disks = 2, ["nfs"] * 2, fleet.disks * 2
        monkeypatch.setattr("ckpttool.nodes.verbs.mount_of", _shared)
        fleet.look()
        return fleet

    def test_each_file_is_named_once_though_the_machines_shared_the_looking(self, fleet: Fleet) -> None:
        places = proposed(fleet).elsewhere
        assert places is not None
        assert [(place.host, place.checkpoint, len(place.paths)) for place in places] == [
            ("node0", name, 4) for name in GOING
        ]
        parts = ckpttool.scan(fleet.question).machines
        assert isinstance(parts, MachinesOfParts)
        assert {seat.share for seat in parts.merge.seats} == {"1/2", "2/2"}

    def test_a_machine_that_mounts_it_at_another_path_adds_no_files(self, fleet: Fleet, tmp_path: Path) -> None:
        (tmp_path / "mounted").symlink_to(fleet.disks[0])
        shutil.rmtree(fleet.parts)
        fleet.parts.mkdir()
        places = proposed_at(fleet, fleet.disks[0] / "checkpoint", tmp_path / "mounted/checkpoint")
        assert places == [("node0", name, 4) for name in GOING]

    def test_a_machine_that_may_not_write_there_is_not_the_one(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalDisk, "is_writable", lambda *_: socket.gethostname() != "node0")
        fleet.look()
        assert {place.host for place in proposed(fleet).elsewhere or ()} == {"node1"}


def _shared(*_: object) -> object:
    return Mount(kind="nfs4", source="server:/export", reach=Reach.SHARED)
