"""The settings that make MindFormers load exactly the chosen checkpoint."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, Rename
from ckpttool.core.domain.load_settings import LoadSettings
from ckpttool.core.domain.shard import FormatName
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, UNIFIED_LAYOUT
from ckpttool.trainers.mindformers.load import LoadKeys, load_keys
from tests.support.faulty_storages import layout_of
from tests.support.inventories import checkpoint, tree


def load_settings(inventory: Inventory, chosen: Checkpoint) -> LoadSettings:
    """What the layout says."""
    load = layout_of(inventory.layout).load(inventory, chosen)
    assert isinstance(load, LoadSettings)
    return load


def loaded(inventory: Inventory, chosen: Checkpoint) -> LoadKeys:
    """The keys of what is told for a checkpoint."""
    return load_keys(load_settings(inventory, chosen))


def test_the_legacy_layout_gets_rank_zeros_file_name_and_never_true() -> None:
    chosen = checkpoint("20_2", run=1)
    assert loaded(tree(chosen), chosen) == LoadKeys(
        load_checkpoint="output/checkpoint",
        resume_training="llama_rank_0_1-20_2.ckpt",
        load_ckpt_format="ckpt",
        use_legacy_format=True,
    )


def test_the_name_is_the_one_after_the_renames() -> None:
    rename = Rename(source="rank_0/llama_rank_0-20_2.ckpt", target="rank_0/llama_rank_0_1-20_2.ckpt", why="they differ")
    chosen = checkpoint("20_2", renames=[rename])
    assert loaded(tree(chosen), chosen).resume_training == "llama_rank_0_1-20_2.ckpt"


def test_the_newer_layout_gets_the_iterations_own_folder() -> None:
    chosen = replace(checkpoint("20_2"), name="iteration_00000040")
    load = loaded(tree(chosen, layout=ITERATION_LAYOUT), chosen)
    assert (load.load_checkpoint, load.resume_training) == ("output/checkpoint/iteration_00000040", True)
    assert (load.load_ckpt_format, load.use_legacy_format) == ("safetensors", False)
    here = replace(tree(chosen, layout=ITERATION_LAYOUT), root=".")
    assert loaded(here, chosen).load_checkpoint == "iteration_00000040"


def test_unified_weights_are_loaded_as_a_whole_folder() -> None:
    chosen = checkpoint("20_2", fmt=FormatName.SAFETENSORS)
    load = loaded(tree(chosen, layout=UNIFIED_LAYOUT), chosen)
    assert (load.load_checkpoint, load.resume_training) == ("output/checkpoint", True)
    assert (load.load_ckpt_format, load.use_legacy_format) == ("safetensors", True)


def test_renames_come_first_and_the_settings_have_their_place() -> None:
    rename = Rename(source="rank_0/llama_rank_0-20_2.ckpt", target="rank_0/llama_rank_0_1-20_2.ckpt", why="they differ")
    chosen = checkpoint("20_2", renames=[rename])
    told = load_settings(tree(chosen), chosen)
    assert told.first == (rename,)
    assert [str(setting.place) for setting in told.settings] == [
        "config:load_checkpoint",
        "config:resume_training",
        "config:load_ckpt_format",
        "config:use_legacy_format",
    ]
