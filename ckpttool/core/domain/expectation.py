"""Expected files of a save, with the evidence. A layout provides it; a rule compares it with the listing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.checkpoint import RunSummary, Topology
from ckpttool.core.domain.finding import Code, Finding, Row, damage, helped
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import FileStamp, Shard, ShardRole
from ckpttool.core.domain.units import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEvidence:
    """External evidence for the number of ranks of the training."""

    world_size: int
    source: str
    """Words that complete the sentence 'expected N ranks because …'."""
    declared: bool
    """True if the user or a config declares it, which is trusted; False for leftover files, which are only evidence."""
    confirms: bool = False
    """Whether it only confirms: the start may have a different size from the save, so this evidence decides only
    uncertain cases with its size. A config that lets the trainer re-slice is such evidence."""
    at_least: bool = False
    """Whether each of these ranks will also load a separate file: no file below this number may be missing, and extra
    files do no harm. The devices of a data-parallel start are such evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """External evidence about a tree."""

    worlds: tuple[WorldEvidence, ...] = ()
    """The user's own number first."""
    weights_alone: bool = False
    """Whether a config says that no optimizer state is saved: then its absence is not a fault."""


class RankFiles(str, Enum):
    """Where a layout puts the ranks' files of a save."""

    TOGETHER = "together"
    """Folders that all ranks write to: an absent file is missing."""
    UNCOUNTED = "uncounted"
    """Folders that all ranks write to, without a record of the number of ranks: more ranks may have written on other
    machines."""
    APART = "apart"
    """A folder per rank: if machines save to local disks, each machine has only the folders of its ranks."""
    UNKNOWN = "unknown"
    """Unknown: an absent file may be on another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """The number of ranks that a save must have."""

    world: int
    why: str
    """Words that complete the sentence 'expected N ranks because …'."""
    remedy: str
    """The remedy for a missing rank."""
    confirmed: bool = True
    """False if only the ranks' files show the number."""

    def missing(self, subject: str, code: Row, path: str, ranks: Sequence[int]) -> Finding:
        """Return the finding about missing files, with the reason why they were expected.

        Args:
            subject: The missing files, in a few words.
            code: The code for a rank's whole folder, or for its file.
            path: The file or the folder; for several, the save's name.
            ranks: The ranks of the missing files.
        """
        message = f"{subject} (expected {self.world} ranks because {self.why})"
        return damage(code, message, path=path, remedy=self.remedy, ranks=tuple(map(Rank, ranks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesByPath:
    """All of these files, as named by the trainer's own record of the save."""

    paths: tuple[str, ...]
    ranks: Mapping[str, Rank]
    """The rank of each file, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesByRank:
    """One file of each of these roles on each rank."""

    size: WorldSize
    roles: tuple[ShardRole, ...]
    absent: Callable[[Rank, ShardRole], Finding]
    """Creates the layout's finding that a rank's file is missing, or that it is unknown whether it is missing."""


ExpectedFiles: TypeAlias = FilesByPath | FilesByRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected files of one save."""

    files: ExpectedFiles | None
    """None if unknown; it is then also unknown whether the save is intact."""
    topology: Topology
    """Required number of ranks, or the fact that all ranks share its files."""
    doubts: tuple[Finding, ...] = ()
    """Findings against this expectation itself; reported before missing files."""
    notes: tuple[Finding, ...] = ()
    """Other findings; reported after missing files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected files of every save of a tree."""

    checkpoints: tuple[Expectation, ...]
    """In the order of the inventory."""
    runs: tuple[RunSummary, ...]
    """The checkpoints of the inventory, with the sizes as determined."""
    findings: tuple[Finding, ...] = ()
    """Findings about the tree: a smaller number of ranks was accepted as intended."""


def cut_short(shards: Iterable[Shard], stamps: Mapping[str, FileStamp]) -> tuple[Finding, ...]:
    """Find files that are shorter than the save's own record requires; empty files have a separate finding.

    Args:
        shards: The shards of one save.
        stamps: The stamps of the files, by path, if known.
    """
    return tuple(
        helped(
            damage(
                Code.SHARD_TRUNCATED,
                f"has {stamps[shard.path].size} bytes, but the save's own record requires at least {shard.least}",
                path=shard.path,
                expected=str(shard.least),
                actual=str(stamps[shard.path].size),
                ranks=() if shard.rank is None else (shard.rank,),
            )
        )
        for shard in shards
        if shard.least is not None and shard.path in stamps and 0 < stamps[shard.path].size < shard.least
    )
