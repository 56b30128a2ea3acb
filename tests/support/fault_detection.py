"""Break real shards in every way, in memory, and count what is found: a test takes a sample, a benchmark all."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, Severity, blocking, worst
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole, TensorEntry
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.formats import read_header
from ckpttool.core.storage.base import ByteSource, Entry, Kind
from ckpttool.core.verify.check import check
from ckpttool.core.verify.copies import tensors_of
from ckpttool.core.verify.kernels.digest import digest_pass
from ckpttool.core.verify.kernels.passes import Wants
from ckpttool.core.verify.report import collect, judge
from ckpttool.core.verify.siblings.compare import compare_siblings
from ckpttool.core.verify.siblings.neighbours import Neighbours, Sibling
from ckpttool.replicas.comparing.compare import SavedTensors, compare_replicas
from ckpttool.trainers.mindformers.scalars import FACTS
from ckpttool.types import TreeQuestion
from tests.support.shard_writers import crc_trailer
from tests.support.trees import Tensor, ckpt_bytes, safetensors_bytes

PAGE = 4096


@dataclass(slots=True)
class MemorySource:
    """An open file of bytes that may be changed between two checks."""

    data: bytearray | bytes
    inode: int = field(default_factory=itertools.count(1).__next__)
    """Of another file, another one: two names of one file are no copies."""

    @property
    def stamp(self) -> FileStamp:
        return FileStamp.on_disk(size=len(self.data), mtime_ns=0, inode=self.inode)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        part = memoryview(self.data)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@dataclass(slots=True)
class MemoryStorage:
    """A storage of one file, whatever path is asked for."""

    source: MemorySource
    root: str = ""

    def entries(self, folder: str) -> list[Entry]:
        raise NotADirectoryError(folder)

    def kind(self, path: str) -> Kind:  # noqa: ARG002  there is only one
        return Kind.FILE

    def stamp(self, path: str) -> FileStamp:  # noqa: ARG002  there is only one
        return self.source.stamp

    def small_file(self, path: str, *, limit: int) -> bytes:
        raise FileNotFoundError(path, limit)

    def open(self, path: str) -> AbstractContextManager[ByteSource]:  # noqa: ARG002  there is only one
        return nullcontext(self.source)


def looked_at(task: CheckTask, data: bytearray | bytes) -> ShardReport:
    """Check one file of bytes, without the guard: what raises is to be seen."""
    return judge([check(task, storage=MemoryStorage(MemorySource(data)))])


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One checkpoint of a tree in memory, one shard of which is broken, and what stands around it."""

    checkpoint: Checkpoint
    files: Mapping[str, bytes]
    """Of this checkpoint and of its siblings, by path."""
    path: str
    """The shard that is broken."""
    neighbours: tuple[ShardReport, ...]
    """The other ranks' shards, whole."""
    siblings: tuple[Sibling, ...]
    others: tuple[Checkpoint, ...]
    """The siblings' checkpoints, and one more where there is one."""

    @property
    def data(self) -> bytes:
        """The shard as it is whole."""
        return self.files[self.path]

    def task(self, level: Level, path: str | None = None, seal: ShardSeal | None = None) -> CheckTask:
        shard = next(one for one in self.checkpoint.shards if one.path == (path or self.path))
        return task_of(shard.path, self.checkpoint, level, seal)

    def alone(self, data: bytearray | bytes, level: Level = Level.STRUCTURE) -> tuple[Finding, ...]:
        """Everything above a note that is said of the shard by itself."""
        return blocking(looked_at(self.task(level), data).findings)

    def among_siblings(self, data: bytearray | bytes, level: Level = Level.STRUCTURE) -> tuple[Finding, ...]:
        """Everything above a note that is said of the checkpoint, with other ranks and another step at hand."""
        return self.beside_siblings(looked_at(self.task(level), data))

    def beside_siblings(self, report: ShardReport) -> tuple[Finding, ...]:
        """As `among_siblings`, of a shard that was looked at already."""
        reports = [report, *self.neighbours]
        verdict = collect(self.checkpoint, reports, report.level)
        return blocking([*verdict.findings, *compare_siblings(reports, self.siblings)])

    def beside_replicas(self, data: bytearray | bytes, *, copies: int) -> tuple[Finding, ...]:
        """Everything above a note that is said of so many ranks' files, read whole, beside two other checkpoints."""
        known = _read_whole(self)
        others = [report for report in known[0] if report.rank is not None and 0 < report.rank < copies]
        reports = [looked_at(self.task(Level.CHECKSUM), data), *others]
        saved = [
            SavedTensors(
                name=checkpoint.name,
                step=checkpoint.step,
                older=(checkpoint.run, checkpoint.step or 0) < (self.checkpoint.run, self.checkpoint.step or 0),
                same_run=checkpoint.run == self.checkpoint.run,
                shards=tensors_of(then),
            )
            for checkpoint, then in zip(self.others, known[1:], strict=True)
        ]
        verdict = collect(self.checkpoint, reports, Level.CHECKSUM)
        compared = compare_siblings(reports, self.siblings)
        return blocking([*verdict.findings, *compared, *compare_replicas(reports, saved).findings])

    def with_manifest(self, data: bytearray | bytes) -> tuple[Finding, ...]:
        """Everything above a note that a manifest alone shows."""
        return blocking(looked_at(self.task(Level.CHECKSUM, seal=self.seal()), data).findings)

    def seal(self) -> ShardSeal:
        """What a manifest would hold of the whole shard."""
        known = _SEALS.get(self.data)
        if known is None:
            known = _SEALS.setdefault(self.data, seal_of(self.path, self.data))
        return known

    @property
    def has_crc(self) -> bool:
        """Whether the shard carries a checksum."""
        return read_header(MemorySource(self.data), named=self.checkpoint.format, facts=FACTS).checksum is not None

    def header(self) -> Sequence[TensorEntry]:
        """The tensors of the whole shard."""
        return read_header(MemorySource(self.data), named=self.checkpoint.format, facts=FACTS).entries


