"""Strategy files tell how many ranks a training had, even where the last rank's folder is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.strategy import strategy_world
from tests.support.answers import chosen, plan, refusal, why_not
from tests.support.trees import TreeBuilder


@pytest.mark.parametrize(
    ("names", "world"),
    [
        (["ckpt_strategy_rank_0.ckpt", "ckpt_strategy_rank_3.ckpt"], 4),
        (["ckpt_strategy_rank_11.json", "ckpt_strategy_rank_2.json"], 12),
        (["ckpt_strategy_rank_3.ckpt.bak", "old-ckpt_strategy_rank_9.ckpt", "ckpt_strategy_rank_x.ckpt"], None),
        ([], None),
    ],
)
def test_the_highest_rank_counts_and_whole_names_only(tmp_path: Path, names: list[str], world: int | None) -> None:
    (tmp_path / "strategy").mkdir()
    for name in names:
        (tmp_path / "strategy" / name).touch()
    assert strategy_world(LocalStorage(str(tmp_path))) == world


class TestTrees:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> TreeBuilder:
        """Three rank folders where four ranks trained."""
        tree = TreeBuilder(tmp_path).legacy(ranks=3).save(epoch=10, step=2)
        for rank in range(4):
            tree.file(f"strategy/ckpt_strategy_rank_{rank}.ckpt")
        return tree

    def test_they_betray_a_last_rank_whose_folder_is_gone(self, tree: TreeBuilder) -> None:
        answer = refusal(tree.output)
        assert why_not(answer) == [("10_2", {Code.RANK_MISSING})]
        (reason,) = answer.rejected[0].reasons
        assert "strategy files of 4 ranks" in reason.message
        assert reason.path == "rank_3/llama2_7b_rank_3-10_2.ckpt"

    def test_without_them_three_ranks_are_three(self, tree: TreeBuilder) -> None:
        assert chosen(plan(tree.remove("strategy").output)) == ("10_2", 20)
