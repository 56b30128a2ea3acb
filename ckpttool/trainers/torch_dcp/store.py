"""A folder of torch.distributed.checkpoint by any writer: `.metadata` and the `.distcp` files that it names.

Several trainers' layouts have such folders, as complete saves or as parts of saves.

Source:
    `torch/distributed/checkpoint/filesystem.py` of torch 2.13: `.metadata` is written last, through `.metadata.tmp`; if
    ranks do not communicate (`use_collectives=False`), each writes its own `__N.metadata` instead. In all folders that
    were checked, the slices of a file are contiguous, and those of a tensor cover it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import prod
from operator import add, gt
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState
from ckpttool.core.domain.finding import Code, Finding, damage, helped, suspect, unknown, unsafe
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, counted
from ckpttool.core.formats.base import MAX_FINDINGS, over_limit, quoted
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import Kind, OverLimitError, Storage, is_there, unreadable
from ckpttool.trainers.common.listed import stamp_if_there, stray
from ckpttool.trainers.torch_dcp import METADATA, OF_RANK, UNFINISHED, WRITER, is_committed

if TYPE_CHECKING:
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.core.formats.torch.dcp import DcpMetadata, SplitTensor
    from ckpttool.core.formats.torch.slice_machine import Slice

AT_A_SCAN = 64 << 10
"""Maximum bytes of a record that is read for every save of a tree: about 300 slices, and tens of milliseconds."""
OF_THE_NEWEST = 4 << 20
"""The same for the few saves likely to be chosen, and for saves without a step in their names: about 20,000 slices."""

_MOST_MISSING = 4096
_PIECE = 4 << 20
"""Bytes of a record that are searched at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpStore:
    """The contents of a DCP folder.

    Paths are relative to the tree's root.
    """

    shards: tuple[Shard, ...]
    """The existing `.distcp` files that belong to the folder, by path; all of them if no record was read."""
    expected: tuple[str, ...] | None
    """The files that its record names, sorted.

    If the record is too large for a scan, the existing files. None if there is no record, or the record is broken.
    """
    commit: CommitState
    findings: tuple[Finding, ...]
    """Problems with the record, and files that no record names."""
    metadata: DcpMetadata | None
    """The contents of the record; None if no record was read, or it is broken."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors and values, as far as a record was read."""
        return () if self.metadata is None else (*self.metadata.tensors, *self.metadata.values)


def read_store(storage: Storage, folder: str, *, sizes: bool = False, most: int = AT_A_SCAN) -> DcpStore:
    """List a folder's files and read its record; no shard is opened.

    Args:
        storage: The tree.
        folder: A path relative to its root; empty for the root itself.
        sizes: Whether to read every shard's stamp as well, which takes one more call per file.
        most: Maximum bytes of a record that is read. `with_own_records` reads larger records.

    Raises:
        OSError: The folder cannot be listed.
    """
    entries = storage.entries(folder)
    files = sorted(entry.name for entry in entries if entry.kind in {Kind.FILE, Kind.LOST})
    shards = tuple(_shard(storage, _below(folder, name), sizes=sizes) for name in files if WRITER.fullmatch(name))
    if not is_committed(files):
        unfinished = (_unfinished(folder),) if UNFINISHED in files else ()
        return DcpStore(
            shards=shards, expected=None, commit=CommitState.UNCOMMITTED, findings=unfinished, metadata=None
        )
    metadata, findings = _records(storage, folder, files, most)
    if metadata is None:
        # The names in a larger record are read later; until then the existing files count as complete.
        expected = None if findings else tuple(shard.path for shard in shards)
        commit = CommitState.UNKNOWN if findings else CommitState.COMMITTED
        return DcpStore(shards=shards, expected=expected, commit=commit, findings=findings, metadata=None)
    return _compared(storage, folder, shards, metadata, findings)


def read_store_closely(storage: Storage, checkpoint: Checkpoint, *folders: str) -> Checkpoint:
    """Add the records of a save that were too large to read in a scan.

    Args:
        storage: The tree.
        checkpoint: The checkpoint from the scan.
        folders: The save's folders that this module reads; empty for the root.

    Raises:
        OSError: A folder cannot be listed, or the record in it cannot be checked.
    """
    for folder in folders:
        listed = [shard for shard in checkpoint.shards if shard.path.startswith(_below(folder, "__"))]
        was_read = bool(listed) and all(shard.least is not None for shard in listed)
        if was_read or not is_there(storage, _below(folder, METADATA)):
            continue
        stamps = {shard.path: shard.stamp for shard in checkpoint.shards}
        store = read_store(storage, folder, most=_most_ever())
        known_findings = set(checkpoint.findings)
        by_path = {shard.path: replace(shard, stamp=stamps.get(shard.path)) for shard in store.shards}
        rest = (shard for shard in checkpoint.shards if not shard.path.startswith(_below(folder, "__")))
        missing = (_missing(path) for path in store.expected or () if path not in by_path)
        checkpoint = replace(
            checkpoint,
            shards=tuple(sorted((*rest, *by_path.values()), key=lambda shard: (shard.rank or 0, shard.path))),
            findings=(
                *checkpoint.findings,
                *(finding for finding in (*store.findings, *missing) if finding not in known_findings),
            ),
        )
    return checkpoint


