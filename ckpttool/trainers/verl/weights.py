"""The weights of one model in a save of verl or SkyRL: `actor/model_world_size_8_rank_0.pt` of each rank.

Source: `fsdp_checkpoint_manager.py` and `verl/model_merger/fsdp_model_merger.py` of verl 0.9.1. Its merger casts the
weights to bf16, which an export does only if asked.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.weights import LeftOut, Weights
from ckpttool.core.formats.torch.pickle_objects import Made, Tensor
from ckpttool.trainers.common.archives import read_archive
from ckpttool.trainers.common.companions import companions_in
from ckpttool.trainers.common.distributed_tensors import merged
from ckpttool.trainers.export_findings import ambiguous_part, incomplete, unproven
from ckpttool.trainers.verl import STATES

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.weights import WeightsRequest
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.common.archives import Archive

_RESTORE = "restore the missing files from a copy, or export another checkpoint"
_ONE_SIZE = "move the files of the other number of ranks out of the folder"
_ADAPTED = "base_model.model."
"""Prefix of all names in a model to which PEFT added an adapter."""
_HUGGINGFACE = "huggingface"
"""Folder in which the model's config and tokenizer are saved, next to the files of the ranks."""


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the weights of one model.

    Raises:
        NotExportableError: The weights cannot be exported.
        OSError: The disk could not be read.
    """
    folders: dict[str, set[tuple[int, int]]] = {}
    for shard in checkpoint.shards:
        folder, name = posixpath.split(shard.path)
        match = re.fullmatch(STATES, name)
        if match is not None and match["kind"] == "model":
            folders.setdefault(folder, set()).add((int(match["world"]), int(match["rank"])))
    folder = _chosen(checkpoint.name, folders, request.part)
    worlds = {world for world, _ in folders[folder]}
    if len(worlds) > 1:
        message = f"The folder has files of {' and '.join(map(str, sorted(worlds)))} ranks."
        raise unproven(message, path=folder, remedy=_ONE_SIZE)
    world = worlds.pop()
    lacking = sorted(set(range(world)) - {rank for _, rank in folders[folder]})
    if lacking:
        message = f"The file of rank {lacking[0]} is missing: {world - len(lacking)} of {world} ranks have one."
        raise incomplete(message, path=folder, remedy=_RESTORE)
    archives = [_read(storage, f"{folder}/model_world_size_{world}_rank_{rank}.pt") for rank in range(world)]
    other_values = _names_of_other_values(archives[0])
    targets = merged(archives)
    return Weights(
        targets=targets,
        names_of="names of the Hugging Face model",
        is_loadable=not any(target.name.startswith(_ADAPTED) for target in targets),
        left_out=(LeftOut(kind="entries that are not tensors", names=other_values),) if other_values else (),
        records=tuple(record for archive in archives for record in archive.records),
        companions=companions_in(storage, f"{folder}/{_HUGGINGFACE}"),
    )


def _chosen(save: str, folders: dict[str, set[tuple[int, int]]], part: str | None) -> str:
    """Return the folder of the model that the user named, or of the only one."""
    by_name = {folder.removeprefix(save).strip("/"): folder for folder in folders}
    if not by_name:
        raise incomplete("The save has no file with weights.", path=save, remedy=_RESTORE)
    if part is not None and part in by_name:
        return by_name[part]
    names = ", ".join(sorted(by_name))
    if part is not None:
        message = f"The save has no part {part!r}; it has {names or 'one model without a name'}."
        remedy = f"--part {min(by_name)}" if names else "leave out --part"
        raise ambiguous_part(message, path=save, remedy=remedy)
    if len(by_name) > 1:
        raise ambiguous_part(f"The save has several models: {names}.", path=save, remedy=f"--part {min(by_name)}")
    return next(iter(folders))


def _read(storage: Storage, path: str) -> Archive:
    with storage.open(path) as source:
        archive = read_archive(source, path)
    archive.check_name(lambda name: re.fullmatch(STATES, name) is not None)
    return archive


def _names_of_other_values(archive: Archive) -> tuple[str, ...]:
    """Return the names of entries that are not tensors."""
    pairs = archive.tree.items() if isinstance(archive.tree, dict) else ()
    return tuple(str(name) for name, value in pairs if not isinstance(value, (Tensor, Made)))
