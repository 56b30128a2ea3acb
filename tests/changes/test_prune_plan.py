"""A plan that is made of what all machines saw: each lets go what it has of it, or nothing where anything differs."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ckpttool import api
from ckpttool.api import prune_plans
from ckpttool.domain.finding import Code, Severity
from ckpttool.domain.frozen import replace
from ckpttool.domain.node import Mount, Reach
from ckpttool.domain.prune_plan import ApplyOrder, Fate, PlanApplied
from ckpttool.domain.question import TreeQuestion
from ckpttool.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.domain.verdict import Level
from ckpttool.errors import (
    CkptToolError,
    IncompleteError,
    LockedError,
    UnsafeError,
    UsageError,
    WriteFailedError,
)
from ckpttool.records.prune_plan import plan_bytes, read_plan
from ckpttool.storage.disk import LocalDisk
from ckpttool.trainers.locate import locate
from ckpttool.write.files import locked
from tests.changes.test_prune_full_disk import fill
from tests.conftest import FIXTURES
from tests.reliability.disks import in_memory, why_not
from tests.support.machines import Fleet, files_in
from tests.support.prunable_trees import WAYS, calls_to_stop_at, legacy, newer, stopped
from tests.support.split_trees import aged
from tests.support.trees import TreeBuilder


def fleet_of(tmp_path: Path, make: Callable[[Path], object] = legacy, *, of: int = 2, last: int = 1) -> Fleet:
    """Return machines that have looked at a tree, and the plan that keeps so many."""
    make(tmp_path)
    fleet = Fleet(tmp_path, of=of)
    fleet.look()
    assert fleet.planned(last).written is not None
    return fleet


def four_ranks(tmp_path: Path) -> TreeBuilder:
    return legacy(tmp_path, ranks=4)


def codes(answer: PlanApplied) -> list[tuple[Code, str | None]]:
    return [(finding.code, finding.path) for finding in answer.refusals]


def refused(fleet: Fleet, number: int) -> PlanApplied:
    """See that a machine moves nothing, with --apply or without."""
    before = fleet.files(number)
    dry, done = fleet.applied(number, apply=False), fleet.applied(number)
    assert codes(dry) == codes(done) != []
    assert all(finding.severity >= Severity.UNKNOWN for finding in done.refusals)
    assert not done.applied
    assert fleet.files(number) == before
    assert fleet.trash(number) == []
    return done


TREES = ["newfmt_4rank/output", "layouts/dcp_fsdp2_4ranks", "layouts/hf_ddp2", "layouts/ds_zero1_2ranks"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TREES)
def test_all_machines_together_do_what_one_prune_does_on_one_disk_and_restore_undoes_it(
    name: str, tmp_path: Path
) -> None:
    planned_as_pruned(name, tmp_path, seed=3)


def planned_as_pruned(name: str, tmp_path: Path, *, seed: int) -> None:
    output = tmp_path / "output"
    shutil.copytree(FIXTURES / name, output, symlinks=True)
    for path in output.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    aged(output)
    tree = os.path.relpath(locate(str(output)).storage.root, output).removeprefix(".")
    shutil.copytree(output, tmp_path / "whole", symlinks=True)
    order = PruneOrder(apply=True, grace=0.0, trash_days=1)
    pruned = api.prune(TreeQuestion(path=str(tmp_path / "whole" / tree)), RetentionPolicy(keep_last=1), order)
    left = {path: content for path, content in files_in(tmp_path / "whole" / tree).items() if ".ckpttool/" not in path}

    fleet = Fleet(tmp_path, tree=tree, chance=Random(seed), level=Level.CHECKSUM)  # noqa: S311
    before = [fleet.files(number) for number in range(fleet.of)]
    fleet.look()
    planned = fleet.planned()
    assert [save.name for save in planned.plan.going] == [save.name for save in pruned.plan.going] != []
    for number in range(fleet.of):
        assert fleet.applied(number).refusals == ()
    together: dict[str, bytes] = {}
    for number in range(fleet.of):
        together |= fleet.files(number)
    assert together == left
    for number in range(fleet.of):
        fleet.restore_all(number)
        assert fleet.files(number) == before[number]
        assert fleet.trash(number) == []


class TestOnePlan:
    def test_a_dry_run_changes_nothing_and_leaves_nothing(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        before = files_in(fleet.disks[0])
        answer = fleet.applied(0, apply=False)
        assert [(save.name, save.fate) for save in answer.saves] == [
            (name, Fate.GO) for name in ("10_2", "15_2", "20_2", "_1-25_2")
        ]
        assert not answer.applied
        assert files_in(fleet.disks[0]) == before

    def test_what_a_machine_has_of_it_is_moved_to_its_trash_and_nothing_is_deleted(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        before = fleet.files(0)
        answer = fleet.applied(0)
        assert answer.applied
        gone = {path for path in before if path not in fleet.files(0)}
        assert gone == {
            path for path in before if path.endswith(("-10_2.ckpt", "-15_2.ckpt", "-20_2.ckpt", "_1-25_2.ckpt"))
        }
        assert fleet.trash(0) == sorted(gone)
        assert all("rank_1" not in path for path in gone)

    def test_done_twice_it_says_that_nothing_is_left_to_do(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        fleet.applied(0)
        after = fleet.files(0)
        answer = fleet.applied(0)
        assert (answer.refusals, answer.batches) == ((), ())
        assert {save.fate for save in answer.saves} == {Fate.GONE}
        assert fleet.files(0) == after

    def test_a_record_that_names_what_goes_names_the_newest_before_anything_moves(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, of=3)
        answer = fleet.applied(1)
        assert [fix.path for fix in answer.fixes] == ["rank_1/meta.json"]
        assert b"llama2_7b_rank_1_1-30_2.ckpt" in fleet.files(1)["rank_1/meta.json"]
        assert fleet.applied(0).fixes == ()

    def test_in_the_newer_layout_each_machine_s_folder_goes_whole(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, newer)
        for number in range(2):
            assert fleet.applied(number).applied
            with fleet.on(number):
                assert [path.name for path in fleet.tree.glob("iteration_*")] == ["iteration_00000030"]

    def test_seals_go_with_their_checkpoints_and_come_back_with_them(self, tmp_path: Path) -> None:
        four_ranks(tmp_path).meta(1, 30, 2, "llama2_7b_rank_1_1-30_2.ckpt")
        fleet = Fleet(tmp_path)
        fleet.look(seal=True)
        before = [fleet.files(number) for number in range(2)]
        fleet.planned()
        for number in range(2):
            assert fleet.applied(number).applied
            seals = [path for path in fleet.files(number) if ".ckpttool/seals" in path]
            assert seals == [f".ckpttool/seals/llama2_7b-_1-30_2.ckpt.manifest/{number + 1}-of-2.json"]
            fleet.restore_all(number)
            assert fleet.files(number) == before[number]

    def test_a_machine_that_dies_leaves_half_a_checkpoint_of_which_newer_good_ones_are_chosen(
        self, tmp_path: Path
    ) -> None:
        fleet = fleet_of(tmp_path, four_ranks, last=2)
        fleet.applied(1)
        fleet.look()
        answer = api.resolve(fleet.question, api.ResumeQuestion(), api.DataQuestion())
        assert answer.to_dict()["resume"]["name"] == "_1-30_2"
        assert fleet.planned(last=1).refusals == ()
        assert [save.name for save in fleet.planned(last=1).plan.going] == ["_1-25_2"]  # half of one never goes


def halves(fleet: Fleet) -> list[str | None]:
    """Look anew, and return what is said to be half gone; nothing of that is listed."""
    fleet.look()
    inventory = api.scan(fleet.question).inventory
    found = [finding.path for finding in inventory.findings if finding.code is Code.HALF_GONE]
    assert not {*found} & {save.name for save in inventory.checkpoints if save.prefix == "llama2_7b"}
    return found


class TestHalf:
    @pytest.mark.parametrize("make", [four_ranks, newer])
    def test_what_one_machine_let_go_and_another_has_is_told_and_counts_for_nothing(
        self, make: Callable[[Path], TreeBuilder], tmp_path: Path
    ) -> None:
        fleet = fleet_of(tmp_path, make)
        assert halves(fleet) == []
        chosen = api.resolve(fleet.question).to_dict()["resume"]
        names = [save.name for save in fleet.applied(1).going]
        assert halves(fleet) == sorted(names)
        assert api.resolve(fleet.question).to_dict()["resume"] == chosen
        assert fleet.applied(0).applied
        assert halves(fleet) == []

    def test_what_came_back_is_whole_again(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        fleet.applied(1)
        fleet.restore_all(1)
        assert halves(fleet) == []
        assert len(api.scan(fleet.question).inventory.checkpoints) == 5

    def test_a_save_that_was_written_anew_under_its_name_is_no_half(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        for number in range(2):
            fleet.applied(number)
        assert halves(fleet) == []
        for number in range(2):
            with fleet.on(number):
                ranks = [int(path.name.removeprefix("rank_")) for path in fleet.tree.glob("rank_*")]
                TreeBuilder(tmp_path).legacy(ranks=4, sparse=True).save(epoch=10, step=2, ranks=ranks)
        assert halves(fleet) == []
        assert "10_2" in {save.name for save in api.scan(fleet.question).inventory.checkpoints}

    def test_a_save_that_was_written_anew_and_lost_a_shard_is_damaged_and_no_half(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        for number in range(2):
            fleet.applied(number)
            with fleet.on(number):
                ranks = [int(path.name.removeprefix("rank_")) for path in fleet.tree.glob("rank_*")]
                TreeBuilder(tmp_path).legacy(ranks=4, sparse=True).save(epoch=10, step=2, ranks=ranks[:1])
                for path in fleet.tree.glob("rank_*/*-10_2.ckpt"):
                    os.utime(path, (time.time() + 5, time.time() + 5))
        assert halves(fleet) == []
        (save,) = (save for save in api.scan(fleet.question).inventory.checkpoints if save.name == "10_2")
        assert Code.SHARD_MISSING in {finding.code for finding in save.findings}

    def test_another_training_s_save_of_the_same_name_is_another(self, tmp_path: Path) -> None:
        four_ranks(tmp_path)
        TreeBuilder(tmp_path).legacy(ranks=4, sparse=True, prefix="llama2_7b_more").save(epoch=10, step=2)
        fleet = Fleet(tmp_path)
        fleet.look()
        fleet.planned(prefix="llama2_7b")
        assert fleet.applied(1).applied
        assert halves(fleet) == ["10_2", "15_2", "20_2", "_1-25_2"]
        left = [(save.prefix, save.name) for save in api.scan(fleet.question).inventory.checkpoints]
        assert sorted(left) == [("llama2_7b", "_1-30_2"), ("llama2_7b_more", "10_2")]

    def test_what_lies_in_the_trash_is_not_looked_at_again(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        assert fleet.look() == 20
        before = sum(part.stat().st_size for part in fleet.parts.iterdir())
        for number in range(2):
            fleet.applied(number)
        assert fleet.look() == 4
        assert sum(part.stat().st_size for part in fleet.parts.iterdir()) < before


class TestNothingToDo:
    def test_a_machine_without_the_tree_has_nothing_of_the_plan(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        shutil.rmtree(fleet.disks[1])
        fleet.disks[1].mkdir()
        answer = fleet.applied(1)
        assert (answer.saves, answer.refusals, answer.left_to) == ((), (), None)
        assert files_in(fleet.disks[1]) == {}

    def test_a_machine_that_did_not_look_and_has_none_of_its_files_has_nothing_of_it(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        fleet.disk_of[1] = "another disk"
        with fleet.on(1):
            for path in [*fleet.tree.rglob("*_2.ckpt")]:
                path.rename(path.with_name(f"{path.stem}9.ckpt"))
        answer = fleet.applied(1)
        assert (answer.saves, answer.refusals) == ((), ())

    def test_a_plan_of_nothing_is_applied_by_all(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, last=5)
        for number in range(2):
            answer = fleet.applied(number)
            assert (answer.saves, answer.refusals) == ((), ())


class TestRefused:
    def test_where_a_file_that_goes_was_written_since_nothing_moves_there_and_the_others_go_on(
        self, tmp_path: Path
    ) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            os.utime(fleet.output / "checkpoint/rank_0/llama2_7b_rank_0-15_2.ckpt", (1, 1))
        assert codes(refused(fleet, 0)) == [(Code.NOT_AS_PLANNED, "rank_0/llama2_7b_rank_0-15_2.ckpt")]
        assert fleet.applied(1).applied

    @pytest.mark.parametrize("change", ["gone", "written", "replaced"])
    def test_where_what_must_stay_is_another_file_nothing_moves(self, change: str, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            path = fleet.output / "checkpoint/rank_0/llama2_7b_rank_0_1-30_2.ckpt"
            status, content = path.stat(), path.read_bytes()
            if change == "replaced":  # same size, same time, another inode
                path.rename(tmp_path / "aside")
                path.write_bytes(content)
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            else:
                path.unlink() if change == "gone" else path.write_bytes(content + b"!")
        answer = refused(fleet, 0)
        assert codes(answer) == [(Code.NOT_AS_PLANNED, "rank_0/llama2_7b_rank_0_1-30_2.ckpt")]
        assert "because of it others were to go" in answer.refusals[0].message

    def test_half_of_what_was_planned_is_not_what_was_planned(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        with fleet.on(0):
            (fleet.output / "checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt").unlink()
        assert codes(refused(fleet, 0)) == [(Code.NOT_AS_PLANNED, "rank_0/llama2_7b_rank_0-10_2.ckpt")]

    def test_a_checkpoint_that_is_gone_here_altogether_keeps_no_other_from_going(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        with fleet.on(0):
            for path in fleet.tree.rglob("*-10_2.ckpt"):
                path.unlink()
        assert [save.name for save in fleet.applied(0).going] == ["15_2", "20_2", "_1-25_2"]

    def test_a_folder_that_goes_may_hold_nothing_that_was_not_there(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, newer)
        with fleet.on(0):
            (fleet.tree / "iteration_00000010/deeper").mkdir()
            (fleet.tree / "iteration_00000010/deeper/mine").write_text("precious")
            aged(fleet.tree / "iteration_00000010/deeper")
        assert codes(refused(fleet, 0)) == [(Code.NOT_AS_PLANNED, "iteration_00000010/deeper/mine")]

    def test_a_record_that_came_to_name_what_goes_keeps_it(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            TreeBuilder(tmp_path).meta(0, 20, 2, "llama2_7b_rank_0-20_2.ckpt")
        assert codes(refused(fleet, 0)) == [(Code.NOT_AS_PLANNED, "rank_0/meta.json")]

    def test_a_record_that_names_something_else_by_now_is_left_alone(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, of=3)
        with fleet.on(1):
            TreeBuilder(tmp_path).meta(1, 25, 9, "llama2_7b_rank_1_1-25_9.ckpt")
            before = (fleet.tree / "rank_1/meta.json").read_bytes()
        answer = fleet.applied(1)
        assert (answer.applied, answer.fixes) == (True, ())
        assert fleet.files(1)["rank_1/meta.json"] == before

    @pytest.mark.parametrize("sign", ["temporary", "young"])
    def test_while_somebody_saves_on_this_machine_nothing_moves_there(self, sign: str, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            path = (
                fleet.tree
                / "rank_0"
                / ("llama2_7b_rank_0_1-35_2.tmp" if sign == "temporary" else "llama2_7b_rank_0_1-35_2.ckpt")
            )
            shutil.copyfile(fleet.tree / "rank_0/llama2_7b_rank_0_1-30_2.ckpt", path)
            order = ApplyOrder(apply=True, grace=300.0 if sign == "young" else 0.0)
            question = TreeQuestion(path=str(fleet.tree))
            answer = api.apply_plan(question, str(fleet.plan), order)
            assert codes(answer) == [(Code.IN_PROGRESS, f"rank_0/{path.name}")]
            path.unlink()
            assert api.apply_plan(question, str(fleet.plan), order).applied

    def test_a_newer_save_that_is_there_by_now_keeps_nothing_from_going(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            source = fleet.tree / "rank_0/llama2_7b_rank_0_1-30_2.ckpt"
            shutil.copyfile(source, fleet.tree / "rank_0/llama2_7b_rank_0_1-35_2.ckpt")
        assert fleet.applied(0).applied
        assert "rank_0/llama2_7b_rank_0_1-35_2.ckpt" in fleet.files(0)

    def test_a_save_that_ends_in_time_is_waited_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ckpttool.api.plan_applying.POLL_SECONDS", 0.02)
        fleet = fleet_of(tmp_path)
        told = []
        with fleet.on(0):
            unfinished = fleet.tree / "rank_0/llama2_7b_rank_0_1-35_2.tmp"
            unfinished.touch()
            order = ApplyOrder(apply=True, grace=0.0, wait=60.0)

            def waiting(sign: object) -> None:
                told.append(sign)
                threading.Timer(0.1, unfinished.unlink).start()

            question = TreeQuestion(path=str(fleet.tree))
            assert api.apply_plan(question, str(fleet.plan), order, waiting=waiting).applied
        assert len(told) == 1

    def test_a_machine_that_started_anew_has_other_disks(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        fleet.disk_of[0] = "after the restart"
        answer = refused(fleet, 0)
        assert codes(answer) == [(Code.NOT_AS_PLANNED, "rank_0/llama2_7b_rank_0-10_2.ckpt")]
        assert "the machine started anew since" in answer.refusals[0].message

    def test_a_link_is_never_moved_nor_gone_through(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            (fleet.tree / "rank_0").rename(tmp_path / "aside")
            (fleet.tree / "rank_0").symlink_to(tmp_path / "aside")
        (finding,) = fleet.applied(0).refusals
        assert (finding.code, finding.severity) == (Code.NOT_A_REGULAR_FILE, Severity.UNSAFE)

    def test_a_link_that_leads_round_in_a_folder_that_goes_is_not_followed(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path, newer)
        with fleet.on(0):
            for name in ("round", "and-round"):
                (fleet.tree / "iteration_00000010" / name).symlink_to(".")
        found = {path for code, path in codes(refused(fleet, 0)) if code is Code.NOT_AS_PLANNED}
        assert found == {"iteration_00000010/round", "iteration_00000010/and-round"}

    def test_a_file_that_changes_at_the_last_moment_brings_everything_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = fleet_of(tmp_path, four_ranks)
        before = fleet.files(0)
        real = os.rename

        def rename_and_touch(source: str, target: str, **options: int) -> None:
            real(source, target, **options)
            if source == "llama2_7b_rank_0-20_2.ckpt":
                os.utime(fleet.tree / "rank_2/llama2_7b_rank_2-20_2.ckpt", (1, 1))

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename_and_touch)
            with pytest.raises(IncompleteError, match=r"rank_2-20_2\.ckpt' changed since the plan"):
                fleet.applied(0)
        assert fleet.files(0) == before


class TestThePlan:
    def test_one_that_is_too_old_is_good_for_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet = fleet_of(tmp_path)
        before = fleet.files(0)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3605)
        for apply in (False, True):
            with pytest.raises(IncompleteError, match=r"was good until .*; nothing was changed: make a new plan"):
                fleet.applied(0, apply=apply)
        assert fleet.files(0) == before
        monkeypatch.setattr(time, "time", lambda: now + 3590)
        assert fleet.applied(0).applied

    def test_one_that_gets_too_old_while_a_save_is_waited_for_is_not_applied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            (fleet.tree / "rank_0/llama2_7b_rank_0_1-35_2.tmp").touch()
            now = time.time()
            monkeypatch.setattr("ckpttool.api.plan_applying.POLL_SECONDS", 0.02)

            def waiting(sign: object) -> None:
                del sign
                (fleet.tree / "rank_0/llama2_7b_rank_0_1-35_2.tmp").unlink()
                monkeypatch.setattr(time, "time", lambda: now + 4000)

            order = ApplyOrder(apply=True, grace=0.0, wait=60.0)
            with pytest.raises(IncompleteError, match="was good until"):
                api.apply_plan(TreeQuestion(path=str(fleet.tree)), str(fleet.plan), order, waiting=waiting)
        assert fleet.trash(0) == []

    def test_one_of_a_time_that_is_still_to_come_is_not_believed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = fleet_of(tmp_path)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 90)
        with pytest.raises(IncompleteError, match="which is still to come on this machine"):
            fleet.applied(0)
        with fleet.on(0):
            question = TreeQuestion(path=str(fleet.tree), skew=120.0)
            assert api.apply_plan(question, str(fleet.plan), ApplyOrder(grace=0.0)).refusals == ()

    def test_one_that_is_torn_changes_nothing(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        before = files_in(fleet.disks[0])
        fleet.plan.write_bytes(fleet.plan.read_bytes()[:-30])
        with pytest.raises(IncompleteError, match="is torn or edited"):
            fleet.applied(0)
        assert files_in(fleet.disks[0]) == before

    def test_one_of_a_layout_that_nobody_knows_is_another_ckpttool_s(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        plan = read_plan(fleet.plan.read_bytes(), name="x")
        fleet.plan.write_bytes(plan_bytes(replace(plan, layout="loose-file")))
        with pytest.raises(IncompleteError, match="is of a layout 'loose-file': another ckpttool made it"):
            fleet.applied(0)

    def test_another_tree_is_not_the_one_that_it_is_of(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            shutil.copytree(fleet.output, tmp_path / "other")
            with pytest.raises(UsageError, match="is not the tree that the plan is of, which is"):
                api.apply_plan(TreeQuestion(path=str(tmp_path / "other")), str(fleet.plan))

    def test_the_tree_may_be_named_by_its_output_folder_or_through_a_link(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        (tmp_path / "link").symlink_to(fleet.tree)
        with fleet.on(0):
            for path in (fleet.output, tmp_path / "link", fleet.tree / "rank_0"):
                answer = api.apply_plan(TreeQuestion(path=str(path)), str(fleet.plan), ApplyOrder(grace=0.0))
                assert len(answer.batches) == 4

    def test_parts_are_no_place_to_apply_it(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with pytest.raises(UnsafeError, match="run this on the machine that has the files"):
            api.apply_plan(fleet.question, str(fleet.plan))

    @pytest.mark.parametrize("root", ["s3://bucket/run/checkpoint", "gs://bucket/x", "az://container/x"])
    def test_an_object_store_is_no_place_to_apply_it(self, root: str, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with pytest.raises(UnsafeError, match="is only read: ckpttool changes nothing but folders of this machine"):
            api.apply_plan(TreeQuestion(path=root), str(fleet.plan))

    def test_where_a_part_is_missing_nothing_is_written_and_an_earlier_plan_stays(self, tmp_path: Path) -> None:
        legacy(tmp_path)
        fleet = Fleet(tmp_path)
        fleet.look()
        (part,) = fleet.parts.glob("*00002-of*")
        part.unlink()
        planned = fleet.planned()
        assert Code.PART_MISSING in {finding.code for finding in planned.refusals}
        assert planned.written is None
        assert not fleet.plan.exists()

    def test_where_a_part_is_stale_nothing_is_written(self, tmp_path: Path) -> None:
        legacy(tmp_path)
        fleet = Fleet(tmp_path)
        with fleet.on(0):  # its newest save is younger than the other machine's look
            path = fleet.tree / "rank_0/llama2_7b_rank_0_1-35_2.ckpt"
            shutil.copyfile(fleet.tree / "rank_0/llama2_7b_rank_0_1-30_2.ckpt", path)
            os.utime(path, (time.time() + 600, time.time() + 600))
        fleet.look()
        planned = fleet.planned()
        assert planned.written is None or "_1-35_2" not in {save.name for save in planned.plan.good}
        assert all(save.name != "_1-30_2" for save in planned.plan.going)

    def test_it_is_for_later(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        order = PruneOrder(apply=True, plan_out=str(tmp_path / "plan.json"))
        with pytest.raises(UsageError, match="a plan is written for later"):
            api.prune(TreeQuestion(path=str(tree.checkpoint)), RetentionPolicy(keep_last=1), order)


class TestTrash:
    def test_without_days_nothing_is_ever_deleted_and_with_them_what_is_older(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with fleet.on(0):
            for days in (1, 3):
                name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - days * 86400 - 60))
                (fleet.tree / f".ckpttool/trash/{name}-5_2/rank_0").mkdir(parents=True)
                (fleet.tree / f".ckpttool/trash/{name}-5_2/rank_0/{days}").touch()
        assert fleet.applied(0).applied
        assert {"rank_0/1", "rank_0/3"} < {*fleet.trash(0)}
        answer = fleet.applied(0, trash_days=2)  # nothing is left to move
        assert [entry.goes for entry in answer.trash] == [True, False, False, False, False, False]
        assert "rank_0/1" in fleet.trash(0)
        assert "rank_0/3" not in fleet.trash(0)
        assert len(fleet.trash(0)) == 9  # two ranks, four checkpoints

    @pytest.mark.parametrize("days", [0.0, 0.5])
    def test_less_than_a_day_is_refused(self, days: float, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        with pytest.raises(UsageError, match="for --trash-days 1 at least"):
            fleet.applied(0, trash_days=days)


class TestOneDisk:
    """Two machines that see one disk: one of them moves."""

    @pytest.fixture
    def fleet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
        """Both see the first machine's disk."""
        four_ranks(tmp_path)
        fleet = Fleet(tmp_path, of=1)
        fleet.of, fleet.disk_of, fleet.disks = 2, ["nfs"] * 2, fleet.disks * 2
        monkeypatch.setattr("ckpttool.api.parts.mount_of", _shared)
        monkeypatch.setattr("ckpttool.api.prune_plans.mount_of", _shared)
        fleet.look()
        assert fleet.planned().written is not None
        return fleet

    def test_the_first_of_the_machines_moves_all_of_it_and_the_other_says_so(self, fleet: Fleet) -> None:
        before = fleet.files(0)
        answer = fleet.applied(1)
        assert (answer.left_to, answer.saves, answer.refusals) == ("node0", (), ())
        assert fleet.files(0) == before
        assert [save.files for save in fleet.applied(0).going] == [4] * 4
        assert fleet.applied(1).left_to == "node0"

    def test_one_that_may_not_write_there_is_not_the_one_that_moves(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalDisk, "is_writable", lambda *_: socket.gethostname() != "node0")
        fleet.look()
        fleet.planned()
        assert fleet.applied(0).left_to == "node1"
        assert fleet.applied(1).applied

    def test_each_file_is_named_once_though_the_machines_shared_the_looking(self, fleet: Fleet) -> None:
        plan = read_plan(fleet.plan.read_bytes(), name="x")
        assert len(plan.disks) == 1
        assert [machine.host for machine in plan.disks[0].machines] == ["node0", "node1"]
        assert [len(share.files) for save in plan.going for share in save.shares] == [4] * 4
        parts = api.scan(fleet.question).looks
        assert parts is not None
        assert {seat.share for seat in parts.merge.seats} == {"1/2", "2/2"}

    def test_of_many_at_once_one_moves_and_the_others_are_told(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[PlanApplied | CkptToolError] = []
        with fleet.on(0):
            monkeypatch.setattr(socket, "gethostname", lambda: "a name that nobody knows")  # pods have new ones

            def one() -> None:
                try:
                    order = ApplyOrder(apply=True, grace=0.0)
                    told.append(api.apply_plan(TreeQuestion(path=str(fleet.tree)), str(fleet.plan), order))
                except (LockedError, IncompleteError) as error:
                    told.append(error)

            threads = [threading.Thread(target=one) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        moved = [each for each in told if isinstance(each, PlanApplied) and each.batches and each.applied]
        assert len(moved) == 1
        assert len(fleet.trash(0)) == 16


def _shared(*_: object) -> object:
    return Mount(kind="nfs4", source="server:/export", reach=Reach.SHARED)


class TestOrdinaryTree:
    """A plan of a tree on one disk, which somebody else looks at before it is applied."""

    def planned(self, tmp_path: Path) -> tuple[TreeBuilder, Path]:
        tree, plan = legacy(tmp_path), tmp_path / "plan.json"
        order = PruneOrder(grace=0.0, plan_out=str(plan))
        pruning = api.prune(TreeQuestion(path=str(tree.checkpoint)), RetentionPolicy(keep_last=2), order)
        assert pruning.written is not None
        return tree, plan

    def apply(self, tree: TreeBuilder, plan: Path) -> PlanApplied:
        return api.apply_plan(TreeQuestion(path=str(tree.checkpoint)), str(plan), ApplyOrder(apply=True, grace=0.0))

    def test_it_is_pruned_as_without_a_plan(self, tmp_path: Path) -> None:
        (tmp_path / "one").mkdir()
        (tmp_path / "other").mkdir()
        tree, plan = self.planned(tmp_path / "one")
        assert self.apply(tree, plan).applied
        other = legacy(tmp_path / "other")
        order = PruneOrder(apply=True, grace=0.0, trash_days=1)
        api.prune(TreeQuestion(path=str(other.checkpoint)), RetentionPolicy(keep_last=2), order)
        mine, theirs = ({path for path in files_in(each.checkpoint) if "trash" not in path} for each in (tree, other))
        assert mine == theirs

    def test_a_colleague_on_another_machine_of_the_same_disk_applies_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree, plan = self.planned(tmp_path)
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert len(self.apply(tree, plan).batches) == 3

    def test_what_changed_since_is_not_moved(self, tmp_path: Path) -> None:
        tree, plan = self.planned(tmp_path)
        tree.touch(tree.shard(1, 30, 2, run=1), time.time_ns() - 10**15)
        assert codes(self.apply(tree, plan)) == [(Code.NOT_AS_PLANNED, "rank_1/llama2_7b_rank_1_1-30_2.ckpt")]

    def test_a_link_that_leads_round_is_in_no_plan(self, tmp_path: Path) -> None:
        shutil.copytree(FIXTURES / "layouts/hf_single", tmp_path / "output")
        for path in (tmp_path / "output", *(tmp_path / "output").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        aged(tmp_path / "output")
        question, policy = TreeQuestion(path=str(tmp_path / "output")), RetentionPolicy(keep_last=1)
        order = PruneOrder(grace=0.0, plan_out=str(tmp_path / "plan.json"))
        assert api.prune(question, policy, order).written is not None
        for name in ("round", "and-round"):
            (tmp_path / "output/checkpoint-4" / name).symlink_to(".")
        with pytest.raises(IncompleteError, match="is a link to a folder, and a plan names files alone"):
            api.prune(question, policy, order)

    def test_a_tree_that_changes_while_the_plan_is_made_has_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = legacy(tmp_path)
        real = prune_plans.planned

        def touch_first(*arguments: object, **options: object) -> object:
            tree.touch(tree.shard(1, 30, 2, run=1), time.time_ns() - 10**15)
            return real(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr("ckpttool.api.pruning.planned", touch_first)
        with pytest.raises(IncompleteError, match="changed since the plan was made"):
            self.planned(tmp_path)
        assert not (tmp_path / "plan.json").exists()


@pytest.mark.no_cover
@pytest.mark.sample(2)
class TestStopped:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", lambda _: None)

    def test_another_ckpttool_is_told_to_wait(self, tmp_path: Path) -> None:
        fleet = fleet_of(tmp_path)
        before = fleet.files(0)
        with fleet.on(0):
            (fleet.tree / ".ckpttool").mkdir()
            order = ApplyOrder(apply=True, grace=0.0)
            with locked(f"{fleet.tree}/.ckpttool/prune", timeout=0), pytest.raises(LockedError):
                api.apply_plan(TreeQuestion(path=str(fleet.tree)), str(fleet.plan), order)
        assert fleet.files(0) == before
        assert fleet.applied(0).applied

    @pytest.mark.parametrize("make", [four_ranks, newer])
    @pytest.mark.parametrize("way", WAYS)
    def test_wherever_it_stops_the_next_one_finishes_and_what_stays_was_never_away(
        self, way: str, make: Callable[[Path], TreeBuilder], tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        fleet = fleet_of(tmp_path, make)
        everything = fleet.files(0)
        fleet.applied(0)
        expected, trashed = fleet.files(0), fleet.trash(0)
        stays = {path: content for path, content in expected.items() if not path.endswith((".json", ".txt"))}
        for nth in calls_to_stop_at(way, request.config):
            put_back(fleet)
            with fleet.on(0):
                asked = TreeQuestion(path=str(fleet.tree)), str(fleet.plan), ApplyOrder(apply=True, grace=0.0)
                stop = stopped(partial(api.apply_plan, *asked), nth, way)
            if not stop.happened:
                assert nth > 20
                return
            assert stays.items() <= fleet.files(0).items()
            assert {*fleet.files(0), *fleet.trash(0)} >= {*everything}, f"lost at call {nth}, {stop.calls[nth - 1]}"
            assert fleet.applied(0).refusals == ()
            assert (fleet.files(0), fleet.trash(0)) == (expected, trashed), f"stopped at {nth}, {stop.calls[nth - 1]}"
        pytest.fail("more calls than it should need")


def put_back(fleet: Fleet) -> None:
    """Bring all back that went from the first machine, each file with its stamp, and let it be as if never changed."""
    with fleet.on(0):
        for trashed in (fleet.tree / ".ckpttool/trash").iterdir():
            for path in sorted(trashed.iterdir()):
                place = fleet.tree / path.name
                for each in path.iterdir() if place.exists() else ():
                    each.rename(place / each.name)
                if not place.exists():
                    path.rename(place)
        shutil.rmtree(fleet.tree / ".ckpttool")


@pytest.fixture
def disk(tmp_path: Path) -> object:
    reason = why_not(tmp_path, images=False)
    if reason is not None:
        pytest.skip(reason)
    (tmp_path / "small").mkdir()
    return tmp_path / "small"


def test_a_full_disk_changes_nothing_and_with_a_reserve_all_of_it_goes_to_the_trash(disk: Path, tmp_path: Path) -> None:
    with in_memory(disk, pages=2048, inodes=2048) as place:
        for name in ("first", "second"):
            tree = legacy(place / name)
            plan = tmp_path / f"{name}.json"
            question = TreeQuestion(path=str(tree.checkpoint))
            if name == "second":
                api.prune(question, RetentionPolicy(keep_last=4), PruneOrder(apply=True, grace=0.0))  # leaves a reserve
            order = PruneOrder(grace=0.0, plan_out=str(plan))
            assert api.prune(question, RetentionPolicy(keep_last=2), order).written is not None
            before = files_in(tree.checkpoint)
            fill(place)
            if name == "first":
                with pytest.raises(WriteFailedError, match="No space left on device"):
                    api.apply_plan(question, str(plan), ApplyOrder(apply=True, grace=0.0))
                assert {path for path in files_in(tree.checkpoint) if ".lock" not in path} == {*before}
                (place / "filler").unlink()
                shutil.rmtree(place / "first")
            else:
                assert api.apply_plan(question, str(plan), ApplyOrder(apply=True, grace=0.0)).applied
                gone = {*before} - {*files_in(tree.checkpoint)}
                assert len({path for path in gone if path.endswith(".ckpt")}) == 6
