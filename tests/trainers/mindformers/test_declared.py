"""What a config or an option declares counts: which training is meant, its ranks, its batches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import ckpttool
from ckpttool.core.decide.data_position import plan_data
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.core.formats.safe_yaml import parse_document
from ckpttool.trainers.mindformers.config import train_config_of
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.load import load_keys
from ckpttool.types import DataQuestion, ResumeQuestion, TreeQuestion
from tests.support.answers import chosen, coded, decide, notes, plan, why_not
from tests.support.commands import Said, ask
from tests.support.healthy_trees import unified_tree
from tests.support.trees import TreeBuilder

CONFIG = """\
run_mode: train
use_parallel: True
auto_trans_ckpt: {trans}
runner_config: {{epochs: 9, batch_size: 2, sink_mode: True, sink_size: 2}}
parallel: {{parallel_mode: {mode}, full_batch: True}}
parallel_config: {{data_parallel: {dp}, model_parallel: 1}}
load_ckpt_format: ckpt
callbacks:
  - type: MFLossMonitor
  - {{type: CheckpointMonitor, prefix: {prefix}, keep_checkpoint_max: 3}}
"""

WRITTEN = ("--allow", "start-differs")
"""Asks for what `launch` would write: these configs name nothing to load."""


def config(folder: Path, *, dp: int = 4, trans: bool = False, mode: int = 1, prefix: str = "llama2_7b") -> str:
    path = folder / "mine.yaml"
    path.write_text(CONFIG.format(dp=dp, trans=trans, mode=mode, prefix=prefix))
    return str(path)


def resolved(tree: TreeBuilder, path: str | None, choice: ResumeQuestion | None = None) -> ResumePlan | NoResumePoint:
    train = None if path is None else ckpttool.library.read_config(path)
    return decide(tree.output, tree=TreeQuestion(path=str(tree.output), config=train), choice=choice)


def planned(tree: TreeBuilder, path: str | None, choice: ResumeQuestion | None = None) -> ResumePlan:
    decision = resolved(tree, path, choice)
    assert isinstance(decision, ResumePlan), why_not(decision)
    return decision


class TestSmallerWorld:
    """8 ranks, then 4 by `auto_trans_ckpt`, of which there is one save so far."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2)
        return tree.save(epoch=15, step=2, run=1, ranks=range(4))

    def test_a_config_of_the_smaller_world_proves_that_it_was_meant(self, tree: TreeBuilder, tmp_path: Path) -> None:
        answer = planned(tree, config(tmp_path, dp=4, trans=True))
        assert chosen(answer) == ("_1-15_2", 30)
        (note,) = coded(answer.findings, Code.WORLD_SIZE_DIFFERS)
        assert (note.severity, "--world-size 8" in (note.remedy or "")) == (Severity.NOTE, True)

    def test_without_it_or_of_another_size_the_save_stays_unproven(self, tree: TreeBuilder, tmp_path: Path) -> None:
        for path in (None, config(tmp_path, dp=8, trans=True), config(tmp_path, dp=2, trans=True)):
            answer = planned(tree, path)
            assert chosen(answer) == ("10_2", 20)
            assert why_not(answer) == [("_1-15_2", {Code.WORLD_SIZE_DIFFERS})]
        declared = TreeQuestion(path=str(tree.output), world_size=4)
        assert chosen(plan(tree.output, tree=declared)) == ("_1-15_2", 30)

    def test_a_config_that_re_slices_is_no_word_on_what_was_saved(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=4).save(epoch=10, step=2)
        for dp in (1, 3, 4, 8):
            answer = planned(tree, config(tmp_path, dp=dp, trans=True))
            assert answer.point.checkpoint.topology.world_size == 4
            assert answer.point.rejected == ()


