"""What MindFormers would pick: faults of its choice that were reproduced with the real code, version by version."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.plan import Outcome
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import DEFAULT_LIMIT
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.own_names import checkpoint_name
from ckpttool.trainers.mindformers.simulate import simulate
from ckpttool.trainers.mindformers.simulate.versions import KNOWN_VERSIONS
from ckpttool.trainers.mindformers.simulate.view import (
    CommonView,
    HealthView,
    IterationView,
    MetadataView,
    MetaView,
    MindFormersSettings,
    MindFormersView,
    RankView,
    Reading,
    SeenEntry,
    TrackerView,
    view_for_mindformers,
)
from tests.support.trees import MINUTE_NS, TreeBuilder, ckpt_bytes, training_scalars, weights

ALL = KNOWN_VERSIONS
UP_TO_1_6 = ALL[:2]
FROM_1_6 = ALL[1:]
UP_TO_1_7 = ALL[:3]
FROM_1_7 = ALL[2:]
FROM_1_8 = ALL[3:]
FROM_1_9 = ALL[4:]

TRACKER = "checkpoint/latest_checkpointed_iteration.txt"
NEWEST = "checkpoint/iteration_00000020"
MONITORS: dict[str, Any] = {"use_checkpoint_health_monitor": True}
BY_TIME: dict[str, Any] = {"resume_by_last_timestamp_ckpt": True}
SAFETENSORS: dict[str, Any] = {"load_ckpt_format": "safetensors"}


def view_of(output: Path, **settings: Any) -> MindFormersView:  # noqa: ANN401 - the dataclass has their types
    storage = LocalStorage(str(output / "checkpoint"))
    return view_for_mindformers(storage, MindFormersSettings(**settings), output=LocalStorage(str(output)))


def assert_takes(
    tree: TreeBuilder | MindFormersView,
    name: str | None,
    *words: str,
    versions: Sequence[str] = ALL,
    **settings: Any,  # noqa: ANN401 - as above
) -> None:
    """Each of these versions would take this save, or none, and all of these words are said of why."""
    view = view_of(tree.output, **settings) if isinstance(tree, TreeBuilder) else tree
    for version in versions:
        told = simulate(view, version)
        assert (told.version, told.would_resume) == (version, name), told
        assert [word for word in words if word not in told.because] == [], told


def reasons_of(tree: TreeBuilder, versions: Sequence[str] = ALL, **settings: Any) -> list[str]:  # noqa: ANN401 - as above
    """What each of these versions says of why it takes what it takes."""
    view = view_of(tree.output, **settings)
    return [simulate(view, version).because for version in versions]


def tree_at(base: Path, prefix: str = "llama2_7b", fmt: Literal["ckpt", "safetensors"] = "ckpt") -> TreeBuilder:
    """Four ranks with checkpoints 5_2 and 10_2, all well."""
    return TreeBuilder(base).legacy(prefix=prefix, fmt=fmt, sparse=True).save(epoch=5, step=2).save(epoch=10, step=2)


@pytest.fixture
def tree(tmp_path: Path) -> TreeBuilder:
    return tree_at(tmp_path)


@pytest.fixture
def iterations(tmp_path: Path) -> TreeBuilder:
    return TreeBuilder(tmp_path, sparse=True).iteration(step=10, era="1.7").iteration(step=20, era="1.7")


# Versions ------------------------------------------------------------------------------------------------------------


def test_a_sound_tree_is_resumed_from_its_newest_checkpoint(tree: TreeBuilder) -> None:
    limit = "up to 10_2, the lowest position in meta.json"
    why = f"10_2 is the newest name that all 4 ranks have {limit}; it compares only names and opens no shard"
    patches = ("1.6.0", "1.7.0", "1.8.0", "1.9.0", "2.0.0", "2.1.0", "2.1.3")
    assert_takes(tree, "10_2", versions=(*ALL, *patches))
    assert set(reasons_of(tree, (*ALL, *patches))) == {why}


def test_one_rank_alone_is_resumed_too(tmp_path: Path) -> None:
    alone = TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=5, step=2)
    assert_takes(
        alone, "5_2", "5_2 is the newest name that its one rank has up to 5_2, the lowest position in meta.json;"
    )


def test_versions_that_go_by_the_world_size_do_not_blame_a_stray(tree: TreeBuilder) -> None:
    stops = "it stops with an error: it looks for 8 ranks and finds no rank_4"
    assert set(reasons_of(tree.folder("checkpoint/rank_0_bak"), UP_TO_1_6, world_size=8)) == {stops}


def test_the_weights_of_a_ckpt_beside_the_ranks_are_what_it_loads(tree: TreeBuilder) -> None:
    tree.file("checkpoint/best.ckpt").file("checkpoint/best.ckpt.bak")
    assert_takes(tree, "10_2", "; its weights come from best.ckpt beside the rank folders, on all ranks")
    assert not any("best" in why for why in reasons_of(tree.remove("checkpoint/best.ckpt")))
    without_a_rank = tree.file("checkpoint/best.ckpt").remove("checkpoint/rank_0")
    assert not any("weights" in why for why in reasons_of(without_a_rank))


def test_a_ckpt_beside_ranks_of_safetensors_is_not_loaded(tmp_path: Path) -> None:
    tree = tree_at(tmp_path, fmt="safetensors").file("checkpoint/best.ckpt")
    assert not any("best" in why for why in reasons_of(tree, FROM_1_6, **SAFETENSORS))


@pytest.mark.parametrize("version", ["", "1.5", "2.2.0", "2", "2.1.0rc1", "latest", "2.1.0.1", "2.1\n"])
def test_a_version_that_is_not_known_is_refused_with_those_that_are(tree: TreeBuilder, version: str) -> None:
    with pytest.raises(UsageError, match=r"1\.3\.2, 1\.6, 1\.7, 1\.8, 1\.9, 2\.0, 2\.1"):
        simulate(view_of(tree.output), version)


# Its health monitor --------------------------------------------------------------------------------------------------


def test_the_health_filter_lets_the_unhealthy_checkpoint_through(tree: TreeBuilder) -> None:
    tree.health([("llama2_7b_rank_0-5_2.ckpt", 0), ("llama2_7b_rank_0-10_2.ckpt", 1)])
    why = "never filters (the test is inverted), so the newest complete name wins"
    assert_takes(tree, "10_2", why, versions=FROM_1_6, **MONITORS)
    assert_takes(tree, "10_2", versions=FROM_1_6)
    assert not any("health" in each for each in reasons_of(tree, FROM_1_6, use_checkpoint_health_monitor=False))


def test_the_real_tree_is_resumed_from_its_unhealthy_checkpoint(copy_tree: Callable[[str], Path]) -> None:
    assert_takes(view_of(copy_tree("health_pp2") / "output", **MONITORS), "15_2", versions=FROM_1_6)


@pytest.mark.parametrize("entries", [[], [("llama2_7b_rank_0-10_2.ckpt", 1)], [("llama2_7b_rank_0-10_2.ckpt", None)]])
def test_without_any_healthy_entry_it_stops(tree: TreeBuilder, entries: list[tuple[str, Any]]) -> None:
    assert_takes(tree.health(entries), None, "must have a healthy entry", versions=FROM_1_6, **MONITORS)


def test_a_healthy_entry_that_names_no_file_satisfies_it(tree: TreeBuilder) -> None:
    tree.health([("gone_rank_0-1_1.ckpt", 0)])
    assert_takes(tree, "10_2", versions=FROM_1_6, **MONITORS)
    assert not any("filter" in why for why in reasons_of(tree, FROM_1_6, **MONITORS))


def test_the_oldest_version_has_no_health_monitor(tree: TreeBuilder) -> None:
    assert_takes(tree, "10_2", versions=["1.3.2"], **MONITORS)


@pytest.mark.parametrize("content", ["{", '{"is_health": 0}', "[1]", b"\xff"])
def test_a_health_file_that_is_no_list_of_objects_stops_it(tree: TreeBuilder, content: str | bytes) -> None:
    tree.file("health_ckpts.json", content)
    assert_takes(tree, None, "not the list that it expects", versions=FROM_1_6, **MONITORS)


def test_the_health_monitor_prefers_a_later_run_to_a_larger_number(tree: TreeBuilder) -> None:
    tree.save(epoch=5, step=2, run=1).save(epoch=15, step=2, run=1).remove(tree.shard(3, 15, 2, run=1))
    tree.remove(tree.shard(0, 5, 2)).health([("llama2_7b_rank_0-5_2.ckpt", 0)])
    assert_takes(tree, "_1-5_2", "a later run takes precedence over a larger number", versions=FROM_1_6, **MONITORS)


def test_a_name_without_a_number_before_the_dash_breaks_the_monitors_sorting(tree: TreeBuilder) -> None:
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/llama2_7b_rank_0-network-10_2.ckpt")
    why = "cannot sort llama2_7b_rank_0-network-10_2.ckpt"
    assert_takes(tree, None, why, versions=FROM_1_6, **MONITORS)


def test_a_rank_that_does_not_train_completes_no_checkpoint(tree: TreeBuilder) -> None:
    tree.remove(tree.shard(3, 10, 2)).file("checkpoint/rank_3/llama2_7b_rank_31-10_2.ckpt").health([("x", 0)])
    assert_takes(tree, "5_2", versions=FROM_1_6, **MONITORS)
    assert_takes(tree, "5_2")


def test_a_strange_name_beyond_the_limit_spoils_only_the_remark(tree: TreeBuilder) -> None:
    tree.health([("x", 0)]).file("checkpoint/rank_0/llama2_7b_ranks-99_2.ckpt")
    assert_takes(tree, "10_2", versions=FROM_1_6, **MONITORS)


# The legacy layout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "zeros", "truncated", "between two records", "folder"])
def test_a_damaged_shard_is_chosen(tree: TreeBuilder, damage: str) -> None:
    path = tree.shard(2, 10, 2)
    size = (tree.output / path).stat().st_size
    kept = ckpt_bytes([*weights(seed=20, sparse=True), *training_scalars(epoch=10, true_step=20)[:1]])
    if damage == "folder":
        tree.remove(path).folder(path)
    elif damage == "zeros":
        tree.file(path, bytes(size))
    else:
        tree.truncate(path, {"empty": 0, "truncated": size // 2, "between two records": len(kept)}[damage])
    assert_takes(tree, "10_2", "opens no shard")


def test_one_rank_without_meta_is_left_out_and_times_do_not_decide(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_1/meta.json")
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), tree.now_ns + MINUTE_NS)
    assert_takes(tree, "10_2", "the meta.json of rank 1 cannot be used and is ignored")


def without_meta(tree: TreeBuilder) -> TreeBuilder:
    for rank in range(4):
        tree.remove(f"checkpoint/rank_{rank}/meta.json")
    return tree


def test_without_any_meta_safetensors_cannot_be_resumed(tmp_path: Path) -> None:
    tree = without_meta(tree_at(tmp_path, fmt="safetensors"))
    assert_takes(tree, None, "looks only for .ckpt", versions=FROM_1_6, **SAFETENSORS)


def test_without_any_meta_ckpt_is_resumed_by_time(tree: TreeBuilder) -> None:
    assert_takes(without_meta(tree), "10_2", "no meta.json can be used, so each rank loads its own newest file")


@pytest.mark.parametrize("stray", ["rank_0_bak/", "rank_table.json"])
def test_whatever_begins_with_rank_is_counted_as_one_from_1_7_on(tree: TreeBuilder, stray: str) -> None:
    path = f"checkpoint/{stray}"
    tree.folder(path) if stray.endswith("/") else tree.file(path, "{}")
    assert_takes(tree, "10_2", versions=UP_TO_1_6)
    counts = f"it counts every entry that begins with rank_, {stray.rstrip('/')} included, and finds no rank_4"
    assert_takes(tree, None, f"it stops with an error: {counts}", versions=FROM_1_7)


def test_leftovers_of_a_larger_run_hide_what_the_smaller_one_saved(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=8, sparse=True).save(epoch=2, step=2)
    tree.save(epoch=15, step=2, run=1, ranks=range(4))
    assert_takes(tree, "_1-15_2", versions=UP_TO_1_6, world_size=4)
    counts = "it counts 8 entries that begin with rank_, although 4 ranks train"
    assert_takes(tree, "2_2", counts, versions=FROM_1_7, world_size=4)


def test_more_ranks_than_before_stop_the_older_versions(tree: TreeBuilder) -> None:
    assert_takes(tree, None, "it looks for 8 ranks and finds no rank_4", versions=UP_TO_1_6, world_size=8)
    assert_takes(tree, "10_2", versions=FROM_1_7, world_size=8)


@pytest.mark.parametrize("name", ["llama2_7b_rank_2-10_2_breakpoint.ckpt", "llama2_7b_rank_2-best.ckpt"])
def test_one_name_without_numbers_ends_the_whole_resume(tree: TreeBuilder, name: str) -> None:
    tree.file(f"checkpoint/rank_2/{name}")
    assert_takes(tree, None, name, "one such name stops the whole resume")


def test_a_name_without_numbers_in_another_format_does_no_harm(tree: TreeBuilder) -> None:
    assert_takes(tree.file("checkpoint/rank_2/llama2_7b_rank_2-best.safetensors"), "10_2")


def test_it_never_falls_back_to_the_run_before(tree: TreeBuilder) -> None:
    tree.save(epoch=15, step=2, run=1).remove(tree.shard(3, 15, 2, run=1))
    assert_takes(tree, None, "no name that begins with llama2_7b_rank_0_1 exists on all 4 ranks")


def test_a_replaced_node_has_other_names_and_stops_it(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_3").save(epoch=15, step=2, run=1, ranks=range(3)).save(epoch=15, step=2, ranks=[3])
    assert_takes(tree, None)


class TestTwoRunsAtOneLabel:
    """Rank 3 died before it saved anything in the second run, which began again at 5_2."""

    @staticmethod
    def view(tree: TreeBuilder, *, later_first: bool, **settings: Any) -> MindFormersView:  # noqa: ANN401 - as above
        tree.save(epoch=10, step=2, run=1, ranks=range(3)).save(epoch=15, step=2, run=1, ranks=range(3))
        view = view_of(tree.output, **settings)

        def by_run(file: SeenEntry) -> bool:
            return ("_1-" in file.name) is not later_first

        ranks = tuple(replace(rank, files=tuple(sorted(rank.files or (), key=by_run))) for rank in view.ranks)
        return replace(view, ranks=ranks)

    def test_it_takes_the_file_listed_first_though_a_rank_lacks_it(self, tree: TreeBuilder) -> None:
        view = self.view(tree, later_first=True)
        assert_takes(view, "_1-10_2", "llama2_7b_rank_0_1-10_2.ckpt, which rank 3 lacks", versions=UP_TO_1_7)
        assert_takes(view, "10_2", versions=FROM_1_8)

    def test_the_health_monitor_mixes_runs_up_in_every_version(self, tree: TreeBuilder) -> None:
        tree.health([("llama2_7b_rank_0-10_2.ckpt", 0)])
        assert_takes(self.view(tree, later_first=True, **MONITORS), "_1-10_2", versions=FROM_1_6)

    def test_with_the_earlier_run_listed_first_it_is_right_by_luck(self, tree: TreeBuilder) -> None:
        assert_takes(self.view(tree, later_first=False), "10_2")


def test_names_that_run_backwards_hide_a_complete_checkpoint(copy_tree: Callable[[str], Path]) -> None:
    output = copy_tree("nosink_ckpt") / "output"
    cut_back(output, before_run=2)
    rank_3 = output / "checkpoint" / "rank_3"
    for label in ("3_1", "3_2"):
        (rank_3 / f"llama2_7b_rank_3_1-{label}.ckpt").unlink()
    write_meta(rank_3, "llama2_7b_rank_3_1-3_3.ckpt")
    assert_takes(view_of(output), None, "at or below 3_2, the oldest meta.json")


def test_the_last_asynchronous_save_is_ignored(copy_tree: Callable[[str], Path]) -> None:
    why = "15_2 is on all ranks too, but it ignores everything after the oldest meta.json"
    assert_takes(view_of(copy_tree("async_ckpt") / "output"), "10_2", why)


def test_a_prefix_with_a_dash_stops_the_oldest_version(tmp_path: Path) -> None:
    tree = tree_at(tmp_path, prefix="llama-7b")
    assert_takes(tree, None, "it finds no rank in the name llama-10_2.ckpt", versions=["1.3.2"])
    assert_takes(tree, "10_2", versions=FROM_1_6)


def test_a_prefix_with_a_rank_in_it_misleads_it(tmp_path: Path) -> None:
    assert_takes(tree_at(tmp_path, prefix="my_rank_7_model"), None)


def test_a_file_of_weights_alone_is_chosen(tree: TreeBuilder) -> None:
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/llama2_7b_rank_0-network-10_2.ckpt")
    assert_takes(tree, "10_2", "llama2_7b_rank_0-network-10_2.ckpt, which rank 1 lacks")


def test_an_empty_folder_means_random_weights_from_1_7_on(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).legacy()
    assert_takes(tree, None, "random weights", versions=FROM_1_7)
    assert_takes(tree, None, versions=UP_TO_1_6)
    assert not any("random weights" in why for why in reasons_of(tree, UP_TO_1_6))


@pytest.mark.parametrize(
    "record", ["{", "{}", "null", b"\xff", '{"last_epoch": "10"}', '{"last_epoch": 1, "last_step": 2}']
)
def test_a_record_that_is_no_record_is_passed_over(tree: TreeBuilder, record: str | bytes) -> None:
    assert_takes(tree.file("checkpoint/rank_0/meta.json", record), "10_2")


def test_an_epoch_that_no_name_can_hold_is_believed(tree: TreeBuilder) -> None:
    tree.meta(0, epoch=True, step=2, file="llama2_7b_rank_0-10_2.ckpt")
    assert "10_2" not in {simulate(view_of(tree.output), version).would_resume for version in ALL}
    tree.meta(0, -10, 2, "llama2_7b_rank_0-10_2.ckpt")
    assert_takes(tree, "10_2", versions=UP_TO_1_7)
    assert "10_2" not in {simulate(view_of(tree.output), version).would_resume for version in FROM_1_8}


def test_a_meta_of_the_other_format_does_not_count(tree: TreeBuilder) -> None:
    assert_takes(tree, "10_2", versions=["1.3.2"], **SAFETENSORS)
    assert_takes(tree, None, versions=FROM_1_6, **SAFETENSORS)


@pytest.mark.parametrize("record", ["list", "folder"])
def test_a_record_that_cannot_be_taken_for_an_object_stops_it(tree: TreeBuilder, record: str) -> None:
    meta = "checkpoint/rank_1/meta.json"
    tree.file(meta, "[1]") if record == "list" else tree.remove(meta).folder(meta)
    assert_takes(tree, None, "rank_1/meta.json cannot be opened as an object")


@pytest.mark.parametrize(
    ("record", "outcome"), [(b" " * (DEFAULT_LIMIT + 1), Outcome.UNKNOWN), (b"[1]", Outcome.STOPS)]
)
def test_a_record_that_could_not_be_read_here_may_be_read_there(
    tree: TreeBuilder, record: bytes, outcome: Outcome
) -> None:
    told = simulate(view_of(tree.file("checkpoint/rank_1/meta.json", record).output), ALL[-1])
    assert (told.would_resume, told.outcome) == (None, outcome)
    assert ("rank_1/meta.json could not be read" in told.because) == (outcome is Outcome.UNKNOWN)


def test_the_oldest_meta_of_all_ranks_is_the_limit(tree: TreeBuilder) -> None:
    assert_takes(tree.meta(2, 5, 2, "llama2_7b_rank_2-5_2.ckpt"), "5_2")


def test_a_rank_that_is_a_file_stops_it(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_2").file("checkpoint/rank_2")
    assert_takes(tree, None, "rank_2 is not a folder that it can list")


def test_a_lost_last_rank_goes_unnoticed_by_those_that_count_folders(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_3")
    assert_takes(tree, None, versions=UP_TO_1_6, world_size=4)
    counts = "it counts 3 entries that begin with rank_, although 4 ranks train"
    assert_takes(tree, "10_2", counts, versions=FROM_1_7, world_size=4)


def test_a_rank_0_file_that_only_a_link_names_stops_it(tree: TreeBuilder) -> None:
    path = tree.shard(0, 10, 2)
    tree.remove(path)
    (tree.output / path).symlink_to("nowhere")
    assert_takes(tree, None, "rank_0/llama2_7b_rank_0-10_2.ckpt is not found")


def test_unified_weights_end_the_selection(tmp_path: Path) -> None:
    tree = tree_at(tmp_path, fmt="safetensors").file("checkpoint/hyper_param.safetensors")
    assert_takes(tree, None, "hyper_param.safetensors ends its selection", versions=FROM_1_6, **SAFETENSORS)
    assert not any("hyper_param" in why for why in reasons_of(tree, FROM_1_6))


# By time -------------------------------------------------------------------------------------------------------------


def test_where_times_decide_each_rank_takes_its_own_newest(tree: TreeBuilder) -> None:
    tree.touch(tree.shard(1, 5, 2), tree.now_ns)
    assert_takes(tree, None, "(rank 0 10_2, rank 1 5_2)", "from rank 0's step", versions=UP_TO_1_7, **BY_TIME)
    assert_takes(tree, None, "(rank 0 10_2, rank 1 5_2)", "from its own step", versions=FROM_1_8, **BY_TIME)


def test_a_touched_old_file_is_the_newest(tree: TreeBuilder) -> None:
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), tree.now_ns)
    assert_takes(tree, "5_2", "any touch or copy", **BY_TIME)


def test_without_meta_a_rank_whose_newest_differs_stops_it(tree: TreeBuilder) -> None:
    without_meta(tree).touch(tree.shard(2, 5, 2), tree.now_ns)
    assert_takes(tree, None, "the newest file of rank_2 differs from that of the others")


def test_without_meta_some_irregular_names_stop_it_and_only_such_names_do_not(tree: TreeBuilder) -> None:
    without_meta(tree).file("checkpoint/rank_0/best.ckpt")
    assert_takes(tree, None, "only some ranks' newest files follow the naming rule")
    for rank in range(1, 4):
        tree.file(f"checkpoint/rank_{rank}/best.ckpt")
    assert_takes(tree, "best")


def test_without_meta_an_empty_rank_stops_it(tree: TreeBuilder) -> None:
    without_meta(tree).remove("checkpoint/rank_1").folder("checkpoint/rank_1").remove(tree.shard(0, 5, 2))
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/best.ckpt")
    assert_takes(tree, None, "rank_1 has no .ckpt file")


def test_by_time_an_empty_or_missing_rank_stops_it(tree: TreeBuilder) -> None:
    tree.remove("checkpoint/rank_3").folder("checkpoint/rank_3")
    assert_takes(tree, None, "it stops with an error: rank_3 has no .ckpt file", **BY_TIME)
    missing = "it stops with an error: it looks for 4 ranks and finds no rank_3"
    assert_takes(tree.remove("checkpoint/rank_3"), None, missing, world_size=4, **BY_TIME)


def test_where_times_decide_a_folder_is_as_new_as_it_says(tree: TreeBuilder) -> None:
    folder = "checkpoint/rank_0/llama2_7b_rank_0-15_2.ckpt"
    assert_takes(tree.folder(folder).touch(folder, 1), "10_2", **BY_TIME)
    assert not any("folder" in why for why in reasons_of(tree, **BY_TIME))
    assert_takes(tree.touch(folder, tree.now_ns), None, "(rank 0 15_2, rank 1 10_2)", **BY_TIME)
    for rank in range(1, 4):
        other = f"checkpoint/rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt"
        tree.folder(other).touch(other, tree.now_ns)
    assert_takes(tree, "15_2", "; rank_0/llama2_7b_rank_0-15_2.ckpt is a folder, at which it stops", **BY_TIME)


def test_by_time_a_link_that_leads_nowhere_stops_it(tree: TreeBuilder) -> None:
    (tree.checkpoint / "rank_0" / "llama2_7b_rank_0-15_2.ckpt").symlink_to("nowhere")
    assert_takes(tree, None, "is a broken link", **BY_TIME)


@pytest.mark.parametrize("apart_ns", [0, 100])
def test_of_equal_times_the_one_listed_last_is_the_newest(tree: TreeBuilder, apart_ns: int) -> None:
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), 1_700_000_000_000_000_000 + apart_ns)
        tree.touch(tree.shard(rank, 10, 2), 1_700_000_000_000_000_000)
    view = view_of(tree.output, **BY_TIME)
    for label in ("5_2", "10_2"):

        def last(file: SeenEntry, label: str = label) -> bool:
            return file.name.endswith(f"-{label}.ckpt")

        ranks = tuple(replace(rank, files=tuple(sorted(rank.files or (), key=last))) for rank in view.ranks)
        assert simulate(replace(view, ranks=ranks), "2.1").would_resume == label


# The newer layout ----------------------------------------------------------------------------------------------------


def test_the_newer_layout_is_resumed_from_what_the_tracker_names(iterations: TreeBuilder) -> None:
    why = "the tracker names it and all 8 shards in metadata.json exist by name; it opens none of them"
    assert_takes(iterations, "iteration_00000020", versions=FROM_1_7)
    assert set(reasons_of(iterations, FROM_1_7)) == {why}
    assert_takes(iterations.tracker(" 1_0\n"), "iteration_00000010", versions=FROM_1_7)


@pytest.mark.parametrize("tree_name", ["newfmt_1rank", "newfmt_4rank", "newfmt_tp2dp2"])
def test_the_real_trees_of_the_newer_layout_are_resumed_from_their_last_save(
    copy_tree: Callable[[str], Path], tree_name: str
) -> None:
    assert simulate(view_of(copy_tree(tree_name) / "output"), "2.1.0").would_resume == "iteration_00000030"


def test_the_oldest_versions_find_nothing_in_the_newer_layout(iterations: TreeBuilder) -> None:
    assert_takes(iterations, None, versions=UP_TO_1_6)
    assert_takes(iterations, None, versions=UP_TO_1_6, world_size=4)


SHARD = f"{NEWEST}/llama2_7b-opt-0000002-0000004.safetensors"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda tree: tree.tracker(""), "the tracker file is empty"),
        (lambda tree: tree.tracker("release"), "the tracker file is 'release', which is not a number"),
        (lambda tree: tree.file(TRACKER, b"\xff"), "the tracker file cannot be read"),
        (lambda tree: tree.remove(NEWEST), "the tracker names iteration_00000020, which is not a folder there"),
        (lambda tree: tree.remove(NEWEST).file(NEWEST), "the tracker names iteration_00000020, which is not a folder"),
        (lambda tree: tree.remove(SHARD), "iteration_00000020 lacks llama2_7b-opt-0000002-0000004.safetensors"),
        (
            lambda tree: tree.file(f"{NEWEST}/metadata.json", "{"),
            "the metadata.json of iteration_00000020 is not in the form",
        ),
        (lambda tree: tree.remove(NEWEST).folder(NEWEST), "iteration_00000020 has no *.safetensors"),
        (lambda tree: tree.remove(f"{NEWEST}/common.json"), "common.json"),
        (lambda tree: tree.file(f"{NEWEST}/common.json", "{"), "common.json"),
        (lambda tree: tree.file(f"{NEWEST}/common.json", "[]"), "common.json"),
    ],
)
def test_it_never_falls_back_to_an_older_iteration(
    iterations: TreeBuilder, fault: Callable[[TreeBuilder], TreeBuilder], words: str
) -> None:
    assert_takes(fault(iterations), None, words, versions=FROM_1_7)


def test_an_empty_shard_is_accepted(iterations: TreeBuilder) -> None:
    iterations.truncate(f"{NEWEST}/llama2_7b-model-0000001-0000004.safetensors", 0)
    assert_takes(iterations, "iteration_00000020", versions=FROM_1_7)


def test_without_metadata_half_the_shards_are_enough(iterations: TreeBuilder) -> None:
    iterations.remove(f"{NEWEST}/metadata.json")
    for rank in (0, 3):
        iterations.remove(f"{NEWEST}/llama2_7b-model-{rank:07d}-0000004.safetensors")
        iterations.remove(f"{NEWEST}/llama2_7b-opt-{rank:07d}-0000004.safetensors")
    why = "without a metadata.json it checks only that a *.safetensors exists (4 found)"
    assert_takes(iterations, "iteration_00000020", why, versions=FROM_1_7)


@pytest.fixture
def monitored(tmp_path: Path) -> TreeBuilder:
    tree = TreeBuilder(tmp_path, sparse=True)
    tree.iteration(step=10, era="1.9").iteration(step=20, era="1.9", ckpt_status=0)
    return tree.iteration(step=30, era="1.9", ckpt_status=1)


def test_the_newest_healthy_iteration_goes_before_the_tracker(monitored: TreeBuilder) -> None:
    why = "it checks neither the tracker nor the shards"
    assert_takes(monitored, "iteration_00000020", why, versions=FROM_1_9, **MONITORS)
    unknown = "it does not know the field ckpt_status in common.json, written by a newer MindFormers"
    assert all(why.endswith(unknown) for why in reasons_of(monitored, ALL[2:4], **MONITORS))


def test_an_iteration_that_holds_only_its_common_record_is_picked(monitored: TreeBuilder) -> None:
    monitored.file("checkpoint/iteration_00000040/common.json", '{"ckpt_status": 0}')
    assert_takes(monitored, "iteration_00000040", "and this one has none", versions=FROM_1_9, **MONITORS)


def test_an_iteration_without_a_number_breaks_its_sorting(monitored: TreeBuilder) -> None:
    monitored.folder("checkpoint/iteration_bak")
    assert_takes(monitored, None, "iteration_bak has no number", versions=FROM_1_9, **MONITORS)


def test_what_was_never_monitored_counts_as_unhealthy(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path, sparse=True).iteration(step=10, era="1.7").iteration(step=20, era="1.9")
    assert_takes(tree, None, "never monitored counts as unhealthy", versions=FROM_1_9, **MONITORS)


@pytest.mark.parametrize(("record", "skipped"), [("{", True), ("[]", False), (b"\xff", False)])
def test_a_broken_common_record_is_skipped_only_where_it_is_no_json(
    monitored: TreeBuilder, record: str | bytes, *, skipped: bool
) -> None:
    monitored.file("checkpoint/iteration_00000040/common.json", record)
    assert_takes(monitored, "iteration_00000020" if skipped else None, versions=FROM_1_9, **MONITORS)


def test_the_health_monitor_needs_an_iteration(tmp_path: Path) -> None:
    tree = TreeBuilder(tmp_path).file("checkpoint/a.safetensors").file("checkpoint/common.json", "{}")
    assert all("needs an iteration_* entry" in why for why in reasons_of(tree, FROM_1_9, **MONITORS))


@pytest.mark.parametrize(("era", "version"), [("2.1", "2.0"), ("2.1", "1.7"), ("1.9", "1.8")])
def test_a_tree_of_a_newer_version_stops_an_older_one(
    tmp_path: Path, era: Literal["1.7", "1.9", "2.1"], version: str
) -> None:
    tree = TreeBuilder(tmp_path, sparse=True).iteration(step=10, era=era)
    assert_takes(tree, None, "written by a newer MindFormers", versions=[version])


def test_an_iteration_given_as_the_folder_itself_is_taken(iterations: TreeBuilder) -> None:
    storage = LocalStorage(str(iterations.checkpoint / "iteration_00000010"))
    view = view_for_mindformers(storage, MindFormersSettings())
    assert_takes(view, "iteration_00000010", "there is no tracker, so it uses the folder itself", versions=FROM_1_7)


def test_weights_of_hugging_face_hide_the_iterations_from_1_8_on(iterations: TreeBuilder) -> None:
    iterations.file("checkpoint/model.safetensors.index.json", "{}")
    assert_takes(iterations, "iteration_00000020", versions=["1.7"])
    assert_takes(iterations, None, versions=FROM_1_8)
    iterations.file("checkpoint/common.json", "{}")
    assert_takes(iterations, "iteration_00000020", versions=["1.7"])
    assert_takes(iterations, "checkpoint", versions=FROM_1_8)


# Real runs -----------------------------------------------------------------------------------------------------------


def true_step(shard: Path) -> int:
    """Read `step_num` out of a real shard, in either format."""
    data = shard.read_bytes()
    if shard.suffix == ".ckpt":
        at = data.rindex(b"\x0a\x08step_num")
        at = data.index(b"\x1a\x08", at) + 2
    else:
        length = int.from_bytes(data[:8], "little")
        at = 8 + length + json.loads(data[8 : 8 + length])["step_num"]["data_offsets"][0]
    return int.from_bytes(data[at : at + 8], "little")


def write_meta(folder: Path, file: str) -> None:
    match = re.search(r"-(\d+)_(\d+)\.", file)
    assert match is not None
    record = {"last_epoch": int(match[1]), "last_step": int(match[2]), "last_ckpt_file": file}
    (folder / "meta.json").write_text(json.dumps(record))


def cut_back(output: Path, *, before_run: int) -> None:
    """Take away what this run and later ones wrote; meta.json then names the save with the largest true step."""
    for folder in (output / "checkpoint").iterdir():
        for shard in folder.glob("*_rank_*-*"):
            run = re.search(r"_rank_\d+_(\d+)-", shard.name)
            if run is not None and int(run[1]) >= before_run:
                shard.unlink()
        write_meta(folder, max(folder.glob("*_rank_*-*"), key=true_step).name)
    shutil.rmtree(output / "resume_record")


@pytest.mark.parametrize(
    ("tree_name", "log", "run"),
    [
        ("sink2_ckpt", "train_log_resume_rank_0.jsonl", 1),
        ("sink2_safetensors", "train_log_resume_rank_0.jsonl", 1),
        ("nosink_ckpt", "train_log_resume_rank_0.jsonl", 1),
        ("nosink_ckpt", "train_log_resume2_rank_0.jsonl", 2),
    ],
)
def test_it_agrees_with_what_real_runs_resumed_from(
    copy_tree: Callable[[str], Path], tree_name: str, log: str, run: int
) -> None:
    root = copy_tree(tree_name)
    first = json.loads((root / log).read_text().splitlines()[0])
    fmt = first["resume"].rpartition(".")[2]
    cut_back(root / "output", before_run=run)
    told = simulate(view_of(root / "output", load_ckpt_format=fmt), "2.1.0")
    assert told.would_resume == checkpoint_name(first["resume"], fmt)


# Whatever it meets ---------------------------------------------------------------------------------------------------

_NAMES = st.one_of(
    st.builds(
        "{}_rank_{}{}-{}_{}{}".format,
        st.sampled_from(["llama", "a-b", "x_rank_1_y"]),
        st.integers(0, 2),
        st.sampled_from(["", "_1", "_2"]),
        st.integers(0, 20),
        st.integers(0, 3),
        st.sampled_from([".ckpt", ".safetensors", "_breakpoint.ckpt", ".ckpt.tmp", ""]),
    ),
    st.text("_rank-0.ckpt", min_size=1, max_size=12),
)
_FILES = st.lists(
    st.builds(SeenEntry, name=_NAMES, is_folder=st.booleans(), mtime_ns=st.none() | st.integers(0, 9)), max_size=5
)
_METAS = st.builds(
    MetaView,
    reading=st.sampled_from(Reading),
    epoch=st.none() | st.integers(-1, 20),
    step=st.none() | st.integers(-1, 3),
    file=st.none() | _NAMES,
)
_RANKS = st.lists(st.tuples(st.none() | _FILES.map(tuple), _METAS), max_size=3).map(
    lambda found: tuple(
        RankView(name=f"rank_{rank}", files=files, meta=meta) for rank, (files, meta) in enumerate(found)
    )
)
_SETTINGS = st.builds(
    MindFormersSettings,
    load_ckpt_format=st.sampled_from(["ckpt", "safetensors"]),
    use_checkpoint_health_monitor=st.booleans(),
    resume_by_last_timestamp_ckpt=st.booleans(),
    world_size=st.none() | st.integers(1, 4),
)


@given(ranks=_RANKS, settings=_SETTINGS, stray=st.booleans(), version=st.sampled_from(ALL))
def test_no_tree_is_too_odd_for_one_sentence(
    ranks: tuple[RankView, ...], settings: MindFormersSettings, stray: bool, version: str
) -> None:
    names = [*(rank.name for rank in ranks), *(["rank_bak"] if stray else [])]
    nothing = IterationView(
        name="",
        names=tuple(names),
        metadata=MetadataView(reading=Reading.MISSING),
        common=CommonView(reading=Reading.MISSING),
    )
    view = MindFormersView(
        path="/output/checkpoint",
        entries=tuple(SeenEntry(name=name, is_folder=True, mtime_ns=None) for name in names),
        ranks=ranks,
        health=HealthView(reading=Reading.MISSING),
        itself=nothing,
        iterations=(),
        tracker=TrackerView(reading=Reading.MISSING),
        settings=settings,
    )
    told = simulate(view, version)
    assert told.because
    assert told == simulate(view, version)


def test_a_folder_that_is_not_there_stops_it(tmp_path: Path) -> None:
    assert_takes(view_of(tmp_path / "gone"), None, "it stops with an error: the checkpoint folder cannot be listed")
