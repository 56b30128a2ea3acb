"""The newer layout: iterations, their records, and the tracker, each believed only as far as the files bear it out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.checkpoint import CommitState, Inventory
from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.mindformers.layouts.iteration import MindFormersIteration
from tests.support.answers import FIXTURES, coded, codes, named, names, scanned
from tests.support.faulty_storages import BROKEN, DENIED, FaultyStorage, scan
from tests.support.trees import TreeBuilder

NEWEST = "iteration_00000030"


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    """Iterations 20 and 30 of a run on four ranks."""
    return TreeBuilder(tmp_path).iteration(step=20).iteration(step=30)


def local(tree: TreeBuilder) -> Inventory:
    return scan(LocalStorage(str(tree.checkpoint)))


def about_newest(tree: TreeBuilder) -> tuple[Finding, ...]:
    inventory = local(tree)
    assert named(inventory, "iteration_00000020").findings == ()
    return named(inventory, NEWEST).findings


def tracked_in(inventory: Inventory) -> str | None:
    return None if inventory.tracked is None else inventory.tracked.name


class TestIterations:
    def test_a_real_tree_is_listed_with_what_its_records_hold(self) -> None:
        inventory = scanned(FIXTURES / "newfmt_4rank" / "output")
        assert names(inventory) == ["iteration_00000010", "iteration_00000020", NEWEST]
        newest = inventory.checkpoints[-1]
        assert (newest.step, newest.step_source, newest.topology.world_size) == (30, "content", 4)
        assert newest.scalars.global_batch_size == 8
        assert (newest.commit, newest.health, newest.label) == (CommitState.COMMITTED, Health.UNKNOWN, None)
        assert [(shard.rank, shard.role) for shard in newest.shards] == [
            (rank, role) for rank in range(4) for role in (ShardRole.MODEL, ShardRole.OPTIMIZER)
        ]
        assert set(newest.expected or ()) == {shard.path for shard in newest.shards}
        assert (inventory.findings, inventory.strays, tracked_in(inventory)) == ((), (), NEWEST)

    @pytest.mark.parametrize("prefix", [None, "llama-7b", "a-model-b", "llama3.1", "a\nb"])
    def test_any_prefix_or_none_is_told_from_the_role(self, tmp_path: Path, prefix: str | None) -> None:
        builder = TreeBuilder(tmp_path, prefix=prefix, world=2).iteration(step=10)
        (found,) = local(builder).checkpoints
        assert (found.prefix, found.ranks, found.findings) == (prefix or "", (0, 1), ())


class TestStrays:
    @pytest.mark.parametrize(
        "name",
        [
            "iteration_bak",
            "iteration_30",
            "old-iteration_00000030",
            "iteration_00000030.old",
            "iteration_0000003\u0660",
        ],
    )
    def test_only_whole_names_are_iterations(self, tree: TreeBuilder, name: str) -> None:
        tree.folder(f"checkpoint/{name}")
        inventory = local(tree)
        assert (names(inventory), inventory.strays) == (["iteration_00000020", NEWEST], (name,))
        assert [(one.code, one.severity) for one in inventory.findings] == [(Code.STRAY_FILE, Severity.NOTE)]

    @pytest.mark.parametrize(
        "name",
        [
            "llama2_7b-model-0000000-0000004.safetensors.bak",
            "llama2_7b-model-000000\u0660-0000004.safetensors",
            "llama2_7b-model-0-4.safetensors",
            "llama2_7b-grad-0000000-0000004.safetensors",
            "model.safetensors.index.json",
        ],
    )
    def test_other_files_in_an_iteration_are_noted_and_never_counted(self, tree: TreeBuilder, name: str) -> None:
        before = named(local(tree), NEWEST).shards
        tree.file(f"checkpoint/{NEWEST}/{name}")
        (note,) = about_newest(tree)
        assert (note.code, note.severity, note.path) == (Code.STRAY_FILE, Severity.NOTE, f"{NEWEST}/{name}")
        assert named(local(tree), NEWEST).shards == before

    @pytest.mark.parametrize("what", ["folder", "fifo"])
    def test_what_is_no_file_under_a_shards_name_is_told_and_not_opened(self, tree: TreeBuilder, what: str) -> None:
        path = named(local(tree), NEWEST).shards[0].path
        tree.remove(f"checkpoint/{path}")
        (tree.checkpoint / path).mkdir() if what == "folder" else os.mkfifo(tree.checkpoint / path)
        (found,) = about_newest(tree)
        assert (found.code, found.path) == (Code.NOT_A_REGULAR_FILE, path)
        assert found.severity is (Severity.DAMAGE if what == "folder" else Severity.UNSAFE)

    def test_an_iteration_that_is_a_link_to_nowhere_is_unreadable_and_no_stray(self, tree: TreeBuilder) -> None:
        shutil.rmtree(tree.checkpoint / NEWEST)
        (tree.checkpoint / NEWEST).symlink_to("nowhere")
        (found,) = about_newest(tree)
        assert (found.code, found.severity, found.path) == (Code.UNREADABLE, Severity.UNKNOWN, NEWEST)

    @pytest.mark.parametrize("loop", [False, True])
    def test_a_shard_that_leads_nowhere_still_counts(self, tree: TreeBuilder, *, loop: bool) -> None:
        before = named(local(tree), NEWEST)
        path = before.shards[0].path
        tree.remove(f"checkpoint/{path}")
        (tree.checkpoint / path).symlink_to(tree.checkpoint / path if loop else "nowhere")
        (found,) = about_newest(tree)
        assert (found.code, found.severity, found.path) == (Code.UNREADABLE, Severity.UNKNOWN, path)
        assert [shard.path for shard in named(local(tree), NEWEST).shards] == [shard.path for shard in before.shards]


class TestRecords:
    def test_shards_of_two_worlds_in_one_folder_are_damage(self, tree: TreeBuilder) -> None:
        tree.file(f"checkpoint/{NEWEST}/llama2_7b-model-0000000-0000008.safetensors")
        (found,) = about_newest(tree)
        assert (found.code, found.severity) == (Code.WORLD_SIZE_DIFFERS, Severity.DAMAGE)
        assert "4, 8" in found.message

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (None, Code.METADATA_INCOMPLETE),
            ("", Code.META_UNREADABLE),
            ('{"step_num": 30, "step_num": 30}', Code.META_UNREADABLE),
            ('{"step_num": "30"}', Code.META_UNREADABLE),
            ("[]", Code.META_UNREADABLE),
            ('{"step_num": 20, "epoch_num": 1, "global_step": 20, "global_batch_size": 8}', Code.STEP_DISAGREES),
            ('{"step_num": 30}', Code.SCALARS_MISSING),
        ],
    )
    def test_an_unusable_common_record_is_damage(self, tree: TreeBuilder, content: str | None, code: Row) -> None:
        path = f"checkpoint/{NEWEST}/common.json"
        tree.remove(path) if content is None else tree.file(path, content)
        (found,) = about_newest(tree)
        assert (found.code, found.severity, found.path) == (code, Severity.DAMAGE, f"{NEWEST}/common.json")
        assert named(local(tree), NEWEST).step == 30

    def test_without_it_the_folders_name_tells_the_step_and_nothing_the_rest(self, tree: TreeBuilder) -> None:
        tree.remove(f"checkpoint/{NEWEST}/common.json")
        found = named(local(tree), NEWEST)
        assert (found.step, found.step_source, found.scalars) == (30, "name", Scalars())
        assert (found.health, found.commit) == (Health.UNKNOWN, CommitState.UNCOMMITTED)

    @pytest.mark.parametrize(
        ("status", "health"), [(0, Health.HEALTHY), (1, Health.UNHEALTHY), (None, Health.UNKNOWN), (7, Health.UNKNOWN)]
    )
    def test_only_zero_is_healthy_and_only_one_is_not(self, tmp_path: Path, status: int | None, health: Health) -> None:
        builder = TreeBuilder(tmp_path).iteration(step=10, ckpt_status=status)
        assert local(builder).checkpoints[0].health is health

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            (None, Code.METADATA_INCOMPLETE),
            ("{", Code.META_UNREADABLE),
            ("{}", Code.META_UNREADABLE),
            ('{"storage_data": {"x": [{"file_name": 1}]}}', Code.META_UNREADABLE),
        ],
    )
    def test_metadata_that_tells_no_files_is_damage(self, tree: TreeBuilder, content: str | None, code: Row) -> None:
        path = f"checkpoint/{NEWEST}/metadata.json"
        tree.remove(path) if content is None else tree.file(path, content)
        (found,) = about_newest(tree)
        assert (found.code, found.severity, found.path) == (code, Severity.DAMAGE, f"{NEWEST}/metadata.json")
        assert named(local(tree), NEWEST).commit is CommitState.UNCOMMITTED

    @pytest.mark.parametrize("path", [NEWEST, f"{NEWEST}/common.json", f"{NEWEST}/metadata.json"])
    def test_what_the_disk_withholds_is_unknown_and_neither_missing_nor_damaged(
        self, tree: TreeBuilder, path: str
    ) -> None:
        inventory = scan(FaultyStorage(str(tree.checkpoint), {path: BROKEN}))
        (found,) = [one for one in named(inventory, NEWEST).findings if one.path == path]
        assert (found.code, found.severity) == (Code.UNREADABLE, Severity.UNKNOWN)
        assert Code.SHARD_MISSING not in codes(named(inventory, NEWEST).findings)

    @pytest.mark.parametrize("names_files", [["../../x", "/etc/passwd"], ["x.ckpt", "y.ckpt", "a.ckpt"]])
    def test_files_that_are_no_shards_of_it_are_not_followed(self, tree: TreeBuilder, names_files: list[str]) -> None:
        places = {str(index): [{"file_name": name}] for index, name in enumerate(names_files)}
        tree.file(f"checkpoint/{NEWEST}/metadata.json", json.dumps({"storage_data": places}))
        (found,) = about_newest(tree)
        assert (found.code, found.severity) == (Code.UNSAFE_NAME, Severity.UNSAFE)
        assert repr(min(names_files)) in found.message  # the same one in every run, whatever the hash seed
        assert named(local(tree), NEWEST).expected is None


class TestTracker:
    @pytest.mark.parametrize(("text", "tracked"), [("30", NEWEST), (" 30\n", NEWEST), ("20", "iteration_00000020")])
    def test_it_names_the_last_save(self, tree: TreeBuilder, text: str, tracked: str) -> None:
        inventory = local(tree.tracker(text))
        assert (tracked_in(inventory), inventory.findings) == (tracked, ())

    @pytest.mark.parametrize("text", ["", "x", "3 0", "\u0663\u0660", "-30", "9" * 19, "9" * 100, "\x1b[31m"])
    def test_what_is_no_step_is_a_note(self, tree: TreeBuilder, text: str) -> None:
        inventory = local(tree.tracker(text))
        assert tracked_in(inventory) is None
        (note,) = inventory.findings
        assert note.path == TRACKER
        assert note.code in {Code.TRACKER_DISAGREES, Code.UNREADABLE}

    def test_a_tracker_that_the_disk_withholds_is_unknown(self, tree: TreeBuilder) -> None:
        inventory = scan(FaultyStorage(str(tree.checkpoint), {TRACKER: DENIED}))
        (found,) = coded(inventory.findings, Code.UNREADABLE)
        assert (found.severity, found.path, tracked_in(inventory)) == (Severity.UNKNOWN, TRACKER, None)


@pytest.mark.parametrize(
    ("entry", "known"),
    [(TRACKER, False), ("iteration_00000030/", True), ("iteration_00000030", False), ("iteration_bak/", False)],
)
def test_the_layout_is_known_by_an_iterations_folder_alone(tmp_path: Path, entry: str, *, known: bool) -> None:
    (tmp_path / entry).mkdir() if entry.endswith("/") else (tmp_path / entry).touch()
    assert MindFormersIteration().signs.recognise(list_root(LocalStorage(str(tmp_path)))) is known