class TestPrefix:
    @pytest.fixture
    def two(self, tmp_path: Path) -> TreeBuilder:
        TreeBuilder(tmp_path).legacy(ranks=4, prefix="alpha").save(epoch=10, step=2)
        return TreeBuilder(tmp_path).legacy(ranks=4, prefix="beta").save(epoch=20, step=2)

    @pytest.mark.parametrize(("prefix", "name"), [("alpha", "10_2"), ("beta", "20_2")])
    def test_the_config_says_which_is_meant(self, two: TreeBuilder, tmp_path: Path, prefix: str, name: str) -> None:
        answer = planned(two, config(tmp_path, prefix=prefix))
        assert load_keys(answer.load).resume_training == f"{prefix}_rank_0-{name}.ckpt"
        (note,) = coded(answer.point.findings, Code.RUN_MIXED)
        assert note.severity is Severity.NOTE
        assert f"saves as {prefix}" in note.message
        assert MindFormersCode.PREFIX_DIFFERS not in notes(answer)

    def test_an_option_outranks_it_and_the_next_save_is_told_of(self, two: TreeBuilder, tmp_path: Path) -> None:
        path = config(tmp_path, prefix="beta")
        answer = planned(two, path, ResumeQuestion(prefix="alpha"))
        assert load_keys(answer.load).resume_training == "alpha_rank_0-10_2.ckpt"
        assert [one.line for one in coded(answer.findings, MindFormersCode.PREFIX_DIFFERS)] == [10]

    def test_one_that_neither_has_says_nothing_about_which_is_meant(self, two: TreeBuilder, tmp_path: Path) -> None:
        for path, words in (
            (None, "it is unknown which one to use"),
            (config(tmp_path, prefix="gamma"), "the config selects none of them: it saves as gamma"),
        ):
            answer = resolved(two, path)
            assert isinstance(answer, NoResumePoint)
            assert words in coded(answer.findings, Code.RUN_MIXED)[0].message

    def test_where_the_right_training_is_damaged_no_other_is_taken(self, two: TreeBuilder, tmp_path: Path) -> None:
        two.truncate("checkpoint/rank_1/alpha_rank_1-10_2.ckpt", 10)
        answer = resolved(two, config(tmp_path, prefix="alpha"))
        assert isinstance(answer, NoResumePoint)
        assert [one.checkpoint.prefix for one in answer.rejected] == ["alpha"]
        assert Code.RUN_MIXED in notes(answer)


