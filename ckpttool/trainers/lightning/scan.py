"""List the `*.ckpt` entries of a folder, and group those saved at the same moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Inventory, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, blocking, in_order, note
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Step
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER
from ckpttool.core.storage.base import Entry, Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import UNFINISHED_MARK, marked_unfinished, not_finished, one_run, stray
from ckpttool.trainers.common.saved_values import other_step
from ckpttool.trainers.common.torch_files import cut
from ckpttool.trainers.lightning import META, TAG, TRAINER, hpc_number, is_bare, is_last, is_save, is_version, step_in
from ckpttool.trainers.lightning.deepspeed_saves import record_file, scan_folder
from ckpttool.trainers.lightning.record import Record, read_record
from ckpttool.trainers.listing import Listing

if TYPE_CHECKING:
    from ckpttool.trainers.torch_dcp.store import DcpStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEntry:
    """A file or folder that is named like a save."""

    name: str
    record: Record
    stamp: FileStamp | None
    """Stamp of the file, or of a folder's record; None if the file does not exist or cannot be read."""
    store: DcpStore | None = None
    """The contents of a folder, apart from its record; None for a file."""
    tag: Checkpoint | None = None
    """DeepSpeed's view of the save; None if it was saved without DeepSpeed."""
    is_folder: bool = False
    is_cut_off: bool = False
    """Whether a marker file next to the entry shows that the save is unfinished."""
    findings: tuple[Finding, ...] = ()


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with their records.

    Files saved at the same moment count as one save with several names.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    saves = [entry for entry in listing.entries if is_save(entry.name) and not _is_lost_last(entry)]
    cut_off = marked_unfinished(listing, (entry.name for entry in saves))
    entries = list(map_waiting(lambda entry: _entry_of(storage, entry, options), saves))
    entries = [
        replace(entry, is_cut_off=True, findings=(*entry.findings, not_finished(entry.name)))
        if entry.name in cut_off
        else entry
        for entry in entries
    ]
    checkpoints = sorted(map(_checkpoint, _moments(entries)), key=_age)
    stray_names = (entry.name for entry in listing.entries if not is_save(entry.name) and entry.name != OWN_FOLDER)
    strays = tuple(name for name in stray_names if not (cut_off and name.endswith(UNFINISHED_MARK)))
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *_traps(storage, listing, checkpoints))),
        strays=strays,
    )


def _traps(storage: Storage, listing: Listing, checkpoints: list[Checkpoint]) -> Iterator[Finding]:
    """Report the files that a start without a named save would load, if any."""
    if not any(is_last(entry.name) or hpc_number(entry.name) is not None for entry in listing.entries):
        return iter(())
    from ckpttool.trainers.lightning.own_choice import traps

    return traps(storage, listing.entries, checkpoints)


def _is_lost_last(entry: Entry) -> bool:
    return entry.kind is Kind.LOST and is_last(entry.name)


def _entry_of(storage: Storage, entry: Entry, options: ScanOptions) -> SaveEntry:
    if entry.kind is Kind.FOLDER:
        with_deepspeed = _found_tag(storage, entry.name, options)
        return _found_folder(storage, entry.name, options) if with_deepspeed is None else with_deepspeed
    try:
        with storage.open(entry.name) as source:
            record, findings = read_record(source, sharded=False), cut(source, entry.name)
            return SaveEntry(name=entry.name, record=record, stamp=source.stamp, findings=findings)
    except OSError as error:
        return SaveEntry(name=entry.name, record=Record(), stamp=None, findings=(unreadable(entry.name, error),))


def _found_tag(storage: Storage, name: str, options: ScanOptions) -> SaveEntry | None:
    """Return a save that was written with DeepSpeed; None for any other save."""
    try:
        names = {entry.name for entry in storage.entries(name)}
        tag = scan_folder(storage, name, options) if TAG in names and META not in names else None
    except OSError:  # which the scan of the folder reports
        return None
    if tag is None:
        return None
    record, path = Record(step=tag.step, content=tag.content), record_file(tag)
    try:
        if path is not None:
            with storage.open(path) as source:
                found = read_record(source, sharded=True)
            record = record if found.step is None else found
    except OSError:  # which the scan of the tag reports
        pass
    return SaveEntry(name=name, record=record, stamp=None, tag=tag, is_folder=True, findings=tag.findings)


def _found_folder(storage: Storage, name: str, options: ScanOptions) -> SaveEntry:
    from ckpttool.trainers.torch_dcp import is_own
    from ckpttool.trainers.torch_dcp.store import read_store  # most trees contain files

    record, stamp, store, findings = Record(), None, None, []
    try:
        store = read_store(storage, name, sizes=options.sizes)
        names = sorted(entry.name for entry in storage.entries(name))
        findings += [
            stray(f"{name}/{file_name}")
            for file_name in names
            if not is_own(file_name) and file_name not in {META, MANIFEST_NAME}
        ]
        with storage.open(f"{name}/{META}") as source:
            record, stamp = read_record(source, sharded=True), source.stamp
    except FileNotFoundError:
        pass  # it is written last
    except OSError as error:
        findings.append(unreadable(f"{name}/{META}", error))
    return SaveEntry(name=name, record=record, stamp=stamp, store=store, is_folder=True, findings=tuple(findings))


