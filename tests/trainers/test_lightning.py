"""What Lightning's saves tell, what it takes by itself, and where its data go on; on trees that it wrote."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.trainers.lightning import step_in
from ckpttool.types import DataQuestion, TreeQuestion
from tests.support.answers import (
    chosen,
    cli,
    codes,
    goes_on,
    named,
    names,
    plan,
    reasons,
    scanned,
    simulated,
    why_not,
)
from tests.support.trainer_trees import damaged, healthy


@pytest.fixture
def saves(tmp_path: Path) -> Path:
    """Steps 4, 8 and 12, the last of them twice."""
    return healthy("light_single", tmp_path) / "checkpoints"


def write(path: Path, values: dict[str, Any]) -> None:
    """Write an archive as torch does, with nothing but plain values in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(values, protocol=2))
        archive.writestr("archive/version", "3\n")


def values(step: int, **more: object) -> dict[str, Any]:
    """What a save says whose epoch has 10 batches, one a step."""
    progress = {"total": {"ready": step}, "current": {"ready": step % 10}, "is_last_batch": step % 10 == 0}
    loops = {"fit_loop": {"epoch_loop.batch_progress": progress, "state_dict": {}}}
    return {"epoch": step // 10, "global_step": step, "loops": loops, "optimizer_states": [{}], **more}


class TestWhatASaveIs:
    def test_a_whole_copy_stands_for_the_save_whose_own_file_is_cut(self, saves: Path) -> None:
        file = saves / "epoch=1-step=12.ckpt"
        file.write_bytes(file.read_bytes()[:6000])
        assert chosen(plan(saves)) == ("last.ckpt", 12)
        assert named(scanned(saves), "last.ckpt").aliases == ("epoch=1-step=12.ckpt",)

    def test_a_name_that_lies_is_told_and_the_content_believed(self, saves: Path) -> None:
        (saves / "epoch=0-step=4.ckpt").rename(saves / "epoch=0-step=400.ckpt")
        save = named(scanned(saves), "epoch=0-step=400.ckpt")
        assert (save.step, codes(save.findings)) == (4, {Code.STEP_DISAGREES})
        assert chosen(plan(saves)) == ("epoch=1-step=12.ckpt", 12)

    def test_the_file_with_the_right_name_stands_for_its_copies(self, saves: Path) -> None:
        shutil.copyfile(saves / "epoch=1-step=12.ckpt", saves / "epoch=0-step=4.ckpt")
        assert chosen(plan(saves)) == ("epoch=1-step=12.ckpt", 12)
        shutil.copyfile(saves / "epoch=0-step=8.ckpt", saves / "epoch=1-step=12.ckpt")
        (saves / "last.ckpt").unlink()
        (saves / "epoch=0-step=4.ckpt").unlink()
        save = named(scanned(saves), "epoch=0-step=8.ckpt")
        assert [(each.code, each.path) for each in save.findings] == [(Code.STEP_DISAGREES, "epoch=1-step=12.ckpt")]

    @pytest.mark.parametrize(("source", "target", "step"), [(6, 3, 6), (3, 6, 3)])
    def test_a_folder_with_the_record_of_another_save_is_not_chosen(
        self, source: int, target: int, step: int, tmp_path: Path
    ) -> None:
        saves = healthy("light_modelparallel2", tmp_path) / "checkpoints"
        shutil.copyfile(*(saves / f"epoch=0-step={number}.ckpt/meta.pt" for number in (source, target)))
        assert chosen(plan(saves)) == (f"epoch=0-step={step}.ckpt", step)
        assert Code.STEP_DISAGREES in codes(named(scanned(saves), f"epoch=0-step={target}.ckpt").findings)

    def test_weights_alone_are_passed_over_unless_they_are_asked_for(self, saves: Path) -> None:
        content = values(16)
        del content["optimizer_states"]
        write(saves / "epoch=1-step=16.ckpt", content)
        assert named(scanned(saves), "epoch=1-step=16.ckpt").content is Content.WEIGHTS_ONLY
        answer = plan(saves)
        assert chosen(answer) == ("epoch=1-step=12.ckpt", 12)
        assert codes(reasons(answer, "epoch=1-step=16.ckpt")) == {Code.WEIGHTS_ONLY}

    def test_a_file_that_tells_nothing_is_no_save_to_resume_from(self, saves: Path) -> None:
        write(saves / "epoch=1-step=16.ckpt", {"model": 1})
        (saves / "epoch=1-step=20.ckpt").write_bytes(b"")
        answer = plan(saves)
        assert chosen(answer) == ("epoch=1-step=12.ckpt", 12)
        assert dict(why_not(answer)).keys() == {"epoch=1-step=16.ckpt", "epoch=1-step=20.ckpt"}

    def test_a_link_that_leads_nowhere_is_unknown_and_as_last_no_save_at_all(self, saves: Path) -> None:
        (saves / "epoch=1-step=16.ckpt").symlink_to("gone.ckpt")
        assert codes(reasons(plan(saves), "epoch=1-step=16.ckpt")) == {Code.UNREADABLE}
        (saves / "last.ckpt").unlink()
        (saves / "last.ckpt").symlink_to("gone.ckpt")
        inventory = scanned(saves)
        assert "last.ckpt" not in names(inventory)
        assert [finding.path for finding in inventory.findings if finding.code is Code.TRACKER_DISAGREES] == [
            "last.ckpt"
        ]

    @pytest.mark.parametrize(
        ("name", "step"),
        [
            ("epoch=1-step=12.ckpt", 12),
            ("step=7.ckpt", 7),
            ("epoch=3.ckpt", None),
            ("timestep=7.ckpt", None),
            ("step=1-step=2.ckpt", None),
            (f"step={'9' * 19}.ckpt", None),
        ],
    )
    def test_a_name_tells_a_step_in_lightning_s_own_spelling_alone(self, name: str, step: int | None) -> None:
        assert step_in(name) == step


class TestWhatItTakesByItself:
    def test_a_stale_last_wins_over_newer_saves_and_is_named(self, tmp_path: Path) -> None:
        root = damaged("light_single--last-stale", tmp_path)
        told = simulated(root)
        assert (told.would_resume, told.outcome) == ("epoch=0-step=4.ckpt", Outcome.LOADS)
        (trap,) = [each for each in scanned(root).findings if each.code is Code.STRAY_TAKES_OVER]
        assert (trap.path, "step 4" in trap.message) == ("last.ckpt", True)

    def test_without_one_it_begins_from_scratch(self, saves: Path) -> None:
        (saves / "last.ckpt").unlink()
        assert (simulated(saves).would_resume, simulated(saves).outcome) == (None, Outcome.SCRATCH)
        (saves / "last.ckpt").symlink_to("gone.ckpt")
        assert simulated(saves).outcome is Outcome.SCRATCH

    def test_of_several_it_takes_the_newest_by_time(self, saves: Path) -> None:
        shutil.copyfile(saves / "epoch=0-step=8.ckpt", saves / "last-v1.ckpt")
        os.utime(saves / "last-v1.ckpt", (2e9, 2e9))
        assert simulated(saves).would_resume == "epoch=0-step=8.ckpt"
        os.utime(saves / "last.ckpt", (2e9, 2e9))
        assert simulated(saves).outcome is Outcome.UNKNOWN

    def test_what_slurm_made_it_write_is_named_where_newer_saves_would_be_passed_over(self, saves: Path) -> None:
        for number, step in ((1, 2), (10, 5)):
            write(saves / f"hpc_ckpt_{number}.ckpt", values(step))
        (trap,) = [each for each in scanned(saves).findings if each.code is Code.STRAY_TAKES_OVER]
        assert (trap.path, chosen(plan(saves))) == ("hpc_ckpt_10.ckpt", ("epoch=1-step=12.ckpt", 12))
        write(saves / "hpc_ckpt_11.ckpt", values(16))
        assert Code.STRAY_TAKES_OVER in codes(scanned(saves).findings)  # last.ckpt is stale now
        assert chosen(plan(saves)) == ("hpc_ckpt_11.ckpt", 16)
        (saves / "last.ckpt").unlink()
        assert codes(scanned(saves).findings) == set()

    def test_weights_alone_stop_it(self, saves: Path) -> None:
        content = values(16)
        del content["optimizer_states"]
        write(saves / "last.ckpt", content)
        assert (simulated(saves).would_resume, simulated(saves).outcome) == ("last.ckpt", Outcome.STOPS)


class TestWhereTheDataGoOn:
    def test_with_a_state_they_go_on_exactly_and_with_other_batches_in_another_order(self, saves: Path) -> None:
        content = values(16)
        content["loops"]["fit_loop"]["state_dict"] = {"combined_loader": [{"_num_yielded": 6}]}
        write(saves / "epoch=1-step=16.ckpt", content)
        assert goes_on(plan(saves)).effect is DataEffect.EXACT
        data = DataQuestion(old_global_batch=4, new_global_batch=8)
        assert goes_on(plan(saves, data=data)).effect is DataEffect.REORDERS

    def test_at_the_end_of_an_epoch_the_next_one_begins_with_a_state_or_without(self, saves: Path) -> None:
        write(saves / "epoch=1-step=20.ckpt", values(20))
        data = goes_on(plan(saves, data=DataQuestion(old_global_batch=4)))
        assert (data.effect, data.samples, data.repeated) == (DataEffect.EXACT, 80, 0)
        content = values(20)
        content["loops"]["fit_loop"]["state_dict"] = {"combined_loader": [{"_num_yielded": 10}]}
        write(saves / "epoch=1-step=20.ckpt", content)
        data = goes_on(plan(saves))
        assert (data.effect, "counts an empty epoch" in str(data.why)) == (DataEffect.EXACT, True)

    def test_of_a_save_that_tells_nothing_of_its_epoch_nobody_knows(self, saves: Path) -> None:
        write(saves / "epoch=1-step=20.ckpt", {"global_step": 20, "optimizer_states": [{}]})
        assert goes_on(plan(saves)).effect is DataEffect.UNKNOWN

    def test_where_several_optimizers_count_steps_no_samples_are_counted_by_them(self, saves: Path) -> None:
        write(saves / "epoch=1-step=16.ckpt", values(16, optimizer_states=[{}, {}]))
        assert goes_on(plan(saves, data=DataQuestion(old_global_batch=4))).samples is None


class TestACutFile:
    """Lightning moves a file into place: where that is another disk, a kill leaves a cut one under its last name."""

    @pytest.mark.parametrize("size", [2000, 9000, 11_380])
    def test_a_scan_does_not_count_it_among_the_complete(self, saves: Path, size: int) -> None:
        (saves / "last.ckpt").unlink()
        newest = saves / "epoch=1-step=12.ckpt"
        os.truncate(newest, size)
        assert codes(named(scanned(saves), newest.name).findings) == {Code.SHARD_TRUNCATED}
        assert "3 checkpoints, 2 complete" in cli("scan", str(saves)).stdout
        assert chosen(plan(saves)) == ("epoch=0-step=8.ckpt", 8)


def test_a_save_with_a_mark_that_it_is_unfinished_is_not_chosen_and_counts_for_nothing_in_prune(saves: Path) -> None:
    (saves / "last.ckpt").unlink()
    mark = saves / "epoch=1-step=12-unfinished"
    mark.touch()
    answer = plan(saves)
    assert chosen(answer) == ("epoch=0-step=8.ckpt", 8)
    assert why_not(answer) == [("epoch=1-step=12.ckpt", {Code.UNCOMMITTED_SAVE})]
    order = PruneOrder(grace=0.0)
    pruning = ckpttool.prune(TreeQuestion(path=str(saves)), RetentionPolicy(keep_last=1), order)
    assert [save.name for save in pruning.plan.good] == ["epoch=0-step=8.ckpt"]
    mark.unlink()
    assert chosen(plan(saves)) == ("epoch=1-step=12.ckpt", 12)
