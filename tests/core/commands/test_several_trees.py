"""Several trees a call: a result for each, one document, and the worst exit code."""

from __future__ import annotations

import errno
import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.finding import of_trees
from ckpttool.core.errors import ExitCode, IncompleteError
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.below import trees_below
from ckpttool.trainers.listing import Listing, list_root
from tests.cli.test_exit_codes import assert_error
from tests.support.commands import Said, ask
from tests.support.situations import SITUATIONS
from tests.support.trees import safetensors_bytes, training_scalars

PRUNE = ("--keep-last", "2", "--grace", "0")


@pytest.fixture
def three(here: Path) -> Path:
    """Two trees, and a folder that is none."""
    SITUATIONS["whole"](here)
    shutil.copytree(here / "output", here / "second")
    (here / "empty").mkdir()
    return here


@pytest.mark.usefixtures("three")
class TestSeveralTrees:
    def test_each_tree_has_its_table_in_the_order_given(self) -> None:
        alone = [ask("prune", tree, *PRUNE).stdout for tree in ("second", "output")]
        said = ask("prune", "second", "output", *PRUNE)
        assert said.code == ExitCode.OK
        assert said.stdout == f"second:\n{alone[0]}\noutput:\n{alone[1]}"

    def test_the_document_holds_that_of_each_tree(self) -> None:
        said = ask("prune", "output", "empty", "second", *PRUNE, "--format", "json")
        assert said.code == ExitCode.UNKNOWN_LAYOUT
        trees = said.json["trees"]
        assert [(tree["path"], tree["exit_code"]) for tree in trees] == [("output", 0), ("empty", 12), ("second", 0)]
        for tree in trees:
            alone = ask("prune", tree["path"], *PRUNE, "--format", "json").json
            assert tree["result"] == (alone if tree["error"] is None else None)
            assert tree["error"] == alone.get("error")
        assert [tree["error"] is None for tree in trees] == [True, False, True]
        assert "ckpttool: error: empty has no checkpoints" in said.stderr

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("command", ["scan", "verify", "health", "seal"])
    def test_all_that_look_or_keep_take_several_too(self, command: str) -> None:
        said = ask(command, "output", "empty", "second", "--json")
        assert said.code == ExitCode.UNKNOWN_LAYOUT
        trees = said.json["trees"]
        alone = [ask(command, tree, "--json").json for tree in ("output", "second")]
        assert [tree["result"]["schema"] for tree in trees if tree["result"]] == [one["schema"] for one in alone]
        assert [tree["error"] is None for tree in trees] == [True, False, True]


