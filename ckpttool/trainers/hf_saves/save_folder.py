"""The folder of one save by Hugging Face's libraries: weights in one file or in parts, and a state per rank.

Source:
    `transformers/trainer.py` 4.57 and 5.23, `accelerate/checkpointing.py` 1.15, `huggingface_hub/serialization`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState
from ckpttool.core.domain.finding import Code, Finding, damage, helped, note, suspect, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError, as_str, get_object, parse_object
from ckpttool.core.storage.base import Kind, OverLimitError, Storage, unreadable
from ckpttool.trainers.common.listed import by_rank, listed_damage, listed_shard
from ckpttool.trainers.hf_saves import WEIGHTS

if TYPE_CHECKING:
    from ckpttool.core.domain.placement import ReadByAll
    from ckpttool.trainers.torch_dcp.store import DcpStore

_SUFFIXES = {"safetensors": FormatName.SAFETENSORS}
"""Formats by suffix; torch writes all files with other suffixes."""

_SLICES = r"(?:pytorch_model_fsdp|optimizer)_[0-9]{1,9}"
"""Folders of torch.distributed.checkpoint with slices of the weights or the optimizer state."""
_SLICES_OF = {ShardRole.MODEL: "pytorch_model_fsdp_", ShardRole.OPTIMIZER: "optimizer_"}
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MOST_PARTS = 4096
"""Maximum number of parts to search for, because a file name can claim any number."""
_INDEX_LIMIT = 64 << 20
_KILLED = r"\.tmp[A-Za-z0-9]{6}"
"""Temporary name that safetensors uses before it renames the file."""


class FileNamed(NamedTuple):
    """The meaning of a file's name."""

    role: ShardRole
    format: FormatName
    rank: Rank | None


class NamePattern(NamedTuple):
    """A pattern for names of files that a trainer writes."""

    pattern: str
    """Pattern for the complete name.

    The group `rank` is the file's rank. If the group is empty, the run has only one rank.
    """
    role: ShardRole


class SaveFolder(NamedTuple):
    """The listing of one save's folder."""

    name: str
    names: frozenset[str]
    """All names in the folder."""
    shards: tuple[Shard, ...]
    """The files, sorted by (rank, path)."""
    findings: tuple[Finding, ...]
    expected: tuple[str, ...] | None
    """Paths of all existing files, and of those in the folders' records; None if a folder has no valid record."""
    is_listed: bool = True
    """False if the folder cannot be listed."""

    def path(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.name}/{name}"

    @property
    def format(self) -> FormatName:
        """Format of the weights; if there are no weights, the default of these libraries."""
        weights = (shard.format for shard in self.shards if shard.role in {ShardRole.MODEL, ShardRole.DATA})
        return next(weights, FormatName.SAFETENSORS)

    @property
    def ranks(self) -> frozenset[Rank]:
        """Ranks that have their own file."""
        return frozenset(shard.rank for shard in self.shards if shard.rank is not None)

    def has(self, role: ShardRole) -> bool:
        """Return whether the folder has a file with this role, or a folder with its slices."""
        start = _SLICES_OF.get(role)
        return any(shard.role is role for shard in self.shards) or (
            start is not None and any(name.startswith(start) and re.fullmatch(_SLICES, name) for name in self.names)
        )


def file_names(*patterns: NamePattern) -> Callable[[str], FileNamed | None]:
    """Return a function from a name to the file's meaning; the function returns None for any other name."""
    compiled = [(re.compile(pattern), role) for pattern, role in patterns]

    @lru_cache(maxsize=4096)  # all saves of a tree have the same names
    def named(name: str) -> FileNamed | None:
        for pattern, role in compiled:
            match = pattern.fullmatch(name)
            if match is not None:
                rank_text = match.groupdict().get("rank")
                rank = None if rank_text is None else Rank(int(rank_text or 0))
                if rank is not None and rank >= MAX_RANKS:
                    return None
                return FileNamed(role, _SUFFIXES.get(name.rpartition(".")[2], FormatName.TORCH_ZIP), rank)
        return None

    return named


