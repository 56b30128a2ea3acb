"""List `rank_N/` folders: the names in them and their meta.json; nothing else is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Finding, Severity, note, unknown
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.base import Entry, Kind, Storage, remedy_of
from ckpttool.core.storage.fan_out import map_waiting
from ckpttool.trainers.common.listed import lost_link
from ckpttool.trainers.listing import Listing
from ckpttool.trainers.mindformers.layouts.names import RANK_MARK, FileKind, parse_shape, rank_of_folder, shape_of
from ckpttool.trainers.mindformers.layouts.pointers import META_LIMIT

_RANK_TOKEN = f"_rank_{RANK_MARK}"

_META_MARK = b"_rank_\\u0000"
"""RANK_MARK as encoded in JSON text.

Ranks with the same record then have the same bytes.
"""

_FILE, _LOST = Kind.FILE, Kind.LOST


class RankFolder(NamedTuple):
    """The listing of one rank's folder."""

    rank: Rank
    shapes: tuple[str, ...]
    """Shapes of the regular files, sorted."""
    meta: bytes | None
    """meta.json with this rank's number replaced by an escaped RANK_MARK; None if the folder has no meta.json."""
    stamps: tuple[FileStamp | None, ...]
    """File stamps of the checkpoint shapes, in the order of `shapes`; empty if sizes were not requested."""
    findings: tuple[Finding, ...] = ()
    readable: bool = True

    def name_of(self, shape: str) -> str:
        """Turn a shape back into this rank's file name."""
        return shape.replace(RANK_MARK, str(self.rank))

    def path_of(self, shape: str) -> str:
        """Return the path of a file, relative to the root."""
        return f"rank_{self.rank}/{self.name_of(shape)}"


# The Python constructor takes half the time of creating a named tuple.
_rank_folder = partial(tuple.__new__, RankFolder)


def list_rank_folders(storage: Storage, listing: Listing, *, sizes: bool) -> tuple[list[RankFolder], list[str]]:
    """List every rank's folder, in rank order.

    If a link with a rank's name is dangling, or its target is not accessible, the rank cannot be read: its folder is on
    another disk.

    Returns:
        The folders, and the other names in the root: `rank_0_bak`, `rank_table.json`.
    """
    ranks, strays = [], []
    for entry in listing.entries:
        rank = rank_of_folder(entry.name)
        if rank is None or entry.kind is Kind.FILE:
            strays.append(entry.name)
        else:
            ranks.append(rank)
    ranks.sort()
    by_shape: dict[str, tuple[str, ...]] = {}
    return list(map_waiting(partial(_list_one, storage, by_shape, sizes=sizes), ranks)), strays


def _list_one(storage: Storage, by_shape: dict[str, tuple[str, ...]], rank: int, *, sizes: bool) -> RankFolder:
    """List one rank's folder. Ranks with the same shapes share one tuple, stored in `by_shape`."""
    folder, token = f"rank_{rank}", f"_rank_{rank}"
    try:
        entries = storage.entries(folder)
    except OSError as error:
        return _unlisted(rank, error)
    files = [name for name, kind in entries if kind is _FILE]
    files.sort()
    shape = "/".join(files).replace(token, _RANK_TOKEN)
    shapes = by_shape.get(shape) if len(files) == len(entries) else None
    findings: list[Finding] = []
    if shapes is None:
        shapes, findings = _shapes_of(storage, folder, token, entries)
        shapes = by_shape.setdefault("/".join(shapes), shapes)
        if len(files) == len(entries) and _is_cut_the_same(shape):
            by_shape[shape] = shapes
    meta = None
    if "meta.json" in files or any(name == "meta.json" and kind is _LOST for name, kind in entries):
        meta, trouble = _read_meta(storage, folder)
        findings += trouble
    stamps = _stamps(storage, rank, shapes) if sizes else ()
    if meta is not None:
        meta = meta.replace(token.encode(), _META_MARK)
    return _rank_folder((rank, shapes, meta, stamps, tuple(findings), True))


def _unlisted(rank: int, error: OSError) -> RankFolder:
    folder = f"rank_{rank}"
    finding = unknown(
        Code.UNREADABLE,
        f"{folder} cannot be listed ({error.strerror or error}): its contents are unknown, not missing",
        path=folder,
        remedy=remedy_of(error) or "run ckpttool as the user of the training, or change the folder's permissions",
    )
    return RankFolder(Rank(rank), (), None, (), (finding,), readable=False)


def _shapes_of(
    storage: Storage, folder: str, token: str, entries: Sequence[Entry]
) -> tuple[tuple[str, ...], list[Finding]]:
    """Remove the rank from each name in a folder, and sort the names; report non-files that have a shard's name."""
    shapes, findings = [], []
    for entry in entries:
        name, kind = entry
        shape = shape_of(name, token)
        if kind is _LOST and parse_shape(shape).kind is FileKind.CHECKPOINT:
            shapes.append(shape)
            findings += lost_link(storage, f"{folder}/{name}", Rank(int(token.removeprefix("_rank_"))))
        elif kind is not _FILE and (kind is not _LOST or shape != "meta.json"):
            findings += _not_a_file(folder, entry, shape)
        elif shape != "meta.json":
            shapes.append(shape)
    return tuple(sorted(shapes)), findings


def _is_cut_the_same(shape: str) -> bool:
    """Return whether `shape_of` and `replace` agree for any rank.

    They agree if each name has one mark, before `_` or `-`.
    """
    for name in shape.split("/"):
        _, token, tail = name.partition(_RANK_TOKEN)
        if token and (tail[:1] not in {"_", "-"} or RANK_MARK in tail):
            return False
    return True


def _stamps(storage: Storage, rank: int, shapes: tuple[str, ...]) -> tuple[FileStamp | None, ...]:
    stamps: list[FileStamp | None] = []
    for parts in _around_the_rank(shapes):
        try:  # as `stamp_if_there`, without a call per file
            stamps.append(None if parts is None else storage.stamp(f"rank_{rank}/{parts[0]}{rank}{parts[1]}"))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


@lru_cache(maxsize=1024)
def _around_the_rank(shapes: tuple[str, ...]) -> tuple[tuple[str, str] | None, ...]:
    """Split each checkpoint's shape at the rank; None for other files. Thousands of ranks share the same shapes."""
    cut = [(shape.partition(RANK_MARK), parse_shape(shape).kind) for shape in shapes]
    return tuple((before, after) if kind is FileKind.CHECKPOINT else None for (before, _, after), kind in cut)


def _read_meta(storage: Storage, folder: str) -> tuple[bytes | None, list[Finding]]:
    path = f"{folder}/meta.json"
    try:
        return storage.small_file(path, limit=META_LIMIT), []
    except OSError as error:
        finding = note(
            Code.META_UNREADABLE,
            f"meta.json cannot be read ({error.strerror or error}); the step is taken from the shards",
            path=path,
        )
        return None, [finding]


def _not_a_file(folder: str, entry: Entry, shape: str) -> list[Finding]:
    """Report a folder, FIFO or device in place of a checkpoint file; other names are ignored."""
    if parse_shape(shape).kind not in {FileKind.CHECKPOINT, FileKind.META}:
        return []
    kind = "a folder" if entry.kind is Kind.FOLDER else "a FIFO or a device"
    return [
        Finding(
            code=Code.NOT_A_REGULAR_FILE,
            severity=Severity.DAMAGE if entry.kind is Kind.FOLDER else Severity.UNSAFE,
            message=f"expected a file, but this is {kind}; MindFormers checks only the name and would choose it",
            path=f"{folder}/{entry.name}",
        )
    ]
