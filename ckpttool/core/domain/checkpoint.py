"""Checkpoints, and the tree that contains them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Code, Finding, blocking, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.scalars import NO_RULES, Facts, NameClaim, ScalarRules, Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode


class StepSource(str, Enum):
    """Source from which a checkpoint's step is known."""

    CONTENT = "content"
    NAME = "name"
    """From the name, with a sink size that the user set."""
    UNKNOWN = "unknown"


class CommitState(str, Enum):
    """Whether the trainer marked the checkpoint as finished."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"
    """The trainer's record (metadata or tracker) is missing, or does not include this checkpoint."""
    UNRECORDED = "unrecorded"
    """The layout has no such record per checkpoint."""
    UNKNOWN = "unknown"
    """The layout has such a record, but the record does not show whether the checkpoint is finished."""


class Content(str, Enum):
    """The contents of a save, as far as they matter for a resume."""

    FULL = "full"
    """Weights, optimizer state and training position."""
    WEIGHTS_ONLY = "weights-only"
    """Weights alone, by design: nothing is damaged, but the optimizer would be re-initialised."""
    UNKNOWN = "unknown"
    """Unknown: the user chose the contents, which may be more than weights."""


CheckpointKey: TypeAlias = tuple[str, str, FormatName]
"""Prefix, name and format: the identity of a checkpoint in its tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Parallel sizes of the training run, in ranks; None if not recorded. Sizes are never guessed."""

    world_size: int | None = None
    """Number of ranks that must have separate files; None if unknown, or if `shared`."""
    shared: bool = False
    """Whether all ranks load the same files, so that the number of ranks does not matter."""
    confirmed: bool = True
    """False if `world_size` comes only from the files present, so that missing files of the last ranks go unnoticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """The step in a checkpoint's name."""

    stem: str
    """The text before the number, which all checkpoints of a training run share."""
    number: Step | None
    """The number in the name; None if no number in the name can be a step."""
    is_free: bool = False
    """Whether a person or a script chose the name, rather than the trainer."""
    is_sure: bool = True
    """Whether the stem shows that the number counts steps."""
    counts_saves: bool = False
    """Whether the trainer numbers its checkpoints, not the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One file rename that lets the trainer load a checkpoint by a single name; paths are relative to the root."""

    source: str
    target: str
    why: str
    """The problem with the current names, as a clause that follows "intact on every rank, but"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All files of one save, over all ranks, whether or not it is intact."""

    name: str
    """Name for `--checkpoint`."""
    aliases: tuple[str, ...] = ()
    """Other names of the same save in the tree: a link to it, a copy of it."""
    prefix: str = ""
    """Prefix of its file names, if several training runs with different prefixes may share the folder."""
    run: int = 0
    """Number of the run, from 0 for the first run in the tree; later runs have higher numbers."""
    label: str | None = None
    """Name without the run number, which saves of several runs may share; None if names show no runs."""
    sort_key: tuple[int, ...] = ()
    """Key that sorts the saves of one run in the order of their names.

    Only the layout that made the key may use it other than for comparison.
    """
    facts: Facts = ()
    """Further facts for display, by name: `epoch`, `step_in_epoch`, `optimizer_step`; None if unknown."""
    claims: tuple[NameClaim, ...] = ()
    """Values of scalars in the shards, according to the checkpoint's name."""
    rules: ScalarRules = NO_RULES
    """The scalars in its shards, and the rules about them."""
    scalars: Scalars
    """Values from one rank's shard; `verify` checks that the other ranks agree."""
    step: Step | None
    """Actual global step; None if unknown."""
    step_source: StepSource
    named: NamedStep | None = None
    """The step in the name; None if the layout compares names with the content in another way."""
    identity: str | None = None
    """Identifier that is unique to each save; checkpoints with the same value are copies. None if unknown."""
    order: int | None = None
    """Value inside the checkpoint that grows with each save, such as a time or a number of batches; None if unknown."""
    committed_ns: int | None = None
    """Time of the commit according to the trainer's record, in nanoseconds since 1970; None if unknown."""
    step_remedy: str | None = None
    """What the user can do to determine an unknown step; None if nothing helps, or if the step is known."""
    shards: tuple[Shard, ...]
    """Sorted by (rank, path)."""
    topology: Topology
    """Parallel sizes; `world_size` is set if the files record it."""
    format: FormatName
    expected: tuple[str, ...] | None = None
    """Paths of its files according to the trainer's own record; None if there is no such record."""
    digests: tuple[tuple[str, str], ...] = ()
    """SHA-256 of each file, from the trainer's own record, as 64 hexadecimal digits; pairs (path, digest), sorted."""
    commit: CommitState
    """Whether the save is finished. Every layout must set it, because an unfinished save is never chosen."""
    content: Content
    """What the save contains. Every layout must set it, because a run resumes from weights alone only on request."""
    is_tracked: bool = False
    """Whether a trainer's record names this checkpoint as its best or last save.

    A start without a named save continues from such a checkpoint.
    """
    health: Health = Health.UNKNOWN
    """Health that the trainer recorded inside the checkpoint."""
    records_measured_health: bool = False
    """Whether the trainer records the health only if it was measured, for any number of pipeline stages."""
    renames: tuple[Rename, ...] = ()
    """Renames needed before the trainer can load the checkpoint by one name."""
    findings: tuple[Finding, ...] = ()
    """Findings from the listing alone, such as missing ranks or shards that are not files."""

    @property
    def key(self) -> CheckpointKey:
        """Key of the checkpoint within its tree, because a name may occur in two training runs or two formats."""
        return self.prefix, self.name, self.format

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Ranks that have a shard, ascending."""
        return tuple(sorted({shard.rank for shard in self.shards if shard.rank is not None}))

    @property
    def samples(self) -> int | None:
        """Number of samples that training had consumed, according to this checkpoint; None if unknown."""
        if self.scalars.samples is not None:
            return self.scalars.samples
        size = self.scalars.global_batch_size
        return None if size is None or self.step is None else self.step * size

    @property
    def nbytes(self) -> ByteCount | None:
        """Total size of the shards in bytes; None if the listing has no sizes."""
        total = 0
        for shard in self.shards:  # a report reads this property for half a million shards
            if shard.stamp is None:
                return None
            total += shard.stamp.size
        return ByteCount(total)

    @property
    def saved_ns(self) -> int | None:
        """Time of the last write to a shard, from file times, in nanoseconds since 1970; None if unknown."""
        return max((ns for shard in self.shards if (ns := shard.modified_ns) is not None), default=None)

    @property
    def mark(self) -> Finding | None:
        """The finding about a person's mark that sets the health; None if there is no such mark."""
        return next((finding for finding in self.findings if finding.code in {Code.MARKED_BAD, Code.MARKED_GOOD}), None)

    def is_named_as(self, other: Checkpoint) -> bool:
        """Return whether two saves of different runs have the same name.

        The steps must also be equal, if both are known.
        """
        is_same = (self.prefix, self.label, self.format) == (other.prefix, other.label, other.format)
        same_step = self.step is None or other.step is None or self.step == other.step
        return is_same and self.label is not None and self.run != other.run and same_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in this tree: the saves between one process start and the next."""

    prefix: str
    run: int
    first_step: Step | None
    last_step: Step | None
    """Highest actual step that has a file on disk, intact or not."""
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The last save, as named by the trainer's tracker."""

    name: str
    """Name of the checkpoint, which may not exist."""
    step: Step | None
    """Step in that name; None if unknown."""
    written_ns: int | None
    """Time of the last write to the tracker, from its mtime, in nanoseconds since 1970; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsGiven:
    """The parts that were read of a tree recorded by several machines."""

    given: int
    """Number of parts that were read."""
    of: int
    """Number of parts that the same run has in total."""
    missing: tuple[int, ...]
    """Numbers, from 1, of the parts that are missing or unreadable."""
    stale: tuple[int, ...]
    """Numbers of the parts that were recorded before the last file was written."""
    nodes: tuple[str, ...]
    """Names of the hosts that recorded the parts, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All checkpoints of a folder, and the other files in it.

    Checkpoints are sorted by (prefix, run, step, name).
    """

    root: str
    """The folder with the checkpoints, as the user would type it."""
    layout: str
    """Name of the layout, as for `--layout`."""
    checkpoints: tuple[Checkpoint, ...]
    runs: tuple[RunSummary, ...]
    findings: tuple[Finding, ...]
    """Findings about the tree, such as contradicting records, stray files, or files in progress; by (code, path)."""
    folder_ranks: tuple[Rank, ...] = ()
    """Ranks that have a folder, ascending, with or without files."""
    unlisted: tuple[str, ...] = ()
    """Folders that could not be listed, by path: their contents are unknown, not missing."""
    strays: tuple[str, ...] = ()
    """Paths that are neither checkpoints nor known records; sorted."""
    mere_names: tuple[str, ...] = ()
    """Strays that are named like shards but are not shards: empty, zero-filled, or in an unknown format."""
    tracked: Tracked | None = None
    """The last save according to the tracker; None if there is no tracker, or it names no checkpoint."""
    parts: PartsGiven | None = None
    """The parts, if several machines recorded the tree; None if this machine read it itself."""

    def path_of(self, inner: str) -> str:
        """Return the path of a file or folder in the tree, as the user would type it.

        Args:
            inner: Its path relative to the root.
        """
        return inner if self.root == "." else f"{self.root}/{inner}"

    def named(self, name: str) -> Checkpoint | None:
        """Return the first save with this name, or None if there is no such save."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Answered):
    """The answer of `scan`, with the time at which it was made."""

    NOUN = "inventory"

    inventory: Inventory
    now: float
    """Reference time for ages, in seconds since 1970."""
    limit: int | None = None
    """Maximum number of checkpoints in a table, newest first; None for all."""
    view: View = USUAL

    def in_short(self) -> dict[str, object]:
        """Return the path of the tree and the number of checkpoints."""
        return {"root": self.inventory.root, "checkpoints": len(self.inventory.checkpoints)}

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for the damage that the listing shows: a missing rank, or a shard that is not a file."""
        findings = (finding for checkpoint in self.inventory.checkpoints for finding in checkpoint.findings)
        return of_findings([*self.inventory.findings, *findings])


def shorter_shards(
    checkpoints: Sequence[Checkpoint],
) -> Iterator[tuple[Checkpoint, Checkpoint, Shard, ByteCount, ByteCount]]:
    """Yield shards that may be truncated, because the same shard of a neighbouring save is larger.

    A save whose shards are all smaller is not reported, and neither is a difference below 0.1 %, because content other
    than tensors may be shorter. The result is a hint for people: a size proves nothing.

    Args:
        checkpoints: The saves, in the order of the report.

    Yields:
        The save, the save it is compared with, the shard, its size, and the other shard's size.
    """
    sized = [(checkpoint, _sizes(checkpoint)) for checkpoint in checkpoints]
    for at, (checkpoint, sizes) in enumerate(sized):
        if blocking(checkpoint.findings):
            continue  # this problem is already reported
        for neighbour, usual in (*sized[at + 1 : at + 2], *sized[max(at - 1, 0) : at]):
            if sizes is None or usual is None or usual.keys() != sizes.keys() or neighbour.prefix != checkpoint.prefix:
                continue
            short = [key for key, (_, nbytes) in sizes.items() if nbytes * 1000 < usual[key][1] * 999]
            if short and len(short) < len(sizes):
                yield from ((checkpoint, neighbour, sizes[key][0], sizes[key][1], usual[key][1]) for key in short)
                break


def _sizes(checkpoint: Checkpoint) -> dict[tuple[Rank, ShardRole], tuple[Shard, ByteCount]] | None:
    """Return the shard of each rank and role with its size; None if a role has several shards or a size is unknown."""
    sizes = {
        (shard.rank, shard.role): (shard, shard.stamp.size)
        for shard in checkpoint.shards
        if shard.rank is not None and shard.stamp is not None
    }
    return sizes if len(sizes) == len(checkpoint.shards) else None