@lru_cache(maxsize=64)
def _read_whole(one: Scene) -> tuple[tuple[ShardReport, ...], ...]:
    """Read every shard of a scene's checkpoint, and of the others."""
    return tuple(
        tuple(
            looked_at(task_of(shard.path, checkpoint, Level.CHECKSUM), one.files[shard.path])
            for shard in checkpoint.shards
        )
        for checkpoint in (one.checkpoint, *one.others)
    )


_SEALS: dict[bytes, ShardSeal] = {}


def task_of(path: str, checkpoint: Checkpoint, level: Level, seal: ShardSeal | None = None) -> CheckTask:
    """The task of one shard, as if nobody had listed it."""
    shard = next(one for one in checkpoint.shards if one.path == path)
    return CheckTask(
        facts=FACTS,
        root="",
        path=path,
        rank=shard.rank,
        role=shard.role,
        named_format=shard.format,
        level=level,
        cost=ByteCount(0),
        seal=seal,
        hashes=False,
    )


def seal_of(path: str, data: bytes, *, first_seen: str = "2026-01-01T00:00:00Z") -> ShardSeal:
    """Seal bytes."""
    source = MemorySource(data)
    seen = digest_pass(source, wants=Wants(xxh=True))
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    return ShardSeal(
        path=path,
        size=source.stamp.size,
        xxh3_128=seen.xxh128 or "",
        chunks=tuple(chunk.xxh128 or "" for chunk in seen.chunks),
        format=header.format,
        schema_hash=header.schema_hash,
        scalars=header.scalars,
        first_seen=first_seen,
    )


Change = Callable[[str, bytes], bytes]
"""What is done to every shard of a scene first, by path and content."""


def unchanged(path: str, data: bytes) -> bytes:  # noqa: ARG001  a change that is none
    return data


def scene(root: Path, name: str, *, change: Change = unchanged, rank: int = 0) -> Scene:
    """Set the scene around one rank's (first) shard of a checkpoint of a tree on the disk.

    Args:
        root: The tree.
        name: The checkpoint.
        change: What is done to every shard first: it gets a checksum, or a megabyte.
        rank: Whose shard is to be broken.
    """
    inventory = ckpttool.scan(TreeQuestion(path=str(root))).inventory
    checkpoint = next(one for one in inventory.checkpoints if one.name == name)
    others = Neighbours(inventory.checkpoints).siblings(checkpoint)
    files = {
        shard.path: change(shard.path, (Path(inventory.root) / shard.path).read_bytes())
        for one in (checkpoint, *others)
        for shard in one.shards
    }
    return staged(checkpoint, others, files, rank=rank)


def staged(checkpoint: Checkpoint, others: Sequence[Checkpoint], files: Mapping[str, bytes], *, rank: int = 0) -> Scene:
    """Set the scene from files in memory."""
    path = next(shard.path for shard in checkpoint.shards if shard.rank == rank)

    def reports(one: Checkpoint) -> Iterator[ShardReport]:
        for shard in one.shards:
            yield looked_at(task_of(shard.path, one, Level.STRUCTURE), files[shard.path])

    return Scene(
        checkpoint=checkpoint,
        files=files,
        path=path,
        neighbours=tuple(report for report in reports(checkpoint) if report.path != path),
        siblings=tuple(
            Sibling(
                reports=tuple(reports(one)),
                older=(one.run, one.step or 0) < (checkpoint.run, checkpoint.step or 0),
                same_run=one.run == checkpoint.run,
            )
            for one in others[:1]
        ),
        others=tuple(others),
    )


# --- how a shard gets a checksum, or a megabyte ----------------------------------------------------------------------


