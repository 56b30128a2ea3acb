"""List `iter_*/` folders and `release/`, and read one small record in each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from heapq import nlargest
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
from ckpttool.core.domain.pointer import Pointer
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.strict_json import ParseError, get_optional_str, get_str, parse_object
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Entry, Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common import TRACKER
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
from ckpttool.trainers.common.tracker_file import tracker_pointer
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.megatron import (
    BRIDGE_TRACKER,
    COMMON,
    DCP_METADATA,
    ENERGON,
    INTEGRITY,
    METADATA_JSON,
    MODEL,
    OPTIMIZER,
    RANK_FOLDER,
    RELEASE,
    TRAIN_STATE,
    TRAINER,
    WRITTEN_BESIDE,
    WRITTEN_INSIDE,
    SaveKind,
    is_save,
    iteration_folder,
    iteration_of,
    kind_of,
)
from ckpttool.trainers.megatron.record import SaveRecord, save_record
from ckpttool.trainers.torch_dcp import store

_RECORD_LIMIT = 64 << 10
_NEWEST = 8
"""Number of newest saves whose records of slices a scan reads.

A record has hundreds of names, and no other use.
"""


class _ToRead(NamedTuple):
    """The data that a scan reads from a save."""

    sizes: bool
    """Whether to read each file's stamp as well."""
    most: int
    """Maximum bytes of the record of slices; a larger record is read later if needed."""


class _Files(NamedTuple):
    record: SaveRecord | None
    shards: tuple[Shard, ...]
    expected: tuple[str, ...] | None
    commit: CommitState
    findings: tuple[Finding, ...]
    topology: Topology
    format: FormatName


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the files in each save, and read the record in one of them."""
    pointer = tracker_pointer(storage, iteration_folder, content=RELEASE)
    saves = list(filter(is_save, listing.folders()))
    newest = frozenset(nlargest(_NEWEST, saves, key=lambda name: iteration_of(name) or 0))

    def scanned(name: str) -> Checkpoint:
        return _scan_save(storage, name, _ToRead(options.sizes, store.AT_A_SCAN if name in newest else 0))

    checkpoints = in_order_of_progress(map_waiting(scanned, saves))
    tracked = _tracked(storage, pointer, checkpoints)
    known_names = {TRACKER, OWN_FOLDER, *WRITTEN_BESIDE, *saves}
    strays = tuple(entry.name for entry in listing.entries if entry.name not in known_names)
    trouble = () if pointer.name in saves or listing.has(BRIDGE_TRACKER) else (_tracker_disagrees(pointer),)
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(tracked_by(timed(storage, checkpoints, tracked), pointer.name)),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *trouble)),
        strays=strays,
        tracked=tracked,
    )


def _tracker_disagrees(pointer: Pointer) -> Finding:
    message, effect = f"the tracker {pointer.trouble}", "Megatron-LM ends with exit code 0"
    if pointer.trouble is None:
        message, effect = f"the tracker names {pointer.name}, which does not exist", "Megatron-LM stops"
    elif pointer.trouble == "is missing":
        effect = "Megatron-LM starts from random weights without an error"
    remedy = "name the save with --ckpt-step, and repair the tracker: ckpttool repair pointer"
    return note(Code.TRACKER_DISAGREES, f"{message}: without --ckpt-step {effect}", path=TRACKER, remedy=remedy)


def _tracked(storage: Storage, pointer: Pointer, checkpoints: Iterable[Checkpoint]) -> Tracked | None:
    """Return the progress according to the tracker; None if the save's contents contradict its name."""
    named = next((checkpoint for checkpoint in checkpoints if checkpoint.name == pointer.name), None)
    if pointer.name is None or pointer.name == RELEASE or (named is not None and blocking(named.findings)):
        return None
    return tracked_in(storage, TRACKER, pointer.name, iteration_of(pointer.name))


def _scan_save(storage: Storage, name: str, to_read: _ToRead) -> Checkpoint:
    try:
        entries = sorted(storage.entries(name))
    except OSError as error:
        files = _none((unreadable(name, error),), CommitState.UNKNOWN)
    else:
        files = _FILES[kind_of(frozenset(entry.name for entry in entries))](storage, name, entries, to_read)
    record, named = files.record, iteration_of(name)
    step = None if record is None else record.step
    findings = list(files.findings)
    if None not in {step, named} and step != named:
        findings.append(other_step(name, step or 0))
    unsure = StepSource.UNKNOWN if named is None else StepSource.NAME
    return Checkpoint(
        name=name,
        scalars=Scalars() if record is None else record.scalars,
        step=named if step is None else step,
        step_source=unsure if step is None else StepSource.CONTENT,
        shards=files.shards,
        topology=files.topology,
        format=files.format,
        expected=files.expected,
        commit=files.commit,
        content=_content(name, record),
        findings=tuple(findings),
    )


def _content(name: str, record: SaveRecord | None) -> Content:
    if name == RELEASE or (record is not None and not record.saves_optimizer):
        return Content.WEIGHTS_ONLY
    return Content.UNKNOWN if record is None else Content.FULL