class TestTreesBelow:
    @pytest.mark.usefixtures("three")
    def test_all_trees_below_a_folder_are_found_sorted_and_no_checkpoint_is_looked_into(self, three: Path) -> None:
        (three / "runs/a/log/rank_0").mkdir(parents=True)
        (three / "runs/a/log/rank_0/info.log").write_text("step 1")
        (three / "output").rename(three / "runs/a/output")
        (three / "second").rename(three / "runs/b")
        said = ask("scan", "--all", "runs", "--json")
        assert said.code == ExitCode.OK
        found = ["runs/a/output/checkpoint", "runs/b/checkpoint"]  # and not log/, whose folders are no ranks' saves
        assert [tree["path"] for tree in trees_of(said)] == found
        for tree in trees_of(said):
            assert tree["result"] == ask("scan", tree["path"], "--json").json

    def test_one_tree_is_a_document_of_trees_too(self, three: Path) -> None:
        said = ask("scan", "--all", "output", "--json")
        assert [tree["path"] for tree in trees_of(said)] == ["output/checkpoint"]
        assert three.is_dir()

    def test_no_link_is_followed(self, three: Path) -> None:
        (three / "output/loop").symlink_to(three)
        (three / "latest").symlink_to(three / "output")
        assert len(trees_of(ask("scan", "--all", ".", "--json"))) == 2

    def test_what_lies_in_the_trash_is_no_tree(self, three: Path) -> None:
        shutil.copytree(three / "second", three / "output/checkpoint/.ckpttool/trash/x")
        assert len(trees_of(ask("scan", "--all", ".", "--json"))) == 2

    def test_damage_in_one_of_them_is_the_exit_code(self, three: Path) -> None:
        shutil.rmtree(three / "second/checkpoint/rank_1")
        said = ask("scan", "--all", ".", "--world-size", "4")
        assert said.code == ExitCode.DAMAGE
        assert said.stdout.startswith("output/checkpoint:\n")
        assert "\n\nsecond/checkpoint:\n" in said.stdout

    def test_a_folder_that_cannot_be_listed_is_not_passed_over(
        self, three: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def listed(storage: Storage) -> Listing:
            if storage.root == "empty":
                raise PermissionError(errno.EACCES, "Permission denied", "empty")
            return list_root(storage)

        for module in ("below", "locate"):
            monkeypatch.setattr(f"ckpttool.trainers.{module}.list_root", listed)
        said = ask("scan", "--all", ".", "--json")
        assert said.code == ExitCode.INCOMPLETE
        assert [tree["path"] for tree in trees_of(said) if tree["error"]] == ["empty"]
        assert three.is_dir()

    def test_more_folders_than_anybody_waits_for_are_an_error_and_not_a_part_of_the_answer(self, three: Path) -> None:
        with pytest.raises(IncompleteError, match="more than 3 folders"):
            list(trees_below(str(three), most=3))
        assert [below.path for below in trees_below(str(three / "output"), most=3)] == [
            str(three / "output/checkpoint")
        ]


@pytest.mark.usefixtures("three")
class TestDidYouMean:
    def test_trees_a_little_below_are_named(self, three: Path) -> None:
        (three / "runs").mkdir()
        (three / "output").rename(three / "runs/a")
        shutil.copytree(three / "second", three / "runs/b")
        words = "; did you mean runs/a/checkpoint or runs/b/checkpoint?"
        assert_error(ask("scan", "runs"), ExitCode.UNKNOWN_LAYOUT, words)
        for name in ("c", "d"):
            shutil.copytree(three / "second", three / "runs" / name)
        assert_error(ask("scan", "runs"), ExitCode.UNKNOWN_LAYOUT, "4 trees are below runs: ckpttool scan --all runs")

    def test_the_only_one_is_taken_and_named(self, three: Path) -> None:
        (three / "runs").mkdir()
        (three / "output").rename(three / "runs/a")
        said = ask("scan", "runs")
        assert said.code == ExitCode.OK
        assert "checking runs/a/checkpoint, the only tree below runs" in said.stderr
        assert said.stdout == ask("scan", "runs/a/checkpoint").stdout

    def test_without_dir_those_below_the_current_folder(self, three: Path) -> None:
        (three / "output").rename(three / "first")
        assert_error(ask("resolve"), ExitCode.UNKNOWN_LAYOUT, "did you mean first/checkpoint or second/checkpoint?")

    def test_a_trainings_own_saves_go_first_and_the_other_tree_is_named(self, three: Path) -> None:
        merged = three / "output/unified_checkpoint/hyper_param.safetensors"
        merged.parent.mkdir()
        merged.write_bytes(safetensors_bytes(training_scalars(epoch=1, true_step=2), {"format": "ms"}))
        said = ask("scan", "output")
        assert said.code == ExitCode.OK
        assert "checking output/checkpoint; output/unified_checkpoint is another tree" in said.stderr

    def test_of_several_that_may_be_meant_none_is_taken_and_each_is_named(self, three: Path) -> None:
        shutil.copytree(three / "output/checkpoint", three / "checkpoint")
        names = ". has several trees: checkpoint (mindformers-rank) and output/checkpoint (mindformers-rank); give"
        assert_error(ask("resolve", "."), ExitCode.USAGE, names)
        assert ask("resolve", "checkpoint").code == ExitCode.OK
        assert ask("resolve").code == ExitCode.OK  # the usual place


def trees_of(said: Said) -> list[dict[str, Any]]:
    """Return what a document of trees holds."""
    assert said.json["schema"] == "ckpttool/trees/1"
    found = said.json["trees"]
    assert isinstance(found, list)
    return found


def test_the_worst_code_speaks_in_any_order() -> None:
    for order in permutations((ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.DAMAGE, ExitCode.UNSAFE)):
        assert of_trees(order) is ExitCode.UNSAFE
    assert of_trees([ExitCode.OK, ExitCode.OK]) is ExitCode.OK
    for code in ExitCode:
        if code not in {ExitCode.OK, ExitCode.INTERRUPTED}:
            assert of_trees([ExitCode.OK, code]) is code
