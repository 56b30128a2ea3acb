"""The files that a save should have, with the evidence.

A layout states the expectation; a rule compares it with the listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.checkpoint import RunSummary, Topology
from ckpttool.core.domain.finding import Code, Finding, Row, damage, helped, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import FileStamp, FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEvidence:
    """Evidence for the number of ranks from outside the tree."""

    world_size: int
    source: str
    """Clause that completes the sentence 'expected N ranks because …'."""
    declared: bool
    """Whether the user or a config declares the number, so that it is trusted. False for leftover files."""
    confirms: bool = False
    """Whether the evidence only confirms a number, because the start may have a different size from the save.

    It then decides only if its number settles an uncertain case. An example is a config that lets the trainer re-slice.
    """
    at_least: bool = False
    """Whether the number is a minimum, because each of these ranks loads a separate file.

    No file below this number may be missing; additional files do no harm. An example is the number of devices of a
    data-parallel start.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence about a tree from outside the tree."""

    worlds: tuple[WorldEvidence, ...] = ()
    """Evidence for the number of ranks; the user's own number comes first."""
    weights_alone: bool = False
    """Whether a config says that no optimizer state is saved, so that its absence is not a fault."""


class RankFiles(str, Enum):
    """Where a layout stores the files of the ranks."""

    TOGETHER = "together"
    """In folders that all ranks write to, so that an absent file is missing."""
    UNCOUNTED = "uncounted"
    """In folders that all ranks write to, but without a record of the number of ranks.

    More ranks may have written on other machines.
    """
    APART = "apart"
    """In a folder per rank. If machines save to local disks, each machine has only the folders of its own ranks."""
    UNKNOWN = "unknown"
    """Unknown, so that an absent file may be on another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """The number of ranks that a save must have."""

    world: int
    why: str
    """Clause that completes the sentence 'expected N ranks because …'."""
    remedy: str
    """Remedy for a missing rank."""
    confirmed: bool = True
    """False if the number comes only from the files present."""

    def missing(self, subject: str, code: Row, path: str, ranks: Sequence[int]) -> Finding:
        """Return the finding for missing files, including why they were expected.

        Args:
            subject: Description of the missing files, in a few words.
            code: Code of the finding: one for a complete folder of a rank, one for its file.
            path: Path of the file or the folder; for several files, the save's name.
            ranks: Ranks of the missing files.
        """
        message = f"{subject} (expected {self.world} ranks because {self.why})"
        return damage(code, message, path=path, remedy=self.remedy, ranks=tuple(map(Rank, ranks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesByPath:
    """Files that the trainer's own record of the save lists by path; all are expected."""

    paths: tuple[str, ...]
    ranks: Mapping[str, Rank]
    """The rank of each file, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesByRank:
    """One file per rank and role."""

    size: WorldSize
    roles: tuple[ShardRole, ...]
    absent: Callable[[Rank, ShardRole], Finding]
    """Function that makes the layout's finding for a rank's absent file, which is missing or may be elsewhere."""


ExpectedFiles: TypeAlias = FilesByPath | FilesByRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The files that one save should have."""

    files: ExpectedFiles | None
    """The expected files; None if unknown, so that it is also unknown whether the save is intact."""
    topology: Topology
    """Topology with the required number of ranks, or with `shared` set."""
    doubts: tuple[Finding, ...] = ()
    """Findings that question this expectation; reported before missing files."""
    notes: tuple[Finding, ...] = ()
    """Other findings; reported after missing files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The files that every save of a tree should have."""

    checkpoints: tuple[Expectation, ...]
    """One expectation per checkpoint, in the order of the inventory."""
    runs: tuple[RunSummary, ...]
    """The runs of the inventory, with the sizes that were determined."""
    findings: tuple[Finding, ...] = ()
    """Findings about the tree, such as a smaller number of ranks that was accepted as intended."""


def of_other_length(shards: Iterable[Shard], stamps: Mapping[str, FileStamp]) -> tuple[Finding, ...]:
    """Return findings for files that are shorter than the save's own record requires, or longer than its last slice.

    Empty files are not included, because they have a separate finding. Only a file of slices ends with the last one.

    Args:
        shards: The shards of one save.
        stamps: The known stamps of the files, by path.
    """
    findings: list[Finding] = []
    for shard in shards:
        size = stamps[shard.path].size if shard.path in stamps else 0
        if shard.least is None or not size:
            continue
        ranks = () if shard.rank is None else (shard.rank,)
        expected, actual = str(shard.least), str(size)
        if size < shard.least:
            message = f"has {size} bytes, but the save's own record requires at least {shard.least}"
            finding = damage(
                Code.SHARD_TRUNCATED, message, path=shard.path, expected=expected, actual=actual, ranks=ranks
            )
            findings.append(helped(finding))
        elif size > shard.least and shard.format is FormatName.TORCH_ZIPS:
            message = f"has {size} bytes, but its last slice ends at {shard.least}, according to the save's record"
            finding = suspect(
                Code.TRAILING_BYTES, message, path=shard.path, expected=expected, actual=actual, ranks=ranks
            )
            findings.append(helped(finding))
    return tuple(findings)
