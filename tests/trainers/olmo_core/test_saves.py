"""OLMo-core's saves: what each file tells, which of them it takes by itself, and where its data continue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.findings import TrainersCode
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.answers import chosen, coded, codes, decide, goes_on, named, plan, scanned, simulated, verdict
from tests.support.commands import ask
from tests.support.shard_writers import torch_file
from tests.support.trainer_trees import healthy


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three saves of two ranks; step 10 is ephemeral."""
    return healthy("olmo_2ranks", tmp_path)


def alone(save: Path) -> None:
    """Leave only the slices of a save, as an export does."""
    for path in list((save / "model_and_optim").iterdir()):
        path.rename(save / path.name)
    (save / "model_and_optim").rmdir()
    shutil.rmtree(save / "train")
    (save / ".metadata.json").unlink()


class TestWhatASaveTells:
    def test_counters_come_from_the_first_state_and_the_mark(self, tree: Path) -> None:
        saves = {save.name: save for save in scanned(tree).checkpoints}
        newest, ephemeral = saves["step12"], saves["step10"]
        assert (newest.step, newest.step_source.value, newest.scalars.tokens) == (12, "content", 384)
        assert (newest.facts, ephemeral.facts) == ((("epoch", 2),), (("epoch", 1), ("ephemeral", 1)))
        assert (newest.topology.world_size, newest.ranks, newest.content) == (2, (0, 1), Content.FULL)

    def test_slices_in_the_save_itself_are_weights_alone(self, tree: Path) -> None:
        alone(tree / "step12")
        save = named(scanned(tree), "step12")
        assert (save.content, save.step) == (Content.WEIGHTS_ONLY, 12)
        assert chosen(plan(tree)) == ("step10", 10)
        told = simulated(tree)
        assert (told.would_resume, told.outcome) == ("step12", Outcome.STOPS)

    def test_a_folder_without_slices_was_not_finished(self, tree: Path) -> None:
        shutil.copytree(tree / "step12/train", tree / "step18/train")
        assert Code.UNCOMMITTED_SAVE in codes(blocking(named(scanned(tree), "step18").findings))

    def test_a_temporary_folder_is_a_save_in_progress_and_no_stray(self, tree: Path) -> None:
        shutil.copytree(tree / "step12", tree / "step18-tmp")
        (finding,) = (each for each in scanned(tree).findings if each.path == "step18-tmp")
        assert (finding.code, finding.severity) == (Code.IN_PROGRESS, Severity.NOTE)
        assert scanned(tree).strays == ()

    @pytest.mark.parametrize(
        ("path", "content", "code"),
        [
            ("train/rank0.pt", b"x", Code.METADATA_INCOMPLETE),
            ("train/rank0.pt", torch_file({"global_step": 12}), Code.METADATA_INCOMPLETE),
            ("train/rank0.pt", torch_file({"global_step": 12, "world_size": 1 << 40}), Code.METADATA_INCOMPLETE),
            (".metadata.json", b"", Code.META_UNREADABLE),
        ],
    )
    def test_a_record_that_cannot_be_read_costs_its_save(
        self, path: str, content: bytes, code: object, tree: Path
    ) -> None:
        (tree / "step12" / path).write_bytes(content)
        assert code in codes(blocking(named(scanned(tree), "step12").findings))
        assert chosen(plan(tree)) == ("step10", 10)

    def test_a_state_of_another_step_is_found_when_the_save_is_checked(self, tree: Path) -> None:
        shutil.copyfile(tree / "step6/train/rank1.pt", tree / "step12/train/rank1.pt")
        (finding,) = blocking(verdict(tree, "step12").findings)
        assert (finding.code, finding.path, finding.ranks) == (Code.STEP_DISAGREES, "step12/train/rank1.pt", (1,))

    def test_states_of_a_larger_run_are_not_counted(self, tree: Path) -> None:
        shutil.copyfile(tree / "step12/train/rank1.pt", tree / "step12/train/rank7.pt")
        assert chosen(plan(tree)) == ("step12", 12)


