"""MindFormers' view of a tree when it chooses a checkpoint: names, times and small records, never a shard.

The view must work for damaged trees, so nothing in this module raises an error.
"""

from __future__ import annotations

import json
import os
import re
from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.formats.strict_json import DEFAULT_LIMIT, MOST_MEMORY, Json, memory_of
from ckpttool.core.storage.base import Entry, Kind, LostLinkError, NotRegularError, Storage
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.mindformers.layouts.iteration import metadata_memory
from ckpttool.trainers.mindformers.layouts.names import ITERATION_START, iteration_folder
from ckpttool.trainers.mindformers.own_names import UnreadError

_RANK_FOLDER = re.compile(r"rank_(0|[1-9][0-9]*)")
_SHARD_SUFFIXES = (".ckpt", ".safetensors")
_NOT_THERE = frozenset({Kind.OTHER, Kind.LOST})
_MAX_TRACKER = 1 << 16  # a number has only a few digits


class Reading(str, Enum):
    """The result of reading a record file.

    Each case takes a different path through MindFormers' code.
    """

    PRESENT = "present"
    MISSING = "missing"
    NOT_TEXT = "not-text"
    """The file's bytes are not UTF-8."""
    NOT_JSON = "not-json"
    WRONG_SHAPE = "wrong-shape"
    """The file is JSON, but does not contain the objects and lists that MindFormers expects."""
    NOT_A_FILE = "not-a-file"
    UNREADABLE = "unreadable"
    """No permission, a disk error, or a size beyond all limits: MindFormers may still be able to read the file."""


