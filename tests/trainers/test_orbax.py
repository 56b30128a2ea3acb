"""What Orbax's saves tell, what it takes by itself, and where its data go on; on a tree that it wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.finding import Code, Finding, Row
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.verdict import Level, Verdict, VerdictWord
from ckpttool.core.formats import ocdbt
from ckpttool.core.formats.ocdbt import OverLimitError, Store
from ckpttool.types import CheckQuestion, DataQuestion, TreeQuestion
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    codes,
    goes_on,
    going,
    named,
    plan,
    reasons,
    refusal,
    scanned,
    simulated,
    verdict,
    why_not,
)
from tests.support.trainer_trees import damaged, edit_json, healthy

RECORD = "_CHECKPOINT_METADATA"
TREE = "30/default/_METADATA"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Steps 10, 20 and 30."""
    return healthy("orbax_standard", tmp_path)


def against(root: Path) -> tuple[Finding, ...]:
    """What speaks against step 30, which is not taken."""
    answer = plan(root)
    assert chosen(answer) == ("20", 20)
    return reasons(answer, "30")


class TestWhatASaveIs:
    def test_only_the_files_that_its_index_refers_to_are_looked_at(self, tree: Path) -> None:
        listed = {shard.path for shard in named(scanned(tree), "30").shards}
        looked_at = {report.path for report in verdict(tree).reports}
        assert looked_at < listed
        (tree / "30/default/ocdbt.process_0/d/705b6c21496e2f072ded2ffdd7e3c12f").write_bytes(b"")
        assert chosen(plan(tree)) == ("30", 30)

    def test_nothing_but_a_seal_verifies_its_arrays(self, tree: Path) -> None:
        found = verdict(tree, level=Level.CHECKSUM)
        assert (found.word, codes(found.findings)) == (VerdictWord.STRUCT_OK, {Code.CHECKSUM_MISSING})
        assert cli("seal", str(tree), "--checkpoint", "30").exit_code == 0
        assert verdict(tree, level=Level.CHECKSUM).word is VerdictWord.VERIFIED

    def test_an_array_that_is_listed_and_not_in_the_store_is_missed(self, tree: Path) -> None:
        told = json.loads((tree / TREE).read_text())
        own = told["tree_metadata"]["('rng',)"]
        told["tree_metadata"]["('other',)"] = {**own, "key_metadata": [{"key": "other", "key_type": 2}]}
        (tree / TREE).write_text(json.dumps(told))
        (found,) = against(tree)
        assert (found.code, "'other'" in found.message) == (Code.ENTRIES_MISSING, True)

    def test_without_a_list_of_its_arrays_nobody_knows_whether_it_would_load(self, tree: Path) -> None:
        (tree / TREE).unlink()
        assert simulated(tree).outcome is Outcome.UNKNOWN

    def test_items_that_are_not_there_are_missing(self, tree: Path) -> None:
        handlers = json.loads((tree / "30" / RECORD).read_text())["item_handlers"]
        edit_json(tree / "30" / RECORD, item_handlers={**handlers, "loader": "JsonCheckpointHandler"})
        (found,) = against(tree)
        assert (found.code, found.path) == (Code.SHARD_MISSING, "30/loader")
        (tree / "30/loader").mkdir()
        assert codes(against(tree)) == {Code.SHARD_MISSING}
        (tree / "30/loader/metadata").write_text("{}")
        assert chosen(plan(tree)) == ("30", 30)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (OverLimitError("has too many nodes"), Code.OVER_LIMIT),
            (OSError(5, "Input/output error"), Code.UNREADABLE),
            (Store(least={"../20/x": 1}, arrays=frozenset(), broken=()), Code.UNSAFE_NAME),
        ],
    )
    def test_a_store_that_cannot_be_followed_is_not_believed(
        self, tree: Path, answer: object, code: Row, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(_: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(ocdbt, "read_store", read)
        verdicts = ckpttool.verify(ckpttool.scan(TreeQuestion(path=str(tree))), CheckQuestion(name="30"))
        assert code in {found.code for each in verdicts if isinstance(each, Verdict) for found in each.findings}

    def test_files_below_further_folders_that_a_store_refers_to_are_looked_for(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tree / "30/default/more").mkdir()
        (tree / "30/default/more/data").write_bytes(b"12345")
        told = Store(least={"more/data": 6}, arrays=frozenset(), broken=())
        monkeypatch.setattr(ocdbt, "read_store", lambda _: told)
        assert Code.SHARD_TRUNCATED in codes(verdict(tree).findings)

    def test_a_folder_that_cannot_be_read_is_unknown(self, tree: Path) -> None:
        (tree / "40").symlink_to("gone")
        assert codes(reasons(plan(tree), "40")) == {Code.UNREADABLE}

    def test_a_mark_that_only_object_stores_need_is_missed_in_a_note(self, tmp_path: Path) -> None:
        root = damaged("orbax_standard--no-commit-mark", tmp_path)
        assert codes(named(scanned(root), "30").findings) == {Code.UNCOMMITTED_SAVE}
        assert chosen(plan(root)) == ("30", 30)


class TestWhereTheDataGoOn:
    def test_the_state_of_a_loader_tells_while_batches_are_as_they_were(self, tree: Path) -> None:
        (tree / "30/loader").mkdir()
        (tree / "30/loader/process_0-of-1.json").write_text("{}")
        handler = "grain._src.python.checkpoint_handlers.PyGrainCheckpointHandler"
        edit_json(tree / "30" / RECORD, item_handlers={"default": "x", "loader": handler})

        data = goes_on(plan(tree))
        assert (data.effect, data.where) == (DataEffect.EXACT, f"{tree}/30/loader")
        other = goes_on(plan(tree, data=DataQuestion(old_global_batch=8, new_global_batch=16)))
        assert other.effect is DataEffect.UNKNOWN


def test_prune_leaves_saves_that_the_training_rated(tree: Path) -> None:
    edit_json(tree / "10" / RECORD, metrics={"loss": 1.5})
    assert going(tree) == {"20"}


class TestWithoutTheFileThatSaysHowArraysWereSpread:
    def test_a_save_of_the_first_api_version_does_not_load(self, tmp_path: Path) -> None:
        root = Path(shutil.copytree(FIXTURES / "orbax_v1", tmp_path / "run"))
        assert chosen(plan(root)) == ("10", 10)
        (root / "10" / "state" / "_sharding").unlink()
        assert why_not(refusal(root)) == [("10", {Code.SHARD_MISSING})]
        shutil.rmtree(root / "10" / "state" / "array_metadatas")  # as of a tree without arrays of JAX
        assert chosen(plan(root)) == ("10", 10)