def _none(findings: tuple[Finding, ...], commit: CommitState = CommitState.UNCOMMITTED) -> _Files:
    return _Files(None, (), None, commit, findings, Topology(), FormatName.TORCH_ZIP)


def _unknown(storage: Storage, name: str, entries: Sequence[Entry], to_read: _ToRead) -> _Files:
    """Report a folder without a file that identifies the format, as at the beginning of a save."""
    del storage, entries, to_read
    return _none((listed_damage(Code.SHARD_MISSING, "this folder has no file of a save", name),))


def _distributed(storage: Storage, name: str, entries: Sequence[Entry], to_read: _ToRead) -> _Files:
    """List the slices and `common.pt`.

    `metadata.json` is written after all of these.
    """
    kinds = {entry.name: entry.kind for entry in entries}
    slices = store.read_store(storage, name, sizes=to_read.sizes, most=to_read.most)
    findings = [*slices.findings]
    needs_common, commit = COMMON in kinds, slices.commit
    if METADATA_JSON in kinds:
        try:
            text = storage.small_file(f"{name}/{METADATA_JSON}", limit=_RECORD_LIMIT)
            metadata = parse_object(text, where=METADATA_JSON)
            get_str(metadata, "sharded_backend", where=METADATA_JSON)  # without it the trainer stops
            needs_common = get_optional_str(metadata, "common_backend", where=METADATA_JSON) == "torch"
        except OSError as error:
            findings.append(unreadable(f"{name}/{METADATA_JSON}", error))
        except ParseError as error:
            findings.append(listed_damage(Code.META_UNREADABLE, str(error), f"{name}/{METADATA_JSON}"))
    elif kind_of(frozenset(kinds)) is SaveKind.DISTRIBUTED:
        commit = CommitState.UNCOMMITTED
    shards, expected = [*slices.shards], slices.expected
    for file_name in (COMMON, TRAIN_STATE):
        if file_name in kinds:
            state = Shard(path=f"{name}/{file_name}", rank=None, role=ShardRole.STATE, format=FormatName.TORCH_ZIP)
            shards += listed_shard(storage, state, kinds[file_name], findings, sizes=to_read.sizes)
    if needs_common and expected is not None:
        expected = (*expected, f"{name}/{COMMON}")
    own_names = {METADATA_JSON, DCP_METADATA, COMMON, INTEGRITY, MANIFEST_NAME, *WRITTEN_INSIDE}
    findings += [stray(f"{name}/{kind}") for kind in kinds if kind not in own_names and not kind.endswith(".distcp")]
    return _Files(
        record=save_record(first_value(storage, [f"{name}/{COMMON}"] if COMMON in kinds else [])),
        shards=by_rank(shards),
        expected=expected,
        commit=commit,
        findings=tuple(findings),
        topology=Topology(shared=True),
        format=FormatName.TORCH_ZIPS,
    )


def _legacy(storage: Storage, name: str, entries: Sequence[Entry], to_read: _ToRead) -> _Files:
    """List the folders with the parts of the model.

    The record in one of the parts shows how many there are.
    """
    findings: list[Finding] = []
    files: dict[str, Kind] = {}
    for entry in entries:
        if re.fullmatch(RANK_FOLDER, entry.name) is None:
            findings += [stray(f"{name}/{entry.name}")] if entry.name != MANIFEST_NAME else []
            continue
        try:
            inside = storage.entries(f"{name}/{entry.name}")
        except OSError as error:
            findings.append(unreadable(f"{name}/{entry.name}", error))
            continue
        files |= {f"{entry.name}/{file.name}": file.kind for file in inside}
    record = save_record(first_value(storage, [f"{name}/{path}" for path in sorted(files) if path.endswith(MODEL)]))
    ranks: dict[str, Rank] = {} if record is None else {part.folder: rank for part, rank in record.parts().items()}
    shards: list[Shard] = []
    for path, kind in sorted(files.items()):
        folder, _, file = path.partition("/")
        if re.fullmatch(ENERGON, file):
            continue
        if file not in _ROLES or (ranks and folder not in ranks):
            findings.append(stray(f"{name}/{path}"))
            continue
        shard = Shard(path=f"{name}/{path}", rank=ranks.get(folder), role=_ROLES[file], format=FormatName.TORCH_ZIP)
        shards += listed_shard(storage, shard, kind, findings, sizes=to_read.sizes)
    roles: tuple[str, ...] = ()
    if record is not None:
        roles = (MODEL, OPTIMIZER) if record.has_optimizer_files else (MODEL,)
    return _Files(
        record=record,
        shards=by_rank(shards),
        expected=tuple(f"{name}/{folder}/{file}" for folder in ranks for file in roles) if ranks else None,
        commit=CommitState.UNRECORDED,
        findings=tuple(findings),
        topology=Topology(shared=True),  # a file belongs to a part of the model, which several ranks may load
        format=FormatName.TORCH_ZIP,
    )


_ROLES = {MODEL: ShardRole.MODEL, OPTIMIZER: ShardRole.OPTIMIZER}
_FILES = {
    SaveKind.DISTRIBUTED: _distributed,
    SaveKind.PLAIN_DCP: _distributed,
    SaveKind.LEGACY: _legacy,
    SaveKind.UNKNOWN: _unknown,
}
