"""What a prune does to a tree, and what it never does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy, Why
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import IncompleteError, LockedError, UnknownLayoutError, UnsafeError, UsageError
from ckpttool.core.verbs.changes import assert_unchanged
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.files import locked
from ckpttool.retention import execution as pruning
from ckpttool.types import DataQuestion
from tests.support.prunable_trees import (
    LAYOUTS,
    files,
    legacy,
    names_and_inodes,
    newer,
    outside_trash,
    pruned,
    resumes_from,
    seal,
)
from tests.support.trees import TreeBuilder

OLD_NS = 1_700_000_000_000_000_000


class TestWhatGoes:
    def test_a_dry_run_changes_nothing_and_leaves_nothing(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        before = files(tree)
        pruning = pruned(tree, apply=False)
        assert [one.name for one in pruning.plan.going] == ["_1-25_2", "20_2", "15_2", "10_2"]
        assert not pruning.applied
        assert files(tree) == before
        assert not (tree.checkpoint / ".ckpttool").exists()

    def test_all_ranks_of_what_goes_are_gone_and_all_else_is_as_it_was(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        for path in ("rank_0/x_rank_0-3_3_breakpoint.ckpt", "rank_0/notes.txt", "rank_0_bak/x", "rank_1/a-graph.meta"):
            tree.file(f"checkpoint/{path}", "mine")
        tree.file("checkpoint_network/rank_0/llama2_7b_rank_0-network-10_2.ckpt", "mine")
        before = files(tree)
        assert pruned(tree, last=2).applied
        assert set(before) - set(files(tree)) == {
            f"rank_{rank}/llama2_7b_rank_{rank}-{epoch}_2.ckpt" for rank in range(3) for epoch in (10, 15, 20)
        }
        assert {path for path, content in files(tree).items() if before[path] != content} == {"rank_1/meta.json"}
        assert (tree.output / "checkpoint_network/rank_0/llama2_7b_rank_0-network-10_2.ckpt").exists()

    def test_in_the_newer_layout_folders_go_whole_and_the_tracker_names_what_stays(self, tmp_path: Path) -> None:
        tree = newer(tmp_path)
        assert pruned(tree).applied
        assert {path.split("/", maxsplit=1)[0] for path in files(tree)} == {
            "iteration_00000030",
            "latest_checkpointed_iteration.txt",
        }
        assert (tree.checkpoint / "latest_checkpointed_iteration.txt").read_bytes() == b"30"

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_resume_point_is_the_same_and_a_second_prune_has_nothing_to_do(
        self, layout: str, tmp_path: Path
    ) -> None:
        tree = LAYOUTS[layout](tmp_path)
        before = resumes_from(tree)
        pruned(tree)
        assert resumes_from(tree) == before
        after = files(tree)
        assert pruned(tree).plan.going == ()
        assert files(tree) == after

    def test_a_record_that_names_what_goes_names_the_newest_afterwards(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        meta = tree.checkpoint / "rank_1/meta.json"
        meta.chmod(0o640)
        before = (tree.checkpoint / "rank_0/meta.json").read_bytes()
        pruning = pruned(tree)
        assert [(fix.path, fix.trouble) for fix in pruning.fixes] == [
            ("rank_1/meta.json", "names llama2_7b_rank_1-15_2.ckpt, which will be deleted")
        ]
        assert meta.read_bytes() == (
            b'{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "llama2_7b_rank_1_1-30_2.ckpt"}'
        )
        assert meta.stat().st_mode & 0o777 == 0o640
        assert (tree.checkpoint / "rank_0/meta.json").read_bytes() == before

    def test_on_a_rank_that_has_no_newer_one_the_record_names_what_is_left_there(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=4, sparse=True).save(epoch=5, step=2).save(epoch=10, step=2)
        tree.save(epoch=20, step=2, run=1, ranks=[0, 1]).meta(3, 5, 2, "llama2_7b_rank_3-5_2.ckpt")
        pruned(tree)
        assert b"llama2_7b_rank_3-10_2.ckpt" in (tree.checkpoint / "rank_3/meta.json").read_bytes()
        assert resumes_from(tree) == "10_2"  # one save on half of the ranks may be one that was cut off

    def test_a_manifest_goes_with_its_checkpoint(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        seal(tree)
        pruned(tree)
        assert {path for path in files(tree) if path.endswith(".manifest.json")} == {
            ".ckpttool/llama2_7b-_1-30_2.ckpt.manifest.json"
        }


class TestTrash:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_what_goes_lies_in_the_trash_for_as_long_as_was_asked(self, layout: str, tmp_path: Path) -> None:
        tree = LAYOUTS[layout](tmp_path)
        before = files(tree)
        pruned(tree, trash_days=7)
        trashed = set(files(tree)) - set(outside_trash(files(tree)))
        assert {path.split("/", maxsplit=3)[3] for path in trashed} == set(before) - set(outside_trash(files(tree)))
        assert [one.goes for one in pruned(tree, trash_days=7).trash] == [False] * len(
            list((tree.checkpoint / ".ckpttool/trash").iterdir())
        )
        assert set(files(tree)) == set(outside_trash(files(tree))) | trashed
        pruned(tree, trash_days=0)
        assert files(tree) == outside_trash(files(tree))

    def test_its_days_are_counted_from_its_name(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        for days in (6, 8):
            name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - days * 86400))
            tree.file(f"checkpoint/.ckpttool/trash/{name}-5_2/rank_0/x", "old")
        pruned(tree, last=5, trash_days=7)
        assert len(files(tree)) == len(outside_trash(files(tree))) + 1

    def test_a_folder_that_is_not_ours_stays_in_the_trash(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        for name in ("precious", "20269999T000000Z-x", "20200101T000000Z-"):
            tree.file(f"checkpoint/.ckpttool/trash/{name}/x", "mine")
        pruned(tree)
        assert len(files(tree)) == len(outside_trash(files(tree))) + 3

    def test_the_same_save_in_two_formats_gets_two_folders(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=2, sparse=True).save(epoch=10, step=2)
        tree.save(epoch=10, step=2, fmt="safetensors").save(epoch=20, step=2)
        pruned(tree, trash_days=7)
        assert sorted(path.name[16:] for path in (tree.checkpoint / ".ckpttool/trash").iterdir()) == [
            "-10_2",
            "-10_2+",
        ]


class TestWriters:
    def test_a_temporary_file_refuses_until_it_is_gone(self, tmp_path: Path) -> None:
        for place in ("rank_2/llama2_7b_rank_2_1-35_2.tmp", "rank_2/tmpab12cd34"):
            tree = legacy(tmp_path / place.rpartition("/")[2])
            tree.file(f"checkpoint/{place}")
            before = files(tree)
            pruning = pruned(tree)
            assert [(one.code, one.path) for one in pruning.refusals] == [(Code.IN_PROGRESS, place)]
            assert not pruning.applied
            assert files(tree) == before
            tree.remove(f"checkpoint/{place}")
            assert pruned(tree).applied

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_file_within_the_grace_time_refuses(self, layout: str, tmp_path: Path) -> None:
        tree = LAYOUTS[layout](tmp_path)
        path = {"legacy": tree.shard(2, 30, 2, run=1), "newer": "checkpoint/iteration_00000030/common.json"}[layout]
        tree.touch(path, time.time_ns() - 200 * 10**9)
        assert [f"checkpoint/{one.path}" for one in pruned(tree, grace=300).refusals] == [path]
        assert pruned(tree, grace=100).applied

    def test_a_clock_that_is_days_ahead_does_not_refuse_for_ever(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        tree.touch(tree.shard(2, 30, 2, run=1), time.time_ns() + 86400 * 10**9)
        assert pruned(tree).applied

    def test_a_temporary_file_of_our_own_is_no_sign_of_a_training(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).file("checkpoint/rank_1/.ckpttool-0123456789abcdef.tmp")
        assert pruned(tree).applied

    def test_nothing_to_do_is_not_refused(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).file("checkpoint/rank_2/x.tmp")
        assert pruned(tree, last=5).refusals == ()

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_tree_that_changed_since_the_plan_is_left_alone(
        self, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = LAYOUTS[layout](tmp_path)

        def change_first(found: Tree, question: TreeQuestion, *, grace: float) -> None:
            path = {"legacy": tree.shard(2, 30, 2, run=1), "newer": "checkpoint/iteration_00000010/common.json"}[layout]
            tree.touch(path, OLD_NS) if layout == "legacy" else tree.remove(path)
            assert_unchanged(found, question, grace=grace)

        monkeypatch.setattr("ckpttool.retention.execution.assert_unchanged", change_first)
        names = set(files(tree))
        with pytest.raises(IncompleteError, match="changed since the plan was made; nothing was changed"):
            pruned(tree)
        assert names - set(files(tree)) <= {"iteration_00000010/common.json"}

    def test_a_save_that_begins_meanwhile_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = legacy(tmp_path)

        def save_first(found: Tree, question: TreeQuestion, *, grace: float) -> None:
            tree.save(epoch=35, step=2, run=1, ranks=[0])
            assert_unchanged(found, question, grace=grace)

        monkeypatch.setattr("ckpttool.retention.execution.assert_unchanged", save_first)
        with pytest.raises(IncompleteError, match=r"_1-35_2\.ckpt changed since the plan"):
            pruned(tree)
        assert len(files(tree)) == 5 * 3 + 3 + 1

    def test_a_file_that_changes_at_the_last_moment_brings_everything_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = legacy(tmp_path)
        before = {path: content for path, content in files(tree).items() if path != "rank_1/meta.json"}
        real = os.rename

        def rename_and_touch(source: str, target: str, **options: int) -> None:
            real(source, target, **options)
            if source == "llama2_7b_rank_1-20_2.ckpt":
                monkeypatch.undo()
                tree.touch(tree.shard(2, 20, 2), OLD_NS)

        monkeypatch.setattr(os, "rename", rename_and_touch)
        with pytest.raises(IncompleteError, match=r"rank_2-20_2\.ckpt' changed since the plan"):
            pruned(tree)
        after = {path: content for path, content in files(tree).items() if path != "rank_1/meta.json"}
        assert after == before

    @pytest.mark.parametrize("target", ["/mnt/not-mounted/record", "loop"])
    @pytest.mark.parametrize("layout", [legacy, newer])
    def test_while_a_record_is_a_link_to_nowhere_nothing_goes(
        self, layout: Callable[[Path], TreeBuilder], target: str, tmp_path: Path
    ) -> None:
        tree = layout(tmp_path)
        path = "rank_1/meta.json" if layout is legacy else "latest_checkpointed_iteration.txt"
        (tree.checkpoint / path).unlink(missing_ok=True)
        (tree.checkpoint / path).symlink_to(Path(path).name if target == "loop" else target)
        before = names_and_inodes(tree)
        for apply in (False, True):
            pruning = pruned(tree, apply=apply)
            assert [(one.code, one.path) for one in pruning.refusals] == [(Code.META_UNREADABLE, path)]
            assert " link)" in pruning.refusals[0].message
        assert names_and_inodes(tree) == before

    def test_a_record_that_would_have_to_be_written_through_a_link_stops_the_dry_run_too(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        record = tree.checkpoint / "rank_1/meta.json"
        (tmp_path / "elsewhere").write_bytes(
            b'{"last_epoch": 10, "last_step": 2, "last_ckpt_file": "llama2_7b_rank_1-10_2.ckpt"}'
        )
        record.unlink()
        record.symlink_to(tmp_path / "elsewhere")
        before = files(tree)
        for apply in (False, True):
            (refusal,) = pruned(tree, apply=apply).refusals
            assert (refusal.code, refusal.severity) == (Code.NOT_A_REGULAR_FILE, Severity.UNSAFE)
            assert refusal.message == "rank_1/meta.json is a link, and is not replaced"
        assert files(tree) == before

    def test_another_prune_is_told_to_wait(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).folder("checkpoint/.ckpttool")
        before = files(tree)
        with locked(str(tree.checkpoint / ".ckpttool/prune"), timeout=0), pytest.raises(LockedError):
            pruned(tree)
        assert files(tree) == before
        assert pruned(tree).applied

    def test_of_many_prunes_at_once_one_works_and_nothing_is_lost(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        errors: list[BaseException] = []

        def one() -> None:
            try:
                pruned(tree)
            except (LockedError, IncompleteError) as error:
                errors.append(error)

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) < 4
        pruned(tree)
        assert {path for path in files(tree) if path.endswith(".ckpt")} == {
            f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt" for rank in range(3)
        }

    def test_beside_a_training_that_saves_no_save_is_lost(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        saved = threading.Event()

        def train() -> None:
            for epoch in range(35, 75, 5):
                tree.save(epoch=epoch, step=2, run=1)
            saved.set()

        training = threading.Thread(target=train)
        training.start()
        while not saved.is_set():
            try:
                pruned(tree, last=2)
            except (IncompleteError, LockedError):
                continue
        training.join()
        pruned(tree, last=2)
        assert resumes_from(tree) == "_1-70_2"
        assert {path.rpartition("-")[2] for path in files(tree) if path.endswith(".ckpt")} == {"65_2.ckpt", "70_2.ckpt"}


class TestPlaces:
    def test_a_rank_folder_on_another_disk_s_link_is_refused_and_nothing_is_touched(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        elsewhere = tmp_path / "elsewhere"
        (tree.checkpoint / "rank_2").rename(elsewhere)
        (tree.checkpoint / "rank_2").symlink_to(elsewhere)
        before = files(tree)
        pruning = pruned(tree)
        assert [one.message for one in pruning.refusals] == [
            "rank_2 is a link, and is neither followed nor left broken"
        ]
        assert files(tree) == before
        assert len(list(elsewhere.iterdir())) == 6

    def test_another_disk_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = legacy(tmp_path)
        real = os.lstat
        shard = str(tree.output / tree.shard(1, 10, 2))

        def lstat(path: str) -> os.stat_result:
            status = real(path)
            if path != shard:
                return status
            return os.stat_result((*status[:2], status.st_dev + 1, *status[3:]))

        monkeypatch.setattr(os, "lstat", lstat)
        assert ["on a different disk" in one.message for one in pruned(tree).refusals] == [True]

    def test_a_link_in_place_of_the_own_folder_is_never_followed(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        (tmp_path / "elsewhere").mkdir()
        (tree.checkpoint / ".ckpttool").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(Exception, match="symbolic link"):
            pruned(tree)
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_link_in_place_of_the_trash_is_never_followed(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).folder("checkpoint/.ckpttool")
        victim = tmp_path / "elsewhere/20200101T000000Z-10_2/x"
        victim.parent.mkdir(parents=True)
        victim.write_text("mine")
        (tree.checkpoint / ".ckpttool/trash").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(Exception, match="link"):
            pruned(tree)
        with pytest.raises(UnsafeError, match="link"):
            pruned(tree, last=5)
        assert victim.exists()

    def test_a_tree_reached_through_a_link_is_the_tree(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        (tmp_path / "run").symlink_to(tree.checkpoint)
        order = PruneOrder(apply=True)
        assert ckpttool.prune(TreeQuestion(path=str(tmp_path / "run")), RetentionPolicy(keep_last=1), order).applied
        assert resumes_from(tree) == "_1-30_2"

    def test_what_is_no_tree_of_saves_is_refused(self, tmp_path: Path) -> None:
        tree = newer(tmp_path)
        part = TreeQuestion(path=str(tree.checkpoint / "iteration_00000030"))
        with pytest.raises(UsageError, match="is a part of iteration_00000030"):
            ckpttool.prune(part, RetentionPolicy(keep_last=1), PruneOrder())
        tree.file("loose/model.ckpt")
        with pytest.raises(UnknownLayoutError):
            ckpttool.prune(
                TreeQuestion(path=str(tree.output / "loose/model.ckpt")), RetentionPolicy(keep_last=1), PruneOrder()
            )


class TestProof:
    def test_sealed_content_that_was_flipped_keeps_the_one_before(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        seal(tree)
        shard = tree.output / tree.shard(1, 30, 2, run=1)
        data = bytearray(shard.read_bytes())
        data[data.index(b"dense.bias") + 30] ^= 1
        shard.write_bytes(data)
        tree.touch(tree.shard(1, 30, 2, run=1), OLD_NS)
        pruning = pruned(tree)
        fates = {fate.checkpoint.name: fate.why for fate in pruning.plan.fates}
        assert fates["_1-30_2"] == (Why.NOT_WHOLE,)
        assert fates["_1-25_2"] == (Why.LAST,)
        assert [one.name for one in pruning.plan.going] == ["20_2", "15_2", "10_2"]

    def test_by_headers_alone_it_is_not_seen_but_the_seal_still_counts(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        seal(tree)
        tree.save(epoch=35, step=2, run=1)
        order = PruneOrder(level=Level.STRUCTURE)
        pruning = ckpttool.prune(TreeQuestion(path=str(tree.checkpoint)), RetentionPolicy(keep_last=1), order)
        fates = {fate.checkpoint.name: fate.why for fate in pruning.plan.fates if not fate.goes}
        assert fates == {"_1-35_2": (Why.LAST,), "_1-30_2": (Why.VERIFIED,)}

    @pytest.mark.parametrize("level", [Level.CHECKSUM, Level.NUMERICS])
    def test_every_byte_is_read_where_that_is_asked_for(self, level: Level, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        order = PruneOrder(level=level, max_age=None)
        pruning = ckpttool.prune(TreeQuestion(path=str(tree.checkpoint)), RetentionPolicy(keep_last=1), order)
        assert [one.name for one in pruning.plan.good] == ["_1-30_2"]

    def test_afterwards_mindformers_picks_what_we_pick(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        pruned(tree)
        question = TreeQuestion(path=str(tree.checkpoint))
        answer = ckpttool.resolve(question, ResumeQuestion(), DataQuestion())
        for version in ("1.3.2", "1.6.0", "2.1.0"):
            assert ckpttool.library.simulate(answer, version).would_resume == "_1-30_2"


class TestWaiting:
    @pytest.fixture(autouse=True)
    def hasty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pruning, "POLL_SECONDS", 0.02)

    def test_a_save_that_ends_in_time_is_waited_for(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).file("checkpoint/rank_1/llama2_7b_rank_1_1-35_2.tmp")
        unfinished = tree.checkpoint / "rank_1/llama2_7b_rank_1_1-35_2.tmp"
        told: list[Finding] = []

        def waiting(sign: Finding) -> None:
            told.append(sign)
            threading.Timer(0.2, unfinished.unlink).start()

        assert pruned(tree, wait=60.0, waiting=waiting).applied
        assert [sign.path for sign in told] == ["rank_1/llama2_7b_rank_1_1-35_2.tmp"]

    @pytest.mark.parametrize("apply", [True, False])
    def test_one_that_does_not_is_refused_as_without_waiting(self, apply: bool, tmp_path: Path) -> None:
        tree = legacy(tmp_path).file("checkpoint/rank_1/llama2_7b_rank_1_1-35_2.tmp")
        before = outside_trash(files(tree))
        told: list[Finding] = []
        pruning = pruned(tree, apply=apply, wait=0.2, waiting=told.append)
        assert [finding.code for finding in pruning.refusals] == [Code.IN_PROGRESS]
        assert len(told) == 1
        assert outside_trash(files(tree)) == before

    def test_a_file_that_gets_old_enough_in_time_is_waited_for(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path)
        young, now = tree.output / tree.shard(2, 30, 2, run=1), time.time()
        os.utime(young, (now, now))
        assert not pruned(tree, grace=3600.0).applied

        def age(_: Finding) -> None:
            os.utime(young, (now - 7200, now - 7200))

        assert pruned(tree, grace=3600.0, wait=3600.0, waiting=age).applied

    def test_another_ckpttool_is_waited_for(self, tmp_path: Path) -> None:
        tree = legacy(tmp_path).file("checkpoint/.ckpttool/x")
        with locked(str(tree.checkpoint / ".ckpttool/prune"), timeout=0) as held:
            with pytest.raises(LockedError):
                pruned(tree, wait=0.1)
            waiting = threading.Thread(target=lambda: pruned(tree, wait=60.0))
            waiting.start()
            time.sleep(0.3)
            assert waiting.is_alive()
        assert held is None
        waiting.join()
        assert resumes_from(tree) == "_1-30_2"
        assert "10_2" not in {
            one.name for one in ckpttool.scan(TreeQuestion(path=str(tree.checkpoint))).inventory.checkpoints
        }