def require_read(reading: Reading, path: str) -> None:
    """Raise `UnreadError` if a record could not be read."""
    if reading is Reading.UNREADABLE:
        raise UnreadError(f"{path} could not be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEntry:
    """One name in a folder."""

    name: str
    is_folder: bool
    mtime_ns: int | None
    """Modification time; None if it was not requested or is unknown, as for a broken link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaView:
    """One rank's meta.json with its raw values; None for a value of a different type.

    An epoch or step may be a bool: MindFormers accepts `true` as an integer, and fails later.
    """

    reading: Reading
    epoch: int | None = None
    step: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One entry of the checkpoint folder with a name of `rank_` and digits."""

    name: str
    files: tuple[SeenEntry, ...] | None
    """Files in the folder's order, because MindFormers takes the first of equal entries.

    None if the folder cannot be listed.
    """
    meta: MetaView


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """The output folder's `health_ckpts.json`."""

    reading: Reading
    marks: tuple[int | None, ...] = ()
    """The health in each entry: 0 is healthy. None if it is absent or not a number, which counts as unhealthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataView:
    """The shards that a metadata.json assigns to the checkpoint."""

    reading: Reading
    files: tuple[str, ...] = ()
    """The names of the shards, each once, in the order of first occurrence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonView:
    """A common.json."""

    reading: Reading
    fields: tuple[str, ...] = ()
    ckpt_status: int | None = None
    """Health of the save: 0 is healthy. None if the value is null, absent, or not an integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationView:
    """A folder of the newer layout, or any other entry with such a name."""

    name: str
    names: tuple[str, ...] | None
    """Contents of the folder, in any order; None if the entry is not a folder or cannot be listed."""
    metadata: MetadataView
    """The metadata.json, read only if MindFormers would read it.

    It is MISSING in folders that are neither the root nor named by the tracker.
    """
    common: CommonView


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerView:
    """The checkpoint folder's `latest_checkpointed_iteration.txt`."""

    reading: Reading
    text: str = ""
    folder: str | None = None
    """The folder that the tracker names; None if the text is not an integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MindFormersSettings:
    """The settings that affect MindFormers' own choice, with MindFormers' defaults.

    Disks count as shared: if each node has its own disk, no node sees the files that other nodes would choose.
    """

    load_ckpt_format: str = "ckpt"
    use_checkpoint_health_monitor: bool = False
    """Whether the health monitor is on.

    In the legacy layout, a top-level key sets it; in the newer layout, a threshold under
    `monitor_config.health_checkpoint`.
    """
    resume_by_last_timestamp_ckpt: bool = False
    use_legacy_format: bool | None = None
    """Whether the config is for the legacy layout; None if unknown, so that the folder decides."""
    world_size: int | None = None
    """Number of ranks in the training run; None to use the number of rank folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MindFormersView:
    """All inputs of the choice."""

    path: str
    """The checkpoint folder, absolute and free of links."""
    entries: tuple[SeenEntry, ...] | None
    """Entries of the folder; None if the folder cannot be listed."""
    ranks: tuple[RankView, ...]
    """The ranks, in the order of their numbers."""
    health: HealthView
    itself: IterationView
    """The folder itself, which may be an iteration's folder."""
    iterations: tuple[IterationView, ...]
    """All entries named `iteration_…`, in the folder's order."""
    tracker: TrackerView
    settings: MindFormersSettings


def view_for_mindformers(
    storage: Storage, settings: MindFormersSettings, *, output: Storage | None = None
) -> MindFormersView:
    """Return MindFormers' view of this folder.

    The order of the names in each folder is preserved: if several files qualify, MindFormers takes the first.

    Args:
        storage: The folder that `load_checkpoint` names.
        settings: The settings of the run.
        output: The folder that `output_dir` names, for health_ckpts.json; None means that the file is missing.
    """
    listed = _listed(storage, "")
    entries = listed or []
    numbers = (int(match[1]) for entry in entries if (match := _RANK_FOLDER.fullmatch(entry.name)))
    tracker = _tracker(storage, listed)
    return MindFormersView(
        path=os.path.realpath(storage.root),
        entries=None if listed is None else tuple(_seen(entry, None) for entry in entries),
        ranks=tuple(_rank(storage, f"rank_{number}") for number in sorted(numbers)),
        health=HealthView(reading=Reading.MISSING) if output is None else _health(output),
        itself=_iteration(storage, "", listed, with_metadata=True),
        iterations=tuple(
            _iteration(storage, entry.name, _listed(storage, entry.name), with_metadata=entry.name == tracker.folder)
            for entry in entries
            if entry.name.startswith(ITERATION_START)
        ),
        tracker=tracker,
        settings=settings,
    )


def _rank(storage: Storage, name: str) -> RankView:
    listed = _listed(storage, name)
    if listed is None:
        return RankView(name=name, files=None, meta=MetaView(reading=Reading.MISSING))
    files = tuple(_seen(entry, _mtime(storage, name, entry)) for entry in listed)
    # The listing shows a missing record, which is cheaper than a failed attempt to open it.
    has_meta = any(entry.name == "meta.json" for entry in listed)
    meta = _meta(storage, f"{name}/meta.json") if has_meta else MetaView(reading=Reading.MISSING)
    return RankView(name=name, files=files, meta=meta)


def _mtime(storage: Storage, folder: str, entry: Entry) -> int | None:
    if not entry.name.endswith(_SHARD_SUFFIXES):
        return None
    try:
        # A store without times has the file anyway; then the newest is unknown.
        return storage.stamp(f"{folder}/{entry.name}").modified_ns or 0
    except NotRegularError as odd:  # a folder has a time as well, and MindFormers needs no more
        return odd.modified_ns
    except OSError:
        return None


def _seen(entry: Entry, mtime_ns: int | None) -> SeenEntry:
    return SeenEntry(name=entry.name, is_folder=entry.kind is Kind.FOLDER, mtime_ns=mtime_ns)


def _listed(storage: Storage, folder: str) -> list[Entry] | None:
    try:
        return storage.entries(folder)
    except (OSError, ValueError):
        return None


def _meta(storage: Storage, path: str) -> MetaView:
    reading, value = _json(storage, path)
    if reading is not Reading.PRESENT:
        return MetaView(reading=reading)
    if not value:  # {} and null: MindFormers skips them like a truncated file
        return MetaView(reading=Reading.NOT_JSON)
    if not isinstance(value, dict):
        return MetaView(reading=Reading.WRONG_SHAPE)
    file = value.get("last_ckpt_file")
    return MetaView(
        reading=reading,
        epoch=_integer(value.get("last_epoch")),
        step=_integer(value.get("last_step")),
        file=file if isinstance(file, str) else None,
    )


def _health(output: Storage) -> HealthView:
    reading, value = _json(output, "health_ckpts.json")
    if reading is not Reading.PRESENT or not value:
        return HealthView(reading=reading)
    items = value if isinstance(value, list) else [value]
    marks = tuple(_status(item.get("is_health")) for item in items if isinstance(item, dict))
    if not isinstance(value, list) or len(marks) < len(value):
        return HealthView(reading=Reading.WRONG_SHAPE)
    return HealthView(reading=reading, marks=marks)


def _iteration(storage: Storage, name: str, listed: list[Entry] | None, *, with_metadata: bool) -> IterationView:
    names = None if listed is None else tuple(entry.name for entry in listed if entry.kind not in _NOT_THERE)
    has = frozenset(names or ())
    start = f"{name}/" if name else ""
    missing = MetadataView(reading=Reading.MISSING)
    return IterationView(
        name=name,
        names=names,
        metadata=_metadata(storage, f"{start}metadata.json", len(has))
        if with_metadata and "metadata.json" in has
        else missing,
        common=_common(storage, f"{start}common.json") if "common.json" in has else CommonView(reading=Reading.MISSING),
    )


def _metadata(storage: Storage, path: str, strays: int) -> MetadataView:
    reading, value = _json(storage, path, most_memory=metadata_memory(strays))
    if reading is not Reading.PRESENT:
        return MetadataView(reading=reading)
    files: dict[str, None] = {}
    places = value.get("storage_data") if isinstance(value, dict) else None
    if not isinstance(places, dict):
        return MetadataView(reading=Reading.WRONG_SHAPE)
    for owners in places.values():
        for owner in owners if isinstance(owners, list) else [None]:
            file = owner.get("file_name") if isinstance(owner, dict) else None
            if not isinstance(file, str):
                return MetadataView(reading=Reading.WRONG_SHAPE)
            files[file] = None
    return MetadataView(reading=reading, files=tuple(files))


def _common(storage: Storage, path: str) -> CommonView:
    reading, value = _json(storage, path)
    if reading is not Reading.PRESENT:
        return CommonView(reading=reading)
    if not isinstance(value, dict):
        return CommonView(reading=Reading.WRONG_SHAPE)
    return CommonView(reading=reading, fields=tuple(value), ckpt_status=_status(value.get("ckpt_status")))


def _tracker(storage: Storage, listed: list[Entry] | None) -> TrackerView:
    kinds = {entry.kind for entry in listed or () if entry.name == TRACKER}
    if kinds <= _NOT_THERE:
        return TrackerView(reading=Reading.MISSING)
    reading, data = _bytes(storage, TRACKER, limit=_MAX_TRACKER)
    if reading is not Reading.PRESENT:
        return TrackerView(reading=reading)
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        return TrackerView(reading=Reading.NOT_TEXT)
    try:
        return TrackerView(reading=reading, text=text, folder=iteration_folder(int(text)))
    except ValueError:
        return TrackerView(reading=reading, text=text)


def _bytes(storage: Storage, path: str, *, limit: int) -> tuple[Reading, bytes]:
    try:
        return Reading.PRESENT, storage.small_file(path, limit=limit)
    except (FileNotFoundError, LostLinkError):  # MindFormers calls os.path.exists, which is false for both
        return Reading.MISSING, b""
    except (NotRegularError, IsADirectoryError):
        return Reading.NOT_A_FILE, b""
    except OSError:
        return Reading.UNREADABLE, b""


def _json(storage: Storage, path: str, *, most_memory: int = MOST_MEMORY) -> tuple[Reading, Json]:
    """Parse a JSON file as leniently as MindFormers does.

    Duplicate keys and NaN are valid here, unlike in ckpttool's own readers. A file that would fill the memory is not
    read. MindFormers does read such a file, so the result is unknown.
    """
    reading, data = _bytes(storage, path, limit=min(most_memory // 2, DEFAULT_LIMIT))
    if reading is not Reading.PRESENT:
        return reading, None
    if memory_of(data) > most_memory:
        return Reading.UNREADABLE, None
    try:
        value: Json = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        return Reading.NOT_TEXT, None
    except (ValueError, RecursionError):
        return Reading.NOT_JSON, None
    return reading, value


def _integer(value: Json) -> int | None:
    return value if isinstance(value, int) else None


def _status(value: Json) -> int | None:
    """Return the value as an integer, or None.

    MindFormers only checks whether it equals 0 in Python.
    """
    if isinstance(value, float) and value == 0:
        return 0
    return int(value) if isinstance(value, int) else None