def list_save(storage: Storage, folder: str, named: Callable[[str], FileNamed | None], *, sizes: bool) -> SaveFolder:
    """List a save's folder; the only files that are opened are records in folders of slices.

    Args:
        storage: The tree.
        folder: The folder of the save.
        named: Returns the meaning of a file name.
        sizes: Whether to read each file's stamp as well.
    """
    from ckpttool.trainers.torch_dcp.store import read_store  # names are enough to identify the trainer of a tree

    findings: list[Finding] = []
    shards: list[Shard] = []
    stores: list[DcpStore] = []
    try:
        entries = sorted(storage.entries(folder))
        for name, kind in entries:
            if kind is Kind.FOLDER and re.fullmatch(_SLICES, name):
                stores.append(read_store(storage, f"{folder}/{name}", sizes=sizes))
                findings += _unfinished(stores[-1], f"{folder}/{name}")
                continue
            match = named(name)
            if match is not None:
                shard = Shard(path=f"{folder}/{name}", rank=match.rank, role=match.role, format=match.format)
                shards += listed_shard(storage, shard, kind, findings, sizes=sizes)
            elif is_unfinished(name):
                findings.append(_killed(f"{folder}/{name}"))
    except OSError as error:
        return SaveFolder(folder, frozenset(), (), (unreadable(folder, error),), expected=None, is_listed=False)
    expected = [store.expected for store in stores]
    shards += (shard for store in stores for shard in store.shards)
    paths = {shard.path for shard in shards}.union(*(name for name in expected if name is not None))
    return SaveFolder(
        name=folder,
        names=frozenset(name for name, _ in entries),
        shards=by_rank(shards),
        findings=(*findings, *(finding for store in stores for finding in store.findings)),
        expected=None if None in expected else tuple(sorted(paths)),
    )


def _unfinished(store: DcpStore, path: str) -> Iterator[Finding]:
    if store.commit is CommitState.UNCOMMITTED and not store.findings:
        message = "has no record of its slices, which is written last: the save is not complete"
        yield listed_damage(Code.UNCOMMITTED_SAVE, message, path)


def read_by_all(folder: str, shards: Iterable[Shard]) -> ReadByAll:
    """Return the save's files that each process reads: all files without a rank, and some of the slices.

    Args:
        folder: The folder of the save.
        shards: The shards of the save.
    """
    from ckpttool.core.domain.placement import ReadByAll

    shared = [shard for shard in shards if shard.rank is None]
    slices = [shard.path for shard in shared if shard.role is ShardRole.DATA]
    records = sorted({f"{path.rpartition('/')[0]}/.metadata" for path in slices})
    paths = [shard.path for shard in shared if shard.role is not ShardRole.DATA]
    indexes = [f"{folder}/{name}" for name in _INDEXES]
    return ReadByAll(surely=(*records, *paths, *indexes), perhaps=tuple(slices))


def is_unfinished(name: str) -> bool:
    """Return whether this is a temporary name that safetensors uses before it renames the file."""
    return name.startswith(".tmp") and re.fullmatch(_KILLED, name) is not None


def _killed(path: str) -> Finding:
    message = "safetensors renames such a file when it is complete: a save is in progress, or was killed"
    return note(Code.IN_PROGRESS, message, path=path)


def absent_parts(save: SaveFolder) -> Iterator[Finding]:
    """Report parts of the weights that are missing according to the numbers in the names.

    Parts without an index are also reported.
    """
    parts = sorted(name for name in save.names if "-of-" in name and re.fullmatch(WEIGHTS, name))
    if not parts:
        return
    start, _, tail = parts[0].rpartition("-of-")
    suffix = tail.partition(".")[2]
    if f"{start[:-6]}.{suffix}.index.json" not in save.names:
        message = (
            f"{parts[0]} is one part of several, and no index says which part has which tensor: they cannot be loaded"
        )
        yield listed_damage(Code.METADATA_INCOMPLETE, message, save.name)
    for number in range(1, min(int(tail.partition(".")[0]), _MOST_PARTS) + 1):
        name = f"{start[:-5]}{number:05d}-of-{tail}"
        if name not in save.names:
            yield absent(save.path(name), f"one of the {int(tail.partition('.')[0])} parts of the weights")


def absent(path: str, subject: str) -> Finding:
    """Report a missing file.

    Args:
        path: The expected path of the file.
        subject: The file, worded to begin the sentence.
    """
    remedy = "restore it from a copy, or resume from another checkpoint"
    return listed_damage(Code.SHARD_MISSING, f"{subject} is missing", path, remedy=remedy)


