"""List the folders of steps with their records; no store of arrays is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, Inventory, NamedStep, StepSource, Topology
from ckpttool.core.domain.finding import Code, Finding, in_order, note, suspect, unsafe
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.ocdbt import MANIFEST
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.records import MANIFEST_NAME, OWN_FOLDER, leads_out
from ckpttool.core.storage.base import Kind, Storage, unreadable
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.common.listed import in_order_of_progress, listed_damage, one_run, stamp_if_there, stray
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.orbax import (
    ARRAYS,
    FIRST_API,
    MARK,
    RECORD,
    RECORD_LIMIT,
    SHARDING,
    TRAINER,
    is_unfinished,
    prefix_and_step,
)

_NO_SHARDING = "orbax.checkpoint.v1 does not load an item with arrays of JAX without it"
_DATA = "d"
"""The folder of a store's data files."""
_OF_PROCESS = "ocdbt.process_"
"""Prefix of a process's own store; the item's store refers to the data files in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    items: dict[str, str]
    """Names of handlers by item; an empty item name means the save's own folder."""
    metrics: int
    """Number of metrics by which the training script rated the save."""
    began_ns: int | None
    committed_ns: int | None
    """Time of the commit, in nanoseconds since 1970."""


def scan_saves(storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
    """List the saves, with their records.

    Args:
        storage: The tree.
        listing: The names in its root.
        options: Data to collect in addition to the names.
    """
    names = [name for name in listing.folders() if prefix_and_step(name) is not None]
    checkpoints = _of_trainings(map_waiting(lambda name: _scan_save(storage, name, options), names))
    names = [save.name for save in checkpoints]
    stray_names = [entry.name for entry in listing.entries if entry.name not in {*names, OWN_FOLDER}]
    strays = tuple(name for name in stray_names if not is_unfinished(name))
    unfinished = [_unfinished(name) for name in stray_names if is_unfinished(name)]
    return Inventory(
        root=storage.root,
        layout=TRAINER.name,
        checkpoints=tuple(checkpoints),
        runs=one_run(checkpoints),
        findings=in_order((*map(stray, strays), *unfinished)),
        strays=strays,
    )


def _of_trainings(saves: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Exclude folders with a prefix that no save with a record has.

    The names of such folders merely end in a number.
    """
    kept_saves = list(saves)
    bare = {
        save.name for save in kept_saves if any(finding.code is Code.METADATA_INCOMPLETE for finding in save.findings)
    }
    prefixes = {save.prefix for save in kept_saves if save.name not in bare}
    return in_order_of_progress(save for save in kept_saves if not prefixes or save.prefix in prefixes)


def _unfinished(name: str) -> Finding:
    message = "an incomplete save: Orbax renames the folder when the save is complete, and skips this one"
    return note(Code.IN_PROGRESS, message, path=name, remedy="if no training is running, remove it")


def _scan_save(storage: Storage, name: str, options: ScanOptions) -> Checkpoint:
    prefix, step = prefix_and_step(name) or ("", None)
    findings: list[Finding] = []
    record: _Record | None = None
    shards: list[Shard] = []
    expected: list[str] = []
    try:
        names = {entry.name for entry in storage.entries(name)}
        record = _record(storage, name, findings)
        items = _items(name, names, record, findings)
        for item in items:
            stores_read = _of_item(storage, f"{name}/{item}" if item else name, options)
            if stores_read.lacks_sharding and record is not None and FIRST_API in record.items.get(item, ""):
                findings.append(listed_damage(Code.SHARD_MISSING, _NO_SHARDING, f"{name}/{item}/{SHARDING}"))
            shards += stores_read.shards
            expected += stores_read.expected
        findings += _marks(name, names)
        findings += [
            stray(f"{name}/{name_}") for name_ in sorted(names - {*items, RECORD, MARK, MANIFEST_NAME}) if all(items)
        ]
    except OSError as error:
        findings.append(unreadable(name, error))
    committed = None if record is None else record.committed_ns
    return Checkpoint(
        name=name,
        prefix=prefix,
        facts=(("metrics", record.metrics),) if record is not None and record.metrics else (),
        scalars=Scalars(),
        step=step,
        step_source=StepSource.NAME,
        named=None if step is None else NamedStep(stem=prefix, number=step),
        identity=None if committed is None or record is None else f"{record.began_ns} {committed}",
        order=committed,
        committed_ns=committed,
        shards=tuple(sorted(shards, key=lambda shard: shard.path)),
        topology=Topology(shared=True),
        format=FormatName.OCDBT,
        expected=tuple(expected) or None,
        commit=CommitState.COMMITTED,
        content=Content.UNKNOWN,
        findings=tuple(findings),
    )


def _record(storage: Storage, name: str, findings: list[Finding]) -> _Record | None:
    """Read the record of a save.

    If it is missing, Orbax restores the save only if the items are specified.
    """
    path = f"{name}/{RECORD}"
    try:
        record = parse_object(storage.small_file(path, limit=RECORD_LIMIT), where=path)
    except (FileNotFoundError, ParseError) as error:
        why = error if isinstance(error, ParseError) else "is missing"
        message = f"{why}: which items the save has is unknown"
        findings.append(suspect(Code.METADATA_INCOMPLETE, message, path=path, remedy="restore it from a copy"))
        return None
    handlers, metrics = record.get("item_handlers"), record.get("metrics")
    items = handlers if isinstance(handlers, dict) else {"": handlers}
    return _Record(
        items={str(item): handler if isinstance(handler, str) else "" for item, handler in items.items()},
        metrics=len(metrics) if isinstance(metrics, dict) else 0,
        began_ns=_time(record.get("init_timestamp_nsecs")),
        committed_ns=_time(record.get("commit_timestamp_nsecs")),
    )


def _time(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 63 else None


def _items(name: str, names: set[str], record: _Record | None, findings: list[Finding]) -> list[str]:
    """Return the folders of a save's items; without a record, return all candidates."""
    if record is None:
        return sorted(names - {RECORD, MARK, MANIFEST_NAME})
    escaping = sorted(item for item in record.items if "/" in item or (item and leads_out(item)))
    if escaping:
        message = f"names the item {quoted(escaping[0])}, which is not part of this save; it is not followed"
        findings.append(unsafe(Code.UNSAFE_NAME, message, path=f"{name}/{RECORD}"))
    return sorted(record.items.keys() - set(escaping))


def _marks(name: str, names: set[str]) -> Iterator[Finding]:
    if MARK not in names:
        message = (
            "there is no commit_success.txt: on a local disk the folder's name shows that the save is complete, on "
            "an object store only that file does"
        )
        yield note(Code.UNCOMMITTED_SAVE, message, path=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    shards: tuple[Shard, ...]
    expected: tuple[str, ...]
    lacks_sharding: bool = False
    """Whether the item has JAX arrays without their sharding."""


def _of_item(storage: Storage, folder: str, options: ScanOptions) -> _Item:
    """List the store of an item: the manifest, and the data files of the store and of each process."""
    try:
        names = {entry.name: entry.kind for entry in storage.entries(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return _Item(shards=(), expected=(folder,))
    stores = sorted(
        item_name for item_name, kind in names.items() if item_name.startswith(_OF_PROCESS) and kind is Kind.FOLDER
    )
    if not stores and _DATA not in names and MANIFEST not in names:
        # An item that the script writes itself, with contents that no record describes. Arrays stored in another form
        # are not read.
        return _Item(shards=(), expected=() if names else (folder,))
    manifest = f"{folder}/{MANIFEST}"
    places = ([f"{folder}/{_DATA}"] if _DATA in names else []) + [
        f"{folder}/{item_name}/{_DATA}" for item_name in stores
    ]
    shards = [_shard(storage, manifest, ShardRole.INDEX, options)] if MANIFEST in names else []
    for place in places:
        try:
            files = sorted(entry.name for entry in storage.entries(place) if entry.kind is not Kind.FOLDER)
        except FileNotFoundError:
            continue  # a process that had nothing to write
        shards += [_shard(storage, f"{place}/{file}", ShardRole.DATA, options) for file in files]
    lacks_sharding = ARRAYS in names and SHARDING not in names
    return _Item(shards=tuple(shards), expected=(manifest,), lacks_sharding=lacks_sharding)


def _shard(storage: Storage, path: str, role: ShardRole, options: ScanOptions) -> Shard:
    stamp = stamp_if_there(storage, path) if options.sizes else None
    return Shard(path=path, rank=None, role=role, format=FormatName.OCDBT, stamp=stamp)
