"""What a session asks of whoever compares copies of the same tensors on several ranks, and how it reads for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.finding import Code, Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import RecordedSlices, SavedAt, TensorDigests
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.extensions import first_imported
from ckpttool.core.storage.base import Storage
from ckpttool.core.verify.siblings.neighbours import Neighbours

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal

Place = tuple[Rank | None, ShardRole]
HeldTensors = tuple[str | None, TensorDigests]
"""Schema hash and digests of a file."""
Tensors = Mapping[Place, HeldTensors]
"""What is known of the tensors of a checkpoint, by whose file it is."""


def tensors_of(reports: Iterable[ShardReport]) -> dict[Place, HeldTensors]:
    """Return what reports tell of tensors."""
    return {
        (report.rank, report.role): (report.schema_hash, report.tensor_digests)
        for report in reports
        if report.tensor_digests is not None
    }


class Reading(NamedTuple):
    """How a session reads."""

    storage: Storage
    read: Callable[[Checkpoint, Collection[Place] | None], Iterator[ShardReport]]
    """Reads another checkpoint's shards in these places; None: all that it will be asked for in its own turn."""
    slices: Callable[[Checkpoint], RecordedSlices | None]
    requested: Collection[CheckpointKey]
    """Checkpoints that are read in any case, so that to read them now costs nothing."""
    recorded: Callable[[Checkpoint], Tensors]
    """What a manifest or the ledger has of another checkpoint, which then need not be read."""
    only_asked: bool
    """Read no other checkpoint but these."""
    rebuilt: Callable[[Checkpoint], Collection[Place]]
    """Which shards of a checkpoint were rebuilt from others: that they are equal to these teaches nothing."""


class SeenShards(NamedTuple):
    """What was seen of the shards of the checkpoint that is judged, and what vouches for them."""

    reports: Sequence[ShardReport]
    seals: Mapping[str, ShardSeal]
    """What its manifest has of them, by path."""
    sealed: Collection[str]
    """Paths of those that are as the manifest has them, and whose seal proves their content."""
    healed: Collection[str]
    """Paths of those that are as the manifest has them, but were rebuilt from a copy for which no checksum spoke."""


class FromCopies(NamedTuple):
    """What copies say of one checkpoint."""

    findings: tuple[Finding, ...] = ()
    agreed: Mapping[str, int] = {}
    """By path: how many copies of the file agree in every tensor, its own counted."""
    compared_with: tuple[str, ...] = ()
    """Other checkpoints that told whose copies they are, by name, nearest first."""
    also_read: tuple[str, ...] = ()
    """Those that were read for no other reason."""
    compared_paths: Collection[str] = ()
    """Paths of files whose tensors are known at another checkpoint of the same start, so that digests say all."""
    drifted: Mapping[str, SavedAt | None] = {}
    """By path, of files that differ here and at every later checkpoint: the first one at which they do; None: this."""


class Copies(Protocol):
    """Compares the checkpoints of one tree, one after the other."""

    ahead: dict[CheckpointKey, list[ShardReport]]
    """Reports of checkpoints whose turn is still to come."""

    def compare(
        self,
        checkpoint: Checkpoint,
        shards: SeenShards,
        *,
        followed_by: Checkpoint | None,
    ) -> Generator[ShardReport, None, FromCopies]:
        """Yield the reports of what else had to be read, and return what is to be said of the checkpoint.

        Args:
            checkpoint: The one that is judged.
            shards: What was seen of its shards.
            followed_by: The one that is judged next.
        """
        ...

    def keep(self, checkpoint: Checkpoint, tensors: Tensors) -> None:
        """Remember the tensors of a checkpoint that was read."""
        ...


CopiesBegun: TypeAlias = "Callable[[Neighbours, Reading], Copies]"
"""Takes the checkpoints of a tree, and how to read them."""


def copies_of(neighbours: Neighbours, reading: Reading) -> Copies | None:
    """Return what compares the copies in a tree; None where no feature does."""
    begun: CopiesBegun | None = first_imported(lambda feature: feature.copies)
    return None if begun is None else begun(neighbours, reading)


def with_copies(reports: Iterable[ShardReport], said: FromCopies) -> list[ShardReport]:
    """Return the reports with how many copies agree; of one without a checksum these tell what it would."""
    all_reports = list(reports)
    proven = {(report.role, report.tensor_digests) for report in all_reports if report.checksum_matched}
    for index, report in enumerate(all_reports):
        copies = said.agreed.get(report.path, 1)
        if copies > 1:
            is_matched = (report.role, report.tensor_digests) in proven
            findings = tuple(_said_by_copies(finding, copies) for finding in report.findings)
            all_reports[index] = replace(report, copies=copies, copy_matched=is_matched, findings=findings)
    return all_reports


def _said_by_copies(finding: Finding, copies: int) -> Finding:
    if finding.code is not Code.CHECKSUM_MISSING:
        return finding
    message = f"every byte was read; it carries no checksum, but {copies} ranks hold the same in every tensor"
    return replace(finding, message=message)
