"""One tag: its files, its record, the files that each machine needs, and the sizes that DeepSpeed refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.decide.data_effects import against_size
from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    StepSource,
    Topology,
)
from ckpttool.core.domain.finding import Code, Finding, note
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.core.records import MANIFEST_NAME
from ckpttool.core.storage.base import Entry, Kind, Storage, unreadable
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import (
    by_rank,
    listed_damage,
    listed_shard,
    stray,
)
from ckpttool.trainers.common.saved_values import first_value, other_step
from ckpttool.trainers.deepspeed_tags import (
    DEFAULT_TAG,
    UNIVERSAL_PART,
    StatesFile,
    parse,
)
from ckpttool.trainers.deepspeed_tags.record import Seen, TagRecord, tag_record

if TYPE_CHECKING:
    from ckpttool.core.domain.placement import ReadByAll


class _File(NamedTuple):
    path: str
    parsed: StatesFile
    kind: Kind


def scan_tag(storage: Storage, name: str, options: ScanOptions, *, is_latest: bool) -> Checkpoint | None:
    """Return the save in a folder; None if the folder contains no save.

    Args:
        storage: The tree.
        name: The path of the folder, whose last part is the tag.
        options: Data to collect in addition to the names.
        is_latest: Whether `latest` names the tag, so that an empty folder is a save, too.
    """
    match = re.fullmatch(DEFAULT_TAG, name)
    findings: list[Finding] = []
    entries: list[Entry] = []
    try:
        entries = sorted(storage.entries(name))
    except OSError as error:
        findings.append(unreadable(name, error))
    files = [_File(f"{name}/{entry.name}", parsed, entry.kind) for entry in entries if (parsed := parse(entry.name))]
    is_universal = any(entry.name == UNIVERSAL_PART and entry.kind is Kind.FOLDER for entry in entries)
    if is_universal or not (files or match or is_latest):
        return None
    models = [file.path for file in files if file.parsed.role is ShardRole.MODEL and file.parsed.slice is not None]
    values = first_value(storage, models)
    record = None if values is None else tag_record(values)
    step = None if record is None else record.step
    if match is not None and step is not None and step != int(match[1]):
        findings.append(other_step(name, step))
    if not files and not findings:
        findings.append(listed_damage(Code.SHARD_MISSING, "this folder has no file of a save", name))
    view = _seen(files)
    expected = None if record is None else record.files(view)
    shards = _shards(storage, files, record, findings, options)
    known_paths = {f"{name}/{MANIFEST_NAME}", *(file.path for file in files)}
    findings += [stray(path) for entry in entries if (path := f"{name}/{entry.name}") not in known_paths]
    named = None if match is None else Step(int(match[1]))
    source = StepSource.UNKNOWN if named is None else StepSource.NAME
    return Checkpoint(
        name=name,
        scalars=Scalars() if record is None else record.scalars,
        step=named if step is None else Step(step),
        step_source=source if step is None else StepSource.CONTENT,
        shards=shards,
        topology=Topology(world_size=None if record is None else record.world_size),
        format=FormatName.TORCH_ZIP,
        facts=() if record is None else (("optimizer_step", record.updates),),
        expected=None if expected is None else tuple(f"{name}/{file}" for file in expected),
        commit=CommitState.UNRECORDED,
        content=Content.FULL if record is not None and record.has_optimizer(view) else Content.UNKNOWN,
        findings=tuple(findings),
    )


def _seen(files: Sequence[_File]) -> Seen:
    by_replica = [file.parsed for file in files if file.parsed.replica is not None]
    optimizers = [parsed for parsed in by_replica if parsed.role is ShardRole.OPTIMIZER]
    return Seen(
        weights_by_replica=len(optimizers) < len(by_replica),
        optimizer=bool(optimizers),
        is_bf16=2 * sum(parsed.is_bf16 for parsed in optimizers) > len(optimizers),
    )


def _shards(
    storage: Storage, files: Sequence[_File], record: TagRecord | None, findings: list[Finding], options: ScanOptions
) -> tuple[Shard, ...]:
    """Return the save's files, and add findings about leftover files and entries that are not files."""
    shards: list[Shard] = []
    for path, parsed, kind in files:
        if record is not None and record.is_beyond(parsed):
            message = f"left over from a save by more ranks: this save's own record says {record.world_size}"
            findings.append(note(Code.STRAY_FILE, message, path=path))
            continue
        rank = None if record is None else record.rank(parsed)
        shard = Shard(path=path, rank=rank, role=parsed.role, format=FormatName.TORCH_ZIP)
        shards += listed_shard(storage, shard, kind, findings, sizes=options.sizes)
    return by_rank(shards)


def shared_files(checkpoint: Checkpoint, latest: str) -> ReadByAll:
    """Return the files of a tag that each machine needs.

    Args:
        checkpoint: The tag.
        latest: The path of the record that names the tag.

    Source:
        `_get_all_ckpt_names` of `deepspeed/runtime/engine.py` counts all these files on each machine; DeepSpeed 0.19.
    """
    from ckpttool.core.domain.placement import ReadByAll

    files = [(shard.path, parse(shard.path.rpartition("/")[2])) for shard in checkpoint.shards]
    return ReadByAll(
        surely=(latest, *(path for path, parsed in files if parsed is not None and _is_whole_models(parsed))),
        perhaps=tuple(path for path, parsed in files if parsed is not None and parsed.slice is None),
    )


def _is_whole_models(file: StatesFile) -> bool:
    return file.role is ShardRole.MODEL and file.slice is not None and file.replica is None


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Report sizes that the loader refuses.

    It refuses different numbers of data-parallel ranks under ZeRO, or of model parts.
    """
    files = [parsed for path in checkpoint.expected or () if (parsed := parse(path.rpartition("/")[2])) is not None]
    replicas = {file.replica for file in files if file.replica is not None}
    slices = {file.slice for file in files}
    model_parallel = 1 if len(slices) == 1 else None  # with several parts, no name shows how many belong to a pipeline
    saved = AskedSizes(
        world=checkpoint.topology.world_size, tensor=model_parallel, pipeline=model_parallel, data=len(replicas) or None
    )
    refuses = None
    if any(file.role is ShardRole.OPTIMIZER for file in files):
        refuses = (
            "ZeRO loads its parts of the optimizer state only on as many data-parallel ranks as wrote them, unless "
            "ds_to_universal.py converts them to a universal checkpoint"
        )
    elif (requested.tensor or requested.pipeline or 1) != 1:
        refuses = "each part of the model has its own file, which is not resharded"
    return tuple(against_size(checkpoint, requested, saved=saved, refuses=refuses))
