"""A copy of a save under a higher number is no newer save: it is told, not chosen, and costs no save."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.decide.steps import left_by_name, read_name
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Row, blocking
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, RetentionPolicy
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.verl.scan import _is_confirmed
from ckpttool.types import ResumeQuestion
from tests.support.answers import chosen, cli, codes, going, plan, refusal, scanned, why_not
from tests.support.inventories import checkpoint
from tests.support.trainer_trees import healthy

COPIES = [
    ("hf_single", "", "checkpoint-4", "checkpoint-99", ("checkpoint-12", 12), Code.STEP_DISAGREES),
    ("accel_ddp2", "checkpoints/", "checkpoint_0", "checkpoint_9", ("checkpoint_2", 12), Code.DUPLICATE_CHECKPOINT),
    ("ds_zero1_2ranks", "", "global_step3", "global_step9", ("global_step6", 6), Code.STEP_DISAGREES),
    ("mcore_dist_tp2dp2", "", "iter_0000003", "iter_0000009", ("iter_0000006", 6), Code.STEP_DISAGREES),
    ("mcore_legacy_tp2dp2", "", "iter_0000003", "iter_0000009", ("iter_0000006", 6), Code.STEP_DISAGREES),
    ("titan_4ranks", "checkpoint/", "step-5", "step-99", ("step-10", 10), Code.STEP_DISAGREES),
    ("dcp_fsdp2_4ranks", "", "step_000005", "step_000099", ("step_000015", 15), Code.STEP_DISAGREES),
    ("dcp_plain_2ranks", "", "4", "99", ("8", 8), Code.STEP_DISAGREES),
    ("olmo_2ranks", "", "step6", "step99", ("step12", 12), Code.STEP_DISAGREES),
    ("automodel_2ranks", "", "epoch_0_step_4", "epoch_1_step_99", ("epoch_1_step_11", 12), Code.STEP_DISAGREES),
    ("orbax_standard", "", "10", "99", ("30", 30), Code.DUPLICATE_CHECKPOINT),
    ("verl_sft", "", "global_step_4", "global_step_99", ("global_step_12", 12), Code.DUPLICATE_CHECKPOINT),
    ("skyrl_2ranks", "", "global_step_10", "global_step_99", ("global_step_12", 12), Code.STEP_DISAGREES),
    ("verl_2ranks", "", "global_step_1", "global_step_9", ("global_step_3", 3), Code.DUPLICATE_CHECKPOINT),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", COPIES, ids=lambda case: str(case[0]))
def test_a_copy_with_a_higher_number(case: tuple[str, str, str, str, tuple[str, int], Row], tmp_path: Path) -> None:
    tree, folder, source, copy, newest, code = case
    root = healthy(tree, tmp_path)
    at = root / folder
    shutil.copytree(at / source, at / copy)
    answer = plan(root)
    assert chosen(answer) == newest
    assert answer.point.lost_steps == 0
    assert code in dict(why_not(answer))[copy]
    own = next(save for save in scanned(root).checkpoints if save.name == copy)
    assert code in codes(blocking(own.findings))
    pruning = ckpttool.prune(TreeQuestion(path=str(root)), RetentionPolicy(keep_last=1), PruneOrder(grace=0.0))
    assert not {copy, newest[0]} & {save.name for save in pruning.plan.going}
    assert [save.name for save in pruning.plan.good][:1] == [newest[0]]


def test_a_backup_of_an_orbax_step_is_no_other_training(tmp_path: Path) -> None:
    root = healthy("orbax_standard", tmp_path)
    shutil.copytree(root / "10", root / "backup_2026")
    (root / "notes_2026").mkdir()
    answer = plan(root)
    assert (chosen(answer), why_not(answer)) == (("30", 30), [("backup_2026", {Code.DUPLICATE_CHECKPOINT})])
    assert [one.path for one in scanned(root).findings if one.code is Code.STRAY_FILE] == ["notes_2026"]
    assert going(root) == {"20"}


def test_two_verl_saves_that_are_one_are_chosen_only_by_name(tmp_path: Path) -> None:
    root = healthy("verl_2ranks", tmp_path)
    for name in ("global_step_2", "global_step_3"):
        shutil.rmtree(root / name)
    shutil.copytree(root / "global_step_1", root / "global_step_9")
    (root / "latest_checkpointed_iteration.txt").unlink()
    assert chosen(plan(root)) == ("global_step_1", 1)  # its data loader gave one batch
    for data in root.glob("*/data.pt"):
        data.unlink()
    assert chosen(plan(root)) == ("global_step_1", 1)  # its optimizer made one step
    for folder in root.glob("global_step_*"):
        updated(folder, 0)
    both = {"global_step_1": {Code.DUPLICATE_CHECKPOINT}, "global_step_9": {Code.DUPLICATE_CHECKPOINT}}
    assert dict(why_not(refusal(root))) == both
    named = plan(root, choice=ResumeQuestion(name="global_step_1"))
    assert chosen(named) == ("global_step_1", 1)


def repacked(root: Path, name: str, new: str) -> None:
    """Move a save under another name, as a copy of a copied tree has it: with times of now."""
    shutil.copytree(root / name, root / new, copy_function=shutil.copyfile)
    shutil.rmtree(root / name)


class TestANumberBeyondTheTracker:
    @pytest.mark.sample(1)
    @pytest.mark.parametrize("data", ["its own", "another's", "none"])
    def test_a_verl_save_under_an_unconfirmed_number_is_not_chosen(self, data: str, tmp_path: Path) -> None:
        root = healthy("verl_2ranks", tmp_path)
        repacked(root, "global_step_1", "global_step_99")
        if data == "another's":
            shutil.copyfile(root / "global_step_2" / "data.pt", root / "global_step_99" / "data.pt")
        if data == "none":
            (root / "global_step_99" / "data.pt").unlink()
        answer = plan(root)
        assert (chosen(answer), answer.point.lost_steps) == (("global_step_3", 3), 0)
        assert dict(why_not(answer)) == {"global_step_99": {Code.STEP_DISAGREES}}
        assert "further along is unknown" in cli("resolve", str(root)).output
        assert going(root) == {"global_step_2"}
        repair = ckpttool.repair_meta(str(root), grace=0.0)
        assert (repair.fixes, codes(repair.refusals)) == ((), {Code.STEP_DISAGREES})
        (sealing,) = ckpttool.seal(str(root), "global_step_99")
        assert not sealing.written

    @pytest.mark.parametrize("data", [True, False])
    def test_the_save_after_the_tracked_one_is_chosen(self, data: bool, tmp_path: Path) -> None:
        root = healthy("verl_2ranks", tmp_path)
        for file in () if data else root.glob("*/data.pt"):
            file.unlink()
        tracker = root / "latest_checkpointed_iteration.txt"
        tracker.write_text("2")
        newest = root / "global_step_3"
        for path in (tracker, *(each for each in root.rglob("*.pt") if newest not in each.parents)):
            os.utime(path, (1_700_000_000, 1_700_000_000))
        assert chosen(plan(root)) == ("global_step_3", 3)
        assert going(root) == {"global_step_1", "global_step_2"}

    @pytest.mark.parametrize(
        ("step", "count", "earlier", "is_confirmed"),
        [
            (99, 99, {2: 2, 3: 3}, True),
            (4, 5, {2: 2, 3: 3}, False),
            (120, 20, {40: 40, 80: 80}, True),
            (120, 40, {80: 80}, False),
            (120, 60, {40: 40, 80: 80}, False),
            (320, 20, {240: 40, 280: 80}, True),
            (350, 50, {140: 40, 270: 70}, True),
            (351, 50, {140: 40, 270: 70}, False),
            (250, None, {100: 100, 200: 0}, True),
            (257, None, {100: 100, 200: 0}, False),
        ],
    )
    def test_a_count_of_batches_confirms_a_number_by_the_length_of_an_epoch(
        self, step: int, count: int | None, earlier: dict[int, int], is_confirmed: bool
    ) -> None:
        assert _is_confirmed(step, count, sorted(earlier), earlier) is is_confirmed


def counting(folder: Path, batches: int) -> None:
    """Let a save say how many batches of its epoch were read."""
    with zipfile.ZipFile(folder / "data.pt", "w") as archive:
        archive.writestr("data/data.pkl", pickle.dumps({"_num_yielded": batches}, protocol=2))


def updated(folder: Path, made: int) -> None:
    """Let the schedule of a verl save count its updates; 0: its optimizer's steps tell nothing either."""
    for path in folder.glob("actor/extra_state_*"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("extra/data.pkl", pickle.dumps({"lr_scheduler": {"last_epoch": made}}, protocol=2))


class TestNamesThatWereExchanged:
    def test_leave_the_newest_verl_save_unknown_and_cost_no_save(self, tmp_path: Path) -> None:
        root = healthy("verl_2ranks", tmp_path)
        assert chosen(plan(root)) == ("global_step_3", 3)
        assert going(root) == {"global_step_1", "global_step_2"}
        (root / "global_step_3").rename(root / "aside")
        (root / "global_step_1").rename(root / "global_step_3")
        (root / "aside").rename(root / "global_step_1")
        refused = cli("preflight", str(root))
        assert refused.exit_code == ExitCode.INCOMPLETE
        assert "global_step_3/data.pt counts 1 batch in its epoch, as global_step_1 should" in " ".join(
            refused.output.split()
        )
        assert cli("resolve", str(root)).exit_code == ExitCode.INCOMPLETE
        assert going(root) == set()
        (sealing,) = ckpttool.seal(str(root), "global_step_3")
        assert not sealing.written
        named = ResumeQuestion(name="global_step_3")
        assert chosen(plan(root, choice=named)) == ("global_step_3", 3)

    @pytest.mark.parametrize(
        ("counts", "exchanged"),
        [
            ({1: 3, 2: 2, 3: 1}, {1, 3}),
            ({1: 2, 2: 3, 3: 1}, {1, 2, 3}),
            ({11: 1, 12: 2, 13: 5, 14: 4, 15: 3}, {13, 15}),
            ({1: 1, 2: 2, 3: 3}, set()),
            ({9: 9, 14: 4, 20: 10, 21: 1}, set()),
            ({1: 2, 2: 3, 3: 5}, set()),
            ({3: 0, 6: 0}, set()),
        ],
        ids=["two", "three", "second epoch", "first epoch", "three epochs", "several batches a step", "whole epochs"],
    )
    def test_are_told_and_honest_ones_are_not(
        self, counts: dict[int, int], exchanged: set[int], tmp_path: Path
    ) -> None:
        root = healthy("verl_2ranks", tmp_path)
        (root / "global_step_3").rename(root / "whole")
        for step, count in counts.items():
            shutil.copytree(root / "whole", root / f"global_step_{step}", dirs_exist_ok=True)
            counting(root / f"global_step_{step}", count)
        for folder in root.glob("global_step_*"):
            if int(folder.name.rpartition("_")[2]) not in counts:
                shutil.rmtree(folder)
        shutil.rmtree(root / "whole")
        (root / "latest_checkpointed_iteration.txt").write_text(str(max(counts)))
        doubted = {save.step for save in scanned(root).checkpoints if Code.STEP_DISAGREES in codes(save.findings)}
        assert doubted == exchanged


class TestWithoutATracker:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = healthy("verl_2ranks", tmp_path)
        (root / "latest_checkpointed_iteration.txt").unlink()
        return root

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("data", ["its own", "another's", "none"])
    def test_a_verl_save_under_an_unconfirmed_number_leaves_the_newest_unknown(self, data: str, root: Path) -> None:
        repacked(root, "global_step_1", "global_step_99")
        if data == "another's":
            shutil.copyfile(root / "global_step_2" / "data.pt", root / "global_step_99" / "data.pt")
        for file in root.glob("*/data.pt") if data == "none" else ():
            file.unlink()
        refused = cli("resolve", str(root))
        assert refused.exit_code == ExitCode.INCOMPLETE
        assert "no tracker" in refused.output
        assert dict(why_not(refusal(root))) == {"global_step_99": {Code.STEP_DISAGREES}}
        assert going(root) <= {"global_step_2"}
        assert chosen(plan(root, choice=ResumeQuestion(name="global_step_99"))) == ("global_step_99", 99)

    @pytest.mark.sample(2)
    @pytest.mark.parametrize(
        "counts",
        [{1: 1, 2: 2, 3: 3}, {1: None, 2: None, 3: None}, {1: 2, 2: 3, 3: 5}, {1: 1, 2: 2, 3: 1}, {1: 3, 2: 6}, {3: 1}],
        ids=[
            "first epoch",
            "no state",
            "several batches a step",
            "second epoch",
            "two with several a step",
            "one save",
        ],
    )
    def test_honest_numbers_are_believed(self, counts: dict[int, int | None], root: Path) -> None:
        for step in (1, 2, 3):
            folder = root / f"global_step_{step}"
            if step not in counts:
                shutil.rmtree(folder)
            elif counts[step] is None:
                (folder / "data.pt").unlink()
            else:
                counting(folder, counts[step] or 0)
        newest = max(counts)
        assert chosen(plan(root)) == (f"global_step_{newest}", newest)
        assert going(root) == {f"global_step_{step}" for step in counts if step != newest}

    @pytest.mark.parametrize(
        ("renamed", "has_data"),
        [({1: 9}, True), ({1: 9}, False), ({3: 1}, True), ({2: 2, 1: 9}, False), ({1: 11, 2: 12, 3: 13}, True)],
        ids=["one", "one without data", "one to a lower step", "the newer one without data", "all"],
    )
    @pytest.mark.parametrize("has_schedule", [True, False])
    def test_a_number_that_the_updates_inside_contradict_leaves_the_newest_unknown(
        self, renamed: dict[int, int], has_data: bool, has_schedule: bool, root: Path
    ) -> None:
        for step in (1, 2, 3):
            folder = root / f"global_step_{step}"
            if has_schedule:
                updated(folder, step)
            folder.rename(root / f"was_{step}")
        for step, number in renamed.items():
            (root / f"was_{step}").rename(root / f"global_step_{number}")
        for folder in root.glob("was_*"):
            shutil.rmtree(folder)
        for file in () if has_data else root.glob("*/data.pt"):
            file.unlink()
        newest = f"global_step_{max(renamed.values())}"
        assert why_not(refusal(root))[0] == (newest, {Code.STEP_DISAGREES})
        assert cli("resolve", str(root)).exit_code == ExitCode.INCOMPLETE
        (sealing,) = ckpttool.seal(str(root), newest)
        assert not sealing.written

    @pytest.mark.parametrize(
        "updates",
        [{3: 3}, {3: 6}, {2: 4, 3: 6}, {2: 1, 3: 2}, {1: 4, 2: 9, 3: 13}, {3: 0}],
        ids=["one save", "two a step", "two saves of these", "a step without", "as many as it takes", "no count"],
    )
    def test_honest_updates_are_believed_and_a_step_that_rests_on_its_name_is_noted(
        self, updates: dict[int, int], root: Path
    ) -> None:
        for step in (1, 2, 3):
            folder = root / f"global_step_{step}"
            (folder / "data.pt").unlink()
            if step in updates:
                updated(folder, updates[step])
            else:
                shutil.rmtree(folder)
        assert chosen(plan(root)) == ("global_step_3", 3)
        noted = [finding.path for finding in scanned(root).findings if finding.code is Code.STEP_UNKNOWN]
        assert noted == ([] if updates[3] == 3 else ["global_step_3"])


def test_of_two_verl_saves_of_one_state_the_tracked_or_the_counted_one_is_chosen_and_else_none(tmp_path: Path) -> None:
    root = healthy("verl_2ranks", tmp_path)
    shutil.copytree(root / "global_step_3", root / "global_step_4")
    assert chosen(plan(root)) == ("global_step_3", 3)
    (root / "latest_checkpointed_iteration.txt").unlink()
    assert chosen(plan(root)) == ("global_step_3", 3)  # by its loader's count
    for data in root.glob("*/data.pt"):
        data.unlink()
    assert chosen(plan(root)) == ("global_step_3", 3)  # by its optimizer's steps
    for folder in root.glob("global_step_*"):
        updated(folder, 0)
    assert dict(why_not(refusal(root)))["global_step_3"] == {Code.DUPLICATE_CHECKPOINT}
    assert cli("resolve", str(root)).exit_code == ExitCode.INCOMPLETE


class TestWhatAPersonNamed:
    def test_a_copy_of_a_lightning_save_under_a_name_of_its_own_is_not_deleted_with_it(self, tmp_path: Path) -> None:
        root = healthy("light_single", tmp_path) / "checkpoints"
        shutil.copyfile(root / "epoch=0-step=4.ckpt", root / "precious.ckpt")
        shutil.copyfile(root / "epoch=0-step=8.ckpt", root / "a.ckpt")
        order = PruneOrder(grace=0.0, apply=True)
        pruning = ckpttool.prune(str(root), RetentionPolicy(keep_last=1), order)
        assert {save.name for save in pruning.plan.going} == {"epoch=0-step=4.ckpt", "epoch=0-step=8.ckpt"}
        kept = {"precious.ckpt", "a.ckpt", "last.ckpt", "epoch=1-step=12.ckpt"}
        assert {path.name for path in root.glob("*.ckpt")} == kept
        ckpttool.prune(str(root), RetentionPolicy(keep_last=1), order)
        assert {path.name for path in root.glob("*.ckpt")} == kept

    @pytest.mark.sample(2)
    @pytest.mark.parametrize(
        ("tree", "folder", "name", "new"),
        [
            ("light_single", "checkpoints", "epoch=0-step=4.ckpt", "epoch=9-step=99.ckpt"),
            ("accel_ddp2", "checkpoints", "checkpoint_0", "checkpoint_99"),
            ("dcp_fsdp2_4ranks", ".", "step_000005", "llama-70b-init"),
            ("dcp_fsdp2_4ranks", ".", "step_000005", "backup_2026"),
            ("dcp_fsdp2_4ranks", ".", "step_000005", "old_step_000005"),
        ],
    )
    def test_a_freely_named_save_is_kept(self, tree: str, folder: str, name: str, new: str, tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        assert name in going(root / folder)
        (root / folder / name).rename(root / folder / new)
        assert new not in going(root / folder)
        assert len(going(root / folder)) == 1

    def test_two_ways_to_name_saves_are_none_that_a_person_chose(self) -> None:
        saves = [named_freely(name) for name in ("step_1", "iter_2", "final")]
        assert left_by_name(saves) == {}
        assert {key[1] for key in left_by_name([*saves, named_freely("step_3"), named_freely("step_4")])} == {
            "iter_2",
            "final",
        }


def named_freely(name: str) -> Checkpoint:
    made = checkpoint("1_1", step=1, ranks=range(1))
    return replace(made, name=name, prefix="", label=None, named=read_name(name))
