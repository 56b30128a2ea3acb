"""A copy of a save under a higher number is no newer save: it is told, not chosen, and costs no save."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.finding import Code, blocking
from ckpttool.domain.question import TreeQuestion
from ckpttool.domain.retention import PruneOrder, RetentionPolicy
from tests.answers import chosen, codes, plan, refusal, scanned, why_not
from tests.layouts import healthy

COPIES = [
    ("hf_single", "", "checkpoint-4", "checkpoint-99", ("checkpoint-12", 12), Code.STEP_DISAGREES),
    ("accel_ddp2", "checkpoints/", "checkpoint_0", "checkpoint_9", ("checkpoint_2", 12), Code.DUPLICATE_CHECKPOINT),
    ("ds_zero1_2ranks", "", "global_step3", "global_step9", ("global_step6", 6), Code.STEP_DISAGREES),
    ("mcore_dist_tp2dp2", "", "iter_0000003", "iter_0000009", ("iter_0000006", 6), Code.STEP_DISAGREES),
    ("mcore_legacy_tp2dp2", "", "iter_0000003", "iter_0000009", ("iter_0000006", 6), Code.STEP_DISAGREES),
    ("titan_4ranks", "checkpoint/", "step-5", "step-99", ("step-10", 10), Code.STEP_DISAGREES),
    ("dcp_fsdp2_4ranks", "", "step_000005", "step_000099", ("step_000015", 15), Code.STEP_DISAGREES),
    ("dcp_plain_2ranks", "", "4", "99", ("8", 8), Code.STEP_DISAGREES),
    ("orbax_standard", "", "10", "99", ("30", 30), Code.DUPLICATE_CHECKPOINT),
    ("verl_2ranks", "", "global_step_1", "global_step_9", ("global_step_3", 3), Code.DUPLICATE_CHECKPOINT),
]


@pytest.mark.parametrize("case", COPIES, ids=lambda case: str(case[0]))
def test_a_copy_under_a_higher_number_is_told_and_not_chosen_and_the_newest_save_stays(
    case: tuple[str, str, str, str, tuple[str, int], Code], tmp_path: Path
) -> None:
    tree, folder, source, copy, newest, code = case
    root = healthy(tree, tmp_path)
    at = root / folder
    assert chosen(plan(root)) == newest
    shutil.copytree(at / source, at / copy)
    answer = plan(root)
    assert chosen(answer) == newest
    assert answer.point.lost_steps == 0
    assert code in dict(why_not(answer))[copy]
    own = next(save for save in scanned(root).checkpoints if save.name == copy)
    assert code in codes(blocking(own.findings))
    pruning = api.prune(TreeQuestion(path=str(root)), RetentionPolicy(keep_last=1), PruneOrder(grace=0.0))
    assert not {copy, newest[0]} & {save.name for save in pruning.plan.going}
    assert [save.name for save in pruning.plan.good][:1] == [newest[0]]


def test_a_save_that_accelerate_made_twice_at_one_step_is_no_copy(tmp_path: Path) -> None:
    root = healthy("accel_ddp2", tmp_path)
    shutil.copytree(root / "checkpoints" / "checkpoint_2", root / "checkpoints" / "checkpoint_3")
    assert plan(root).point.step == 12
    assert Code.DUPLICATE_CHECKPOINT not in {one.code for save in scanned(root).checkpoints for one in save.findings}


def test_repair_meta_names_no_copy_as_the_last_save(tmp_path: Path) -> None:
    root = healthy("verl_2ranks", tmp_path)
    shutil.copytree(root / "global_step_1", root / "global_step_9")
    (root / "latest_checkpointed_iteration.txt").write_text("9")
    repair = api.repair_meta(TreeQuestion(path=str(root)), grace=0.0)
    assert repair.checkpoint is not None
    assert repair.checkpoint.name == "global_step_3"


def test_seal_records_the_newest_save_and_no_copy_of_an_older_one(tmp_path: Path) -> None:
    root = healthy("orbax_standard", tmp_path)
    shutil.copytree(root / "10", root / "99")
    (sealing,) = api.seal(str(root))
    assert (sealing.checkpoint, sealing.written) == ("30", True)
    (refused,) = api.seal(str(root), "99")
    assert (codes(refused.findings), refused.written) == ({Code.DUPLICATE_CHECKPOINT}, False)


def test_a_backup_of_an_orbax_step_is_no_other_training(tmp_path: Path) -> None:
    root = healthy("orbax_standard", tmp_path)
    shutil.copytree(root / "10", root / "backup_2026")
    (root / "notes_2026").mkdir()
    answer = plan(root)
    assert (chosen(answer), why_not(answer)) == (("30", 30), [("backup_2026", {Code.DUPLICATE_CHECKPOINT})])
    assert [one.path for one in scanned(root).findings if one.code is Code.STRAY_FILE] == ["notes_2026"]
    pruning = api.prune(TreeQuestion(path=str(root)), RetentionPolicy(keep_last=1), PruneOrder(grace=0.0))
    assert [save.name for save in pruning.plan.going] == ["20"]


def test_two_trainings_of_orbax_are_told_by_their_prefixes(tmp_path: Path) -> None:
    root = healthy("orbax_standard", tmp_path)
    (root / "10").rename(root / "other_10")
    (finding,) = refusal(root).findings
    assert (finding.code, finding.remedy) == (Code.RUN_MIXED, "choose one with --prefix ''")
    assert chosen(plan(root, choice=api.ResumeQuestion(prefix=""))) == ("30", 30)


def test_two_verl_saves_that_are_one_are_chosen_only_by_name(tmp_path: Path) -> None:
    root = healthy("verl_2ranks", tmp_path)
    for name in ("global_step_2", "global_step_3"):
        shutil.rmtree(root / name)
    shutil.copytree(root / "global_step_1", root / "global_step_9")
    (root / "latest_checkpointed_iteration.txt").unlink()
    both = {"global_step_1": {Code.DUPLICATE_CHECKPOINT}, "global_step_9": {Code.DUPLICATE_CHECKPOINT}}
    assert dict(why_not(refusal(root))) == both
    named = plan(root, choice=api.ResumeQuestion(name="global_step_1"))
    assert chosen(named) == ("global_step_1", 1)
