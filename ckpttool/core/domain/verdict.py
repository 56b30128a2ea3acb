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
    """The level of a check: headers, every byte, or every element."""

    STRUCTURE = 0
    CHECKSUM = 1
    NUMERICS = 2

    @property
    def word(self) -> str:
        """The lower-case name in options and JSON."""
        return self.name.lower()

    @property
    def reads_content(self) -> bool:
        """Whether every byte of a shard is read, not just its header."""
        return self >= Level.CHECKSUM


class VerdictWord(str, Enum):
    """One-word verdicts, best first."""

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
"""Number of copies that count as proven if they agree; if only two of three agree, the third is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTask:
    """One shard to check. Picklable: any process that sees the folder can run it."""

    root: str
    path: str
    """POSIX, relative to `root`."""
    rank: Rank | None
    role: ShardRole
    named_format: FormatName
    level: Level
    cost: ByteCount
    """Bytes that the check will read, estimated from the listing."""
    facts: ShardFacts = NO_FACTS
    """The layout's facts about the file."""
    part: tuple[int, int] | None = None
    """First byte and first byte after the part, if several tasks share a big file; None for the whole file."""
    seal: ShardSeal | None = None
    """A manifest's record of this file."""
    sha256: str | None = None
    """The digest in the save's own record, 64 hexadecimal digits."""
    hashes: bool = False
    """Whether to also compute xxh3-128 of the file and of each chunk, for sealing."""
    digests: bool = True
    """Whether to also compute the digest of each tensor, if every byte is read."""
    listed: FileStamp | None = None
    """The stamp of the file in the listing: damage in a file that has changed since then does not prove anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDigest:
    """The digests of a complete file, as recorded in a manifest."""

    xxh3_128: str
    """32 hexadecimal digits."""
    chunks: tuple[str, ...]
    """Digest of each 64 MiB, in file order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStat:
    """The statistics of one floating-point tensor."""

    name: str
    dtype: str
    """Name in safetensors."""
    elements: int
    nans: int
    infinities: int
    absmax: float
    """Largest magnitude of the finite elements, exact; 0.0 if no element is finite."""
    norm: float
    """L2 norm of the finite elements, within 1e-5 of the true value (F64: 1e-12); infinite if F64 overflows."""
    denormal_only: bool
    """Whether all elements are finite, at least one is subnormal, and every other element is subnormal or zero."""

    @property
    def finite(self) -> bool:
        """True if no element is NaN or infinite."""
        return not (self.nans or self.infinities)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """The result of one check. Picklable; the order of reports does not matter."""

    path: str
    rank: Rank | None
    role: ShardRole
    level: Level
    """The level at which this shard was actually checked."""
    format: FormatName | None
    stamp: FileStamp | None
    """The file that was read; None if it could not be opened."""
    scalars: ScalarValues
    schema_hash: str | None
    """xxh3-128 over names, dtypes and shapes in order; equal for two shards with the same tensors."""
    tensors: int | None
    """Number of tensors that the header declares; None if the header could not be parsed."""
    checksum_matched: bool
    """True if a checksum exists and matched; only then is the verdict `verified`."""
    bytes_read: ByteCount
    findings: tuple[Finding, ...]
    embedded_checksum: bool = False
    """Whether the file contains a checksum of itself, matched or not."""
    zero_tail: bool = False
    """Whether its last 4 KiB (all of a smaller file's tensor data) are zero."""
    tail_hash: str | None = None
    """xxh3-64 of those bytes: equal on replicas, different for other slices of a model. None if unknown."""
    metadata_hash: str | None = None
    """xxh3-128 of the header's free text without its checksum, if it has free text; None if unknown."""
    digest: ShardDigest | None = None
    """None unless hashes were requested."""
    stats: Sequence[TensorStat] = ()
    """At level NUMERICS: the statistics of every floating-point tensor, in file order."""
    tensor_digests: TensorDigests | None = None
    """Digests of the tensors, if the tensors are known and every byte was read; otherwise None."""
    copies: int = 1
    """Number of known replicas with identical tensors, including this shard."""
    copy_matched: bool = False
    """Whether one of these copies has a matching checksum."""
    remembered: bool = False
    """True if a ledger has an earlier check of this unchanged file, so that it was not read again."""

    @property
    def word(self) -> VerdictWord:
        """The one-word verdict on this shard alone."""
        return _worst_word(self.best, self.findings)

    @property
    def best(self) -> VerdictWord:
        """The best verdict that the shard can have without findings."""
        if self.checksum_matched:
            return VerdictWord.VERIFIED
        return VerdictWord.AGREED if self.copies > 1 else VerdictWord.STRUCT_OK

    @property
    def is_proven(self) -> bool:
        """Whether the content is proven by a checksum, by a copy's checksum, or by three copies that agree."""
        return self.checksum_matched or self.copies >= MIN_COPIES or (self.copies > 1 and self.copy_matched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on one checkpoint. Its status is derived from the findings."""

    key: CheckpointKey
    """The checkpoint's key, because a name may occur twice in a tree."""
    name: str
    step: Step | None
    level: Level
    reports: tuple[ShardReport, ...]
    """Sorted by (rank, path); for a subset, only the reports of its shards."""
    findings: tuple[Finding, ...]
    """Findings about the shards and about the checkpoint."""
    unseen: int = 0
    """Shards outside the requested subset."""
    beside: tuple[ShardReport, ...] = ()
    """Reports of the shards in `unseen`, sorted by (rank, path), from headers and sizes only."""
    compared_with: tuple[str, ...] = ()
    """Other checkpoints, by name, that showed which ranks have copies of the same tensors; nearest first."""
    also_read: tuple[str, ...] = ()
    """The checkpoints in `compared_with` that were read only for this comparison."""

    @property
    def word(self) -> VerdictWord:
        """The one-word verdict, which is the worst shard's verdict."""
        best = VerdictWord.STRUCT_OK
        if self.reports and not self.unseen:
            best = max({report.best for report in self.reports}, key=_BADNESS.index)
        return _worst_word(best, self.findings)

    @property
    def is_proven(self) -> bool:
        """Whether the content of every shard is proven, with no finding against any shard."""
        return self.word in {VerdictWord.VERIFIED, VerdictWord.AGREED} and all(
            report.is_proven for report in self.reports
        )

    @property
    def looked_at(self) -> bool:
        """False if no shard was opened and no name is wrong; `word` is then meaningless."""
        return bool(self.reports or self.beside or self.findings or not self.unseen)

    @property
    def bytes_read(self) -> ByteCount:
        """Bytes read from the disk for this verdict."""
        return ByteCount(sum(report.bytes_read for report in (*self.reports, *self.beside)))


_BADNESS = tuple(VerdictWord)
"""Best first, as the words are listed."""

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
    """Return the verdict for one finding alone; a note has no verdict."""
    if finding.severity in {Severity.NOTE, Severity.UNSAFE}:
        return _WORD_OF_SEVERITY[finding.severity]
    if finding.is_tie:  # it was read, but its meaning is undecided
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
    """Duration of the check."""
    view: View = USUAL

    def in_short(self) -> dict[str, object]:
        """Return the verdict on each checkpoint, newest first."""
        return {"level": self.level.name.lower(), **{verdict.name: verdict.word.value for verdict in self.verdicts}}

    @property
    def exit_code(self) -> ExitCode:
        """The safest code for all checkpoints; the code for "nothing proven" if there are no checkpoints."""
        if not self.verdicts:
            return ExitCode.NOTHING_TO_RESUME
        findings = (finding for verdict in self.verdicts for finding in verdict.findings)
        return of_findings([*self.inventory.findings, *findings])
