"""Manifests, which record a checkpoint when it is sealed so that silent damage can be detected later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.replicas import Healed, TensorDigests
from ckpttool.core.domain.scalars import ScalarValues
from ckpttool.core.domain.shard import FormatName, TensorEntry
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import ExitCode

VERSION = 1
"""Version of the manifest format.

Manifests of other versions are not verified, because their values may have a different meaning.
"""

CHUNK_BYTES = ByteCount(64 << 20)
"""Size in bytes of the unit in which damage is located, and in which workers share one big file.

This size is part of the format, because hashes of chunks of different sizes cannot be compared.
"""


MOST_TENSORS_BYTES = 40 << 20
"""Maximum size in bytes of the tensor digests in one record: enough for 8,192 ranks with 300 separate tensors each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSeal:
    """Record of one file when it was sealed."""

    path: str
    """POSIX path, relative to the inventory's root."""
    size: ByteCount
    xxh3_128: str
    """Hash of the complete file, 32 hexadecimal digits."""
    chunks: tuple[str, ...]
    """Hash of each chunk of `CHUNK_BYTES`, in file order; the last chunk may be shorter. Empty for an empty file."""
    format: FormatName
    schema_hash: str | None
    scalars: ScalarValues
    first_seen: str
    """UTC time at which this content was first recorded, such as `2025-01-31T23:59:59Z`.

    Sealing the file again does not change the time.
    """
    healed: Healed | None = None
    """How the file was rebuilt from another rank's file; None if it was not rebuilt."""
    tensors: TensorDigests | None = None
    """Digest of each tensor; None if unknown, as in manifests of versions that did not record them."""

    def same_content(self, other: ShardSeal) -> bool:
        """Return whether both seals describe the same bytes."""
        return (self.size, self.xxh3_128, self.chunks) == (other.size, other.xxh3_128, other.chunks)

    def with_more(self, other: ShardSeal) -> ShardSeal:
        """Return this seal, with missing fields taken from another seal of the same bytes."""
        if self.tensors is not None or other.tensors is None:
            return self
        return replace(self, tensors=other.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Record of all files of one checkpoint when it was sealed."""

    layout: str
    checkpoint: str
    """Name of the checkpoint."""
    prefix: str
    world_size: int | None
    """Number of ranks in the training run; None if unknown."""
    sealed_at: str
    """UTC time of the last change of the manifest, in the same form as `first_seen`."""
    sealed_by: str
    """Version of ckpttool that wrote the manifest."""
    shards: tuple[ShardSeal, ...]
    """Sorted by path; each path occurs once."""
    disputed: tuple[Finding, ...] = ()
    """Findings about shards for which several manifests of one save differ; not stored in the file."""
    version: int = VERSION
    chunk_bytes: ByteCount = CHUNK_BYTES

    @property
    def by_path(self) -> dict[str, ShardSeal]:
        """Seal of each file, by path."""
        return {seal.path: seal for seal in self.shards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """Result of sealing one checkpoint."""

    checkpoint: str
    path: str
    """Path of the manifest, relative to the inventory's root; empty if the layout has no place for a manifest."""
    manifest: Manifest | None
    """Current record; None if sealing was refused, which does not change an earlier record."""
    written: bool
    """Whether the manifest file changed; sealing an unchanged checkpoint again changes nothing."""
    findings: tuple[Finding, ...]
    """Reasons for a refusal, or otherwise the differences from earlier records."""
    unproven: int = 0
    """Number of shards that were recorded for the first time without a checksum or a copy to compare with.

    The seal does not show whether these shards were damaged before.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed(Answered):
    """The answer of `seal`."""

    NOUN = "seals"

    inventory: Inventory
    sealings: tuple[Sealing, ...]
    """One result per requested checkpoint, newest first."""

    @property
    def exit_code(self) -> ExitCode:
        """Safest exit code for all checkpoints; if there are no checkpoints, the code for "nothing sealed"."""
        if not self.sealings:
            return ExitCode.NOTHING_TO_RESUME
        return of_findings(finding for sealing in self.sealings for finding in sealing.findings)


def differing_chunks(seal: ShardSeal, size: int, chunks: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the chunks, from 0, that differ from the seal; empty if the file has not changed.

    Args:
        seal: The sealed record.
        size: Current size of the file in bytes.
        chunks: xxh3-128 of each `CHUNK_BYTES` of the file, in file order.
    """
    common = min(len(seal.chunks), len(chunks))
    longest = max(len(seal.chunks), len(chunks))
    differing = [index for index in range(common) if seal.chunks[index] != chunks[index]]
    differing += range(common, longest)
    if not differing and size != seal.size:
        # Digests of the file itself never get here, but files of different sizes are never equal, whatever the
        # arguments.
        differing.append(max(longest - 1, 0))
    return tuple(differing)


def tensors_in(entries: Iterable[TensorEntry], begin: int, end: int) -> tuple[str, ...]:
    """Return the names of the tensors with data in a byte range of a file, in the order of the entries.

    Args:
        entries: The tensors that the file's header declares.
        begin: First byte.
        end: First byte after the range.
    """
    return tuple(
        entry.name for entry in entries if any(max(first, begin) < min(last, end) for first, last in entry.spans)
    )
