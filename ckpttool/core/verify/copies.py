"""The interface between a session and the feature that compares copies of a tensor on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.extensions import first_imported
from ckpttool.core.storage.base import Storage
from ckpttool.core.verify.siblings.neighbours import Neighbours

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.replicas import RecordedSlices, SavedAt, TensorDigests

Place = tuple[Rank | None, ShardRole]
ShardTensors: TypeAlias = "tuple[str | None, TensorDigests]"
"""Schema hash and digests of a file."""
Tensors: TypeAlias = "Mapping[Place, ShardTensors]"
"""The known tensors of a checkpoint, by the rank and role of the file."""


def tensors_of(reports: Iterable[ShardReport]) -> dict[Place, ShardTensors]:
    """Return the tensors with digests in the reports."""
    return {
        (report.rank, report.role): (report.schema_hash, report.tensor_digests)
        for report in reports
        if report.tensor_digests is not None
    }


class Reading(NamedTuple):
    """The functions with which a session reads other checkpoints."""

    storage: Storage
    read: Callable[[Checkpoint, Collection[Place] | None], Iterator[ShardReport]]
    """The function that reads these shards of another checkpoint.

    None reads all shards that its own check would read.
    """
    slices: Callable[[Checkpoint], RecordedSlices | None]
    requested: Collection[CheckpointKey]
    """Checkpoints that will be read anyway, so that reading them now costs nothing."""
    recorded: Callable[[Checkpoint], Tensors]
    """The function that returns another checkpoint's tensors from its manifest or the ledger, instead of reading it."""
    only_asked: bool
    """Whether no checkpoints other than `requested` are read."""
    rebuilt: Callable[[Checkpoint], Collection[Place]]
    """The function that returns a checkpoint's shards that were rebuilt from others: their equality proves nothing."""


class SeenShards(NamedTuple):
    """The shards of the checkpoint that is judged, and their seals."""

    reports: Sequence[ShardReport]
    seals: Mapping[str, ShardSeal]
    """The records in the checkpoint's manifest, by path."""
    sealed: Collection[str]
    """Paths of the shards that match a seal that proves their content."""
    healed: Collection[str]
    """Paths of the shards that match a seal, but were rebuilt from a copy without a checksum."""


class CopyComparison(NamedTuple):
    """The result of comparing copies in one checkpoint."""

    findings: tuple[Finding, ...] = ()
    agreed: Mapping[str, int] = {}
    """Path -> number of copies of the file, including itself, that agree in every tensor; 1 if this is unknown for some
    tensor."""
    compared_with: tuple[str, ...] = ()
    """Names of the other checkpoints used for comparison, nearest first."""
    also_read: tuple[str, ...] = ()
    """The checkpoints in `compared_with` that were read only for this comparison."""
    compared_paths: Collection[str] = ()
    """Paths of the files whose tensors are known from another checkpoint of the same start."""
    drifted: Mapping[str, SavedAt | None] = {}
    """Path of a file that differs here and at every later checkpoint -> the first such checkpoint; None for this
    checkpoint."""
    is_open: bool = False
    """Whether another checkpoint may provide more evidence."""


class Copies(Protocol):
    """A comparison of the copies in the checkpoints of one tree, one checkpoint after the other."""

    ahead: dict[CheckpointKey, list[ShardReport]]
    """Reports of checkpoints that were read before their own turn."""

    def compare(
        self,
        checkpoint: Checkpoint,
        shards: SeenShards,
        *,
        followed_by: Checkpoint | None,
    ) -> Generator[ShardReport, None, CopyComparison]:
        """Yield the reports of the other shards that were read, and return the result for the checkpoint.

        Args:
            checkpoint: The checkpoint that is judged.
            shards: The shards of this checkpoint.
            followed_by: The checkpoint that is judged next.
        """
        ...

    def keep(self, checkpoint: Checkpoint, tensors: Tensors) -> None:
        """Store the tensors of a checkpoint that was read."""
        ...


CopiesBegun: TypeAlias = "Callable[[Neighbours, Reading], Copies]"
"""A function that starts a comparison, given the checkpoints of a tree and the functions that read them."""


def copies_of(neighbours: Neighbours, reading: Reading) -> Copies | None:
    """Return the comparison of copies in a tree, or None if no feature provides one."""
    begun: CopiesBegun | None = first_imported(lambda feature: feature.copies)
    return None if begun is None else begun(neighbours, reading)


def with_copies(reports: Iterable[ShardReport], comparison: CopyComparison) -> list[ShardReport]:
    """Add to the reports the number of copies that agree, which can replace a missing checksum."""
    all_reports = list(reports)
    proven = {(report.role, report.tensor_digests) for report in all_reports if report.checksum_matched}
    for index, report in enumerate(all_reports):
        copies = comparison.agreed.get(report.path, 1)
        if copies > 1:
            is_matched = (report.role, report.tensor_digests) in proven
            findings = tuple(_without_checksum(finding, copies) for finding in report.findings)
            all_reports[index] = replace(report, copies=copies, copy_matched=is_matched, findings=findings)
    return all_reports


def _without_checksum(finding: Finding, copies: int) -> Finding:
    if finding.code is not Code.CHECKSUM_MISSING:
        return finding
    message = f"every byte was read; it has no checksum, but {copies} ranks have equal content in every tensor"
    return replace(finding, message=message)
