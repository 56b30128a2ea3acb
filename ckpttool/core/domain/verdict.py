"""Verdicts: the scope and level of a check, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, Severity, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.scalars import NO_FACTS, ScalarValues, ShardFacts
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import CheckpointKey, Inventory
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.replicas import TensorDigests


class Level(IntEnum):
    """Level of a check: headers, every byte, or every element."""

    STRUCTURE = 0
    CHECKSUM = 1
    NUMERICS = 2

    @property
    def word(self) -> str:
        """Name of the level in options and JSON, in lower case."""
        return self.name.lower()

    @property
    def reads_content(self) -> bool:
        """Whether every byte of a shard is read, and not just the header."""
        return self >= Level.CHECKSUM


class VerdictWord(str, Enum):
    """Verdicts as single words, best first."""

    VERIFIED = "verified"
    AGREED = "agreed"
    STRUCT_OK = "struct-ok"
    UNSUPPORTED = "unsupported"
    SUSPECT = "suspect"
    UNREADABLE = "unreadable"
    UNSTABLE = "unstable"
    MISSING = "missing"
    DAMAGED = "damaged"
    UNSAFE = "unsafe"


MIN_COPIES = 3
"""Number of agreeing copies that count as proof; if only two of three agree, the third is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """Task to check one shard, which can be pickled and run in any process that sees the folder."""

    root: str
    path: str
    """POSIX path, relative to `root`."""
    rank: Rank | None
    role: ShardRole
    named_format: FormatName
    level: Level
    cost: ByteCount
    """Estimated number of bytes that the check will read, based on the listing."""
    facts: ShardFacts = NO_FACTS
    """Facts that the layout knows about the file."""
    part: tuple[int, int] | None = None
    """First byte of the part, and first byte after it, if several tasks share a big file; None for the complete file.
    """
    seal: ShardSeal | None = None
    """Record of this file in a manifest."""
    sha256: str | None = None
    """SHA-256 in the save's own record, as 64 hexadecimal digits."""
    hashes: bool = False
    """Whether to also compute xxh3-128 of the file and of each chunk, for sealing."""
    digests: bool = True
    """Whether to also compute the digest of each tensor, if every byte is read."""
    listed: FileStamp | None = None
    """Stamp of the file in the listing; damage in a file that has changed since then is not proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDigest:
    """Digests of a complete file, as recorded in a manifest."""

    xxh3_128: str
    """xxh3-128 of the file, as 32 hexadecimal digits."""
    chunks: tuple[str, ...]
    """Digest of each 64 MiB, in file order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStat:
    """Statistics of one floating-point tensor."""

    name: str
    dtype: str
    """Name of the type in safetensors."""
    elements: int
    nans: int
    infinities: int
    absmax: float
    """Largest magnitude of the finite elements, exact; 0.0 if no element is finite."""
    norm: float
    """L2 norm of the finite elements, with a relative error of 1e-5 (F64: 1e-12); infinite if F64 overflows."""
    denormal_only: bool
    """Whether all elements are finite, at least one is subnormal, and all others are subnormal or zero."""

    @property
    def finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return not (self.nans or self.infinities)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """Result of checking one shard, which can be pickled; the order of reports does not matter."""

    path: str
    rank: Rank | None
    role: ShardRole
    level: Level
    """Level at which this shard was actually checked."""
    format: FormatName | None
    stamp: FileStamp | None
    """Stamp of the file that was read; None if it could not be opened."""
    scalars: ScalarValues
    schema_hash: str | None
    """xxh3-128 over names, dtypes and shapes in order; equal for two shards with the same tensors."""
    tensors: int | None
    """Number of tensors that the header declares; None if the header could not be parsed."""
    checksum_matched: bool
    """Whether a checksum exists and matched; only then is the verdict `verified`."""
    bytes_read: ByteCount
    findings: tuple[Finding, ...]
    embedded_checksum: bool = False
    """Whether the file contains its own checksum, matching or not."""
    zero_tail: bool = False
    """Whether the last 4 KiB (in a smaller file, all tensor data) are zero."""
    tail_hash: str | None = None
    """xxh3-64 of the last 4 KiB; None if unknown. It is equal on replicas, and different for other slices."""
    metadata_hash: str | None = None
    """xxh3-128 of the header's free text without its checksum; None if unknown or if there is no free text."""
    digest: ShardDigest | None = None
    """Digests of the file; None unless hashes were requested."""
    stats: Sequence[TensorStat] = ()
    """Statistics of every floating-point tensor in file order, at level NUMERICS."""
    tensor_digests: TensorDigests | None = None
    """Digests of the tensors; None unless the tensors are known and every byte was read."""
    copies: int = 1
    """Number of known replicas with identical tensors, including this shard."""
    copy_matched: bool = False
    """Whether one of these copies has a matching checksum."""
    remembered: bool = False
    """Whether the report is from the ledger, because the file has not changed since an earlier check."""

    @property
    def word(self) -> VerdictWord:
        """Verdict on this shard alone, as one word."""
        return _worst_word(self.best, self.findings)

    @property
    def best(self) -> VerdictWord:
        """Best verdict that this shard can have if there are no findings."""
        if self.checksum_matched:
            return VerdictWord.VERIFIED
        return VerdictWord.AGREED if self.copies > 1 else VerdictWord.STRUCT_OK

    @property
    def is_proven(self) -> bool:
        """Whether a checksum, a copy's checksum, or at least three equal copies prove the content."""
        return self.checksum_matched or self.copies >= MIN_COPIES or (self.copies > 1 and self.copy_matched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one checkpoint, which is derived from the findings."""

    key: CheckpointKey
    """Key of the checkpoint, because a name may occur twice in a tree."""
    name: str
    step: Step | None
    level: Level
    reports: tuple[ShardReport, ...]
    """Reports on the shards, sorted by (rank, path); for a subset, only the reports of its shards."""
    findings: tuple[Finding, ...]
    """Findings about the shards and about the checkpoint."""
    unseen: int = 0
    """Number of shards outside the requested subset."""
    beside: tuple[ShardReport, ...] = ()
    """Reports on the other shards, from headers and sizes only, sorted by (rank, path)."""
    compared_with: tuple[str, ...] = ()
    """Names of other checkpoints that showed which ranks have copies of the same tensors, nearest first."""
    also_read: tuple[str, ...] = ()
    """Names of the checkpoints in `compared_with` that were read only for this comparison."""

    @property
    def word(self) -> VerdictWord:
        """Verdict on the checkpoint as one word: the verdict on its worst shard."""
        best = VerdictWord.STRUCT_OK
        if self.reports and not self.unseen:
            best = max({report.best for report in self.reports}, key=_BADNESS.index)
        return _worst_word(best, self.findings)

    @property
    def is_proven(self) -> bool:
        """Whether the content of every shard is proven, and no shard has a finding against it."""
        return self.word in {VerdictWord.VERIFIED, VerdictWord.AGREED} and all(
            report.is_proven for report in self.reports
        )

    @property
    def looked_at(self) -> bool:
        """Whether a shard was opened or a name is wrong; if not, `word` is meaningless."""
        return bool(self.reports or self.beside or self.findings or not self.unseen)

    @property
    def bytes_read(self) -> ByteCount:
        """Number of bytes read from the disk for this verdict."""
        return ByteCount(sum(report.bytes_read for report in (*self.reports, *self.beside)))


_BADNESS = tuple(VerdictWord)
"""Verdicts from best to worst, in the order of their definition."""

_WORD_OF_SEVERITY = {
    Severity.NOTE: VerdictWord.VERIFIED,
    Severity.SUSPECT: VerdictWord.SUSPECT,
    Severity.UNKNOWN: VerdictWord.UNREADABLE,
    Severity.DAMAGE: VerdictWord.DAMAGED,
    Severity.UNSAFE: VerdictWord.UNSAFE,
}


def _worst_word(best: VerdictWord, findings: Iterable[Finding]) -> VerdictWord:
    return max((best, *(word_of(finding) for finding in findings)), key=_BADNESS.index)


def word_of(finding: Finding) -> VerdictWord:
    """Return the verdict for a single finding; a note counts as `verified`."""
    if finding.severity in {Severity.NOTE, Severity.UNSAFE}:
        return _WORD_OF_SEVERITY[finding.severity]
    if finding.is_tie:  # the file was read, but it is undecided whether it is damaged
        return VerdictWord.SUSPECT
    if finding.code.verdict is not None:
        return VerdictWord(finding.code.verdict)
    return _WORD_OF_SEVERITY[finding.severity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Answered):
    """The answer of `verify`."""

    NOUN = "verdicts"

    inventory: Inventory
    verdicts: tuple[Verdict, ...]
    """One verdict per requested checkpoint, newest first."""
    level: Level
    seconds: float
    """Duration of the check in seconds."""
    view: View = USUAL

    def in_short(self) -> dict[str, object]:
        """Return the verdict on each checkpoint, newest first."""
        return {"level": self.level.name.lower(), **{verdict.name: verdict.word.value for verdict in self.verdicts}}

    @property
    def exit_code(self) -> ExitCode:
        """Safest exit code for all checkpoints; if there are no checkpoints, the code for "nothing proven"."""
        if not self.verdicts:
            return ExitCode.NOTHING_TO_RESUME
        findings = (finding for verdict in self.verdicts for finding in verdict.findings)
        return of_findings([*self.inventory.findings, *findings])