class TestItsOwnChoice:
    def test_without_a_complete_save_it_starts_from_scratch(self, tree: Path) -> None:
        for mark in tree.glob("*/.metadata.json"):
            mark.unlink()
        assert simulated(tree).outcome is Outcome.SCRATCH

    def test_of_two_names_of_one_number_the_order_of_the_folder_decides(self, tree: Path) -> None:
        (tree / "step6").rename(tree / "step012")
        assert simulated(tree).outcome is Outcome.UNKNOWN


class TestData:
    @pytest.mark.parametrize(("gbs", "repeated"), [(8, 0), (2, 0), (3, 2), (16, 8)])
    def test_another_batch_size_rounds_down_to_whole_batches(self, gbs: int, repeated: int, tree: Path) -> None:
        """As it was run with 2 and 8: 8 samples of the epoch are read at step 12."""
        told = plan(tree, data=DataQuestion(new_global_batch=gbs, old_global_batch=4))
        position = goes_on(told)
        effect = DataEffect.REPEATS if repeated else DataEffect.EXACT
        assert (position.effect, position.repeated) == (effect, repeated)
        assert (Code.DATA_MISPLACED in codes(told.findings)) == bool(repeated)

    @pytest.mark.parametrize(
        ("loader", "gbs", "effect"),
        [
            ({"dataset_type": "vsl", "tokens_processed": 64}, None, DataEffect.EXACT),
            ({"dataset_type": "vsl", "tokens_processed": 64}, 8, DataEffect.UNKNOWN),
            ({"source_fingerprints": ["x"], "tokens_processed": 64, "sequence_length": 8}, 8, DataEffect.EXACT),
            ({"dataset_type": "fsl"}, 8, DataEffect.UNKNOWN),
            ({"position": 3}, None, None),
        ],
    )
    def test_each_loader_is_known_by_its_state(
        self, loader: dict[str, object], gbs: int | None, effect: DataEffect | None, tree: Path
    ) -> None:
        state = {"global_step": 12, "world_size": 2, "data_loader": loader}
        (tree / "step12/train/rank0.pt").write_bytes(torch_file(state))
        position = plan(tree, data=DataQuestion(new_global_batch=gbs, old_global_batch=gbs and 4)).data
        assert isinstance(position, Unknown if effect is None else GoesOn)
        assert getattr(position, "effect", None) is effect

    def test_a_later_save_that_the_run_would_not_overwrite_is_noted(self, tree: Path) -> None:
        """As it was run: FileExistsError at step 12, and none with save_overwrite."""
        assert TrainersCode.NEXT_SAVE_BLOCKED not in codes(plan(tree).findings)
        (tree / "step12/.metadata.json").unlink()
        (found,) = coded(plan(tree).findings, TrainersCode.NEXT_SAVE_BLOCKED)
        assert (found.path, found.severity) == ("step12", Severity.NOTE)
        config = tree.parent / "config.yaml"
        config.write_text(f"trainer:\n  save_folder: {tree}\n  save_overwrite: true\n")
        assert "next-save-blocked" not in ask("preflight", str(tree), "--config", str(config)).stdout
        config.write_text(f"trainer:\n  save_folder: {tree}\n")
        assert "next-save-blocked" in ask("preflight", str(tree), "--config", str(config)).stdout

    def test_other_ranks_are_noted_with_what_is_lost(self, tree: Path) -> None:
        answer = decide(tree, choice=ResumeQuestion(sizes=AskedSizes(world=4)))
        (note,) = (each for each in answer.findings if each.code is Code.WORLD_SIZE_DIFFERS)
        assert note.severity is Severity.NOTE
        assert "does not restore the random-number states" in note.message


def test_a_copy_with_a_higher_number_is_avoided_by_a_new_save_folder(tree: Path, tmp_path: Path) -> None:
    (tree / "step12").rename(tree / "step99")
    config = tmp_path / "config.yaml"
    config.write_text(f"trainer:\n  save_folder: {tree}\n  load_path: {tree}/step10\n")
    said = ask("preflight", str(tree), "--config", str(config), "-q")
    assert said.code == ExitCode.DAMAGE
    assert "set a new `save_folder`" in " ".join(said.stdout.split())