def _moments(entries: Iterable[SaveEntry]) -> Iterator[list[SaveEntry]]:
    """Group entries with the same moment and content.

    An entry without a step is a group of its own, and so is a folder that is incomplete or named after another step:
    its record may be that of another save.
    """
    groups: dict[object, list[SaveEntry]] = defaultdict(list)
    for entry in entries:
        is_alone = entry.record.step is None or (entry.is_folder and (_is_torn(entry) or _is_named_otherwise(entry)))
        groups[entry.name if is_alone else (*entry.record.place, entry.record.content, entry.is_folder)].append(entry)
    yield from groups.values()


def _is_named_otherwise(entry: SaveEntry) -> bool:
    """Return whether a name contains another step than the save's record."""
    return entry.record.step is not None and step_in(entry.name) not in {None, entry.record.step}


def _is_torn(entry: SaveEntry) -> bool:
    """Return whether a file is damaged, or a folder incomplete; the files in a folder are checked elsewhere."""
    if not entry.is_folder:
        return bool(entry.findings)
    findings = (*entry.findings, *(entry.store.findings if entry.store is not None else ()))
    missing = set(_expected(entry) or ()) - {shard.path for shard in _shards(entry)}
    return bool(blocking(findings) or missing) or _commit(entry) is CommitState.UNCOMMITTED


def _rank(name: str) -> tuple[bool, bool, bool, str]:
    return is_last(name), is_version(name), is_bare(name), name


def _checkpoint(group: list[SaveEntry]) -> Checkpoint:
    if len(group) > 1:
        group.sort(key=lambda entry: (_is_torn(entry), _is_named_otherwise(entry), *_rank(entry.name)))
    main, record = group[0], group[0].record
    step = None if record.step is None else Step(record.step)
    findings = (*main.findings, *(main.store.findings if main.store is not None else ()))
    findings = (*findings, *(_named_otherwise(entry) for entry in group if _is_named_otherwise(entry)))
    return Checkpoint(
        name=main.name,
        aliases=tuple(sorted(entry.name for entry in group[1:])),
        facts=(("epoch", record.epoch), ("optimizer_step", record.step)),
        scalars=Scalars(step=record.step),
        step=step,
        step_source=StepSource.UNKNOWN if step is None else StepSource.CONTENT,
        shards=_shards(main),
        topology=Topology(shared=True) if main.tag is None else main.tag.topology,
        format=FormatName.TORCH_ZIP,
        expected=_expected(main),
        commit=_commit(main),
        content=record.content,
        findings=findings,
    )


def _named_otherwise(entry: SaveEntry) -> Finding:
    """Report a name with another step: a file is a save of its own step, but a folder may have files of two saves."""
    named, step = step_in(entry.name), entry.record.step or 0
    if entry.is_folder:
        return other_step(entry.name, step)
    message = f"the name says step {named}, the save itself step {step}, which is used"
    return note(Code.STEP_DISAGREES, message, path=entry.name, expected=str(named), actual=str(step))


def _shards(entry: SaveEntry) -> tuple[Shard, ...]:
    if entry.tag is not None:
        return entry.tag.shards
    if not entry.is_folder:
        shard = Shard(path=entry.name, rank=None, role=ShardRole.FULL, format=FormatName.TORCH_ZIP, stamp=entry.stamp)
        return (shard,)
    shards = () if entry.store is None else entry.store.shards
    if entry.stamp is None:
        return shards
    meta = f"{entry.name}/{META}"
    state = Shard(path=meta, rank=None, role=ShardRole.STATE, format=FormatName.TORCH_ZIP, stamp=entry.stamp)
    return (*shards, state)


def _expected(entry: SaveEntry) -> tuple[str, ...] | None:
    if entry.tag is not None:
        return entry.tag.expected
    if not entry.is_folder:
        return (entry.name,)
    if entry.store is None or entry.store.expected is None:
        return None
    return (*entry.store.expected, f"{entry.name}/{META}")


def _commit(entry: SaveEntry) -> CommitState:
    """Return the commit state that a folder's records show.

    A file has no such record, and may be truncated under its final name.
    """
    if entry.is_cut_off:
        return CommitState.UNCOMMITTED
    if entry.tag is not None:
        return entry.tag.commit
    if not entry.is_folder:
        return CommitState.UNRECORDED
    if entry.store is None or (entry.stamp is None and entry.findings):
        return CommitState.UNKNOWN
    return CommitState.UNCOMMITTED if entry.stamp is None else entry.store.commit


def _age(checkpoint: Checkpoint) -> tuple[bool, int, str]:
    return (checkpoint.step is None, checkpoint.step or 0, checkpoint.name)
