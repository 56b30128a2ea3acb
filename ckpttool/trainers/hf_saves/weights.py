"""The weights of a save of Hugging Face's Trainer or of Accelerate.

Source:
    `Trainer._save` of transformers 5.17 and `save_accelerator_state` of Accelerate 1.15: a complete model is in
    `model*.safetensors` or `pytorch_model*.bin`, an adapter in `adapter_model.*`. With DeepSpeed, its
    tag has the FP32 weights, and a complete model in the same save is a 16-bit copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.weights import LeftOut, Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.companions import companions_in
from ckpttool.trainers.common.whole_files import whole_targets
from ckpttool.trainers.deepspeed_tags.weights import tag_weights, tags_in
from ckpttool.trainers.export_findings import ambiguous_part, not_in_output, not_understood
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights

_FSDP = re.compile(r"pytorch_model_fsdp_[0-9]+$")
_PARTS = re.compile(r"((?:adapter_|pytorch_)?model(?:_[0-9]+)?)(?:-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)")


def trainer_weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the weights of a save of Hugging Face's Trainer."""
    return _weights(storage, checkpoint, request, names_of="names of the Hugging Face model", is_loadable=True)


def script_weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the weights of a save of a script with Accelerate."""
    return _weights(storage, checkpoint, request, names_of="module names of the script's model", is_loadable=None)


def _weights(
    storage: Storage, checkpoint: Checkpoint, request: WeightsRequest, *, names_of: str, is_loadable: bool | None
) -> Weights:
    slices = _fsdp_folders(checkpoint)
    if slices:
        folder = slices[_chosen(slices, request.part)][0]
        whole = replace(request, part=None)
        return dcp_weights(storage, folder, whole, Names(names_of, is_loadable), companions=folder.rpartition("/")[0])
    by_model: dict[str, list[str]] = {}
    for shard in checkpoint.shards:
        match = _PARTS.fullmatch(shard.path.rpartition("/")[2])
        if match is not None and shard.role is ShardRole.MODEL:
            by_model.setdefault(match[1], []).append(shard.path)
    tags = tags_in(checkpoint)
    if tags and "adapter_model" not in by_model and not (request.is_16bit and by_model):
        folder = tags[_chosen(tags, request.part)]
        masters = tag_weights(storage, folder, request, names_of=names_of)
        companions = companions_in(storage, folder.rpartition("/")[0])
        return replace(masters, is_loadable=is_loadable, companions=companions)
    model = _chosen(by_model, request.part)
    paths = sorted(by_model[model])
    targets, tied, records = whole_targets(storage, paths)
    findings: list[Finding] = []
    if model == "adapter_model":
        message = "The save contains only an adapter, so the output is an adapter, without its base model."
        findings.append(not_in_output(message))
    folder = paths[0].rpartition("/")[0]
    others = tuple(shard.path for shard in checkpoint.shards if shard.path not in paths)
    return Weights(
        targets=targets,
        names_of=names_of,
        is_loadable=is_loadable,
        tied=tied,
        left_out=(LeftOut(kind="files without weights", names=others),),
        records=tuple(records),
        companions=companions_in(storage, folder),
        stem="adapter_model" if model == "adapter_model" else "model",
        findings=tuple(findings),
    )


def _fsdp_folders(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return the folders of the models that FSDP saved in slices, by name."""
    folders = {shard.path.rpartition("/")[0] for shard in checkpoint.shards if shard.role is ShardRole.DATA}
    return {match[0]: [folder] for folder in sorted(folders) if (match := _FSDP.search(folder))}


def _chosen(models: Iterable[str], part: str | None) -> str:
    """Return the name of the model to export."""
    names = sorted(models)
    if not names:
        message = "The save has no file with a complete model, such as model.safetensors or pytorch_model.bin."
        raise not_understood(message, remedy="export with the trainer's own converter")
    if part is None and len(names) == 1:
        return names[0]
    if part in names:
        return part
    if len(names) == 1:
        raise ambiguous_part(f"The save has one model, and no part {part}.", remedy="omit --part")
    raise ambiguous_part(f"The save has the models {', '.join(names)}.", remedy=f"add --part {names[0]}")
