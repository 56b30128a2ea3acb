"""Write all or none of the files for which a repair has found donors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from ckpttool import __version__
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest, ShardSeal
from ckpttool.core.domain.replicas import Healed
from ckpttool.core.domain.retention import Put
from ckpttool.core.domain.scalars import ShardFacts
from ckpttool.core.domain.shard import FormatName, TensorEntry
from ckpttool.core.domain.units import moment
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.errors import CkptToolError, IncompleteError, NotDurableError, WriteFailedError
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import LENGTH_BYTES
from ckpttool.core.formats.safetensors.header import InvalidHeaderError, metadata_in, with_metadata
from ckpttool.core.records import HEAL_JOURNAL
from ckpttool.core.records.journal import heal_journal_bytes
from ckpttool.core.records.manifest import ManifestProblem, manifest_bytes, read_manifest
from ckpttool.core.storage.base import ByteSource, Storage
from ckpttool.core.storage.stream import read_blocks
from ckpttool.core.verbs.changes import mode_of
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verify.report import check_and_judge
from ckpttool.core.write.files import ensure_folder, remove, sweep
from ckpttool.core.write.files import replace as write
from ckpttool.core.write.puts import Ready, is_untouched, lay_ready, put_all, take_back
from ckpttool.replicas.model import Donor, Healing, ShardHealing, Target
from ckpttool.replicas.rules import metadata_of


class Extent(NamedTuple):
    """Bytes of a file in the tree."""

    path: str
    begin: int
    end: int


Piece = bytes | Extent


class Rebuilding:
    """A repair that first prepares all files, and then moves them into place."""

    def __init__(self, tree: Tree, healing: Healing, reports: Mapping[str, ShardReport]) -> None:
        """Store the plan, and the reports on the checkpoint's shards, by path."""
        self._tree = tree
        self._root = tree.inventory.root
        self._healing = healing
        self._reports = reports
        self._puts: list[Put] = []

    def run(self) -> None:
        """Execute the plan.

        Raises:
            IncompleteError: A donor changed, or a written file differs from its donor. Nothing was changed.
            WriteFailedError: Nothing was changed, or the next command that changes the tree finishes the repair.
            NotDurableError: The files were repaired, but the disk did not confirm that they are stored.
        """
        journal = f"{self._root}/{HEAL_JOURNAL}"
        try:
            self._lay_all_ready()
            try:
                write(journal, heal_journal_bytes(self._puts), overwrite=True, backup=False)
            except NotDurableError as error:
                raise WriteFailedError(f"nothing was changed: {error}") from error
            put_all(self._root, self._puts)
        except BaseException:
            with suppress(CkptToolError, OSError):
                if is_untouched(self._root, self._puts):
                    remove(journal)
                    take_back(self._root, self._puts)
                else:  # an interrupted change is completed; if that fails too, by the next change of the tree
                    put_all(self._root, self._puts)
                    remove(journal)
            raise
        remove(journal)

    def _lay_all_ready(self) -> None:
        shards = [(shard, shard.donor) for shard in self._healing.healable if shard.donor is not None]
        for shard, donor in shards:
            folder, like = (path.rpartition("/")[0] for path in (shard.target.path, donor.path))
            if not os.path.isdir(f"{self._root}/{folder}"):
                ensure_folder(f"{self._root}/{folder}", mode=os.stat(f"{self._root}/{like}").st_mode & 0o777)
        places = (*(shard.target.path for shard, _ in shards), *(fix.path for fix in self._healing.fixes))
        for folder in sorted({path.rpartition("/")[0] for path in places} - {""}):
            sweep(f"{self._root}/{folder}")
        self._lay_manifest([self._lay_shard(shard, donor) for shard, donor in shards])
        for fix in self._healing.fixes:
            self._lay_record(fix.path, fix.text.content, mode=mode_of(self._root, fix.text.like))

    def _lay_shard(self, shard: ShardHealing, donor: Donor) -> ShardSeal:
        """Prepare a shard, read it back, and return its seal."""
        storage, path = self._tree.storage, shard.target.path
        given = self._reports[donor.path]
        pieces = _content(storage, shard, donor)
        like = os.stat(f"{self._root}/{donor.path if shard.target.is_missing else path}")
        ready = lay_ready(
            self._root,
            path,
            _blocks(storage, pieces),
            size=sum(len(piece) if isinstance(piece, bytes) else piece.end - piece.begin for piece in pieces),
            mode=like.st_mode & 0o777,
            mtime_ns=os.stat(f"{self._root}/{donor.path}").st_mtime_ns,
        )
        self._add(path, ready, shard)
        if storage.stamp(donor.path) != given.stamp:
            raise IncompleteError(f"{donor.path} changed while it was read; nothing was changed")
        report = self._read_back(shard, ready, given)
        return ShardSeal(
            path=path,
            size=ready.streamed.size,
            xxh3_128=ready.streamed.xxh3_128,
            chunks=ready.streamed.chunks,
            format=given.format or FormatName.SAFETENSORS,
            schema_hash=report.schema_hash,
            scalars=report.scalars,
            first_seen=moment(time.time()),
            tensors=report.tensor_digests,
            healed=Healed(
                rank=donor.rank, proof=donor.proof, trust=donor.trust, tensor=shard.tensor, at=moment(time.time())
            ),
        )

    def _add(self, path: str, ready: Ready, shard: ShardHealing | None = None) -> None:
        """Record that a file is ready."""
        put = Put(path=path, temporary=ready.temporary, stamp=ready.stamp)
        if shard is not None and not shard.target.is_missing:
            retained = f"{self._healing.trash}/{path}"
            put = replace(put, replaces=self._tree.storage.stamp(path), retained=retained)
        self._puts.append(put)

    def _read_back(self, shard: ShardHealing, ready: Ready, given: ShardReport) -> ShardReport:
        """Read the written file back, which must be intact, with the donor's tensors.

        Raises:
            IncompleteError: The file is damaged, or its tensors differ.
        """
        task = CheckTask(
            root=self._root,
            path=ready.temporary,
            rank=shard.target.rank,
            role=shard.target.role,
            named_format=given.format or FormatName.SAFETENSORS,
            level=Level.CHECKSUM,
            cost=ready.streamed.size,
            facts=ShardFacts(scalars=self._healing.checkpoint.rules.requested),
        )
        report = check_and_judge(task).report
        if worst(report.findings) >= Severity.SUSPECT:
            raise IncompleteError(f"{shard.target.path} as rebuilt: {report.findings[0].message}; nothing was changed")
        ours, theirs = report.tensor_digests, given.tensor_digests
        same = ours is not None and theirs is not None
        if same and ours is not None and theirs is not None:
            names = ours.by_name.keys() if shard.tensor is None else {shard.tensor}
            same = all(ours.by_name[name] == theirs.by_name.get(name) for name in names)
            same = same and report.schema_hash == given.schema_hash
        if not same:
            raise IncompleteError(f"{shard.target.path} as rebuilt differs from the donor; nothing was changed")
        return report

    def _lay_manifest(self, seals: Iterable[ShardSeal]) -> None:
        """Prepare the manifest of the checkpoint, with the rebuilt files."""
        checkpoint = self._healing.checkpoint
        place = self._tree.seal_place(checkpoint)
        if place is None:
            return
        old = read_manifest(self._tree.storage, place)
        if isinstance(old, ManifestProblem):
            raise IncompleteError(f"{place.path}: {old.finding.message}; nothing was changed")
        sealed = {} if old is None else old.by_path
        new = {seal.path: seal for seal in seals}
        for path, seal in new.items():
            before = sealed.get(path)
            if before is not None and before.same_content(seal):
                new[path] = replace(seal, first_seen=before.first_seen)
            elif before is not None and before.format is FormatName.MINDSPORE_CKPT:
                raise IncompleteError(f"{path} as rebuilt differs from its seal; nothing was changed")
        both = {**sealed, **new}
        manifest = Manifest(
            layout=place.layout,
            checkpoint=place.checkpoint,
            prefix=checkpoint.prefix if old is None else old.prefix,
            world_size=checkpoint.topology.world_size if old is None else old.world_size,
            sealed_at=moment(time.time()),
            sealed_by=__version__,
            shards=tuple(both[path] for path in sorted(both)),
        )
        self._lay_record(place.path, manifest_bytes(manifest), mode=0o644)

    def _lay_record(self, path: str, content: bytes, *, mode: int) -> None:
        self._add(path, lay_ready(self._root, path, [content], size=len(content), mode=mode))


