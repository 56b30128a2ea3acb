"""torchtitan's saves: weights alone are known, copies that its search falls for are named, its own choice is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content
from ckpttool.core.domain.finding import Code, Row, Severity, blocking
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.types import Answer, ResumeQuestion, TreeQuestion
from tests.support.answers import codes, scanned, simulated
from tests.support.trainer_trees import healthy
from tests.support.trees import floats, safetensors_bytes


def answered(root: Path, **asked: bool) -> Answer:
    return ckpttool.resolve(TreeQuestion(path=str(root)), ResumeQuestion(**asked))  # type: ignore[arg-type]


def saves(root: Path) -> dict[str, Checkpoint]:
    return {save.name: save for save in scanned(root).checkpoints}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two whole saves."""
    return healthy("titan_4ranks", tmp_path)


@pytest.fixture
def last(tmp_path: Path) -> Path:
    """Three saves, of which the last of the finished run is weights alone."""
    return healthy("titan_last_model_only", tmp_path)


class TestItsOwnChoice:
    def test_a_copy_with_a_higher_number_makes_it_stop(self, tree: Path) -> None:
        shutil.copytree(tree / "checkpoint" / "step-10", tree / "checkpoint" / "step-300.bak")
        found = simulated(tree)
        assert (found.would_resume, found.outcome) == ("step-300", Outcome.STOPS)
        assert "step-300.bak" in found.because

    def test_without_any_that_was_finished_it_begins_from_scratch(self, tree: Path) -> None:
        for step in ("step-5", "step-10"):
            (tree / "checkpoint" / step / ".metadata").unlink()
        found = simulated(tree)
        assert (found.would_resume, found.outcome) == (None, Outcome.SCRATCH)


class TestStrays:
    @pytest.mark.parametrize("name", ["step-300.bak", "old-step-300", "x_step-11"])
    def test_a_copy_that_would_be_taken_is_named(self, tree: Path, name: str) -> None:
        shutil.copytree(tree / "checkpoint" / "step-10", tree / "checkpoint" / name)
        found = [finding for finding in scanned(tree).findings if finding.code is Code.STRAY_TAKES_OVER]
        assert [(finding.path, finding.severity) for finding in found] == [(name, Severity.NOTE)]
        decision = answered(tree).decision
        assert isinstance(decision, ResumePlan)
        assert decision.point.checkpoint.name == "step-10"

    @pytest.mark.parametrize("name", ["step-9.bak", "step-10.bak", "steps", "step-x"])
    def test_a_copy_that_changes_nothing_is_a_stray_and_no_more(self, tree: Path, name: str) -> None:
        shutil.copytree(tree / "checkpoint" / "step-10", tree / "checkpoint" / name)
        assert Code.STRAY_TAKES_OVER not in codes(scanned(tree).findings)
        assert Code.STRAY_FILE in codes(scanned(tree).findings)


class TestWhatASaveSays:
    def test_step_tokens_and_data_parallel_ranks_come_from_what_was_saved(self, tree: Path) -> None:
        save = saves(tree)["step-10"]
        assert (save.step, save.step_source.value, save.scalars.tokens) == (10, "content", 640)
        assert save.facts == (("dp", 4),)
        assert save.content is Content.FULL

    def test_weights_alone_are_loaded_by_their_path_where_they_are_asked_for(self, last: Path) -> None:
        decision = answered(last, allow_weights_only=True).decision
        assert isinstance(decision, ResumePlan)
        assert [str(setting.place) for setting in decision.load.settings] == ["argument:--checkpoint.initial_load_path"]

    def test_a_large_record_is_searched_at_a_scan(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ckpttool.trainers.torch_dcp.store.AT_A_SCAN", 1000)
        monkeypatch.setattr("ckpttool.trainers.torch_dcp.saves.OF_THE_NEWEST", 1000)
        save = saves(tree)["step-10"]
        assert (save.step_source.value, save.content, save.commit) == ("name", Content.FULL, CommitState.COMMITTED)
        (tree / "checkpoint" / "step-10" / "__2_0.distcp").unlink()
        assert not blocking(saves(tree)["step-10"].findings)
        decision = answered(tree).decision
        assert isinstance(decision, ResumePlan)
        assert decision.point.checkpoint.name == "step-5"


def export(folder: Path, *names: str) -> None:
    """Write what `last_save_in_hf` leaves."""
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(safetensors_bytes([floats(name, [4])]))
    files = {name: name for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


class TestExported:
    def test_a_save_for_others_is_whole_and_weights_alone(self, tree: Path) -> None:
        export(tree / "checkpoint" / "step-15", "a.safetensors", "b.safetensors")
        save = saves(tree)["step-15"]
        assert (save.content, save.commit, save.findings) == (Content.WEIGHTS_ONLY, CommitState.COMMITTED, ())
        decision = answered(tree).decision
        assert isinstance(decision, ResumePlan)
        assert decision.point.checkpoint.name == "step-10"
        assert simulated(tree).would_resume == "step-15"

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("{", Code.META_UNREADABLE),
            ('{"weight_map": {"a": 1}}', Code.META_UNREADABLE),
            ('{"weight_map": {"a": "../../x.safetensors"}}', Code.UNSAFE_NAME),
        ],
    )
    def test_an_index_that_is_wrong_is_said_to_be(self, tree: Path, text: str, code: Row) -> None:
        export(tree / "checkpoint" / "step-15", "a.safetensors")
        (tree / "checkpoint" / "step-15" / "model.safetensors.index.json").write_text(text)
        save = saves(tree)["step-15"]
        assert code in codes(save.findings)
        assert save.commit is CommitState.UNKNOWN

    def test_an_index_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        export(tree / "checkpoint" / "step-15", "a.safetensors")
        index = tree / "checkpoint" / "step-15" / "model.safetensors.index.json"
        index.unlink()
        index.symlink_to("nowhere")
        assert Code.UNREADABLE in codes(saves(tree)["step-15"].findings)


def test_a_scan_reads_large_records_of_the_newest_saves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = healthy("titan_4ranks", tmp_path)
    for step in (1, 2, 3, 4):
        shutil.copytree(root / "checkpoint" / "step-5", root / "checkpoint" / f"step-{step}")
    monkeypatch.setattr("ckpttool.trainers.torch_dcp.saves.AT_A_SCAN", 1000)
    told = {name: save.step_source.value for name, save in saves(root).items()}
    assert told == {f"step-{step}": "name" if step < 3 else "content" for step in (1, 2, 3, 4, 5, 10)}


class TestWhoseTreeItIs:
    @pytest.mark.parametrize("name", ["titan_4ranks", "titan_last_model_only"])
    def test_a_tree_of_torchtitan_is_its_own(self, name: str, tmp_path: Path) -> None:
        root = healthy(name, tmp_path) / "checkpoint"
        assert ckpttool.scan(TreeQuestion(path=str(root))).layout.name == "torchtitan"
        for save in root.iterdir():
            if save.name != "step-7":
                shutil.rmtree(save)
        if (root / "step-7").exists():
            assert ckpttool.scan(TreeQuestion(path=str(root))).layout.name == "torchtitan"