def with_own_records(storage: Storage, checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Read records of slices that are too large for a scan, and compare the weights' index with the parts.

    Args:
        storage: The tree.
        checkpoint: The checkpoint from the scan: files known to be missing are not reported again.
        folder: The folder of the save.

    Raises:
        OSError: The disk could not be read.
    """
    from ckpttool.trainers.torch_dcp.store import read_store_closely

    slices = {shard.path.rpartition("/")[0] for shard in checkpoint.shards if shard.role is ShardRole.DATA}
    checkpoint = read_store_closely(storage, checkpoint, *sorted(slices))
    findings = tuple(_index_findings(storage, checkpoint, folder))
    return replace(checkpoint, findings=(*checkpoint.findings, *findings)) if findings else checkpoint


def _index_findings(storage: Storage, checkpoint: Checkpoint, folder: str) -> Iterator[Finding]:
    weights = {shard.path for shard in checkpoint.shards if shard.role is ShardRole.MODEL}
    if any("-of-" not in path for path in weights):
        return
    for name in _INDEXES:
        path = f"{folder}/{name}"
        try:
            index = read_index(storage, path)
        except FileNotFoundError:
            continue
        except OverLimitError as error:
            yield unsafe(Code.OVER_LIMIT, f"cannot be read ({error.strerror or error})", path=path)
        except ParseError as error:
            yield listed_damage(Code.META_UNREADABLE, error.within(path), path)
        else:
            yield from _against_parts(storage, checkpoint, path, index)


class WeightsIndex(NamedTuple):
    """The index of weights that are saved in parts."""

    tensors: dict[str, set[str]]
    """Tensors by the name of the part that contains them."""
    nbytes: int | None
    """Total bytes of all tensors; None if the index does not contain this total."""


def read_index(storage: Storage, path: str) -> WeightsIndex:
    """Read the index that lists the tensors in each part of the weights.

    Raises:
        OSError: The index cannot be read, or is larger than any real index.
        ParseError: The file is not an index.
    """
    record = parse_object(storage.small_file(path, limit=_INDEX_LIMIT), where=path)
    tensors: dict[str, set[str]] = defaultdict(set)
    for tensor, file in get_object(record, "weight_map", where=path).items():
        tensors[as_str(file, where=path, key=tensor)].add(tensor)
    metadata = record.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and math.isfinite(total):  # some versions write it as 1.0
        total = int(total)
    return WeightsIndex(tensors, total if isinstance(total, int) else None)


def _against_parts(storage: Storage, checkpoint: Checkpoint, path: str, index: WeightsIndex) -> Iterator[Finding]:
    missing_paths = {finding.path for finding in checkpoint.findings if finding.code is Code.SHARD_MISSING}
    by_path = {shard.path: shard for shard in checkpoint.shards}
    folder, nbytes, all_seen = path.rpartition("/")[0], 0, True
    for name, tensors in sorted(index.tensors.items()):
        part = f"{folder}/{name}"
        shard = by_path.get(part)
        if re.fullmatch(WEIGHTS, name) is None:
            yield unsafe(
                Code.UNSAFE_NAME, f"names {name!r}, which is not a part of weights; it is not followed", path=path
            )
        elif shard is None:
            if part not in missing_paths:
                yield absent(part, "a part of the weights that the index names")
        elif shard.format is FormatName.SAFETENSORS:
            with storage.open(part) as source:
                header = read_header(source, named=shard.format)
            nbytes += sum(entry.nbytes for entry in header.entries)
            if header.schema_hash is not None:  # else its own check reports the problem
                yield from _lacks_tensors(part, tensors - {entry.name for entry in header.entries})
                continue
        all_seen = False
    if all_seen and index.nbytes is not None and nbytes < index.nbytes:
        message = f"the parts have {nbytes} bytes of tensors, the index says {index.nbytes}"
        yield suspect(Code.ENTRIES_MISSING, message, path=path, remedy="resume from another checkpoint")


def _lacks_tensors(path: str, lacking: set[str]) -> Iterator[Finding]:
    if lacking:
        message = f"according to the index it has {quoted(min(lacking))}{_more(len(lacking) - 1)}, but it does not"
        yield helped(damage(Code.ENTRIES_MISSING, message, path=path, tensor=min(lacking)))


def _more(number: int) -> str:
    return f" and {number} more" if number else ""
