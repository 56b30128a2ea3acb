"""The view that the simulation rests on: it must hold what is there, and odd trees must not stop it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.simulate.view import (
    MetaView,
    MindFormersSettings,
    MindFormersView,
    Reading,
    TrackerView,
    view_for_mindformers,
)
from tests.support.trees import FIRST_SAVE_NS, TreeBuilder

SHARD = "llama2_7b_rank_0-5_2.ckpt"


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path).legacy(ranks=2, sparse=True).save(epoch=5, step=2)


def seen(tree: TreeBuilder) -> MindFormersView:
    return view_for_mindformers(
        LocalStorage(str(tree.checkpoint)), MindFormersSettings(), output=LocalStorage(str(tree.output))
    )


def meta_of(tree: TreeBuilder) -> MetaView:
    return seen(tree).ranks[0].meta


def test_a_rank_is_seen_with_its_record_its_files_and_their_times(tree: TreeBuilder) -> None:
    rank = seen(tree).ranks[0]
    assert rank.meta == MetaView(reading=Reading.PRESENT, epoch=5, step=2, file=SHARD)
    files = {file.name: (file.is_folder, file.mtime_ns) for file in rank.files or ()}
    assert files == {SHARD: (False, FIRST_SAVE_NS), "meta.json": (False, None)}


def test_files_stay_in_the_order_of_the_folder(tree: TreeBuilder) -> None:
    for epoch in (10, 15, 20, 25):
        tree.save(epoch=epoch, step=2)
    rank = seen(tree).ranks[1]
    assert [file.name for file in rank.files or ()] == os.listdir(tree.checkpoint / "rank_1")  # noqa: PTH208 - its order


def test_ranks_are_ordered_by_number_and_odd_names_are_none(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path)
    for name in ("rank_10", "rank_2", "rank_02", "rank_0_bak", "rank_x", "rank_"):
        tree.folder(f"checkpoint/{name}")
    view = seen(tree)
    assert [rank.name for rank in view.ranks] == ["rank_2", "rank_10"]
    assert len(view.entries or ()) == 6


def test_a_link_to_nowhere_has_no_time_and_a_folder_or_fifo_has_its_own(tree: TreeBuilder) -> None:
    tree.folder("checkpoint/rank_0/a-1_2.ckpt").touch("checkpoint/rank_0/a-1_2.ckpt", 5)
    (tree.checkpoint / "rank_0" / "b-1_2.ckpt").symlink_to("nowhere")
    os.mkfifo(tree.checkpoint / "rank_0" / "c-1_2.ckpt")
    tree.touch("checkpoint/rank_0/c-1_2.ckpt", 7)
    times = {file.name[0]: (file.is_folder, file.mtime_ns) for file in seen(tree).ranks[0].files or ()}
    assert (times["a"], times["b"], times["c"]) == ((True, 5), (False, None), (False, 7))


def test_a_rank_that_is_a_file_has_no_files(tree: TreeBuilder) -> None:
    rank = seen(tree.file("checkpoint/rank_2")).ranks[2]
    assert (rank.files, rank.meta) == (None, MetaView(reading=Reading.MISSING))


@pytest.mark.parametrize(
    ("content", "reading"),
    [
        ("", Reading.NOT_JSON),
        ('{"last_epoch": 5', Reading.NOT_JSON),
        ("{}", Reading.NOT_JSON),
        ("null", Reading.NOT_JSON),
        ("[" * 100_000, Reading.NOT_JSON),
        ("1" * 10_000, Reading.NOT_JSON),
        (b'{"last_epoch": "\xff"}', Reading.NOT_TEXT),
        ("[1]", Reading.WRONG_SHAPE),
        ("5", Reading.WRONG_SHAPE),
        ('{"last_epoch": NaN}', Reading.PRESENT),
    ],
)
def test_each_way_a_record_is_broken_is_told_apart(tree: TreeBuilder, content: str | bytes, reading: Reading) -> None:
    assert meta_of(tree.file("checkpoint/rank_0/meta.json", content)).reading is reading


def test_a_record_that_is_a_folder_is_unreadable_and_a_missing_one_missing(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_0/meta.json")
    assert meta_of(tree).reading is Reading.MISSING
    (tree.checkpoint / "rank_0" / "meta.json").symlink_to("nowhere")
    assert meta_of(tree).reading is Reading.MISSING
    (tree.checkpoint / "rank_0" / "meta.json").unlink()
    assert meta_of(tree.folder("checkpoint/rank_0/meta.json")).reading is Reading.NOT_A_FILE


def test_values_of_the_wrong_type_are_none_but_true_is_an_integer(tree: TreeBuilder) -> None:
    assert meta_of(tree.meta(0, "5", 2.0, 7)) == MetaView(reading=Reading.PRESENT)
    assert meta_of(tree.meta(0, epoch=True, step=2, file=SHARD)).epoch is True


def test_of_a_key_given_twice_the_last_counts_as_it_does_for_mindformers(tree: TreeBuilder) -> None:
    tree.file("checkpoint/rank_0/meta.json", '{"last_epoch": 1, "last_epoch": 2}')
    assert meta_of(tree).epoch == 2


@pytest.mark.parametrize(
    ("mark", "kept"), [("0", 0), ("1", 1), ("0.0", 0), ("false", 0), ("true", 1), ("0.5", None), ('"0"', None)]
)
def test_a_health_mark_is_kept_as_python_compares_it(tree: TreeBuilder, mark: str, kept: int | None) -> None:
    tree.file("health_ckpts.json", f'[{{"is_health": {mark}, "ckpt_name": "{SHARD}"}}]')
    assert seen(tree).health.marks == (kept,)


@pytest.mark.parametrize(
    ("content", "reading"),
    [
        ("[]", Reading.PRESENT),
        ("{}", Reading.PRESENT),
        ("{", Reading.NOT_JSON),
        ('{"a": 1}', Reading.WRONG_SHAPE),
        ("[{}, 1]", Reading.WRONG_SHAPE),
    ],
)
def test_a_health_file_without_entries_is_one(tree: TreeBuilder, content: str, reading: Reading) -> None:
    health = seen(tree.file("health_ckpts.json", content)).health
    assert (health.reading, health.marks) == (reading, ())


def test_a_health_entry_counts_without_a_name_and_lacks_a_mark_where_it_has_none(tree: TreeBuilder) -> None:
    tree.file("health_ckpts.json", '[{"ckpt_name": "b"}, {"ckpt_name": 1, "is_health": 0}, {"ckpt_name": "a"}]')
    assert seen(tree).health.marks == (None, 0, None)


def test_without_an_output_folder_there_is_no_health_file(tree: TreeBuilder) -> None:
    tree.health([(SHARD, 0)])
    view = view_for_mindformers(LocalStorage(str(tree.checkpoint)), MindFormersSettings())
    assert view.health.reading is Reading.MISSING


def test_an_iteration_is_seen_with_its_names_and_records(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path, world=2, sparse=True).iteration(step=30, ckpt_status=0)
    view = seen(tree)
    (folder,) = view.iterations
    shards = [f"llama2_7b-{part}-{rank:07d}-0000002.safetensors" for part in ("model", "opt") for rank in (0, 1)]
    assert sorted(folder.names or ()) == sorted([*shards, "common.json", "metadata.json"])
    assert sorted(folder.metadata.files) == shards
    assert folder.common.ckpt_status == 0
    assert folder.common.fields[:2] == ("epoch_num", "step_num")
    assert view.tracker == TrackerView(reading=Reading.PRESENT, text="30", folder="iteration_00000030")


def test_metadata_is_read_only_where_the_tracker_points(tmp_path: Path) -> None:
    view = seen(TreeBuilder(tmp_path, sparse=True).iteration(step=10).iteration(step=20))
    readings = {folder.name: folder.metadata.reading for folder in view.iterations}
    assert readings == {"iteration_00000010": Reading.MISSING, "iteration_00000020": Reading.PRESENT}


def test_a_shard_that_only_a_link_names_is_not_there(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).iteration(step=10, world=1)
    (tree.checkpoint / "iteration_00000010" / "x.safetensors").symlink_to("nowhere")
    assert "x.safetensors" not in (seen(tree).iterations[0].names or ())


@pytest.mark.parametrize(
    ("content", "reading", "files"),
    [
        ('{"storage_data": {}}', Reading.PRESENT, ()),
        (
            '{"storage_data": {"a": [{"file_name": "y"}, {"file_name": "x"}], "b": [{"file_name": "y"}]}}',
            Reading.PRESENT,
            ("y", "x"),
        ),
        ("{", Reading.NOT_JSON, ()),
        ("{}", Reading.WRONG_SHAPE, ()),
        ("[]", Reading.WRONG_SHAPE, ()),
        ('{"storage_data": {"a": 5}}', Reading.WRONG_SHAPE, ()),
        ('{"storage_data": {"a": [5]}}', Reading.WRONG_SHAPE, ()),
        ('{"storage_data": {"a": [{"file_name": 5}]}}', Reading.WRONG_SHAPE, ()),
    ],
)
def test_metadata_of_another_shape(tmp_path: Path, content: str, reading: Reading, files: tuple[str, ...]) -> None:
    tree = TreeBuilder(tmp_path).iteration(step=10).file("checkpoint/iteration_00000010/metadata.json", content)
    metadata = seen(tree).iterations[0].metadata
    assert (metadata.reading, metadata.files) == (reading, files)


@pytest.mark.parametrize(("content", "reading"), [("{", Reading.NOT_JSON), ("[]", Reading.WRONG_SHAPE)])
def test_a_common_record_of_another_shape_is_told(tmp_path: Path, content: str, reading: Reading) -> None:
    tree = TreeBuilder(tmp_path).iteration(step=10).file("checkpoint/iteration_00000010/common.json", content)
    assert seen(tree).iterations[0].common.reading is reading


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        (" 20\n", "iteration_00000020"),
        ("3_0", "iteration_00000030"),
        ("-1", "iteration_-0000001"),
        ("", None),
        ("x", None),
    ],
)
def test_the_tracker_is_read_as_python_reads_numbers(tmp_path: Path, text: str, folder: str | None) -> None:
    tracker = seen(TreeBuilder(tmp_path).tracker(text)).tracker
    assert (tracker.reading, tracker.text, tracker.folder) == (Reading.PRESENT, text.strip(), folder)


def test_a_tracker_that_is_no_text_or_no_file_is_told(tmp_path: Path) -> None:
    path = "checkpoint/latest_checkpointed_iteration.txt"
    tree = TreeBuilder(tmp_path).file(path, b"\xff")
    assert seen(tree).tracker.reading is Reading.NOT_TEXT
    assert seen(tree.remove(path).folder(path)).tracker.reading is Reading.NOT_A_FILE
    tree.remove(path)
    (tree.output / path).symlink_to("nowhere")
    assert seen(tree).tracker.reading is Reading.MISSING


def test_the_folder_is_called_as_it_is_behind_links(tree: TreeBuilder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree.checkpoint)
    view = view_for_mindformers(LocalStorage(str(tmp_path / "link")), MindFormersSettings())
    assert view.path == os.path.realpath(tree.checkpoint)


def test_a_folder_that_is_not_there_makes_an_empty_view(tmp_path: Path) -> None:
    view = view_for_mindformers(LocalStorage(str(tmp_path / "gone")), MindFormersSettings())
    assert (view.entries, view.ranks, view.iterations, view.itself.names) == (None, (), (), None)


class VanishingStorage(LocalStorage):
    """A folder from which every file disappears after it was listed."""

    def stamp(self, path: str) -> FileStamp:
        raise FileNotFoundError(2, "gone", path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        raise FileNotFoundError(2, f"gone, {limit}", path)


def test_files_that_vanish_while_it_looks_are_missing(tree: TreeBuilder) -> None:
    tree.iteration(step=10)
    view = view_for_mindformers(VanishingStorage(str(tree.checkpoint)), MindFormersSettings())
    assert {file.mtime_ns for file in view.ranks[0].files or ()} == {None}
    records = (view.ranks[0].meta, view.tracker, view.iterations[0].common)
    assert {record.reading for record in records} == {Reading.MISSING}
    assert (
        view_for_mindformers(
            LocalStorage(str(tree.checkpoint)), MindFormersSettings(), output=VanishingStorage(str(tree.output))
        ).health.reading
        is Reading.MISSING
    )


def test_no_shard_is_opened(tree: TreeBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_storage: LocalStorage, path: str) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(LocalStorage, "open", refuse)
    assert len(seen(tree.iteration(step=10)).ranks) == 2
