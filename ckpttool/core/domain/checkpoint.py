"""A checkpoint and its tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, blocking, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.scalars import NO_RULES, Facts, NameClaim, ScalarRules, Scalars
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode


class StepSource(str, Enum):
    """The source of a checkpoint's step."""

    CONTENT = "content"
    NAME = "name"
    """From the name, with a sink size that the user set."""
    UNKNOWN = "unknown"


class CommitState(str, Enum):
    """Whether the trainer marked the checkpoint as finished."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"
    """The trainer's record (metadata, tracker) is missing or does not cover it."""
    UNRECORDED = "unrecorded"
    """The layout has no such record per checkpoint."""
    UNKNOWN = "unknown"
    """The layout has such a record, but it does not show whether the checkpoint is finished."""


class Content(str, Enum):
    """The parts of a save that training can continue from."""

    FULL = "full"
    """Weights, optimizer state and training position."""
    WEIGHTS_ONLY = "weights-only"
    """Weights alone, by design: nothing is damaged, but the optimizer would be re-initialised."""
    UNKNOWN = "unknown"
    """Unknown whether there is more than weights, because the user chose the contents."""


CheckpointKey: TypeAlias = tuple[str, str, FormatName]
"""Prefix, name and format: the identity of a checkpoint in its tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Parallel sizes in ranks; None if not recorded, never guessed."""

    world_size: int | None = None
    """Ranks that must have separate files; None if unknown, or if `shared`."""
    shared: bool = False
    """Whether all ranks load the same files: then there is no number of ranks to determine."""
    confirmed: bool = True
    """False if only the ranks' files show `world_size`, so that missing files of the last rank go unnoticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """The step in a checkpoint's name."""

    stem: str
    """The text before the number, which all checkpoints of a training run share."""
    number: Step | None
    """None if the name has no number that can be a step."""
    is_free: bool = False
    """Whether a person or a script chose the name; False: the trainer itself did."""
    is_sure: bool = True
    """Whether the stem shows that the number counts steps."""
    counts_saves: bool = False
    """Whether the trainer numbers its checkpoints, not the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One file rename that makes a checkpoint loadable by a single name. Paths are relative to the root."""

    source: str
    target: str
    why: str
    """The problem with the current names, in words that follow "intact on every rank, but"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All files of one save, over all ranks, whether or not it is intact."""

    name: str
    """Name for `--checkpoint`."""
    aliases: tuple[str, ...] = ()
    """Other names of the same save in the tree: a link to it, a copy of it."""
    prefix: str = ""
    """The start of its file names, if several training runs may share the folder, each with a different prefix."""
    run: int = 0
    """0 for the first run of the tree; a higher one was started later."""
    label: str | None = None
    """The name without the run, which saves of several runs may share; None if names show no runs."""
    sort_key: tuple[int, ...] = ()
    """Orders the saves of one run as their names do. Only for comparison, except by the layout that made the key."""
    facts: Facts = ()
    """Further facts for display, by name: `epoch`, `step_in_epoch`, `optimizer_step`; None if unknown."""
    claims: tuple[NameClaim, ...] = ()
    """The values of inner scalars according to the checkpoint's name."""
    rules: ScalarRules = NO_RULES
    """The scalars in its shards, and the rules about them."""
    scalars: Scalars
    """The values from one rank's shard; `verify` checks that the other ranks agree."""
    step: Step | None
    """True global step; None if unknown."""
    step_source: StepSource
    named: NamedStep | None = None
    """The step in the name; None in a layout that compares names with the content elsewhere."""
    identity: str | None = None
    """A value unique to each save: two checkpoints with the same value are copies. None if unknown."""
    order: int | None = None
    """A value inside the checkpoint that grows from save to save: a time, batches read."""
    committed_ns: int | None = None
    """When it was committed by its own record, in nanoseconds since 1970."""
    step_remedy: str | None = None
    """If the step is unknown: what the user can do to make it known; None if nothing helps."""
    shards: tuple[Shard, ...]
    """Sorted by (rank, path)."""
    topology: Topology
    """`world_size` is set if the files contain it."""
    format: FormatName
    expected: tuple[str, ...] | None = None
    """Paths of its files according to the trainer's own record; None if there is no such record."""
    digests: tuple[tuple[str, str], ...] = ()
    """SHA-256 of files by their paths, 64 hexadecimal digits each, as the trainer's own record has them; sorted."""
    commit: CommitState
    """Required of every layout: an unfinished save is never chosen, whatever its files look like."""
    content: Content
    """Required of every layout: a run never resumes from weights alone unless requested."""
    is_tracked: bool = False
    """Whether a trainer's record names it as the best save, or as the last, from which a start without a named save
    continues."""
    health: Health = Health.UNKNOWN
    """As the trainer recorded it inside the checkpoint."""
    records_measured_health: bool = False
    """Whether its writer records the health only if it was measured, whatever the number of pipeline stages."""
    renames: tuple[Rename, ...] = ()
    """The renames needed before the trainer can load it by one name."""
    findings: tuple[Finding, ...] = ()
    """Findings of the listing alone, such as missing ranks or shards that are not files."""

    @property
    def key(self) -> CheckpointKey:
        """Key within the tree, because two training runs or two formats may share a name."""
        return self.prefix, self.name, self.format

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks that have a shard, ascending."""
        return tuple(sorted({shard.rank for shard in self.shards if shard.rank is not None}))

    @property
    def samples(self) -> int | None:
        """Samples consumed by the training, according to this checkpoint; None if unknown."""
        if self.scalars.samples is not None:
            return self.scalars.samples
        size = self.scalars.global_batch_size
        return None if size is None or self.step is None else self.step * size

    @property
    def nbytes(self) -> ByteCount | None:
        """Total size of the shards; None if the listing has no sizes."""
        total = 0
        for shard in self.shards:  # a report calls this for half a million shards
            if shard.stamp is None:
                return None
            total += shard.stamp.size
        return ByteCount(total)

    @property
    def saved_ns(self) -> int | None:
        """Time at which the last shard was written, from file times, in nanoseconds since 1970; None if unknown."""
        return max((ns for shard in self.shards if (ns := shard.modified_ns) is not None), default=None)

    def is_named_as(self, other: Checkpoint) -> bool:
        """Return whether saves of two runs have the same label, and the same step if both steps are known."""
        is_same = (self.prefix, self.label, self.format) == (other.prefix, other.label, other.format)
        same_step = self.step is None or other.step is None or self.step == other.step
        return is_same and self.label is not None and self.run != other.run and same_step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run (process start) of the training in this tree."""

    prefix: str
    run: int
    first_step: Step | None
    last_step: Step | None
    """Highest true step with any file on disk, intact or not."""
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The last save according to the trainer's tracker."""

    name: str
    """Name of the checkpoint, which may not exist."""
    step: Step | None
    """The step of that name."""
    written_ns: int | None
    """Time of the tracker's last write, from its mtime; None if the disk does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsGiven:
    """The parts of a recorded tree that an answer rests on."""

    given: int
    """Parts that were read."""
    of: int
    """Total number of parts of the same run."""
    missing: tuple[int, ...]
    """Numbers, from 1, of the parts that are missing or unreadable."""
    stale: tuple[int, ...]
    """Numbers of the parts that were recorded before the last file was written."""
    nodes: tuple[str, ...]
    """Hosts that recorded the parts, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The contents of a folder: checkpoints in the order (prefix, run, step, name), and everything else."""

    root: str
    """The folder with the checkpoints, as the user would write it."""
    layout: str
    """The value of `--layout` for it."""
    checkpoints: tuple[Checkpoint, ...]
    runs: tuple[RunSummary, ...]
    findings: tuple[Finding, ...]
    """About the tree: records that disagree, strays, files in progress. By (code, path)."""
    folder_ranks: tuple[Rank, ...] = ()
    """Ranks that have a folder, ascending, with or without files."""
    unlisted: tuple[str, ...] = ()
    """Folders that could not be listed, by path: their contents are unknown, not missing."""
    strays: tuple[str, ...] = ()
    """Paths that are neither checkpoints nor known records; sorted."""
    mere_names: tuple[str, ...] = ()
    """The strays that have a shard's name but are not shards: empty, zeroed, or of unknown format."""
    tracked: Tracked | None = None
    """None if there is no tracker, or it names no checkpoint."""
    parts: PartsGiven | None = None
    """The parts, if several machines recorded the tree; None if this machine read it."""

    def path_of(self, inner: str) -> str:
        """Return the path of a file or folder in the tree, as the user would write it.

        Args:
            inner: Its path relative to the root.
        """
        return inner if self.root == "." else f"{self.root}/{inner}"

    def named(self, name: str) -> Checkpoint | None:
        """Return the first save with this name; None if no save has it."""
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Answered):
    """The answer of `scan`, with its time."""

    NOUN = "inventory"

    inventory: Inventory
    now: float
    """Seconds since 1970, the reference time for ages."""
    limit: int | None = None
    """Checkpoints that a table shows, newest first; None shows all."""
    view: View = USUAL

    def in_short(self) -> dict[str, object]:
        """Return the tree's path and the number of checkpoints."""
        return {"root": self.inventory.root, "checkpoints": len(self.inventory.checkpoints)}

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code for damage that the listing shows: a missing rank, or a shard that is not a file."""
        findings = (finding for checkpoint in self.inventory.checkpoints for finding in checkpoint.findings)
        return of_findings([*self.inventory.findings, *findings])


def shorter_shards(
    checkpoints: Sequence[Checkpoint],
) -> Iterator[tuple[Checkpoint, Checkpoint, Shard, ByteCount, ByteCount]]:
    """Yield shards that may be truncated: shorter than in a neighbouring save, although not all ranks' shards are.

    Sizes prove nothing; the result is for people to check. A difference below 0.1 % is not reported, because content
    other than tensors may be shorter.

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
    """Return each rank's shard of each role with its size; None if a role has several shards or a size is unknown."""
    sizes = {
        (shard.rank, shard.role): (shard, shard.stamp.size)
        for shard in checkpoint.shards
        if shard.rank is not None and shard.stamp is not None
    }
    return sizes if len(sizes) == len(checkpoint.shards) else None
