"""A save by Trainer with DeepSpeed: `global_stepM/` contains the weights and optimizer, and `latest` names this folder.

Source: `Trainer._save_optimizer_and_scheduler` of transformers 5.23; the file names are those of DeepSpeed 0.19.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Finding, unsafe
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.formats.torch.plain import integer_at
from ckpttool.core.storage.base import Storage, unreadable
from ckpttool.trainers.common.listed import listed_damage, listed_shard
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.hf_saves.save_folder import SaveFolder, absent

LATEST = "latest"
_TAG_BEGINS = "global_step"
_TAG = rf"{_TAG_BEGINS}[0-9]{{1,18}}"
_FILE = r"(?:bf16_)?(?:zero_pp_rank_(?P<dp>[0-9]+)_)?mp_rank_(?P<mp>[0-9]+)_(?P<what>model|optim)_states\.pt"
_MOST = 4096
_MOST_TEXT = 256


class InnerTag(NamedTuple):
    """The contents of the tag that `latest` names."""

    shards: tuple[Shard, ...]
    findings: tuple[Finding, ...]


def inner_tag(storage: Storage, save: SaveFolder, *, sizes: bool) -> InnerTag | None:
    """Read the tag that `latest` names in a save; None if the save has no tag.

    Args:
        storage: The tree.
        save: The listing of the save.
        sizes: Whether to read each file's stamp as well.
    """
    tags = (name for name in save.names if name.startswith(_TAG_BEGINS) and re.fullmatch(_TAG, name))
    if LATEST not in save.names and not any(tags):
        return None
    path = save.path(LATEST)
    try:
        tag = storage.small_file(path, limit=_MOST_TEXT).decode("utf-8", "replace").strip()
        if re.fullmatch(r"[\w.-]+", tag) is None or tag.startswith("."):
            return InnerTag((), (unsafe(Code.UNSAFE_NAME, f"names {tag!r}, which is not followed", path=path),))
        if tag not in save.names:
            message = f"names {tag}, which does not exist: DeepSpeed stops with an AssertionError"
            return InnerTag((), (listed_damage(Code.METADATA_INCOMPLETE, message, path),))
        entries = sorted(storage.entries(save.path(tag)))
    except FileNotFoundError:
        message = "`latest` is missing: without it DeepSpeed loads nothing and only warns"
        return InnerTag((), (listed_damage(Code.METADATA_INCOMPLETE, message, path),))
    except OSError as error:
        return InnerTag((), (unreadable(path, error),))
    findings: list[Finding] = []
    shards: list[Shard] = []
    for name, kind in entries:
        match = re.fullmatch(_FILE, name)
        if match is not None:
            role = ShardRole.MODEL if match["what"] == "model" else ShardRole.OPTIMIZER
            shard = Shard(path=save.path(f"{tag}/{name}"), rank=None, role=role, format=FormatName.TORCH_ZIP)
            shards += listed_shard(storage, shard, kind, findings, sizes=sizes)
    return InnerTag(tuple(shards), (*findings, *_absent(storage, save.path(tag), shards)))


def _absent(storage: Storage, folder: str, shards: list[Shard]) -> list[Finding]:
    """Report the missing rank files, for each kind of rank file that is present.

    The record in a model file shows how many there should be.
    """
    file_names = {shard.path.rpartition("/")[2] for shard in shards}
    models = [shard.path for shard in shards if shard.role is ShardRole.MODEL]
    if not models:
        return [absent(folder, "DeepSpeed's model file")]
    content = first_value(storage, models)
    data, tensor = (min(integer_at(content, f"{which}_world_size") or 1, _MOST) for which in ("dp", "mp"))
    stage = integer_at(content, "ds_config", "zero_optimization", "stage") or 0
    if stage and all("_optim_states" not in name for name in file_names):
        return [absent(folder, "DeepSpeed's optimizer state")]
    lacking = []
    for kind in ("model", "optim"):
        kind_names = sorted(name for name in file_names if f"_{kind}_states" in name)
        if not kind_names:
            continue
        start, zero, _ = kind_names[0].partition("zero_pp_rank_")
        ranks = [f"{start}{zero}{rank}_" for rank in range(data)] if zero else [""]
        every = (f"{rank}mp_rank_{part:02d}_{kind}_states.pt" for rank in ranks for part in range(tensor))
        lacking += [name for name in islice(every, _MOST) if name not in file_names]
    return [absent(f"{folder}/{name}", "DeepSpeed's file for a rank") for name in lacking]
