"""The settings that make MindFormers load exactly the checkpoint that was chosen."""

from __future__ import annotations

from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName
from ckpttool.domain.plan import LoadInstruction
from ckpttool.domain.shard import FormatName

LOAD_FORMAT = {FormatName.MINDSPORE_CKPT: "ckpt", FormatName.SAFETENSORS: "safetensors"}


def load_instruction(inventory: Inventory, checkpoint: Checkpoint) -> LoadInstruction:
    """Say what to set; the settings hold once the checkpoint's renames, if any, are done.

    Source:
        Legacy layout: a folder and a file name make every rank load its own file of that name, and skip
        MindFormers' own choice. Newer layout: a path that has no tracker is taken as the iteration itself. Unified
        files: a folder with `hyper_param.safetensors` is loaded as a whole.
    """
    match inventory.layout:
        case LayoutName.MINDFORMERS_RANK:
            return LoadInstruction(
                load_checkpoint=inventory.root,
                resume_training=_common_file_name(checkpoint),
                load_ckpt_format=LOAD_FORMAT[checkpoint.format],
                use_legacy_format=True,
            )
        case LayoutName.MINDFORMERS_ITERATION:
            path = checkpoint.name if inventory.root == "." else f"{inventory.root}/{checkpoint.name}"
            return LoadInstruction(
                load_checkpoint=path, resume_training=True, load_ckpt_format="safetensors", use_legacy_format=False
            )
        case LayoutName.MINDFORMERS_UNIFIED | LayoutName.LOOSE_FILE:  # pragma: no branch  mypy knows all
            return LoadInstruction(
                load_checkpoint=inventory.root,
                resume_training=True,
                load_ckpt_format="safetensors",
                use_legacy_format=True,
            )


def _common_file_name(checkpoint: Checkpoint) -> str:
    """Return rank 0's file name as it is after the renames; MindFormers puts each rank's own number into it."""
    first = checkpoint.shards[0].path
    renamed = {rename.source: rename.target for rename in checkpoint.renames}
    return renamed.get(first, first).rpartition("/")[2]