def read_by_all(checkpoint: Checkpoint) -> ReadByAll:
    """Return the files of a save that each machine reads: records, files without a rank, and some of the slices.

    Source:
        `dcp.load` of torch 2.13 reads `.metadata` on every rank; a value that is saved once, such as a counter, is in
        the file of the rank that wrote it.
    """
    from ckpttool.core.domain.placement import ReadByAll

    slices = [shard.path for shard in checkpoint.shards if shard.role is ShardRole.DATA]
    paths = [shard.path for shard in checkpoint.shards if shard.role is not ShardRole.DATA and shard.rank is None]
    records = sorted({f"{path.rpartition('/')[0]}/{METADATA}" for path in slices if WRITER.fullmatch(_name(path))})
    return ReadByAll(surely=(*records, *paths), perhaps=tuple(slices))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _missing(path: str) -> Finding:
    return helped(
        damage(Code.SHARD_MISSING, "the checkpoint's own record names this file, but it does not exist", path=path)
    )


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _shard(storage: Storage, path: str, *, sizes: bool) -> Shard:
    # Each rank reads the slices that it needs, regardless of the rank that wrote them.
    stamp = stamp_if_there(storage, path) if sizes else None
    return Shard(path=path, rank=None, role=ShardRole.DATA, format=FormatName.TORCH_ZIPS, stamp=stamp)


def _unfinished(folder: str) -> Finding:
    path = _below(folder, UNFINISHED)
    return damage(
        Code.UNCOMMITTED_SAVE,
        f"the save is not complete: {METADATA} is first written under this name, and was not renamed",
        path=folder or path,
        remedy="resume from an older checkpoint; if a save is in progress, wait for it",
    )


def _records(
    storage: Storage, folder: str, files: Sequence[str], most: int
) -> tuple[DcpMetadata | None, tuple[Finding, ...]]:
    """Read the record, or the combined records of all ranks.

    Return None if a record is too large or invalid; an invalid record also gives a finding.
    """
    from ckpttool.core.formats.torch.dcp import DcpMetadata, read_dcp_metadata  # not needed for a tree with only names

    names = [METADATA] if METADATA in files else [name for name in files if OF_RANK.fullmatch(name)]
    parts: list[DcpMetadata] = []
    findings = list(_missing_ranks(folder, files)) if names != [METADATA] else []
    for name in names:
        path = _below(folder, name)
        try:
            parts.append(read_dcp_metadata(storage.small_file(path, limit=most)))
        except OverLimitError:
            return None, () if most < _most_ever() else (_over_limit(path),)
        except BrokenPickleError as error:
            return None, (*findings, _torn(path, str(error)))
        except OSError as error:
            return None, (*findings, unreadable(path, error))
    if len(parts) == 1:
        return parts[0], tuple(findings)
    merged = DcpMetadata(
        tensors=_merged(parts),
        values=tuple(dict.fromkeys(name for part in parts for name in part.values)),
        slices=tuple(slice_ for part in parts for slice_ in part.slices),
        calls=tuple(sorted({call for part in parts for call in part.calls})),
    )
    return merged, tuple(findings)


def _most_ever() -> int:
    from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES

    return MOST_METADATA_BYTES


def _over_limit(path: str) -> Finding:
    """Report a record that is larger than any that a trainer writes."""
    return replace(over_limit(f"is larger than {_most_ever()} bytes, so it is not read"), path=path)