def _content(storage: Storage, shard: ShardHealing, donor: Donor) -> list[Piece]:
    """Return the sources of the rebuilt file's bytes."""
    with storage.open(donor.path) as source:
        size = source.stamp.size
        header = read_header(source, named=FormatName.SAFETENSORS)
        if shard.tensor is not None:
            return _one_tensor(storage, shard, donor, header.entries)
        if header.format is not FormatName.SAFETENSORS:
            return [Extent(donor.path, 0, size)]
        text, begin = _head(source)
    target_header = _own_header(storage, shard.target, header.entries, begin, shard.metadata)
    return [target_header or with_metadata(text, shard.metadata), Extent(donor.path, begin, size)]


def _one_tensor(storage: Storage, shard: ShardHealing, donor: Donor, entries: tuple[TensorEntry, ...]) -> list[Piece]:
    """Combine one tensor of the donor with the rest of the damaged file."""
    with storage.open(shard.target.path) as source:
        size = source.stamp.size
        target_entries = {entry.name: entry for entry in read_header(source, named=FormatName.SAFETENSORS).entries}
    name = shard.tensor or ""
    theirs = next((entry for entry in entries if entry.name == name), None)
    ours = target_entries.get(name)
    if ours is None or theirs is None or (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        raise IncompleteError(f"{shard.target.path} has no tensor {name!r} like the donor's; nothing was changed")
    if [end - begin for begin, end in ours.spans] != [end - begin for begin, end in theirs.spans]:
        raise IncompleteError(f"{name!r} has other pieces in {donor.path}; replace the whole file")
    pieces: list[Piece] = []
    at = 0
    for (begin, end), (first, last) in zip(ours.spans, theirs.spans, strict=True):
        pieces += [Extent(shard.target.path, at, begin), Extent(donor.path, first, last)]
        at = end
    return [*pieces, Extent(shard.target.path, at, size)]


def _head(source: ByteSource) -> tuple[str, int]:
    """Return the JSON of a safetensors header, and the start of the data."""
    length = int.from_bytes(source.read(0, LENGTH_BYTES), "little")
    return source.read(LENGTH_BYTES, length).decode().rstrip(" "), LENGTH_BYTES + length


def _own_header(
    storage: Storage,
    target: Target,
    entries: tuple[TensorEntry, ...],
    data_begin: int,
    metadata: tuple[tuple[str, str], ...] | None,
) -> bytes | None:
    """Return the header of the damaged file, or None if it is not correct."""
    if target.is_missing:
        return None
    with storage.open(target.path) as source:
        header = read_header(source, named=FormatName.SAFETENSORS)
        if header.format is not FormatName.SAFETENSORS or header.schema_hash is None:
            return None
        text, begin = _head(source)
        raw = source.read(0, begin)
    moved = tuple(
        replace(
            entry, spans=tuple((first - begin + data_begin, last - begin + data_begin) for first, last in entry.spans)
        )
        for entry in header.entries
    )
    same = moved == entries and sorted(metadata_in(text) or ()) == sorted(metadata or ())
    return raw if same else None


def _blocks(storage: Storage, pieces: Iterable[Piece]) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        with storage.open(piece.path) as source:
            for _, block in read_blocks(source, piece.begin, piece.end):
                yield block


PAGE_BYTES = 4096
"""Unit of loss on a disk, in bytes; a page of zeros in a damaged file is lost, and contradicts nothing."""


def differing_tensor(storage: Storage, path: str, donor: str) -> str | None:
    """Return a tensor in which a file with a damaged header differs from another file, using the latter's header.

    Return None if nothing differs, or if the lengths differ, because the data may then start at another offset. Also
    return None if most tensors differ, because the file then has other contents, not only a damaged header.

    Raises:
        OSError: The disk did not answer.
    """
    with storage.open(path) as ours, storage.open(donor) as theirs:
        if ours.stamp.size != theirs.stamp.size:
            return None
        entries = read_header(theirs, named=FormatName.SAFETENSORS).entries
        differing = [entry.name for entry in entries if _differs(ours, theirs, entry)]
    return differing[0] if differing and 2 * len(differing) <= len(entries) else None


def _differs(ours: ByteSource, theirs: ByteSource, entry: TensorEntry) -> bool:
    """Return whether two files differ in the bytes of a tensor, except for lost pages."""
    for begin, end in entry.spans:
        for mine, donor_block in zip(read_blocks(ours, begin, end), read_blocks(theirs, begin, end), strict=True):
            at, block = mine
            if block == donor_block[1]:
                continue
            first, last = at // PAGE_BYTES, (at + len(block) - 1) // PAGE_BYTES
            for page in range(first, last + 1):
                span = slice(max(0, page * PAGE_BYTES - at), (page + 1) * PAGE_BYTES - at)
                if block[span] != donor_block[1][span] and any(ours.read(page * PAGE_BYTES, PAGE_BYTES)):
                    return True
    return False


def own_metadata(
    storage: Storage, target: Target, donor: Donor, same_run: Iterable[Checkpoint]
) -> tuple[tuple[str, str], ...] | None:
    """Return the text of a header: the donor's pairs, except for those that differ between the two ranks elsewhere.

    Args:
        storage: The tree.
        target: The shard whose header is written.
        donor: The shard that it is rebuilt from.
        same_run: Other checkpoints of the run, nearest first.

    Raises:
        OSError: The disk did not answer.
    """
    current = _metadata(storage, donor.path)
    for peer in same_run:
        paths = {shard.rank: shard.path for shard in peer.shards if shard.role is target.role}
        if target.rank in paths and donor.rank in paths:
            ours, theirs = _metadata(storage, paths[target.rank]), _metadata(storage, paths[donor.rank])
            if ours is not None and theirs is not None:
                return metadata_of(current or (), ours, theirs)
    return current


def _metadata(storage: Storage, path: str) -> tuple[tuple[str, str], ...] | None:
    with storage.open(path) as source:
        header = read_header(source, named=FormatName.SAFETENSORS)
        if header.format is not FormatName.SAFETENSORS or header.schema_hash is None:
            return None
        try:
            return metadata_in(_head(source)[0])
        except InvalidHeaderError:
            return None