class TestDevicesInDataParallelMode:
    """4 ranks × 2 samples, saved at step 30: no config says how many ranks there are, the devices do."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        return TreeBuilder(tmp_path).legacy(ranks=4).save(epoch=15, step=2)

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return Path(config(tmp_path, mode=0))

    def launched(self, tree: TreeBuilder, base: Path, *more: str) -> tuple[Said, dict[str, object]]:
        output = base.parent / "new.yaml"
        output.unlink(missing_ok=True)
        said = ask(
            "launch", str(tree.output), "--config", str(base), "--output", str(output), "--format", "json", *more
        )
        return said, yaml.safe_load(output.read_text()) if output.exists() else {}

    def flown(self, tree: TreeBuilder, base: Path, *more: str) -> Said:
        return ask("preflight", str(tree.output), "--config", str(base), *WRITTEN, *more)

    @pytest.mark.parametrize(("lost", "whole"), [("rank_3", 3), ("rank_[123]", 1)])
    def test_a_rank_below_it_must_not_be_missing(self, tree: TreeBuilder, base: Path, lost: str, whole: int) -> None:
        for folder in tree.checkpoint.glob(lost):
            shutil.rmtree(folder)
        said = self.flown(tree, base, "--devices", "4")
        assert said.code == ExitCode.NOTHING_TO_RESUME
        assert "4 devices start" in " ".join(said.stdout.split())
        said, _ = self.launched(tree, base, "--devices-per-node", "2", "--nodes", "2", "--master-addr", "host")
        assert said.code == ExitCode.NOTHING_TO_RESUME
        assert self.flown(tree, base, "--devices", str(whole)).code == ExitCode.OK

    def test_a_launch_from_unified_weights_is_not_of_one_device_because_nobody_says_how_many(self, base: Path) -> None:
        folder, new = unified_tree(base.parent), base.with_name("new.yaml")
        order = ("launch", str(folder), "--config", str(base), "--output", str(new))
        for more in ((), ("--format", "json")):
            said, flown = ask(*order, *more), ask("preflight", str(folder), "--config", str(base), *WRITTEN, *more)
            assert (said.code, flown.code, new.exists()) == (ExitCode.INCOMPLETE, ExitCode.INCOMPLETE, False)
            assert "devices-unknown" in said.stdout
            assert "devices-unknown" in flown.stdout
        ask(*order, "--allow", "devices-unknown")
        assert not new.exists()
        assert ask(*order, "--devices-per-node", "2").code == ExitCode.OK
        assert new.exists()

    def test_on_fewer_the_data_go_on_where_the_smaller_batches_are(self, tree: TreeBuilder, base: Path) -> None:
        said, new = self.launched(tree, base, "--devices-per-node", "2")
        assert (said.code, new["data_skip_steps"], new["ignore_data_skip"]) == (ExitCode.OK, 60, False)
        flight = self.flown(tree, base, "--devices", "2")
        assert flight.code == ExitCode.OK
        assert "2 ranks, batches of 4 samples, data_skip_steps 60" in " ".join(flight.stdout.split())

    def test_a_shared_out_optimizer_needs_all_of_them(self, tree: TreeBuilder, base: Path) -> None:
        base.write_text(
            base.read_text().replace("parallel_mode: 0", "parallel_mode: 0, enable_parallel_optimizer: True")
        )
        assert self.flown(tree, base, "--devices", "4").code == ExitCode.OK
        fewer = self.flown(tree, base, "--devices", "2")
        assert fewer.code == ExitCode.DAMAGE
        assert "lack the optimizer state" in " ".join(fewer.stdout.split())


@given(ranks=st.integers(1, 64), devices=st.integers(1, 64), batch=st.integers(1, 512), step=st.integers(0, 10**6))
def test_on_any_devices_no_sample_is_lost(ranks: int, devices: int, batch: int, step: int) -> None:
    text = f"use_parallel: True\nparallel: {{parallel_mode: 0}}\nrunner_config: {{batch_size: {batch}}}\n"
    document = parse_document(text.encode(), where="c")
    before, now = (train_config_of(document, path="c", devices=each) for each in (ranks, devices))
    assert now.world_size == devices
    assert now == before.started_on(devices)
    plan = plan_data(Step(step), before.global_batch_size, DataQuestion(new_global_batch=now.global_batch_size))
    assert 0 <= step * batch * ranks - plan.batches * batch * devices < batch * devices


class TestUnknownBatchSize:
    """Where only MindFormers will know how large its batches are, a number of ours could only be worse than its own."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        return TreeBuilder(tmp_path).legacy(ranks=4).save(epoch=15, step=2)

    def launched(self, tree: TreeBuilder, text: str, *more: str) -> tuple[Said, dict[str, object]]:
        base, output = tree.base / "base.yaml", tree.base / "new.yaml"
        base.write_text(text)
        output.unlink(missing_ok=True)
        accept = ("--allow", "config-key-ignored")  # a `base_config` is never read: without this nothing is written
        said = ask("launch", str(tree.output), "--config", str(base), "--output", str(output), *accept, *more)
        return said, yaml.safe_load(output.read_text())

    def test_the_data_are_left_to_it(self, tree: TreeBuilder) -> None:
        said, new = self.launched(tree, "base_config: ./other.yaml\nrun_mode: train\n")
        assert new["resume_training"] == "llama2_7b_rank_0-15_2.ckpt"
        assert {"data_skip_steps", "ignore_data_skip"}.isdisjoint(new)
        assert "30 steps if batches stay at 8 samples" in " ".join(said.stdout.split())
        assert "note batch-size-unknown" in said.stdout

    def test_settings_that_would_overrule_it_are_cleared(self, tree: TreeBuilder) -> None:
        _, new = self.launched(tree, "base_config: ./other.yaml\ndata_skip_steps: 7\nignore_data_skip: True\n")
        assert (new["data_skip_steps"], new["ignore_data_skip"]) == (None, False)

    @pytest.mark.parametrize(
        ("more", "skip", "ignore"),
        [
            (("--gbs", "16"), 15, False),
            (("--new-dataset",), None, True),
            (("--dataset-changed-at", "10"), 20, False),
        ],
    )
    def test_what_only_we_know_is_written(
        self, tree: TreeBuilder, more: tuple[str, ...], skip: int | None, ignore: bool
    ) -> None:
        _, new = self.launched(tree, "base_config: ./other.yaml\n", *more)
        assert (new.get("data_skip_steps"), new["ignore_data_skip"]) == (skip, ignore)
