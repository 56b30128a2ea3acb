"""What lies in a tree and makes MindFormers load something else than the chosen files, or stop.

Each was seen with the real program. Every fault has its healthy neighbour: the same tree without it, or with something
that only looks like it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.types import TreeQuestion
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    coded,
    codes,
    document,
    named,
    notes,
    plan,
    preflighted,
    reasons,
    refusal,
    scanned,
    why_not,
)
from tests.support.trees import TreeBuilder

LAST = "iteration_00000020"


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    """Two saves of a first run and one of a second, on four ranks."""
    return TreeBuilder(tmp_path).legacy().save(epoch=5, step=2).save(epoch=10, step=2).save(epoch=15, step=2, run=1)


@pytest.fixture
def card(tmp_path: Path) -> TreeBuilder:
    """Two iterations of a single card, which writes no metadata.json."""
    return TreeBuilder(tmp_path).iteration(step=10, world=1).iteration(step=20, world=1)


def rename(tree: TreeBuilder, old: str, new: str) -> None:
    target = tree.output / new
    target.parent.mkdir(parents=True, exist_ok=True)
    (tree.output / old).rename(target)


class TestNumbersSpelledOtherwise:
    @pytest.mark.parametrize("spelled", ["_1-015_2", "_01-15_2"])
    def test_a_rank_with_another_spelling_of_the_name_lacks_the_file(self, tree: TreeBuilder, spelled: str) -> None:
        odd = f"rank_2/llama2_7b_rank_2{spelled}.ckpt"
        rename(tree, tree.shard(2, 15, 2, run=1), f"checkpoint/{odd}")
        answer = plan(tree.output)
        assert chosen(answer) == ("10_2", 20)
        (found,) = reasons(answer, "_1-15_2")
        assert (found.code, found.severity, found.path) == (MindFormersCode.SHARD_RESPELLED, Severity.DAMAGE, odd)
        assert found.remedy == "rename it to rank_2/llama2_7b_rank_2_1-15_2.ckpt"
        rename(tree, f"checkpoint/{odd}", tree.shard(2, 15, 2, run=1))
        assert chosen(plan(tree.output)) == ("_1-15_2", 30)

    def test_both_spellings_on_every_rank_are_no_shards_of_twice_as_many_ranks(self, tree: TreeBuilder) -> None:
        for rank in range(4):
            path = tree.output / tree.shard(rank, 15, 2, run=1)
            tree.file(f"checkpoint/rank_{rank}/llama2_7b_rank_{rank}_1-015_2.ckpt", path.read_bytes())
        found = named(scanned(tree.output), "_1-15_2")
        assert [shard.rank for shard in found.shards] == [0, 1, 2, 3]
        answer = plan(tree.output)
        assert chosen(answer) == ("_1-15_2", 30)
        (note,) = coded(answer.findings, MindFormersCode.SHARD_RESPELLED)
        assert (note.severity, note.ranks) == (Severity.NOTE, (0, 1, 2, 3))

    def test_a_name_without_leading_zeros_is_nothing_odd(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(prefix="007_a-01_02").save(epoch=100, step=20, run=10)
        assert chosen(plan(tree.output)) == ("_10-100_20", 2000)


class TestFilesOfOtherRanks:
    def gathered(self, tree: TreeBuilder) -> TreeBuilder:
        for rank in (1, 2, 3):
            for label, run in ((5, 0), (10, 0), (15, 1)):
                name = tree.shard(rank, label, 2, run=run)
                rename(tree, name, name.replace(f"/rank_{rank}/", "/rank_0/"))
            tree.remove(f"checkpoint/rank_{rank}")
        return tree

    def test_all_shards_in_one_folder_are_no_training_of_one_rank(self, tree: TreeBuilder) -> None:
        answer = refusal(self.gathered(tree).output)
        found = reasons(answer, "_1-15_2")
        assert [(one.code, one.path) for one in found] == [
            (Code.SHARD_ELSEWHERE, f"rank_0/llama2_7b_rank_{rank}_1-15_2.ckpt") for rank in (1, 2, 3)
        ]
        assert found[0].remedy is not None
        assert found[0].remedy.endswith("move the file to rank_1/llama2_7b_rank_1_1-15_2.ckpt")
        assert "because rank_0 has a file of rank 3" in found[0].message
        assert cli("resolve", str(tree.output)).exit_code == ExitCode.NOTHING_TO_RESUME
        (verdict,) = document("verify", str(tree.output))["checkpoints"]
        assert verdict["verdict"] == VerdictWord.MISSING.value

    def test_a_copy_of_what_the_rank_has_is_a_note(self, tree: TreeBuilder) -> None:
        content = (tree.output / tree.shard(2, 15, 2, run=1)).read_bytes()
        tree.file("checkpoint/rank_1/llama2_7b_rank_2_1-15_2.ckpt", content)
        answer = plan(tree.output)
        assert chosen(answer) == ("_1-15_2", 30)
        assert Code.NAME_DISAGREES in notes(answer)
        assert Code.SHARD_ELSEWHERE not in notes(answer)

    @pytest.mark.parametrize(
        "name",
        [
            "llama2_7b_rank_7-1_2.ckpt",  # of no save of this tree
            "other_rank_7_1-15_2.ckpt",  # of another training
            "llama2_7b_rank_7_1-15_2.safetensors",
            "llama2_7b_rank_999999999_1-15_2.ckpt",  # no training has so many ranks
            "llama2_7b_rank_7_1-15_2.ckpt.bak",
        ],
    )
    def test_a_file_of_a_rank_without_a_part_in_these_saves_says_nothing(self, tree: TreeBuilder, name: str) -> None:
        tree.file(f"checkpoint/rank_0/{name}", b"x")
        answer = plan(tree.output)
        assert chosen(answer) == ("_1-15_2", 30)
        assert answer.point.checkpoint.topology.world_size == 4


class TestIterationWithoutWeights:
    def test_a_single_cards_only_iteration_without_its_model_is_never_chosen(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=20, world=1)
        model = f"checkpoint/{LAST}/llama2_7b-model-0000000-0000001.safetensors"
        content = (tree.output / model).read_bytes()
        answer = refusal(tree.remove(model).output)
        assert why_not(answer) == [(LAST, {Code.SHARD_MISSING})]
        assert "rank 0 has no model shard" in reasons(answer, LAST)[0].message
        assert chosen(plan(tree.file(model, content).output)) == (LAST, 20)

    def test_several_ranks_whose_own_record_names_no_model_shard_are_not_whole_either(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=20, world=2)
        assert chosen(plan(tree.output)) == (LAST, 20)
        folder = tree.checkpoint / LAST
        record = folder / "metadata.json"
        for path in folder.glob("*-model-*"):
            path.unlink()
        record.write_text(record.read_text().replace("-model-", "-opt-"))
        answer = refusal(tree.output)
        assert why_not(answer) == [(LAST, {Code.SHARD_MISSING})]
        assert "no rank has a model shard" in reasons(answer, LAST)[0].message


class TestFurtherSafetensors:
    @pytest.mark.parametrize(
        "name",
        [
            "best.safetensors",
            "llama2_7b-model-0000000-0000001 (1).safetensors",
            "other-model-0000000-0000001.safetensors",
            "zz-opt-0000000-0000001.safetensors",
            "llama2_7b-model-0000001-0000001.safetensors",
        ],
    )
    def test_beside_a_single_cards_files_it_stops_the_start(self, card: TreeBuilder, name: str) -> None:
        model = (card.checkpoint / LAST / "llama2_7b-model-0000000-0000001.safetensors").read_bytes()
        card.file(f"checkpoint/{LAST}/{name}", model)
        answer = plan(card.output)
        assert chosen(answer) == ("iteration_00000010", 10)
        found = coded(reasons(answer, LAST), MindFormersCode.EXTRA_SAFETENSORS)
        assert [(one.path, one.severity) for one in found] == [(f"{LAST}/{name}", Severity.SUSPECT)]
        assert Code.STRAY_FILE not in codes(named(scanned(card.output), LAST).findings)
        card.remove(f"checkpoint/{LAST}/{name}")
        assert chosen(plan(card.output)) == (LAST, 20)

    @pytest.mark.parametrize("name", [".best.safetensors", "best.safetensors.bak", "best.ckpt", "notes.txt"])
    def test_what_glob_does_not_find_is_a_stray(self, card: TreeBuilder, name: str) -> None:
        card.file(f"checkpoint/{LAST}/{name}", b"x")
        assert chosen(plan(card.output)) == (LAST, 20)
        assert MindFormersCode.EXTRA_SAFETENSORS not in codes(named(scanned(card.output), LAST).findings)


class TestBehindAGo:
    """What used to be GO: `preflight` with a config that fits, and `resolve`, which needs none to say it."""

    @staticmethod
    def config(tree: TreeBuilder, *changes: tuple[str, str], more: str = "") -> str:
        text = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()
        for before, after in (("epochs: 2", "epochs: 200"), *changes):
            assert before in text
            text = text.replace(before, after, 1)
        path = tree.base / "base.yaml"
        path.write_text(f"{text}\n{more}")
        return str(path)

    @staticmethod
    def asked(tree: TreeBuilder, config: str) -> tuple[ExitCode, list[Row]]:
        """Return the exit code and the codes of what stands against a launch."""
        exit_code, against = preflighted(tree.output, config)
        return exit_code, [finding.code for finding in against]

    def test_weights_beside_the_ranks_are_loaded_into_every_rank(self, tree: TreeBuilder) -> None:
        tree.file("checkpoint/best.ckpt", (tree.output / tree.shard(0, 5, 2)).read_bytes())
        assert self.asked(tree, self.config(tree)) == (ExitCode.DAMAGE, [MindFormersCode.CKPT_BESIDE_RANKS])
        answer = plan(tree.output)
        assert chosen(answer) == ("_1-15_2", 30)
        (found,) = coded(answer.findings, MindFormersCode.CKPT_BESIDE_RANKS)
        assert found.remedy == f"move files that end in .ckpt out of {tree.checkpoint}"
        rename(tree, "checkpoint/best.ckpt", "best.ckpt")
        assert self.asked(tree, self.config(tree)) == (ExitCode.OK, [])

    def test_a_ckpt_beside_ranks_whose_shards_are_safetensors_does_no_harm(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(fmt="safetensors").save(epoch=5, step=2)
        tree.file("checkpoint/best.ckpt", b"x")
        config = self.config(tree, more="load_ckpt_format: safetensors\n")
        assert self.asked(tree, config) == (ExitCode.OK, [])

    @pytest.mark.parametrize("world", [1, 4])
    def test_without_optimizer_state_it_is_no_go_unless_the_config_means_it(self, tmp_path: Path, world: int) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=20, world=world, optimizer=False)
        sizes = (
            () if world == 4 else (("use_parallel: True", "use_parallel: False"), ("batch_size: 2", "batch_size: 8"))
        )
        newer = "use_legacy_format: False\n"
        config = self.config(tree, *sizes, more=newer)
        assert self.asked(tree, config) == (ExitCode.DAMAGE, [MindFormersCode.OPTIMIZER_MISSING])
        assert codes(plan(tree.output).findings) == {MindFormersCode.OPTIMIZER_MISSING}
        for meant in ("checkpoint:\n  no_save_optim: True\n", "checkpoint:\n  no_load_optim: True\n"):
            assert self.asked(tree, self.config(tree, *sizes, more=meant)) == (ExitCode.OK, [])
        by_callback = ("integrated_save: False", "save_optimizer: False")
        assert self.asked(tree, self.config(tree, *sizes, by_callback, more=newer)) == (ExitCode.OK, [])
        whole = TreeBuilder(tmp_path / "whole").iteration(step=20, world=world)
        assert self.asked(whole, self.config(whole, *sizes, more=newer)) == (ExitCode.OK, [])

    def test_one_that_is_saved_without_as_the_config_says_is_taken(self, card: TreeBuilder) -> None:
        card.remove(f"checkpoint/{LAST}/llama2_7b-opt-0000000-0000001.safetensors")
        path = self.config(card, more="checkpoint:\n  no_save_optim: True\n")
        question = TreeQuestion(path=str(card.output), config=ckpttool.library.read_config(path))
        answer = plan(card.output, tree=question)
        assert chosen(answer) == (LAST, 20)
        assert MindFormersCode.OPTIMIZER_MISSING in notes(answer)
        card.remove(f"checkpoint/{LAST}/llama2_7b-model-0000000-0000001.safetensors")
        assert chosen(plan(card.output, tree=question)) == ("iteration_00000010", 10)
