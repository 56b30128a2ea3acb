"""The settings that make MindFormers load exactly the chosen checkpoint."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.domain.checkpoint import LayoutName, Rename
from ckpttool.domain.plan import LoadInstruction
from ckpttool.domain.shard import FormatName
from ckpttool.trainers.mindformers.load import load_instruction
from tests.inventories import checkpoint, tree


def test_the_legacy_layout_gets_rank_zeros_file_name_and_never_true() -> None:
    chosen = checkpoint("20_2", run=1)
    assert load_instruction(tree(chosen), chosen) == LoadInstruction(
        load_checkpoint="output/checkpoint",
        resume_training="llama_rank_0_1-20_2.ckpt",
        load_ckpt_format="ckpt",
        use_legacy_format=True,
    )


def test_the_format_is_that_of_the_files() -> None:
    chosen = checkpoint("20_2", fmt=FormatName.SAFETENSORS)
    load = load_instruction(tree(chosen), chosen)
    assert (load.resume_training, load.load_ckpt_format) == ("llama_rank_0-20_2.safetensors", "safetensors")


def test_the_name_is_the_one_after_the_renames() -> None:
    rename = Rename(source="rank_0/llama_rank_0-20_2.ckpt", target="rank_0/llama_rank_0_1-20_2.ckpt")
    chosen = checkpoint("20_2", renames=[rename])
    assert load_instruction(tree(chosen), chosen).resume_training == "llama_rank_0_1-20_2.ckpt"


def test_a_rename_of_another_rank_leaves_rank_zeros_name() -> None:
    rename = Rename(source="rank_3/llama_rank_3-20_2.ckpt", target="rank_3/llama_rank_3_1-20_2.ckpt")
    chosen = checkpoint("20_2", renames=[rename])
    assert load_instruction(tree(chosen), chosen).resume_training == "llama_rank_0-20_2.ckpt"


def test_the_newer_layout_gets_the_iterations_own_folder() -> None:
    chosen = replace(checkpoint("20_2"), name="iteration_00000040")
    load = load_instruction(tree(chosen, layout=LayoutName.MINDFORMERS_ITERATION), chosen)
    assert (load.load_checkpoint, load.resume_training) == ("output/checkpoint/iteration_00000040", True)
    assert (load.load_ckpt_format, load.use_legacy_format) == ("safetensors", False)
    here = replace(tree(chosen, layout=LayoutName.MINDFORMERS_ITERATION), root=".")
    assert load_instruction(here, chosen).load_checkpoint == "iteration_00000040"


def test_unified_weights_are_loaded_as_a_whole_folder() -> None:
    chosen = checkpoint("20_2", fmt=FormatName.SAFETENSORS)
    load = load_instruction(tree(chosen, layout=LayoutName.MINDFORMERS_UNIFIED), chosen)
    assert (load.load_checkpoint, load.resume_training) == ("output/checkpoint", True)
    assert (load.load_ckpt_format, load.use_legacy_format) == ("safetensors", True)
