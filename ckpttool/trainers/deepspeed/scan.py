"""List the tags in a folder, and read one model file of each tag up to its pickle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import (
    Checkpoint,
    CommitState,
    Content,
    Inventory,
    StepSource,
    Topology,
    Tracked,
)
from ckpttool.core.domain.finding import Code, Finding, blocking, in_order, note
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Entry, Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import (
    by_rank,
    in_order_of_progress,
    listed_damage,
    listed_shard,
    one_run,
    stray,
    timed,
    tracked_by,
    tracked_in,
)
from ckpttool.trainers.common.saved_values import first_value, other_step
from ckpttool.trainers.deepspeed import (
    DEFAULT_TAG,
    LATEST,
    LATEST_UNIVERSAL,
    TRAINER,
    UNIVERSAL_PART,
    WRITTEN_BESIDE,
    StatesFile,
    parse,
)
from ckpttool.trainers.deepspeed.latest import latest_pointer
from ckpttool.trainers.deepspeed.record import Seen, TagRecord, tag_record
from ckpttool.trainers.listing import Listing


class _File(NamedTuple):
    path: str
    parsed: StatesFile
    kind: Kind


def scan_tags(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the files in each tag, and read the record in one of its model files."""
    pointer = latest_pointer(storage) if listing.has(LATEST) else None
    tag = None if pointer is None else pointer.name
    scanned = map_waiting(
        lambda name: scan_tag(storage, name, options, is_latest=name == tag),
        [name for name in listing.folders() if name != OWN_FOLDER],
    )
    checkpoints = in_order_of_progress(checkpoint for checkpoint in scanned if checkpoint is not None)
    names = {checkpoint.name: checkpoint for checkpoint in checkpoints}
    known_names = {LATEST, LATEST_UNIVERSAL, OWN_FOLDER, *WRITTEN_BESIDE, *names}
    strays = [entry.name for entry in listing.entries if entry.name not in known_names]
    trouble = "is missing" if pointer is None else pointer.trouble
    findings = [stray(name) for name in strays]
    if trouble is not None or tag not in names:
        findings.append(_latest_disagrees(trouble, tag))
    tracked = None if tag is None else _tracked(storage, tag, names.get(tag))
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(tracked_by(timed(storage, checkpoints, tracked), tag)),
        runs=one_run(checkpoints),
        findings=in_order(findings),
        strays=tuple(strays),
        tracked=tracked,
    )


def _latest_disagrees(trouble: str | None, tag: str | None) -> Finding:
    message = f"`latest` {trouble}" if trouble is not None else f"`latest` names {tag}, which does not exist"
    effect = "DeepSpeed starts from scratch with a warning" if trouble == "is missing" else "DeepSpeed stops here"
    remedy = "load by tag, or point `latest` at the newest intact checkpoint: ckpttool repair pointer"
    return note(Code.TRACKER_DISAGREES, f"{message}: without a tag {effect}", path=LATEST, remedy=remedy)


def _tracked(storage: Storage, tag: str, named: Checkpoint | None) -> Tracked | None:
    """Return the progress according to `latest`; None if the tag's contents contradict its name."""
    if named is not None and blocking(named.findings):
        return None
    match = re.fullmatch(DEFAULT_TAG, tag)
    return tracked_in(storage, LATEST, tag, None if match is None else Step(int(match[1])))


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
