"""What MindFormers would pick. `B…` and `N…` are faults that were reproduced with the real code, version by version."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.domain.plan import Simulation
from ckpttool.errors import UsageError
from ckpttool.storage.local import LocalStorage
from ckpttool.trainers.mindformers.simulate import simulate
from ckpttool.trainers.mindformers.simulate.names import checkpoint_name
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


def view_of(output: Path, **settings: Any) -> MindFormersView:  # noqa: ANN401 - the dataclass has their types
    storage = LocalStorage(str(output / "checkpoint"))
    return view_for_mindformers(storage, MindFormersSettings(**settings), output=LocalStorage(str(output)))


def simulated(tree: TreeBuilder, version: str, **settings: Any) -> Simulation:  # noqa: ANN401 - as above
    return simulate(view_of(tree.output, **settings), version)


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


@pytest.mark.parametrize("version", [*ALL, "1.6.0", "1.7.0", "1.8.0", "1.9.0", "2.0.0", "2.1.0", "2.1.3"])
def test_a_sound_tree_is_resumed_from_its_newest_checkpoint(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree, version)
    assert (told.version, told.would_resume) == (version, "10_2")
    assert told.because == (
        "10_2 is the newest name that all 4 ranks have; it reads names only and never opens a shard"
    )


@pytest.mark.parametrize("version", ALL)
def test_one_rank_alone_is_resumed_too(tmp_path: Path, version: str) -> None:
    told = simulated(TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=5, step=2), version)
    assert told.would_resume == "5_2"
    assert told.because.startswith("5_2 is the newest name that its one rank has;")


@pytest.mark.parametrize("version", UP_TO_1_6)
def test_b5_versions_that_go_by_the_world_size_do_not_blame_a_stray(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree.folder("checkpoint/rank_0_bak"), version, world_size=8)
    assert told.because == "it stops with an error: it looks for 8 ranks and finds no rank_4"


@pytest.mark.parametrize("version", ALL)
def test_the_weights_of_a_ckpt_beside_the_ranks_are_what_it_loads(tmp_path: Path, version: str) -> None:
    tree = tree_at(tmp_path / "ckpt").file("checkpoint/best.ckpt").file("checkpoint/best.ckpt.bak")
    told = simulated(tree, version)
    assert told.would_resume == "10_2"
    assert told.because.endswith("; its weights come from best.ckpt beside the rank folders, on all ranks")
    assert "best" not in simulated(tree.remove("checkpoint/best.ckpt"), version).because
    assert "weights" not in simulated(tree.file("checkpoint/best.ckpt").remove("checkpoint/rank_0"), version).because


@pytest.mark.parametrize("version", FROM_1_6)
def test_a_ckpt_beside_ranks_of_safetensors_is_not_loaded(tmp_path: Path, version: str) -> None:
    tree = tree_at(tmp_path, fmt="safetensors").file("checkpoint/best.ckpt")
    assert "best" not in simulated(tree, version, load_ckpt_format="safetensors").because


@pytest.mark.parametrize("version", ["", "1.5", "2.2.0", "2", "2.1.0rc1", "latest", "2.1.0.1", "2.1\n"])
def test_a_version_that_is_not_known_is_refused_with_those_that_are(tree: TreeBuilder, version: str) -> None:
    with pytest.raises(UsageError, match=r"1\.3\.2, 1\.6, 1\.7, 1\.8, 1\.9, 2\.0, 2\.1"):
        simulated(tree, version)


# B rows: the legacy layout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FROM_1_6)
def test_b1_the_health_filter_lets_the_unhealthy_checkpoint_through(tree: TreeBuilder, version: str) -> None:
    tree.health([("llama2_7b_rank_0-5_2.ckpt", 0), ("llama2_7b_rank_0-10_2.ckpt", 1)])
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == "10_2"
    assert "never filters (the test is inverted), so the newest complete name wins" in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_with_the_health_monitor_off_marks_of_an_earlier_run_have_no_say(tree: TreeBuilder, version: str) -> None:
    tree.health([("llama2_7b_rank_0-5_2.ckpt", 0), ("llama2_7b_rank_0-10_2.ckpt", 1)])
    told = simulated(tree, version, use_checkpoint_health_monitor=False)
    assert told.would_resume == "10_2"
    assert "health" not in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_b1_the_real_tree_is_resumed_from_its_unhealthy_checkpoint(
    copy_tree: Callable[[str], Path], version: str
) -> None:
    output = copy_tree("health_pp2") / "output"
    assert simulate(view_of(output, use_checkpoint_health_monitor=True), version).would_resume == "15_2"


@pytest.mark.parametrize("version", FROM_1_6)
@pytest.mark.parametrize("entries", [[], [("llama2_7b_rank_0-10_2.ckpt", 1)], [("llama2_7b_rank_0-10_2.ckpt", None)]])
def test_b1_without_any_healthy_entry_it_stops(tree: TreeBuilder, version: str, entries: list[tuple[str, Any]]) -> None:
    told = simulated(tree.health(entries), version, use_checkpoint_health_monitor=True)
    assert told.would_resume is None
    assert "must have a healthy entry" in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_b1_a_healthy_entry_that_names_no_file_satisfies_it(tree: TreeBuilder, version: str) -> None:
    tree.health([("gone_rank_0-1_1.ckpt", 0)])
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == "10_2"
    assert "filter" not in told.because


def test_b1_the_oldest_version_has_no_health_monitor(tree: TreeBuilder) -> None:
    assert simulated(tree, "1.3.2", use_checkpoint_health_monitor=True).would_resume == "10_2"


@pytest.mark.parametrize("version", FROM_1_6)
@pytest.mark.parametrize("content", ["{", '{"is_health": 0}', "[1]", b"\xff"])
def test_a_health_file_that_is_no_list_of_objects_stops_it(
    tree: TreeBuilder, version: str, content: str | bytes
) -> None:
    told = simulated(tree.file("health_ckpts.json", content), version, use_checkpoint_health_monitor=True)
    assert told.would_resume is None
    assert "not the list that it expects" in told.because


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("damage", ["empty", "zeros", "truncated", "folder"])
def test_b2_a_damaged_shard_is_chosen(tree: TreeBuilder, version: str, damage: str) -> None:
    path = tree.shard(2, 10, 2)
    size = (tree.output / path).stat().st_size
    if damage == "empty":
        tree.truncate(path, 0)
    elif damage == "zeros":
        tree.file(path, bytes(size))
    elif damage == "truncated":
        tree.truncate(path, size // 2)
    else:
        tree.remove(path).folder(path)
    told = simulated(tree, version)
    assert told.would_resume == "10_2"
    assert "never opens a shard" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b3_one_rank_without_meta_is_left_out_and_times_do_not_decide(tree: TreeBuilder, version: str) -> None:
    tree.remove("checkpoint/rank_1/meta.json")
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), tree.now_ns + MINUTE_NS)
    told = simulated(tree, version)
    assert told.would_resume == "10_2"
    assert "the meta.json of rank 1 cannot be used and is simply left out" in told.because


def without_meta(tree: TreeBuilder) -> TreeBuilder:
    for rank in range(4):
        tree.remove(f"checkpoint/rank_{rank}/meta.json")
    return tree


@pytest.mark.parametrize("version", FROM_1_6)
def test_b4_without_any_meta_safetensors_cannot_be_resumed(tmp_path: Path, version: str) -> None:
    tree = without_meta(tree_at(tmp_path, fmt="safetensors"))
    told = simulated(tree, version, load_ckpt_format="safetensors")
    assert told.would_resume is None
    assert "looks for .ckpt only" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b4_without_any_meta_ckpt_is_resumed_by_time(tree: TreeBuilder, version: str) -> None:
    told = simulated(without_meta(tree), version)
    assert told.would_resume == "10_2"
    assert told.because.startswith("no meta.json can be used, so each rank loads its own newest file")


@pytest.mark.parametrize("stray", ["rank_0_bak/", "rank_table.json"])
@pytest.mark.parametrize("version", ALL)
def test_b5_whatever_begins_with_rank_is_counted_as_one(tree: TreeBuilder, version: str, stray: str) -> None:
    if stray.endswith("/"):
        tree.folder(f"checkpoint/{stray}")
    else:
        tree.file(f"checkpoint/{stray}", "{}")
    told = simulated(tree, version)
    if version in UP_TO_1_6:
        assert told.would_resume == "10_2"
    else:
        assert told.would_resume is None
        assert told.because == (
            "it stops with an error: it counts every entry that begins with rank_, "
            f"{stray.rstrip('/')} included, and finds no rank_4"
        )


@pytest.mark.parametrize("version", ALL)
def test_b6_leftovers_of_a_larger_run_hide_what_the_smaller_one_saved(tmp_path: Path, version: str) -> None:
    tree = TreeBuilder(tmp_path).legacy(ranks=8, sparse=True).save(epoch=2, step=2)
    tree.save(epoch=15, step=2, run=1, ranks=range(4))
    told = simulated(tree, version, world_size=4)
    assert told.would_resume == ("_1-15_2" if version in UP_TO_1_6 else "2_2")
    assert version in UP_TO_1_6 or "it counts 8 entries that begin with rank_, though 4 ranks train" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b7_more_ranks_than_before_stop_the_older_versions(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree, version, world_size=8)
    assert told.would_resume == (None if version in UP_TO_1_6 else "10_2")
    assert version not in UP_TO_1_6 or told.because.endswith("it looks for 8 ranks and finds no rank_4")


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("name", ["llama2_7b_rank_2-10_2_breakpoint.ckpt", "llama2_7b_rank_2-best.ckpt"])
def test_b8_one_name_without_numbers_ends_the_whole_resume(tree: TreeBuilder, version: str, name: str) -> None:
    told = simulated(tree.file(f"checkpoint/rank_2/{name}"), version)
    assert told.would_resume is None
    assert name in told.because
    assert "one such name ends the whole resume" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b8_a_name_in_another_format_does_no_harm(tree: TreeBuilder, version: str) -> None:
    tree.file("checkpoint/rank_2/llama2_7b_rank_2-best.safetensors")
    assert simulated(tree, version).would_resume == "10_2"


@pytest.mark.parametrize("version", ALL)
def test_b10_it_never_falls_back_to_the_run_before(tree: TreeBuilder, version: str) -> None:
    tree.save(epoch=15, step=2, run=1).remove(tree.shard(3, 15, 2, run=1))
    told = simulated(tree, version)
    assert told.would_resume is None
    assert "no name that begins with llama2_7b_rank_0_1 is there on all 4 ranks" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b11_a_replaced_node_has_other_names_and_stops_it(tree: TreeBuilder, version: str) -> None:
    tree.remove("checkpoint/rank_3").save(epoch=15, step=2, run=1, ranks=range(3)).save(epoch=15, step=2, ranks=[3])
    assert simulated(tree, version).would_resume is None


def two_runs_at_10_2(tree: TreeBuilder, *, later_first: bool, **settings: Any) -> MindFormersView:  # noqa: ANN401 - as above
    """Rank 3 died before it saved anything in the second run, which began again at 5_2."""
    tree.save(epoch=10, step=2, run=1, ranks=range(3)).save(epoch=15, step=2, run=1, ranks=range(3))
    view = view_of(tree.output, **settings)

    def by_run(file: SeenEntry) -> bool:
        return ("_1-" in file.name) is not later_first

    ranks = tuple(replace(rank, files=tuple(sorted(rank.files or (), key=by_run))) for rank in view.ranks)
    return replace(view, ranks=ranks)


@pytest.mark.parametrize("version", ALL)
def test_b12_it_takes_the_file_listed_first_though_a_rank_lacks_it(tree: TreeBuilder, version: str) -> None:
    told = simulate(two_runs_at_10_2(tree, later_first=True), version)
    assert told.would_resume == ("_1-10_2" if version in UP_TO_1_7 else "10_2")
    assert version not in UP_TO_1_7 or "llama2_7b_rank_0_1-10_2.ckpt, which rank 3 lacks" in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_b12_the_health_monitor_mixes_runs_up_in_every_version(tree: TreeBuilder, version: str) -> None:
    tree.health([("llama2_7b_rank_0-10_2.ckpt", 0)])
    view = two_runs_at_10_2(tree, later_first=True, use_checkpoint_health_monitor=True)
    assert simulate(view, version).would_resume == "_1-10_2"


@pytest.mark.parametrize("version", ALL)
def test_b12_with_the_earlier_run_listed_first_it_is_right_by_luck(tree: TreeBuilder, version: str) -> None:
    assert simulate(two_runs_at_10_2(tree, later_first=False), version).would_resume == "10_2"


@pytest.mark.parametrize("version", ALL)
def test_b14_names_that_run_backwards_hide_a_complete_checkpoint(
    copy_tree: Callable[[str], Path], version: str
) -> None:
    output = copy_tree("nosink_ckpt") / "output"
    cut_back(output, before_run=2)
    rank_3 = output / "checkpoint" / "rank_3"
    for label in ("3_1", "3_2"):
        (rank_3 / f"llama2_7b_rank_3_1-{label}.ckpt").unlink()
    write_meta(rank_3, "llama2_7b_rank_3_1-3_3.ckpt")
    told = simulate(view_of(output), version)
    assert told.would_resume is None
    assert "at or below 3_2, the oldest meta.json" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b15_the_last_asynchronous_save_is_ignored(copy_tree: Callable[[str], Path], version: str) -> None:
    told = simulate(view_of(copy_tree("async_ckpt") / "output"), version)
    assert told.would_resume == "10_2"
    assert "15_2 is on all ranks too, but nothing beyond the oldest meta.json counts" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b20_a_file_cut_between_two_records_is_chosen(tree: TreeBuilder, version: str) -> None:
    kept = [*weights(seed=20, sparse=True), *training_scalars(epoch=10, true_step=20)[:1]]
    tree.truncate(tree.shard(0, 10, 2), len(ckpt_bytes(kept)))
    assert simulated(tree, version).would_resume == "10_2"


@pytest.mark.parametrize("version", ALL)
def test_b21_where_times_decide_each_rank_takes_its_own_newest(tree: TreeBuilder, version: str) -> None:
    tree.touch(tree.shard(1, 5, 2), tree.now_ns)
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume is None
    assert "(rank 0 10_2, rank 1 5_2)" in told.because
    assert told.because.endswith("from rank 0's step" if version in UP_TO_1_7 else "from its own step")


@pytest.mark.parametrize("version", ALL)
def test_b22_a_touched_old_file_is_the_newest(tree: TreeBuilder, version: str) -> None:
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), tree.now_ns)
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume == "5_2"
    assert "any touch or copy" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b24_a_prefix_with_a_dash_stops_the_oldest_version(tmp_path: Path, version: str) -> None:
    told = simulated(tree_at(tmp_path, prefix="llama-7b"), version)
    assert told.would_resume == (None if version == "1.3.2" else "10_2")
    assert version != "1.3.2" or told.because.endswith("it finds no rank in the name llama-10_2.ckpt")


@pytest.mark.parametrize("version", ALL)
def test_b25_a_prefix_with_a_rank_in_it_misleads_it(tmp_path: Path, version: str) -> None:
    assert simulated(tree_at(tmp_path, prefix="my_rank_7_model"), version).would_resume is None


@pytest.mark.parametrize("version", ALL)
def test_b29_a_file_of_weights_alone_is_chosen(tree: TreeBuilder, version: str) -> None:
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/llama2_7b_rank_0-network-10_2.ckpt")
    told = simulated(tree, version)
    assert told.would_resume == "10_2"
    assert "llama2_7b_rank_0-network-10_2.ckpt, which rank 1 lacks" in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_b31_the_health_monitor_prefers_a_later_run_to_a_larger_number(tree: TreeBuilder, version: str) -> None:
    tree.save(epoch=5, step=2, run=1).save(epoch=15, step=2, run=1).remove(tree.shard(3, 15, 2, run=1))
    tree.remove(tree.shard(0, 5, 2)).health([("llama2_7b_rank_0-5_2.ckpt", 0)])
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == "_1-5_2"
    assert "a later run goes before a larger number" in told.because


@pytest.mark.parametrize("version", FROM_1_6)
def test_b31_a_name_without_a_number_before_the_dash_breaks_its_sorting(tree: TreeBuilder, version: str) -> None:
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/llama2_7b_rank_0-network-10_2.ckpt")
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume is None
    assert "cannot sort llama2_7b_rank_0-network-10_2.ckpt" in told.because


@pytest.mark.parametrize("version", ALL)
def test_b33_an_empty_folder_means_random_weights(tmp_path: Path, version: str) -> None:
    told = simulated(TreeBuilder(tmp_path).legacy(), version)
    assert told.would_resume is None
    assert ("random weights" in told.because) is (version in FROM_1_7)


# The legacy layout, beyond the rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(
    "record", ["{", "{}", "null", b"\xff", '{"last_epoch": "10"}', '{"last_epoch": 1, "last_step": 2}']
)
def test_a_record_that_is_no_record_is_passed_over(tree: TreeBuilder, version: str, record: str | bytes) -> None:
    assert simulated(tree.file("checkpoint/rank_0/meta.json", record), version).would_resume == "10_2"


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("epoch", [True, -10])
def test_an_epoch_that_no_name_can_hold_is_believed(tree: TreeBuilder, version: str, epoch: int) -> None:
    tree.meta(0, epoch, 2, "llama2_7b_rank_0-10_2.ckpt")
    assert (simulated(tree, version).would_resume == "10_2") is (epoch == -10 and version in UP_TO_1_7)


@pytest.mark.parametrize("version", ALL)
def test_a_meta_of_the_other_format_does_not_count(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree, version, load_ckpt_format="safetensors")
    assert told.would_resume == ("10_2" if version == "1.3.2" else None)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("record", ["list", "folder"])
def test_a_record_that_cannot_be_taken_for_an_object_stops_it(tree: TreeBuilder, version: str, record: str) -> None:
    if record == "list":
        tree.file("checkpoint/rank_1/meta.json", "[1]")
    else:
        tree.remove("checkpoint/rank_1/meta.json").folder("checkpoint/rank_1/meta.json")
    told = simulated(tree, version)
    assert told.would_resume is None
    assert "rank_1/meta.json is nothing that it can open as an object" in told.because


@pytest.mark.parametrize("version", ALL)
def test_the_oldest_meta_of_all_ranks_is_the_limit(tree: TreeBuilder, version: str) -> None:
    tree.meta(2, 5, 2, "llama2_7b_rank_2-5_2.ckpt")
    assert simulated(tree, version).would_resume == "5_2"


@pytest.mark.parametrize("version", ALL)
def test_a_rank_that_is_a_file_stops_it(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree.remove("checkpoint/rank_2").file("checkpoint/rank_2"), version)
    assert told.would_resume is None
    assert "rank_2 is no folder that it can list" in told.because


@pytest.mark.parametrize("version", ALL)
def test_a_lost_last_rank_goes_unnoticed_by_those_that_count_folders(tree: TreeBuilder, version: str) -> None:
    told = simulated(tree.remove("checkpoint/rank_3"), version, world_size=4)
    assert told.would_resume == (None if version in UP_TO_1_6 else "10_2")
    assert version in UP_TO_1_6 or "it counts 3 entries that begin with rank_, though 4 ranks train" in told.because


@pytest.mark.parametrize("version", ALL)
def test_a_rank_0_file_that_only_a_link_names_stops_it(tree: TreeBuilder, version: str) -> None:
    path = tree.shard(0, 10, 2)
    tree.remove(path)
    (tree.output / path).symlink_to("nowhere")
    told = simulated(tree, version)
    assert told.would_resume is None
    assert told.because.endswith("rank_0/llama2_7b_rank_0-10_2.ckpt is not found")


@pytest.mark.parametrize("version", FROM_1_6)
def test_a_strange_name_beyond_the_limit_spoils_only_the_remark(tree: TreeBuilder, version: str) -> None:
    tree.health([("x", 0)]).file("checkpoint/rank_0/llama2_7b_ranks-99_2.ckpt")
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == "10_2"


@pytest.mark.parametrize("version", FROM_1_6)
def test_unified_weights_end_the_selection(tmp_path: Path, version: str) -> None:
    tree = tree_at(tmp_path, fmt="safetensors").file("checkpoint/hyper_param.safetensors")
    told = simulated(tree, version, load_ckpt_format="safetensors")
    assert told.would_resume is None
    assert told.because.startswith("hyper_param.safetensors ends its selection")
    assert "hyper_param" not in simulated(tree, version).because


# By time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ALL)
def test_without_meta_a_rank_whose_newest_differs_stops_it(tree: TreeBuilder, version: str) -> None:
    without_meta(tree).touch(tree.shard(2, 5, 2), tree.now_ns)
    told = simulated(tree, version)
    assert told.would_resume is None
    assert told.because.endswith("the newest file of rank_2 is not that of the others")


@pytest.mark.parametrize("version", ALL)
def test_without_meta_some_irregular_names_stop_it_and_only_such_names_do_not(tree: TreeBuilder, version: str) -> None:
    without_meta(tree).file("checkpoint/rank_0/best.ckpt")
    assert "some ranks' newest files follow the naming rule, others not" in simulated(tree, version).because
    for rank in range(1, 4):
        tree.file(f"checkpoint/rank_{rank}/best.ckpt")
    assert simulated(tree, version).would_resume == "best"


@pytest.mark.parametrize("version", ALL)
def test_without_meta_an_empty_rank_stops_it(tree: TreeBuilder, version: str) -> None:
    without_meta(tree).remove("checkpoint/rank_1").folder("checkpoint/rank_1").remove(tree.shard(0, 5, 2))
    tree.remove(tree.shard(0, 10, 2)).file("checkpoint/rank_0/best.ckpt")
    assert "rank_1 holds no .ckpt file" in simulated(tree, version).because


@pytest.mark.parametrize("version", ALL)
def test_by_time_an_empty_or_missing_rank_stops_it(tree: TreeBuilder, version: str) -> None:
    tree.remove("checkpoint/rank_3").folder("checkpoint/rank_3")
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.because == "it stops with an error: rank_3 holds no .ckpt file"
    told = simulated(tree.remove("checkpoint/rank_3"), version, resume_by_last_timestamp_ckpt=True, world_size=4)
    assert told.because == "it stops with an error: it looks for 4 ranks and finds no rank_3"


@pytest.mark.parametrize("version", ALL)
def test_where_times_decide_a_folder_is_as_new_as_it_says(tree: TreeBuilder, version: str) -> None:
    folder = "checkpoint/rank_0/llama2_7b_rank_0-15_2.ckpt"
    tree.folder(folder).touch(folder, 1)
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume == "10_2"
    assert "folder" not in told.because
    told = simulated(tree.touch(folder, tree.now_ns), version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume is None
    assert "(rank 0 15_2, rank 1 10_2)" in told.because
    for rank in range(1, 4):
        other = f"checkpoint/rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt"
        tree.folder(other).touch(other, tree.now_ns)
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume == "15_2"
    assert told.because.endswith("; rank_0/llama2_7b_rank_0-15_2.ckpt is a folder, on which it stops")


@pytest.mark.parametrize("version", ALL)
def test_by_time_a_link_that_leads_nowhere_stops_it(tree: TreeBuilder, version: str) -> None:
    (tree.checkpoint / "rank_0" / "llama2_7b_rank_0-15_2.ckpt").symlink_to("nowhere")
    told = simulated(tree, version, resume_by_last_timestamp_ckpt=True)
    assert told.would_resume is None
    assert "leads nowhere" in told.because


@pytest.mark.parametrize("apart_ns", [0, 100])
def test_of_equal_times_the_one_listed_last_is_the_newest(tree: TreeBuilder, apart_ns: int) -> None:
    for rank in range(4):
        tree.touch(tree.shard(rank, 5, 2), 1_700_000_000_000_000_000 + apart_ns)
        tree.touch(tree.shard(rank, 10, 2), 1_700_000_000_000_000_000)
    view = view_of(tree.output, resume_by_last_timestamp_ckpt=True)
    for label in ("5_2", "10_2"):

        def last(file: SeenEntry, label: str = label) -> bool:
            return file.name.endswith(f"-{label}.ckpt")

        ranks = tuple(replace(rank, files=tuple(sorted(rank.files or (), key=last))) for rank in view.ranks)
        assert simulate(replace(view, ranks=ranks), "2.1").would_resume == label


# N rows: the newer layout --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FROM_1_7)
def test_the_newer_layout_is_resumed_from_what_the_tracker_names(iterations: TreeBuilder, version: str) -> None:
    told = simulated(iterations, version)
    assert told.would_resume == "iteration_00000020"
    assert told.because == (
        "the tracker names it and all shards that metadata.json lists (8) are there by name; it never opens one"
    )
    assert simulated(iterations.tracker(" 1_0\n"), version).would_resume == "iteration_00000010"


@pytest.mark.parametrize("tree_name", ["newfmt_1rank", "newfmt_4rank", "newfmt_tp2dp2"])
def test_the_real_trees_of_the_newer_layout_are_resumed_from_their_last_save(
    copy_tree: Callable[[str], Path], tree_name: str
) -> None:
    assert simulate(view_of(copy_tree(tree_name) / "output"), "2.1.0").would_resume == "iteration_00000030"


@pytest.mark.parametrize("version", UP_TO_1_6)
def test_the_oldest_versions_find_nothing_in_the_newer_layout(iterations: TreeBuilder, version: str) -> None:
    assert simulated(iterations, version).would_resume is None
    assert simulated(iterations, version, world_size=4).would_resume is None


@pytest.mark.parametrize("version", FROM_1_7)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("tracker empty", "the tracker file is empty"),
        ("tracker text", "the tracker file is 'release', which is no number"),
        ("tracker binary", "the tracker file cannot be read"),
        ("folder gone", "the tracker names iteration_00000020, which is no folder there"),
        ("folder is a file", "the tracker names iteration_00000020, which is no folder there"),
        ("shard missing", "iteration_00000020 lacks llama2_7b-opt-0000002-0000004.safetensors"),
        ("metadata torn", "the metadata.json of iteration_00000020 is not what it expects"),
        ("no shard", "iteration_00000020 holds no *.safetensors"),
    ],
)
def test_n1_it_never_falls_back_to_an_older_iteration(
    iterations: TreeBuilder, version: str, fault: str, words: str
) -> None:
    folder = "checkpoint/iteration_00000020"
    faults: dict[str, Callable[[], object]] = {
        "tracker empty": lambda: iterations.tracker(""),
        "tracker text": lambda: iterations.tracker("release"),
        "tracker binary": lambda: iterations.file("checkpoint/latest_checkpointed_iteration.txt", b"\xff"),
        "folder gone": lambda: iterations.remove(folder),
        "folder is a file": lambda: iterations.remove(folder).file(folder),
        "shard missing": lambda: iterations.remove(f"{folder}/llama2_7b-opt-0000002-0000004.safetensors"),
        "metadata torn": lambda: iterations.file(f"{folder}/metadata.json", "{"),
        "no shard": lambda: iterations.remove(folder).folder(folder),
    }
    faults[fault]()
    told = simulated(iterations, version)
    assert told.would_resume is None
    assert words in told.because


@pytest.mark.parametrize("version", FROM_1_7)
def test_n2_an_empty_shard_is_accepted(iterations: TreeBuilder, version: str) -> None:
    iterations.truncate("checkpoint/iteration_00000020/llama2_7b-model-0000001-0000004.safetensors", 0)
    assert simulated(iterations, version).would_resume == "iteration_00000020"


@pytest.mark.parametrize("version", FROM_1_7)
def test_n2_without_metadata_half_the_shards_are_enough(iterations: TreeBuilder, version: str) -> None:
    folder = "checkpoint/iteration_00000020"
    iterations.remove(f"{folder}/metadata.json")
    for rank in (0, 3):
        iterations.remove(f"{folder}/llama2_7b-model-{rank:07d}-0000004.safetensors")
        iterations.remove(f"{folder}/llama2_7b-opt-{rank:07d}-0000004.safetensors")
    told = simulated(iterations, version)
    assert told.would_resume == "iteration_00000020"
    assert "without a metadata.json one *.safetensors is enough for it (4 there)" in told.because


def monitored(base: Path) -> TreeBuilder:
    tree = TreeBuilder(base, sparse=True)
    tree.iteration(step=10, era="1.9").iteration(step=20, era="1.9", ckpt_status=0)
    return tree.iteration(step=30, era="1.9", ckpt_status=1)


@pytest.mark.parametrize("version", FROM_1_7)
def test_n3_the_newest_healthy_iteration_goes_before_the_tracker(tmp_path: Path, version: str) -> None:
    told = simulated(monitored(tmp_path), version, use_checkpoint_health_monitor=True)
    if version in FROM_1_9:
        assert told.would_resume == "iteration_00000020"
        assert "neither the tracker nor the shards are looked at" in told.because
    else:
        assert told.because.endswith(
            "it does not know the field ckpt_status in common.json, which a newer MindFormers wrote"
        )


@pytest.mark.parametrize("version", FROM_1_9)
def test_n3_an_iteration_that_holds_only_its_common_record_is_picked(tmp_path: Path, version: str) -> None:
    tree = monitored(tmp_path).file("checkpoint/iteration_00000040/common.json", '{"ckpt_status": 0}')
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == "iteration_00000040"
    assert told.because.endswith("and this one holds none")


@pytest.mark.parametrize("version", FROM_1_9)
def test_n3_an_iteration_without_a_number_breaks_its_sorting(tmp_path: Path, version: str) -> None:
    tree = monitored(tmp_path).folder("checkpoint/iteration_bak")
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume is None
    assert "iteration_bak has no number" in told.because


@pytest.mark.parametrize("version", FROM_1_9)
def test_n3_what_was_never_monitored_counts_as_unhealthy(tmp_path: Path, version: str) -> None:
    tree = TreeBuilder(tmp_path, sparse=True).iteration(step=10, era="1.7").iteration(step=20, era="1.9")
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume is None
    assert "never monitored counts as unhealthy" in told.because


@pytest.mark.parametrize("version", FROM_1_9)
@pytest.mark.parametrize(("record", "skipped"), [("{", True), ("[]", False), (b"\xff", False)])
def test_n3_a_broken_common_record_is_skipped_only_where_it_is_no_json(
    tmp_path: Path, version: str, record: str | bytes, skipped: bool
) -> None:
    tree = monitored(tmp_path).file("checkpoint/iteration_00000040/common.json", record)
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert told.would_resume == ("iteration_00000020" if skipped else None)


@pytest.mark.parametrize("version", FROM_1_9)
def test_the_health_monitor_needs_an_iteration(tmp_path: Path, version: str) -> None:
    tree = TreeBuilder(tmp_path).file("checkpoint/a.safetensors").file("checkpoint/common.json", "{}")
    told = simulated(tree, version, use_checkpoint_health_monitor=True)
    assert "needs an iteration_* entry" in told.because


# The newer layout, beyond the rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("era", "version"), [("2.1", "2.0"), ("2.1", "1.7"), ("1.9", "1.8")])
def test_a_tree_of_a_newer_version_stops_an_older_one(
    tmp_path: Path, era: Literal["1.7", "1.9", "2.1"], version: str
) -> None:
    told = simulated(TreeBuilder(tmp_path, sparse=True).iteration(step=10, era=era), version)
    assert told.would_resume is None
    assert "which a newer MindFormers wrote" in told.because


@pytest.mark.parametrize("version", FROM_1_7)
@pytest.mark.parametrize("record", [None, "{", "[]"])
def test_a_missing_or_broken_common_record_stops_it(iterations: TreeBuilder, version: str, record: str | None) -> None:
    path = "checkpoint/iteration_00000020/common.json"
    told = simulated(iterations.remove(path) if record is None else iterations.file(path, record), version)
    assert told.would_resume is None
    assert "common.json" in told.because


@pytest.mark.parametrize("version", FROM_1_7)
def test_an_iteration_given_as_the_folder_itself_is_taken(iterations: TreeBuilder, version: str) -> None:
    storage = LocalStorage(str(iterations.checkpoint / "iteration_00000010"))
    told = simulate(view_for_mindformers(storage, MindFormersSettings()), version)
    assert told.would_resume == "iteration_00000010"
    assert told.because.startswith("there is no tracker, so it takes the folder itself")


@pytest.mark.parametrize("version", FROM_1_7)
def test_weights_of_hugging_face_hide_the_iterations(iterations: TreeBuilder, version: str) -> None:
    told = simulated(iterations.file("checkpoint/model.safetensors.index.json", "{}"), version)
    assert told.would_resume == ("iteration_00000020" if version == "1.7" else None)
    iterations.file("checkpoint/common.json", "{}")
    assert simulated(iterations, version).would_resume == ("iteration_00000020" if version == "1.7" else "checkpoint")


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


@pytest.mark.parametrize("version", ALL)
def test_a_folder_that_is_not_there_stops_it(tmp_path: Path, version: str) -> None:
    told = simulate(view_of(tmp_path / "gone"), version)
    assert told.because == "it stops with an error: the checkpoint folder cannot be listed"