def with_crc(path: str, data: bytes) -> bytes:  # noqa: ARG001  a `Change`
    """Add the checksum that MindSpore writes with `crc_check`, to a file of either format."""
    source = MemorySource(data)
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    if header.format is FormatName.MINDSPORE_CKPT:
        return data + crc_trailer(data)
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length].rstrip(b" ")
    crc = digest_pass(source, entries=header.entries, wants=Wants(entry_crcs=True)).entries_crc().as_written
    begin = text.index(b"}")  # the end of the metadata, which hold no brace
    text = text[:begin] + f',"crc_num":"{crc}"'.encode() + text[begin:]
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


# --- ways to break it ------------------------------------------------------------------------------------------------

Data = bytearray | bytes
Means = Callable[[Data], Mapping[str, bool]]
"""Tells of a broken file, for each column of the table, whether it was noticed."""

ALONE, SIBLINGS, CRC, MANIFEST = "alone", "siblings", "crc", "manifest"
"""The columns: a header by itself; with other ranks and another step; the file's own checksum; a manifest."""

REPLICAS, PAIR = "replicas", "pair"
"""Three ranks that hold the same, and the file must be named; two, and one of them must be doubted."""

SCALARS = frozenset({"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size"})


def means_of(one: Scene) -> Means:
    """What can be asked about a scene whose shards carry no checksum."""

    def ask(data: Data) -> dict[str, bool]:
        report = looked_at(one.task(Level.STRUCTURE), data)
        is_damaged = worst(report.findings) >= Severity.DAMAGE  # then no content is read, manifest or not
        return {
            ALONE: bool(blocking(report.findings)),
            SIBLINGS: bool(blocking(report.findings) or one.beside_siblings(report)),
            MANIFEST: is_damaged or bool(one.with_manifest(data)),
        }

    return ask


def means_with_replicas(one: Scene) -> Means:
    """What can be asked about a scene whose shards carry no checksum, and are read whole."""

    def ask(data: Data) -> dict[str, bool]:
        of_three = one.beside_replicas(data, copies=3)
        return {
            REPLICAS: bool(of_three) and all(finding.path in {None, one.path} for finding in of_three),
            PAIR: bool(one.beside_replicas(data, copies=2)),
        }

    return ask


def means_with_crc(one: Scene) -> Means:
    """What can be asked about a scene whose shards carry one."""
    return lambda data: {CRC: bool(one.among_siblings(data, Level.CHECKSUM))}


@dataclass(slots=True)
class Tally:
    """How a fault was noticed, by each means, and where the misses lie."""

    tried: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    misses: dict[str, Counter[str]] = field(default_factory=dict)
    """By column, then by what was hit."""

    def ask(self, data: Data, means: Means, place: str) -> None:
        """Ask about a broken file; `place` is what a miss is called."""
        for column, is_noticed in means(data).items():
            self.tried[column] += 1
            if is_noticed:
                self.found[column] += 1
            else:
                self.misses.setdefault(column, Counter())[place] += 1

    def add(self, other: Tally) -> None:
        """Count in what was tried elsewhere."""
        self.tried.update(other.tried)
        self.found.update(other.found)
        for column, places in other.misses.items():
            self.misses.setdefault(column, Counter()).update(places)


