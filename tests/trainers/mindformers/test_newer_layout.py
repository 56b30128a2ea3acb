"""The newer layout, in which MindFormers never falls back to an older iteration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.health import Health
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.mindformers.load import load_keys
from ckpttool.types import ResumeQuestion
from tests.support.answers import (
    chosen,
    cli,
    coded,
    named,
    notes,
    plan,
    reasons,
    refusal,
    scanned,
    why_not,
    writable_copy,
)
from tests.support.trees import TreeBuilder


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """The checkpoint folder of a real run on four ranks: iterations 10, 20, 30 and the tracker."""
    return writable_copy("newfmt_4rank", tmp_path / "tree") / "checkpoint"


def shard_of(root: Path, step: int, role: str, rank: int) -> Path:
    (found,) = (root / f"iteration_{step:08d}").glob(f"*{role}-{rank:07d}-*.safetensors")
    return found


class TestNeverAnOlderIteration:
    @pytest.mark.parametrize("text", ["", "abc", "30\n30", "-1"])
    def test_an_unreadable_tracker_leaves_the_newest_whole_iteration(self, real: Path, text: str) -> None:
        """It is written in place and not atomically; MindFormers stops with an error."""
        (real / "latest_checkpointed_iteration.txt").write_text(text)
        answer = plan(real)
        assert chosen(answer) == ("iteration_00000030", 30)
        assert Code.TRACKER_DISAGREES in notes(answer)

    @pytest.mark.parametrize("role", ["model", "opt"])
    def test_a_missing_shard_leaves_the_one_before(self, real: Path, role: str) -> None:
        missing = shard_of(real, 30, role, 2)
        missing.unlink()
        answer = plan(real)
        assert chosen(answer) == ("iteration_00000020", 20)
        assert load_keys(answer.load).load_checkpoint.endswith("/iteration_00000020")
        assert [one.path for one in reasons(answer, "iteration_00000030")] == [str(missing.relative_to(real))]
        assert answer.point.lost_steps == 10


class TestAcceptedUnseen:
    @pytest.mark.parametrize("role", ["model", "opt"])
    def test_on_one_rank_a_save_without_what_other_saves_have_is_not_whole(self, tmp_path: Path, role: str) -> None:
        """No record tells there; a resume would start Adam's moments at zero without a word."""
        root = writable_copy("newfmt_1rank", tmp_path / "tree") / "checkpoint"
        shard_of(root, 30, role, 0).unlink()
        answer = plan(root)
        assert chosen(answer) == ("iteration_00000020", 20)
        assert why_not(answer) == [("iteration_00000030", {Code.SHARD_MISSING})]


class TestHealthyButHollow:
    def test_beside_each_of_its_reasons_stands_what_to_do(self, tmp_path: Path) -> None:
        """As a save leaves it that was cut off at once, as one whose record is torn, and as one of two worlds."""
        tree = TreeBuilder(tmp_path).iteration(step=10).folder("checkpoint/iteration_00000020")
        tree.iteration(step=30).file("checkpoint/iteration_00000030/common.json", "{")
        tree.iteration(step=40).file("checkpoint/iteration_00000040/llama2_7b-model-0000000-0000008.safetensors")
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("iteration_00000010", 10)
        found = [reason for one in answer.point.rejected for reason in one.reasons]
        assert {Code.METADATA_INCOMPLETE, Code.SHARD_MISSING, Code.META_UNREADABLE, Code.WORLD_SIZE_DIFFERS} <= {
            one.code for one in found
        }
        assert [one for one in found if one.remedy is None] == []

    @pytest.mark.parametrize("era", ["1.7", "2.1"])
    def test_no_status_is_unknown_and_neither_healthy_nor_unhealthy(self, tmp_path: Path, era: str) -> None:
        """MindFormers counts it as unhealthy. Monitoring is off by default, so that would refuse most trees."""
        tree = TreeBuilder(tmp_path).iteration(step=10, ckpt_status=0)
        tree.iteration(step=20, era="1.7" if era == "1.7" else "2.1")
        assert named(scanned(tree.checkpoint), "iteration_00000020").health is Health.UNKNOWN
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000020", 20)
        strict = plan(tree.checkpoint, choice=ResumeQuestion(require_health=True))
        assert chosen(strict) == ("iteration_00000010", 10)
        assert why_not(strict) == [("iteration_00000020", {Code.HEALTH_UNKNOWN})]


class TestAFreshRunInAnOldFolder:
    """1.7 and 1.8 prune the lowest number, so a fresh run deletes what it has just saved."""

    @pytest.fixture
    def pruned(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path)
        for step in (100, 200, 300):
            tree.iteration(step=step)
        return tree.iteration(step=10).remove("checkpoint/iteration_00000010")

    def test_the_old_training_is_not_silently_taken_for_the_new_one(self, pruned: TreeBuilder) -> None:
        """The tracker says 10, which is gone, and all that is left belongs to a training that somebody gave up.

        To go on from 300 would be the surprise of a lifetime, so it must be named.
        """
        answer = refusal(pruned.checkpoint)
        assert {code for _, found in why_not(answer) for code in found} == {Code.ABANDONED_BRANCH}
        assert {Code.RUN_REWOUND, Code.TRACKER_DISAGREES} <= notes(answer)
        assert cli("resolve", str(pruned.checkpoint)).exit_code == ExitCode.INCOMPLETE

    def test_a_tracker_that_names_no_save_leaves_it_unknown_which_to_take(self, pruned: TreeBuilder) -> None:
        root = str(pruned.checkpoint)
        answer = refusal(pruned.checkpoint)
        (left,) = coded(answer.findings, Code.ABANDONED_BRANCH)
        assert (left.severity, answer.is_sure) == (Severity.UNKNOWN, False)
        assert left.message.startswith("the tracker names iteration_00000010, which is missing")
        for command in (["resolve", root], ["preflight", root], ["repair-meta", root]):
            answered = cli(*command)
            assert answered.exit_code == ExitCode.INCOMPLETE
            told = " ".join(answered.output.split())
            assert "--checkpoint iteration_00000300 chooses it; ckpttool repair pointer " in told
            assert "Nothing to resume from" not in told
        assert cli("prune", root, "--keep-last", "1", "--grace", "0").exit_code == ExitCode.INCOMPLETE
        pruned.iteration(step=10)
        assert cli("resolve", root).exit_code == ExitCode.OK


def test_an_optimizer_file_that_holds_a_models_tensors_damages_even_an_only_save(tmp_path: Path) -> None:
    root = writable_copy("newfmt_tp2dp2", tmp_path / "run") / "checkpoint"
    shutil.rmtree(root / "iteration_00000020")
    assert chosen(plan(root)) == ("iteration_00000030", 30)
    files = [root / "iteration_00000030" / f"llama2_7b-{kind}-0000003-0000004.safetensors" for kind in ("model", "opt")]
    shutil.copyfile(*files)
    (reason,) = reasons(refusal(root), "iteration_00000030")
    assert (reason.code, reason.severity) == (Code.SCHEMA_DIFFERS, Severity.DAMAGE)
    assert reason.path == "iteration_00000030/llama2_7b-opt-0000003-0000004.safetensors"


class TestNoBatchSize:
    def test_a_trainer_that_counts_samples_needs_none(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=20, global_batch_size=None)
        common = tree.checkpoint / "iteration_00000020/common.json"
        common.write_text(common.read_text().replace('"consumed_samples": null', '"consumed_samples": 160'))
        (save,) = scanned(tree.checkpoint).checkpoints
        assert (blocking(save.findings), save.samples) == ((), 160)
