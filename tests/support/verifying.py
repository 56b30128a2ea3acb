"""What tests of the checks share: look at bytes, at files and at trees, and say in codes what was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ckpttool
from ckpttool.core.domain.finding import Finding, Row, Severity, blocking
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport, Verdict
from ckpttool.core.storage.base import ByteSource, Entry, Kind
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.scalars import FACTS, TrainState
from ckpttool.types import CheckQuestion, TreeQuestion
from tests.conftest import FIXTURES
from tests.support.scalars import values
from tests.support.shard_writers import entries_json, safetensors_file

CKPT = FIXTURES / "sink2_ckpt/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.ckpt"
SAFETENSORS = FIXTURES / "sink2_safetensors/output/checkpoint/rank_0/llama2_7b_rank_0-20_2.safetensors"


def task_for(
    path: Path | str,
    level: Level = Level.STRUCTURE,
    *,
    seal: ShardSeal | None = None,
    role: ShardRole = ShardRole.FULL,
    part: tuple[int, int] | None = None,
    named: FormatName | None = None,
) -> CheckTask:
    """A task for one file on the disk."""
    folder, name = os.path.split(path)
    suffix = name.rpartition(".")[2]
    by_suffix = {"safetensors": FormatName.SAFETENSORS, "pt": FormatName.TORCH_ZIP, "pth": FormatName.TORCH_PICKLE}
    return CheckTask(
        facts=FACTS,
        root=folder,
        path=name,
        rank=Rank(0),
        role=role,
        named_format=named or by_suffix.get(suffix, FormatName.MINDSPORE_CKPT),
        level=level,
        cost=ByteCount(0),
        part=part,
        seal=seal,
    )


STATE = TrainState(epoch_num=10, step_num=20, global_step=20, loss_scale=1.0, global_batch_size=8)


def report(
    rank: int = 0,
    *,
    schema: str | None = "a",
    tensors: int = 10,
    role: ShardRole = ShardRole.FULL,
    fmt: FormatName = FormatName.SAFETENSORS,
    state: TrainState = STATE,
    findings: Sequence[Finding] = (),
    zero_tail: bool = False,
    tail: str | None = "page",
    crc: bool = False,
    metadata: str | None = "ms",
    name: str = "now",
    matched: bool = False,
) -> ShardReport:
    """A report made by hand; two ranks are alike unless told otherwise."""
    return ShardReport(
        path=f"rank_{rank}/{name}",
        rank=Rank(rank),
        role=role,
        level=Level.STRUCTURE,
        format=fmt,
        stamp=FileStamp.on_disk(size=100, mtime_ns=1, inode=1),
        scalars=values(state),
        schema_hash=schema,
        tensors=tensors,
        checksum_matched=matched,
        bytes_read=ByteCount(0),
        findings=tuple(findings),
        embedded_checksum=crc,
        zero_tail=zero_tail,
        tail_hash="zeros" if zero_tail else tail,
        metadata_hash=metadata,
    )


def verdicts(
    folder: Path | str,
    level: Level = Level.STRUCTURE,
    name: str = "all",
    *,
    bucket: tuple[int, int] | None = None,
    jump: float | None = None,
    replicas: bool = True,
    max_age: float | None = None,
) -> list[Verdict]:
    """Verify checkpoints of a tree, newest first."""
    tree = ckpttool.scan(TreeQuestion(path=str(folder), sizes=True))
    question = CheckQuestion(level=level, name=name, bucket=bucket, jump=jump, replicas=replicas, max_age=max_age)
    return [event for event in ckpttool.verify(tree, question) if isinstance(event, Verdict)]


def seal_whole(folder: Path | str, name: str = "all") -> None:
    """Seal checkpoints of a tree, all of which must be whole."""
    assert all(one.written for one in ckpttool.seal(str(folder), name))


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte of a file in place."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def found(verdicts: Iterable[Verdict]) -> list[tuple[Row, str | None]]:
    """Codes and paths of all that weighs more than a note."""
    return [(one.code, one.path) for verdict in verdicts for one in blocking(verdict.findings)]


def codes(findings: Iterable[Finding], *, above: Severity | None = Severity.NOTE) -> list[Row]:
    """The codes of findings, in order; of all where `above` is None."""
    return [finding.code for finding in findings if above is None or finding.severity > above]


@dataclass(slots=True)
class _Folder:
    """A folder on this disk, without what opens its files."""

    root: str

    def entries(self, folder: str) -> list[Entry]:
        return LocalStorage(self.root).entries(folder)

    def kind(self, path: str) -> Kind:
        return LocalStorage(self.root).kind(path)

    def stamp(self, path: str) -> FileStamp:
        return LocalStorage(self.root).stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        return LocalStorage(self.root).small_file(path, limit=limit)


@dataclass(slots=True)
class Interrupted(_Folder):
    """A folder in which something happens between the opening of a file and the end of the look at it."""

    happens: Callable[[int], None]
    """Called with the number of the opening, from 1, after the header was read."""
    openings: int = 0

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        self.openings += 1
        with LocalStorage(self.root).open(path) as source:
            yield source
            self.happens(self.openings)


class FailingSource:
    """An open file of which some bytes cannot be read."""

    def __init__(self, inner: ByteSource, storage: FailingStorage) -> None:
        self._inner = inner
        self._storage = storage

    @property
    def stamp(self) -> FileStamp:
        return self._inner.stamp

    def read(self, offset: int, length: int) -> bytes:
        self._storage.touched(offset, offset + length)
        return self._inner.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self._storage.touched(offset, offset + len(buffer))
        return self._inner.read_into(offset, buffer)


@dataclass(slots=True)
class FailingStorage(_Folder):
    """A folder on a disk with a bad place: whoever reads it gets an error, or something else happens."""

    bad: tuple[int, int]
    """First byte, and first byte after."""
    happens: Callable[[], None]

    def touched(self, begin: int, end: int) -> None:
        if begin < self.bad[1] and end > self.bad[0]:
            self.happens()

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        with LocalStorage(self.root).open(path) as source:
            yield FailingSource(source, self)


def raises(error: int) -> Callable[[], None]:
    """Return what answers as the kernel does."""

    def answer() -> None:
        raise OSError(error, os.strerror(error))

    return answer


def two_megabytes(path: Path) -> Path:
    """Write a safetensors file of 2 MiB, of which a header check reads the first and the last pages alone."""
    numbers = bytes(range(1, 129)) * (2 << 13)
    path.write_bytes(safetensors_file(entries_json([("weight", "U8", [len(numbers)], len(numbers))]), numbers))
    return path