def count_flips(one: Scene, bits: Iterable[int], means: Means) -> Tally:
    """Flip each of the bits of the scene's shard, in one buffer."""
    tally = Tally()
    name = place_namer(one)
    data = bytearray(one.data)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
        tally.ask(data, means, name(bit // 8))
        data[bit // 8] ^= 1 << bit % 8
    return tally


def count(broken: Iterable[tuple[Data, str]], means: Means) -> Tally:
    """Ask about each broken file; its text says what a miss is called."""
    tally = Tally()
    for data, place in broken:
        tally.ask(data, means, place)
    return tally


def truncations(one: Scene) -> Iterator[tuple[bytes, str]]:
    """Cut the file at every length."""
    for length in range(len(one.data)):
        yield one.data[:length], f"cut at byte {length}"


def zeroed_pages(one: Scene, size: int = PAGE) -> Iterator[tuple[bytes, str]]:
    """Zero each page."""
    whole = one.data
    for begin in range(0, len(whole), size):
        end = min(begin + size, len(whole))
        yield whole[:begin] + bytes(end - begin) + whole[end:], place_of(one, begin, end)


def swapped_pages(one: Scene, size: int = PAGE) -> Iterator[tuple[bytes, str]]:
    """Swap each page with the one after it, and with one far from it."""
    whole = one.data
    pages = len(whole) // size
    for first in range(pages - 1):
        for second in sorted({first + 1, (first + pages) // 2} - {first}):
            swapped = bytearray(whole)
            here, there = slice(first * size, (first + 1) * size), slice(second * size, (second + 1) * size)
            swapped[here], swapped[there] = whole[there], whole[here]
            if swapped != whole:
                yield bytes(swapped), place_of(one, here.start, here.stop)


def zeroed_tails(one: Scene, step: int = 1) -> Iterator[tuple[bytes, str]]:
    """Zero the file from each place to its end."""
    whole = one.data
    for begin in range(0, len(whole), step):
        zeroed = whole[:begin] + bytes(len(whole) - begin)
        if zeroed != whole:
            yield zeroed, f"the last {PAGE} bytes, not all of them" if len(whole) - begin < PAGE else "a longer tail"


@lru_cache(maxsize=16)
def place_namer(one: Scene) -> Callable[[int], str]:
    """Return what says which part of the shard a byte is: a tensor's data, a scalar's value, or the header."""
    names = [""] * len(one.data)
    for entry in one.header():
        kind = f"value of {entry.name}" if entry.name in SCALARS else "tensor data"
        for begin, end in entry.spans:
            names[begin:end] = [kind] * (end - begin)
    return lambda byte: names[byte] or f"header, byte {byte}"


def place_of(one: Scene, begin: int, end: int) -> str:
    """Say what a range of the shard is: the gravest that it touches."""
    name = place_namer(one)
    others = {place for byte in range(begin, end) if (place := name(byte)) != "tensor data"}
    return "more than tensor data" if others else "tensor data"


def header_bits(one: Scene) -> list[int]:
    """All bits that are no tensor's data; the training scalars count as header."""
    name = place_namer(one)
    return [bit for bit in range(8 * len(one.data)) if name(bit // 8) != "tensor data"]


def count_loose_flips(name: str, data: bytes, *, every: int = 1) -> Tally:
    """Flip bits of a file that stands alone and carries a checksum: no sibling helps."""
    fmt = FormatName.MINDSPORE_CKPT if name.endswith(".ckpt") else FormatName.SAFETENSORS
    task = CheckTask(
        facts=FACTS,
        root="",
        path=name,
        rank=None,
        role=ShardRole.UNIFIED,
        named_format=fmt,
        level=Level.CHECKSUM,
        cost=ByteCount(0),
    )
    sealed = replace(task, seal=seal_of(name, data))
    header = replace(task, level=Level.STRUCTURE)
    asked = {ALONE: header, CRC: task, MANIFEST: sealed}

    def means(broken: Data) -> dict[str, bool]:
        return {column: bool(blocking(looked_at(one, broken).findings)) for column, one in asked.items()}

    tally = Tally()
    buffer = bytearray(data)
    for bit in range(0, 8 * len(data), every):
        buffer[bit // 8] ^= 1 << bit % 8
        tally.ask(buffer, means, f"{name}, byte {bit // 8}")
        buffer[bit // 8] ^= 1 << bit % 8
    return tally


# --- a megabyte ------------------------------------------------------------------------------------------------------


def megabyte(path: str, data: bytes) -> bytes:
    """Repeat the tensors of a real shard, layer after layer, to a shard of 1 MB of the same format.

    Args:
        path: Files of other paths hold other values, as slices of a sharded model do.
        data: The real shard: its names (with a layer's number), types and training scalars are taken.
    """
    salt = zlib.crc32(path.encode())
    source = MemorySource(data)
    header = read_header(source, named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    tensors = [entry for entry in header.entries if entry.name not in SCALARS and len(entry.shape) > 0]
    appended = [entry for entry in header.entries if entry not in tensors]
    large = []
    total = 0
    layer = 0
    while total < 1 << 20:
        for entry in tensors:
            numbers = struct.pack(
                "<1024f", *((salt * 7919 + total // 4096 + i * 31) % 65521 / 65536 for i in range(1024))
            )
            large.append((f"layers.{layer}.{entry.name}", (8, 128), numbers))
            total += len(numbers)
        layer += 1
    rest = [(entry.name, entry.shape, source.read(*_extent(entry)), entry.dtype.value) for entry in appended]
    rows = [(name, shape, numbers, "F32") for name, shape, numbers in large] + rest
    return _written(rows, header.format, dict(header.metadata))


def _extent(entry: TensorEntry) -> tuple[int, int]:
    return entry.spans[0][0], entry.nbytes


def _written(
    rows: Sequence[tuple[str, tuple[int, ...], bytes, str]], fmt: FormatName, metadata: Mapping[str, str]
) -> bytes:
    spelled = {"F32": "Float32", "I64": "Int64", "I32": "Int32", "BF16": "BFloat16", "F16": "Float16", "F64": "Float64"}
    tensors = [Tensor(name, spelled[dtype], shape, content) for name, shape, content, dtype in rows]
    return ckpt_bytes(tensors) if fmt is FormatName.MINDSPORE_CKPT else safetensors_bytes(tensors, metadata)
