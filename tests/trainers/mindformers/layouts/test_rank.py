"""The legacy layout: what a scan of rank folders finds, and what it says about everything else there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.storage.base import LOST_LINK_REMEDY, Entry, Kind
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.pointers import META_LIMIT
from ckpttool.trainers.mindformers.layouts.rank import MindFormersRank
from ckpttool.trainers.mindformers.scalars import TrainState, state_of
from tests.support.answers import FIXTURES, coded, codes, named, names, scanned
from tests.support.faulty_storages import DENIED, FaultyStorage, scan
from tests.support.inventories import expect_ranks
from tests.support.trees import TreeBuilder


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    """Three saves of a first run on four ranks."""
    builder = TreeBuilder(tmp_path).legacy()
    for epoch in (5, 10, 15):
        builder.save(epoch=epoch, step=2)
    return builder


def local(tree: TreeBuilder) -> Inventory:
    return scan(LocalStorage(str(tree.checkpoint)))


class TestCheckpoints:
    def test_a_real_tree_is_listed_by_run_and_true_step_with_what_its_shards_hold(self) -> None:
        inventory = scanned(FIXTURES / "sink2_ckpt" / "output")
        assert names(inventory) == ["10_2", "15_2", "20_2", "_1-25_2", "_1-30_2"]
        assert [one.step for one in inventory.checkpoints] == [20, 30, 40, 50, 60]
        newest = inventory.checkpoints[-1]
        assert state_of(newest.scalars) == TrainState(
            epoch_num=30, step_num=60, global_step=60, loss_scale=65536.0, global_batch_size=8
        )
        assert (newest.prefix, newest.run, newest.step_source) == ("llama2_7b", 1, "content")
        assert (newest.format, newest.renames) == (FormatName.MINDSPORE_CKPT, ())
        assert [shard.path for shard in newest.shards] == [
            f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt" for rank in range(4)
        ]

    def test_the_step_is_asked_of_another_rank_where_the_first_cannot_tell(self, tree: TreeBuilder) -> None:
        for rank in (0, 1):
            tree.truncate(tree.shard(rank, 15, 2), 0)
        assert named(local(tree), "15_2").step == 30

    def test_where_no_shard_tells_the_label_does_only_with_a_sink_size(self, tree: TreeBuilder) -> None:
        for rank in range(4):
            tree.truncate(tree.shard(rank, 15, 2), 0)
        storage = LocalStorage(str(tree.checkpoint))
        assert (named(scan(storage), "15_2").step, named(scan(storage), "15_2").step_source) == (None, "unknown")
        given = named(scan(storage, steps_per_epoch=2), "15_2")
        assert (given.step, given.step_source) == (30, "name")
        assert named(scan(storage, steps_per_epoch=7), "10_2").step == 20

    def test_ranks_are_in_the_order_of_their_numbers_and_not_of_their_names(self, tmp_path: Path) -> None:
        builder = TreeBuilder(tmp_path).legacy(ranks=12, sparse=True).save(epoch=1, step=2)
        assert named(local(builder), "1_2").ranks == tuple(range(12))
        assert [shard.rank for shard in named(local(builder), "1_2").shards] == list(range(12))


class TestOtherFiles:
    @pytest.mark.parametrize(
        ("name", "code", "stray"),
        [
            ("llama2_7b_rank_2-20_2_breakpoint.ckpt", MindFormersCode.BREAKPOINT_FILE, False),
            ("llama2_7b_rank_2-20_2.tmp", Code.IN_PROGRESS, False),
            ("tmpabcd1234", Code.IN_PROGRESS, False),
            ("llama2_7b_rank_3-20_2.ckpt", Code.NAME_DISAGREES, True),
            ("llama2_7b_rank_2-network-20_2.ckpt", Code.STRAY_FILE, False),
            ("llama2_7b_rank_2-trainable_params.ckpt", Code.STRAY_FILE, False),
            ("old-llama_rank_2-20_2.ckpt.bak", Code.STRAY_FILE, True),
        ],
    )
    def test_each_is_noted_under_its_own_code(self, tree: TreeBuilder, name: str, code: Row, *, stray: bool) -> None:
        before = local(tree)
        tree.file(f"checkpoint/rank_2/{name}", b"x")
        inventory = local(tree)
        (note,) = inventory.findings
        assert (note.code, note.severity, note.path) == (code, Severity.NOTE, f"rank_2/{name}")
        assert note.message.startswith("rank 2: ")
        assert inventory.strays == ((f"rank_2/{name}",) if stray else ())
        assert inventory.checkpoints == before.checkpoints

    def test_what_only_looks_like_a_rank_folder_is_listed_and_never_counted(self, tree: TreeBuilder) -> None:
        tree.folder("checkpoint/rank_0_bak").file("checkpoint/rank_table.json").folder("checkpoint/rank_04")
        tree.file("checkpoint/rank_4").folder("checkpoint/.ckpttool")
        inventory = local(tree)
        assert inventory.strays == ("rank_04", "rank_0_bak", "rank_4", "rank_table.json")
        assert inventory.folder_ranks == (0, 1, 2, 3)
        assert all("count it as a rank" in note.message for note in inventory.findings)

    @pytest.mark.parametrize("what", ["folder", "fifo", "device"])
    def test_what_is_no_file_under_a_shards_name_is_told_and_not_opened(self, tree: TreeBuilder, what: str) -> None:
        shard = tree.output / tree.shard(2, 15, 2)
        shard.unlink()
        if what == "folder":
            shard.mkdir()
        elif what == "fifo":
            os.mkfifo(shard)
        else:
            shard.symlink_to("/dev/null")
        inventory = local(tree)
        (found,) = coded(inventory.findings, Code.NOT_A_REGULAR_FILE)
        assert found.path == "rank_2/llama2_7b_rank_2-15_2.ckpt"
        assert found.severity is (Severity.DAMAGE if what == "folder" else Severity.UNSAFE)
        assert named(inventory, "15_2").ranks == (0, 1, 3)

    def test_a_link_that_leads_somewhere_by_the_time_it_is_opened_is_a_shard(
        self, tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = tree.output / tree.shard(2, 15, 2)
        entries = LocalStorage.entries

        def unmounted(storage: LocalStorage, folder: str) -> list[Entry]:
            listed = entries(storage, folder)
            return [Entry(one.name, Kind.LOST) if one.name == shard.name else one for one in listed]

        before = local(tree)
        monkeypatch.setattr(LocalStorage, "entries", unmounted)
        assert local(tree) == before

    @pytest.mark.parametrize(
        ("target", "why"),
        [
            ("nowhere", "a broken link"),
            ("llama2_7b_rank_2-15_2.ckpt", "a circular link"),
            ("../rank_0/meta.json/x", "Not a directory"),
        ],
    )
    def test_a_shard_that_leads_nowhere_still_counts(self, tree: TreeBuilder, target: str, why: str) -> None:
        shard = tree.output / tree.shard(2, 15, 2)
        shard.unlink()
        shard.symlink_to(target)
        inventory = local(tree)
        (found,) = coded(inventory.findings, Code.UNREADABLE)
        assert (found.path, found.severity) == ("rank_2/llama2_7b_rank_2-15_2.ckpt", Severity.UNKNOWN)
        assert why in found.message
        assert named(inventory, "15_2").ranks == (0, 1, 2, 3)


class TestUnreadable:
    def test_a_folder_that_cannot_be_listed_is_unknown_and_not_empty(self, tree: TreeBuilder) -> None:
        inventory = scan(FaultyStorage(str(tree.checkpoint), {"rank_2": DENIED}))
        assert (inventory.unlisted, inventory.folder_ranks) == (("rank_2",), (0, 1, 2, 3))
        (found,) = inventory.findings
        assert (found.code, found.severity, found.path) == (Code.UNREADABLE, Severity.UNKNOWN, "rank_2")
        assert "Permission denied" in found.message

    @pytest.mark.parametrize("target", ["nowhere", "rank_2", "closed/rank_2"])
    def test_a_folder_that_is_a_link_to_nowhere_is_told_with_what_to_do(self, tree: TreeBuilder, target: str) -> None:
        shutil.rmtree(tree.checkpoint / "rank_2")
        (tree.checkpoint / "rank_2").symlink_to(target)
        assert (local(tree).unlisted, local(tree).folder_ranks) == (("rank_2",), (0, 1, 2, 3))
        expected = expect_ranks(local(tree), [])
        told = [one for one in (*expected.findings, *expected.checkpoints[-1].findings) if one.code is Code.UNREADABLE]
        assert [one.path for one in told] == ["rank_2", tree.shard(2, 15, 2).removeprefix("checkpoint/")]
        assert {one.remedy for one in told} == {LOST_LINK_REMEDY}


class TestMeta:
    def test_records_that_agree_with_the_shards_are_not_mentioned(self, tree: TreeBuilder) -> None:
        assert local(tree).findings == ()

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            ("", Code.META_UNREADABLE),
            ('{"last_epoch": 15, "last_step"', Code.META_UNREADABLE),
            ('{"last_epoch": 15, "last_step": true, "last_ckpt_file": "x"}', Code.META_UNREADABLE),
            ('{"last_epoch": 15, "last_epoch": 15, "last_step": 2, "last_ckpt_file": "x"}', Code.META_UNREADABLE),
            ('{"last_epoch": NaN, "last_step": 2, "last_ckpt_file": "x"}', Code.META_UNREADABLE),
            (" " * (META_LIMIT + 1), Code.META_UNREADABLE),
            ('{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "best.ckpt"}', MindFormersCode.META_DISAGREES),
            (
                '{"last_epoch": 9, "last_step": 2, "last_ckpt_file": "llama2_7b_rank_1-15_2.ckpt"}',
                MindFormersCode.META_DISAGREES,
            ),
        ],
    )
    def test_a_record_that_cannot_be_believed_is_a_note(self, tree: TreeBuilder, content: str, code: Row) -> None:
        before = local(tree).checkpoints
        tree.file("checkpoint/rank_1/meta.json", content)
        inventory = local(tree)
        assert {finding.severity for finding in inventory.findings} == {Severity.NOTE}
        assert code in codes(inventory.findings)
        assert inventory.findings[0].path == "rank_1/meta.json"
        assert inventory.checkpoints == before

    @pytest.mark.parametrize(("named", "exists"), [("9_2", False), ("10_2", True)])
    def test_a_record_of_two_saves_is_reported_with_its_file(self, tree: TreeBuilder, named: str, exists: bool) -> None:
        file = f"llama2_7b_rank_1-{named}.ckpt"
        tree.file("checkpoint/rank_1/meta.json", f'{{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "{file}"}}')
        message = local(tree).findings[0].message
        assert "meta.json is at 15_2, but names the file llama2_7b_rank_N" in message
        assert ("which does not exist" in message) is not exists
        assert message.endswith("the newest save here is 15_2")

    @pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\\\\b", "..", "", "a\\u0000b", "a\\u001bb"])
    def test_a_name_that_leads_elsewhere_is_unsafe_and_never_followed(self, tree: TreeBuilder, name: str) -> None:
        record = f'{{"last_epoch": 15, "last_step": 2, "last_ckpt_file": "{name}"}}'
        tree.file("checkpoint/rank_1/meta.json", record)
        (found,) = local(tree).findings
        assert (found.code, found.severity) == (Code.UNSAFE_NAME, Severity.UNSAFE)
        assert found.path == "rank_1/meta.json"

    def test_a_record_ahead_of_the_files_says_that_its_file_is_gone(self, tree: TreeBuilder) -> None:
        for rank in range(4):
            tree.remove(tree.shard(rank, 15, 2))
        (found,) = local(tree).findings
        assert (found.code, found.severity) == (MindFormersCode.META_AHEAD, Severity.NOTE)
        assert "the newest here is 10_2" in found.message

    def test_a_record_behind_the_files_says_what_came_after(self) -> None:
        (found,) = scanned(FIXTURES / "async_ckpt" / "output").findings
        assert found.code is MindFormersCode.META_BEHIND
        assert found.message == "ranks 0-3: meta.json is at 10_2, but 15_2 was saved after it"

    def test_a_record_of_the_first_run_is_not_taken_for_one_of_the_second(self, tree: TreeBuilder) -> None:
        """Both have a 15_2, and the names differ in the suffix alone."""
        tree.save(epoch=15, step=2, run=1)
        assert local(tree).findings == ()
        for rank in range(4):
            tree.meta(rank, 15, 2, f"llama2_7b_rank_{rank}-15_2.ckpt")
        assert codes(local(tree).findings) == {MindFormersCode.META_BEHIND}

    def test_a_record_is_told_by_the_checkpoints_names_with_their_runs(self, tree: TreeBuilder) -> None:
        tree.save(epoch=15, step=2, run=1)
        for rank in range(4):
            tree.meta(rank, 15, 2, f"llama2_7b_rank_{rank}-15_2.ckpt")
        (found,) = local(tree).findings
        assert found.message.endswith("meta.json is at 15_2, but _1-15_2 was saved after it")
        for rank in range(4):
            tree.meta(rank, 20, 2, f"llama2_7b_rank_{rank}_1-20_2.ckpt")
        (found,) = local(tree).findings
        assert "meta.json is at _1-20_2, but its file does not exist; the newest here is _1-15_2" in found.message

    @pytest.mark.parametrize("file", ["old_rank_{}-15_2.ckpt", "llama2_7b_rank_{}-15_2.safetensors"])
    def test_where_only_prefix_or_format_changed_the_files_are_named_and_not_one_label_twice(
        self, tree: TreeBuilder, file: str
    ) -> None:
        for rank in range(4):
            tree.meta(rank, 15, 2, file.format(rank))
        (found,) = local(tree).findings
        assert f"is at {file.format('N')}, but its file does not exist" in found.message
        assert found.message.endswith("the newest here is llama2_7b_rank_N-15_2.ckpt")


class TestOrder:
    def test_one_shard_of_each_save_is_opened_in_whatever_order_the_ranks_list_theirs(self, tree: TreeBuilder) -> None:
        """Ranks that hold the same saves are one cohort, and a scan of 8,192 of them must not open every file."""
        storage = FaultyStorage(str(tree.checkpoint), chance=Random(1))  # noqa: S311  no secret
        scan(storage)
        assert sorted(storage.opened) == sorted(f"rank_0/llama2_7b_rank_0-{epoch}_2.ckpt" for epoch in (5, 10, 15))


@pytest.mark.parametrize(
    ("entries", "known"),
    [
        (["rank_0/"], True),
        (["rank_0"], False),
        (["rank_0_bak/", "rank_x/"], False),
        (["x/", "rank_12/"], True),
        ([], False),
        (["rank_0/meta.json"], True),
        (["rank_3/llama_rank_3-10_2.ckpt"], True),
        (["rank_3/llama_rank_1-10_2.ckpt"], True),
        (["rank_3/llama_rank_3-network.ckpt"], True),
        (["rank_3/llama_rank_3-10_2.ckpt.tmp"], True),
        (["rank_0/worker.log", "rank_1/worker.log"], False),
        (["rank_0/worker.log", "rank_1/"], False),
        (["rank_0/worker.log", "rank_1/llama_rank_1-10_2.ckpt"], True),
        (["rank_0/model_rank_0.pt"], False),
        (["rank_03/llama_rank_3-10_2.ckpt"], False),
    ],
)
def test_the_layout_is_known_by_one_folder_of_a_rank(tmp_path: Path, entries: list[str], *, known: bool) -> None:
    for entry in entries:
        path = tmp_path / entry
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if entry.endswith("/") else path.touch()
    assert MindFormersRank().signs.recognise(list_root(LocalStorage(str(tmp_path)))) is known
