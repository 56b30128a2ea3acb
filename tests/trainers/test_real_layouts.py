"""Every tree that a real trainer wrote, whole and damaged in each way: the answer is what is true of it.

A trainer's trees are tried from the day on which its layout stands in the registry.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.finding import Code, Finding, blocking
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.verdict import Level
from ckpttool.core.verbs.changes import complete_tree
from ckpttool.trainers import registry
from ckpttool.trainers.base import Members
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.answers import decide, scanned
from tests.support.trainer_trees import LAYOUTS, damaged, faults, healthy, layout_of_tree, truths
from tests.support.verifying import verdicts

TREES = [tree for tree in sorted(truths()) if layout_of_tree(tree) in registry.LAYOUT_NAMES]
FAULTS = [fault for fault, recipe in sorted(faults().items()) if recipe["tree"] in TREES]
WORDS = {
    "missing": {"shard-missing"},
    "truncated": {"shard-truncated"},
    "empty": {"shard-empty"},
    "checksum": {"checksum-mismatch"},
    "zeroed": {"shard-zeroed"},
    "uncommitted": {"uncommitted-save", "metadata-incomplete"},
    "damaged": {"header-invalid", "shard-truncated", "metadata-incomplete", "uncommitted-save"},
}
"""What a truth calls a finding, and the codes that say it."""


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def taken(answer: ResumePlan | NoResumePoint) -> str | None:
    """The save that is resumed from."""
    return answer.point.checkpoint.name if isinstance(answer, ResumePlan) else None


@pytest.mark.parametrize("tree", TREES)
class TestWhole:
    def test_its_layout_saves_steps_samples_and_content_are_the_true_ones(self, tree: str) -> None:
        truth, inventory = truths()[tree], scanned(LAYOUTS / tree)
        assert inventory.layout == layout_of_tree(tree)
        saves = {save.name: save for save in inventory.checkpoints}
        assert {name: save.step for name, save in saves.items()} == {
            each["name"]: each["step"] for each in truth["checkpoints"]
        }
        for true in truth["checkpoints"]:
            save = saves[true["name"]]
            assert save.samples in {None, true.get("consumed_samples")}
            assert (save.content is Content.WEIGHTS_ONLY) == (true.get("resumable") is False), save.name

    @pytest.mark.sample(12)
    def test_no_save_is_called_damaged_and_nothing_that_its_trainer_pickles_unknown(self, tree: str) -> None:
        found = {verdict.name: verdict.findings for verdict in verdicts(LAYOUTS / tree, Level.CHECKSUM)}
        assert {name: blocking(each) for name, each in found.items()} == {
            each["name"]: () for each in truths()[tree]["checkpoints"]
        }
        assert Code.UNSAFE_PICKLE not in {finding.code for each in found.values() for finding in each}

    @pytest.mark.sample(4)
    def test_the_numbers_of_no_save_are_suspect(self, tree: str) -> None:
        """Scores of what is not monitored are infinite, and padding in an optimizer's buckets is anything."""
        found = [each for save in verdicts(LAYOUTS / tree, Level.NUMERICS) for each in blocking(save.findings)]
        assert [each for each in found if each.code is not Code.UNSUPPORTED_FORMAT] == []

    @pytest.mark.sample(3)
    def test_a_tree_is_looked_after_though_none_of_its_saves_may_go(self, tree: str, tmp_path: Path) -> None:
        """One save is left, and a tracker, `latest` or last.ckpt names it."""
        question = TreeQuestion(path=str(healthy(tree, tmp_path)))
        for save in ckpttool.scan(question).inventory.checkpoints[:-1]:
            members = ckpttool.scan(question).layout.members(save)
            assert isinstance(members, Members)
            for path in members.paths:
                _remove(Path(ckpttool.scan(question).inventory.root, path))
        (left,) = complete_tree(question).inventory.checkpoints
        assert left.name == ckpttool.scan(question).inventory.checkpoints[-1].name
        assert ckpttool.library.trash(question).content == ()

    def test_the_right_save_is_resumed_from(self, tree: str) -> None:
        assert taken(decide(LAYOUTS / tree)) == truths()[tree]["should_resume"]

    @pytest.mark.sample(2)
    def test_checksums_change_nothing_of_that(self, tree: str) -> None:
        answer = decide(LAYOUTS / tree, choice=ResumeQuestion(evidence=Level.CHECKSUM))
        assert taken(answer) == truths()[tree]["should_resume"]


@pytest.mark.parametrize("fault", FAULTS)
class TestDamaged:
    @pytest.mark.sample(30)
    def test_the_right_save_is_resumed_from(self, fault: str, tmp_path: Path) -> None:
        assert taken(decide(damaged(fault, tmp_path))) == faults()[fault]["should_resume"]

    @pytest.mark.sample(10)
    def test_what_is_wrong_is_found_where_it_is(self, fault: str, tmp_path: Path) -> None:
        root = damaged(fault, tmp_path)
        findings = [finding for verdict in verdicts(root, Level.CHECKSUM) for finding in verdict.findings]
        findings += scanned(root).findings
        for asked in faults()[fault]["find"]:
            path, _, word = asked.partition(": ")
            codes = WORDS.get(re.split(r"\W", word)[0])
            if codes is not None:
                assert [finding for finding in findings if _says(finding, path, codes)], (asked, findings)


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "should_resume_at_checksum" in faults()[fault]])
def test_who_asks_for_checksums_passes_over_what_they_convict(fault: str, tmp_path: Path) -> None:
    answer = decide(damaged(fault, tmp_path), choice=ResumeQuestion(evidence=Level.CHECKSUM))
    assert taken(answer) == faults()[fault]["should_resume_at_checksum"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "should_resume_at_checksum" not in faults()[fault]])
def test_checksums_change_no_other_choice(fault: str, tmp_path: Path) -> None:
    answer = decide(damaged(fault, tmp_path), choice=ResumeQuestion(evidence=Level.CHECKSUM))
    assert taken(answer) == faults()[fault]["should_resume"]


def _says(finding: Finding, path: str, codes: set[str]) -> bool:
    own = finding.path or ""
    return finding.code.value in codes and (own == path or own.endswith(f"/{path}") or own.startswith(f"{path}/"))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("tree", "record", "left"),
    [
        ("titan_4ranks", "checkpoint/step-10/.metadata", "step-5"),
        ("dcp_plain_2ranks", "8/.metadata", "4"),
        ("hf_fsdp2ranks", "checkpoint-6/optimizer_0/.metadata", "checkpoint-3"),
        ("mcore_dist_tp2dp2", "iter_0000006/.metadata", "iter_0000003"),
    ],
)
@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_an_unreadable_record_costs_its_own_save(tree: str, record: str, left: str, what: str, tmp_path: Path) -> None:
    path = healthy(tree, tmp_path) / record
    path.unlink()
    if what == "link":
        path.symlink_to("/nowhere/else")
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert taken(decide(tmp_path / "run")) == left


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize(("tree", "left"), [("accel_ddp2", "checkpoint_1"), ("hf_single", "checkpoint-8")])
def test_a_folder_that_cannot_be_read_costs_its_own_save_alone(tree: str, left: str, tmp_path: Path) -> None:
    save = scanned(healthy(tree, tmp_path)).checkpoints[-1]
    folder = next((tmp_path / "run").rglob(save.name))
    folder.chmod(0)
    try:
        assert taken(decide(tmp_path / "run")) == left
    finally:
        folder.chmod(0o755)