def _merged(parts: Sequence[DcpMetadata]) -> dict[str, SplitTensor]:
    """Combine the ranks' records of their own parts of each tensor."""
    tensors: dict[str, SplitTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            tensor_before = tensors.get(name)
            chunks_before = () if tensor_before is None else tensor_before.chunks
            tensors[name] = tensor._replace(chunks=tuple(dict.fromkeys((*chunks_before, *tensor.chunks))))
    return tensors


def _missing_ranks(folder: str, files: Sequence[str]) -> Iterator[Finding]:
    """Report ranks without a record of their own, up to the highest rank of any file."""
    ranks = {int(match["rank"]) for name in files if (match := OF_RANK.fullmatch(name))}
    wrote = ranks | {int(match["rank"]) for name in files if (match := WRITER.fullmatch(name))}
    missing = (rank for rank in range(max(wrote) + 1) if rank not in ranks)
    for rank in islice(missing, _MOST_MISSING):
        path = _below(folder, f"__{rank}.metadata")
        yield damage(
            Code.RANK_MISSING,
            "the rank's own record is missing: nothing shows which files it wrote, and it cannot load them",
            path=path,
            remedy="resume from an older checkpoint",
            ranks=(Rank(rank),),
        )


def _torn(path: str, why: str) -> Finding:
    return damage(
        Code.HEADER_INVALID,
        f"is not an intact record of torch.distributed.checkpoint ({why}): nothing of the save can be loaded",
        path=path,
        remedy="resume from an older checkpoint",
    )


def _compared(
    storage: Storage, folder: str, shards: Iterable[Shard], metadata: DcpMetadata, earlier: Iterable[Finding]
) -> DcpStore:
    """Check the record for contradictions within it and with the existing names."""
    record = _below(folder, METADATA)
    findings = [*earlier, *_unsafe(record, metadata)]
    files = _Files(metadata.slices)
    escaping = sorted(path for path in files.ends if leads_out(path))
    if escaping:
        message = f"names {quoted(escaping[0])}, which is outside the folder; it is not followed"
        findings.append(unsafe(Code.UNSAFE_NAME, message, path=record))
    ends = {path: end for path, end in files.ends.items() if not leads_out(path)}
    oversized: dict[str, list[Slice]] = {path: [] for path in sorted(files.odd & ends.keys())}
    for slice_ in metadata.slices if oversized else ():
        if slice_.path in oversized:
            oversized[slice_.path].append(slice_)
    findings += islice((gap for path, slices in oversized.items() for gap in _gaps(record, path, slices)), MAX_FINDINGS)
    findings += islice(_uncovered(record, metadata, files.slices), MAX_FINDINGS)
    changed = files.changed & ends.keys()
    findings += [_not_looked_into(_below(folder, path), _TRANSFORMED) for path in sorted(changed)]
    if _is_raw(metadata):
        remedy = "check it on a machine with torch: torch.distributed.checkpoint.load reads it"
        remaining = sorted(ends.keys() - changed)
        findings += [_not_looked_into(_below(folder, path), _RAW, remedy=remedy) for path in remaining]
        changed = {*ends}
    least = {_below(folder, path): end for path, end in ends.items()}
    listed = {shard.path: shard for shard in shards}
    # A record may name files in folders, which no trainer does: such files are searched for, not listed.
    inner = (path for path in sorted(least.keys() - listed.keys()) if "/" in path.removeprefix(f"{folder}/"))
    listed |= {shard.path: shard for path in inner if (shard := _shard(storage, path, sizes=True)).stamp is not None}
    findings += [stray(path) for path in sorted(listed.keys() - least.keys())]
    findings += [_missing(path) for path in sorted(_below(folder, path) for path in changed) if path not in listed]
    expected = sorted(least.keys() - {_below(folder, path) for path in changed})
    own_files = (listed[path] for path in expected if path in listed)
    return DcpStore(
        shards=tuple(replace(shard, least=ByteCount(least[shard.path])) for shard in own_files),
        expected=tuple(expected),
        commit=CommitState.COMMITTED,
        findings=tuple(findings),
        metadata=metadata,
    )


class _Files:
    """Totals of the slices, by file and by name, so that half a million slices are read only once."""

    __slots__ = ("changed", "ends", "odd", "slices")

    def __init__(self, slices: Iterable[Slice]) -> None:
        ends: dict[str, int] = {}
        counts: dict[str, int] = {}
        self.odd: set[str] = set()
        """Files whose slices do not follow one another as recorded."""
        self.changed = {path for _, path, _, _, is_changed, _ in slices if is_changed}
        for name, path, offset, length, _, _ in slices:
            end = ends.get(path, 0)
            if offset != end:
                self.odd.add(path)
            ends[path] = max(end, offset + length)
            counts[name] = counts.get(name, 0) + 1
        self.ends = ends
        """First byte after the last slice of each file."""
        self.slices = counts
        """Number of slices of each tensor or value."""


def _unsafe(record: str, metadata: DcpMetadata) -> Iterator[Finding]:
    from ckpttool.core.formats.torch.pickle_names import Trust, trust

    runs = [f"{module}.{name}" for module, name in metadata.calls if trust(module, name) is Trust.RUNS]
    if runs:
        message = f"would run code when it is loaded: it calls {', '.join(map(quoted, runs[:3]))}"
        yield unsafe(Code.UNSAFE_PICKLE, message, path=record, remedy="load nothing from this save")


_TRANSFORMED = "its slices were compressed or encrypted when they were saved: they are not checked"
_RAW = "its tensors were saved with SerializationFormat.SAFETENSORS, which ckpttool does not read in a .distcp file"


def _not_looked_into(path: str, message: str, *, remedy: str | None = None) -> Finding:
    return unknown(
        Code.UNSUPPORTED_FORMAT, message, path=path, expected="slices as torch.save writes them", remedy=remedy
    )


def _is_raw(metadata: DcpMetadata) -> bool:
    """Return whether a slice is as long as the tensor's data.

    Such a slice has no archive of `torch.save` around it.
    """
    for slice_ in metadata.slices:
        tensor = metadata.tensors.get(slice_.name)
        digits = None if tensor is None or tensor.dtype is None else re.search("[0-9]+", tensor.dtype)
        if tensor is not None and digits is not None and slice_.length:
            return any(slice_.length * 8 == prod(sizes) * int(digits[0]) for _, sizes in tensor.chunks)
    return False


def _gaps(record: str, path: str, slices: Iterable[Slice]) -> Iterator[Finding]:
    """Report bytes of a file that belong to no slice, or to two slices."""
    spans = sorted({(slice_.offset, slice_.offset + slice_.length) for slice_ in slices})
    for (_, end), (begin, _) in pairwise([(0, 0), *spans]):
        if begin != end:
            subject = "no slice has" if begin > end else "two slices have"
            yield suspect(
                Code.OFFSETS_NOT_CONTIGUOUS,
                f"{subject} the bytes from {min(begin, end)} to {max(begin, end)} of {quoted(path)}; torch "
                "leaves no gaps",
                path=record,
            )


def _uncovered(record: str, metadata: DcpMetadata, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Report incomplete tensors, and names without a slice."""
    volumes: dict[tuple[int, ...], int] = {}
    for name, tensor in metadata.tensors.items():
        message = _partly(name, tensor, volumes) or _without_slices(name, counts.get(name, 0), len(tensor.chunks))
        if message is not None:
            yield damage(Code.ENTRIES_MISSING, message, path=record, tensor=name)
    for name in metadata.values:
        message = _without_slices(name, counts.get(name, 0), 1)
        if message is not None:
            yield damage(Code.ENTRIES_MISSING, message, path=record)


def _partly(name: str, tensor: SplitTensor, volumes: dict[tuple[int, ...], int]) -> str | None:
    """Describe the mismatch if the parts of a tensor do not cover it; None if they do.

    Args:
        name: The name of the tensor.
        tensor: The tensor as the record declares it.
        volumes: Cache of volumes by shape.
    """
    shape, covered = tensor.shape, 0
    for offsets, sizes in tensor.chunks:
        if not len(offsets) == len(sizes) == len(shape) or any(map(gt, map(add, offsets, sizes), shape)):
            return f"a part of {quoted(name)} is outside its shape {list(shape)}"
        volume = volumes.get(sizes)
        covered += volumes.setdefault(sizes, prod(sizes)) if volume is None else volume
    total = prod(shape)
    if covered == total:
        return None
    parts = counted(len(tensor.chunks), "part")
    return f"the {parts} of {quoted(name)} have {covered} elements, but its shape {list(shape)} has {total}"


def _without_slices(name: str, slices: int, parts: int) -> str | None:
    if slices >= parts:
        return None
    return (
        f"{quoted(name)} was saved in {counted(parts, 'part')}, but only {counted(slices, 'slice')} of it can be found"
    )


def values_of(storage: Storage, folder: str, slices: Mapping[str, Slice]) -> dict[str, object]:
    """Read values that are not tensors, such as counters and the states of loaders.

    Args:
        storage: The tree.
        folder: The folder of the save.
        slices: The slices to read, by name.

    Returns:
        Plain values by name, excluding unreadable values; inert objects replace class instances.
    """
    from ckpttool.core.formats.torch.plain import plain_values

    values: dict[str, object] = {}
    for name, content in sorted(slices.items()):
        if leads_out(content.path):
            continue
        try:
            with storage.open(_below(folder, content.path)) as source:
                values[name] = plain_values(source, content.offset, content.offset + content.length)
        except (OSError, BrokenPickleError):  # reported by the later check of every file
            continue
    return values


def value_slices(store: DcpStore) -> dict[str, Slice]:
    """Return the slice of each value that is not a tensor, by the value's name."""
    if store.metadata is None:
        return {}
    values = set(store.metadata.values)
    return {slice_.name: slice_ for slice_ in store.metadata.slices if slice_.name in values and not slice_.is_changed}


def mentions(storage: Storage, path: str, key: bytes) -> bool:
    """Return whether a record contains a name, for a record that is too large to be read in a scan."""
    try:
        with storage.open(path) as source:
            begins = range(0, source.stamp.size, _PIECE)
            return any(key in source.read(begin, _PIECE + len(key)) for begin in begins)
    except OSError:  # reported by the later check
        return False
