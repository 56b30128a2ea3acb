"""What a config or an option declares counts: which training is meant, its ranks, its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.finding import Code, Severity
from ckpttool.domain.plan import NoResumePoint, ResumePlan
from ckpttool.errors import ExitCode, UsageError
from tests.answers import chosen, coded, decide, notes, why_not
from tests.cli.running import ask
from tests.trees import TreeBuilder

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


def config(folder: Path, *, dp: int = 4, trans: bool = False, mode: int = 1, prefix: str = "llama2_7b") -> str:
    path = folder / "mine.yaml"
    path.write_text(CONFIG.format(dp=dp, trans=trans, mode=mode, prefix=prefix))
    return str(path)


def resolved(
    tree: TreeBuilder, path: str | None, choice: api.ResumeQuestion | None = None
) -> ResumePlan | NoResumePoint:
    train = None if path is None else api.read_config(path)
    return decide(tree.output, tree=api.TreeQuestion(path=str(tree.output), config=train), choice=choice)


def planned(tree: TreeBuilder, path: str | None, choice: api.ResumeQuestion | None = None) -> ResumePlan:
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

    def test_without_it_or_with_one_of_another_size_the_one_save_stays_unproven(
        self, tree: TreeBuilder, tmp_path: Path
    ) -> None:
        for path in (None, config(tmp_path, dp=8, trans=True), config(tmp_path, dp=2, trans=True)):
            answer = planned(tree, path)
            assert chosen(answer) == ("10_2", 20)
            assert why_not(answer) == [("_1-15_2", {Code.WORLD_SIZE_DIFFERS})]

    def test_a_config_that_re_slices_is_no_word_on_what_was_saved(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=4).save(epoch=10, step=2)
        for dp in (1, 3, 4, 8):
            answer = planned(tree, config(tmp_path, dp=dp, trans=True))
            assert answer.point.checkpoint.topology.world_size == 4
            assert answer.point.rejected == ()

    def test_a_rank_that_the_smaller_run_lost_is_missed_all_the_same(self, tree: TreeBuilder, tmp_path: Path) -> None:
        tree.remove(tree.shard(3, 15, 2, run=1))
        assert chosen(planned(tree, config(tmp_path, dp=4, trans=True))) == ("10_2", 20)


class TestPrefix:
    @pytest.fixture
    def two(self, tmp_path: Path) -> TreeBuilder:
        TreeBuilder(tmp_path).legacy(ranks=4, prefix="alpha").save(epoch=10, step=2)
        return TreeBuilder(tmp_path).legacy(ranks=4, prefix="beta").save(epoch=20, step=2)

    @pytest.mark.parametrize(("prefix", "name"), [("alpha", "10_2"), ("beta", "20_2")])
    def test_the_config_says_which_of_two_trainings_is_meant(
        self, two: TreeBuilder, tmp_path: Path, prefix: str, name: str
    ) -> None:
        answer = planned(two, config(tmp_path, prefix=prefix))
        assert answer.load.resume_training == f"{prefix}_rank_0-{name}.ckpt"
        (note,) = coded(answer.point.findings, Code.RUN_MIXED)
        assert note.severity is Severity.NOTE
        assert f"saves as {prefix}" in note.message
        assert Code.PREFIX_DIFFERS not in notes(answer)

    def test_it_says_so_of_a_name_that_both_have_too(self, two: TreeBuilder, tmp_path: Path) -> None:
        TreeBuilder(tmp_path).legacy(ranks=4, prefix="alpha").save(epoch=20, step=2)
        named = api.ResumeQuestion(name="20_2")
        assert planned(two, config(tmp_path, prefix="beta"), named).load.resume_training == "beta_rank_0-20_2.ckpt"
        with pytest.raises(UsageError, match="several trainings"):
            resolved(two, None, named)

    def test_an_option_outranks_it_and_the_next_save_is_told_of(self, two: TreeBuilder, tmp_path: Path) -> None:
        path = config(tmp_path, prefix="beta")
        answer = planned(two, path, api.ResumeQuestion(prefix="alpha"))
        assert answer.load.resume_training == "alpha_rank_0-10_2.ckpt"
        assert [one.line for one in coded(answer.findings, Code.PREFIX_DIFFERS)] == [10]

    def test_one_that_neither_has_says_nothing_about_which_is_meant(self, two: TreeBuilder, tmp_path: Path) -> None:
        for path in (None, config(tmp_path, prefix="gamma")):
            answer = resolved(two, path)
            assert isinstance(answer, NoResumePoint)
            assert "nothing says which is meant" in coded(answer.findings, Code.RUN_MIXED)[0].message

    def test_of_a_few_stray_files_alone_it_is_not_believed(self, tmp_path: Path) -> None:
        TreeBuilder(tmp_path).legacy(ranks=4, prefix="alpha").save(epoch=10, step=2)
        tree = TreeBuilder(tmp_path).legacy(ranks=4, prefix="beta").save(epoch=20, step=2, ranks=[0])
        assert planned(tree, config(tmp_path, prefix="beta")).load.resume_training == "alpha_rank_0-10_2.ckpt"

    def test_where_nothing_of_the_right_training_is_whole_the_other_one_is_not_taken(
        self, two: TreeBuilder, tmp_path: Path
    ) -> None:
        two.truncate("checkpoint/rank_1/alpha_rank_1-10_2.ckpt", 10)
        answer = resolved(two, config(tmp_path, prefix="alpha"))
        assert isinstance(answer, NoResumePoint)
        assert [one.checkpoint.prefix for one in answer.rejected] == ["alpha"]
        assert Code.RUN_MIXED in notes(answer)

    def test_a_prefix_that_is_not_in_the_tree_stops_a_launch_until_it_is_allowed(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=4).save(epoch=10, step=2)
        for prefix, more, code in [
            ("llama2_7b", (), ExitCode.OK),
            ("mixtral", (), ExitCode.DAMAGE),
            ("mixtral", ("--allow", "prefix-differs"), ExitCode.OK),
        ]:
            said = ask("preflight", str(tree.output), "--config", config(tmp_path, prefix=prefix), *more)
            assert said.code == code, said.stdout
            assert ("begins a second training" in " ".join(said.stdout.split())) is (prefix == "mixtral")
