"""Tags of DeepSpeed: a folder with the files of one save, which DeepSpeed, and Lightning with DeepSpeed, write.

Source:
    `_get_ckpt_name`, `_get_zero_ckpt_prefix`, `_get_expert_ckpt_name` and `_get_optimizer_ckpt_name` of
    `deepspeed/runtime/engine.py`, `ckpt_layer_path` of `runtime/pipe/module.py`; DeepSpeed 0.19.8.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ckpttool.core.domain.shard import ShardRole

LATEST = "latest"

UNIVERSAL_PART = "zero"
"""The folder that makes a tag a universal checkpoint: `ds_to_universal.py` writes one subfolder for each parameter."""

DEFAULT_TAG = r"global_step([0-9]{1,18})"
"""Name of a save for which the training script passes no tag."""

WRITTEN_BESIDE = ("zero_to_fp32.py", "zero_to_torch.py")
"""Scripts that DeepSpeed writes next to its tags."""

_RANK = r"0|[1-9][0-9]{0,6}"
_SLICE = r"[0-9]{2}|[1-9][0-9]{2,6}"
_OWN = (
    rf"(?:(?P<bf16>bf16_)?zero_pp_rank_(?P<dp>{_RANK})_)?mp_rank_(?P<mp>{_SLICE})"
    r"_(?:(?P<model>model)|optim)_states\.pt"
)
_OF_PARTS = (
    rf"layer_[0-9]+-model_.*model_states\.pt|layer_-?[0-9]+_expert_[0-9]+_mp_rank_(?:{_SLICE})_model_states\.pt"
    rf"|expp_rank_[0-9]+_mp_rank_(?:{_SLICE})_optim_states\.pt"
)
"""Layers of a pipeline, and experts with their optimizer state: no record shows how many there are."""


class StatesFile(NamedTuple):
    """The meaning of a file name in a tag's folder."""

    role: ShardRole
    slice: int | None = None
    """The model-parallel rank (`mp_rank`); None if the file name does not contain it."""
    replica: int | None = None
    """The data-parallel rank; None for a file that all ranks share."""
    is_bf16: bool = False


def parse(name: str) -> StatesFile | None:
    """Return the meaning of a file in a tag; None if DeepSpeed writes no file with that name."""
    if not name.endswith("_states.pt"):
        return None
    match = re.fullmatch(_OWN, name)
    if match is not None:
        is_model = match["model"] is not None
        if match["bf16"] if is_model else match["dp"] is None:
            return None
        replica = None if match["dp"] is None else int(match["dp"])
        role = ShardRole.MODEL if is_model else ShardRole.OPTIMIZER
        return StatesFile(role, int(match["mp"]), replica, match["bf16"] is not None)
    if re.fullmatch(_OF_PARTS, name, re.DOTALL) is None:
        return None
    return StatesFile(ShardRole.OPTIMIZER if name.startswith("expp_") else ShardRole.MODEL)


def model_file(mp: int, dp: int | None = None) -> str:
    """Return the name of the file with a slice of the model.

    With a data-parallel rank, return the name that ZeRO 3 uses.
    """
    return f"{_replica(dp)}mp_rank_{mp:02}_model_states.pt"


def optimizer_file(mp: int, dp: int, *, is_bf16: bool) -> str:
    """Return the name of the file with a data-parallel rank's part of the optimizer state."""
    return f"{'bf16_' if is_bf16 else ''}{_replica(dp)}mp_rank_{mp:02}_optim_states.pt"


def _replica(dp: int | None) -> str:
    return "" if dp is None else f"zero_pp_rank_{dp}_"
