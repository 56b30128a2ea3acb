"""Several trees a call: a result for each, one document, and the worst exit code."""

from __future__ import annotations

import json
import shutil
from itertools import permutations
from pathlib import Path

import pytest

from ckpttool.domain.exits import of_trees
from ckpttool.errors import ExitCode
from tests.cli.running import ask
from tests.cli.situations import SITUATIONS
from tests.cli.test_exit_codes import assert_error

PRUNE = ("--keep-last", "2", "--grace", "0")


@pytest.fixture
def three(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two trees, and a folder that is none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    SITUATIONS["whole"](here)
    shutil.copytree(here / "output", here / "second")
    (here / "empty").mkdir()
    return here


@pytest.mark.usefixtures("three")
class TestSeveralTrees:
    @pytest.mark.parametrize("form", ["table", "json"])
    def test_of_one_tree_it_is_what_it_was(self, form: str, three: Path) -> None:
        alone = ask("prune", "second", *PRUNE, "--format", form)
        again = ask("prune", *PRUNE, "--format", form, "second")
        assert (alone.code, alone.stdout) == (again.code, again.stdout)
        assert three.is_dir()
        if form == "json":
            assert alone.json["schema"] == "ckpttool/prune/1"

    def test_each_tree_has_its_table_in_the_order_given(self) -> None:
        alone = [ask("prune", tree, *PRUNE).stdout for tree in ("second", "output")]
        said = ask("prune", "second", "output", *PRUNE)
        assert said.code == ExitCode.OK
        assert said.stdout == "\n".join(alone)

    def test_the_document_holds_that_of_each_tree(self) -> None:
        said = ask("prune", "output", "empty", "second", *PRUNE, "--format", "json")
        assert said.code == ExitCode.UNKNOWN_LAYOUT
        trees = said.json["trees"]
        assert isinstance(trees, list)
        assert [(tree["path"], tree["exit_code"]) for tree in trees] == [("output", 0), ("empty", 12), ("second", 0)]
        for tree in trees:
            alone = ask("prune", tree["path"], *PRUNE, "--format", "json")
            assert tree["result"] == (json.loads(alone.stdout) if alone.stdout else None)
        assert [tree["error"] is None for tree in trees] == [True, False, True]
        assert "ckpttool: error: empty: " in said.stderr

    def test_what_stops_one_does_not_stop_the_others(self, three: Path) -> None:
        said = ask("prune", "empty", "output", "second", *PRUNE, "--apply")
        assert said.code == ExitCode.UNKNOWN_LAYOUT
        for tree in ("output", "second"):
            assert not (three / tree / "checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt").exists()

    def test_an_empty_name_among_them_changes_nothing(self, three: Path) -> None:
        said = ask("prune", "output", "", *PRUNE, "--apply")
        assert_error(said, ExitCode.USAGE, "is a shell variable not set?")
        assert (three / "output/checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt").exists()


def test_the_worst_code_speaks_in_any_order() -> None:
    for order in permutations((ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.DAMAGE, ExitCode.UNSAFE)):
        assert of_trees(order) is ExitCode.UNSAFE
    assert of_trees([ExitCode.OK, ExitCode.OK]) is ExitCode.OK
    for code in ExitCode:
        if code not in {ExitCode.OK, ExitCode.INTERRUPTED}:
            assert of_trees([ExitCode.OK, code]) is code
