"""Remedies for shards of which another rank may have a copy."""

from __future__ import annotations

from collections.abc import Callable

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace

MISSING_FROM_RANKS = frozenset({Code.RANK_MISSING, Code.SHARD_MISSING})
"""Codes of findings about missing files of ranks."""

HasPeers = Callable[[Checkpoint], bool]
"""Function that returns whether `repair shards` can rebuild shards of a checkpoint from proven copies on other ranks.
"""


def is_about_shard(finding: Finding, checkpoint: Checkpoint) -> bool:
    """Return whether a finding reports a missing or damaged shard of a rank."""
    if finding.severity is not Severity.DAMAGE:
        return False
    if finding.code in MISSING_FROM_RANKS and finding.ranks:
        return True
    return any(shard.path == finding.path and shard.rank is not None for shard in checkpoint.shards)


def with_peer_remedies(
    findings: tuple[Finding, ...], checkpoint: Checkpoint, root: str, has_peers: HasPeers
) -> tuple[Finding, ...]:
    """Extend the remedy of each missing or damaged shard with the command that looks for a proven copy.

    Args:
        findings: Findings about the checkpoint, with their remedies.
        checkpoint: A checkpoint of the tree.
        root: Root of the tree.
        has_peers: Whether shards may have copies on other ranks.
    """
    if not any(is_about_shard(finding, checkpoint) for finding in findings) or not has_peers(checkpoint):
        return findings
    from shlex import quote  # not needed for undamaged checkpoints

    command = f"ckpttool repair shards {quote(root)} --checkpoint {quote(checkpoint.name)}"
    ranks = {shard.rank for shard in checkpoint.shards} - {None}

    def completed(finding: Finding) -> Finding:
        known = finding.remedy or ""
        if command in known or finding.code is Code.REPLICA_DRIFTED:  # here a device computed wrong values
            return finding
        if not is_about_shard(finding, checkpoint) or not ranks.difference(finding.ranks):
            return finding
        see = f"to see whether another rank has a proven copy: {command}"
        return replace(finding, remedy=f"{known}; {see}" if known else see)

    return tuple(map(completed, findings))


def with_peer_remedies_in(inventory: Inventory, has_peers: HasPeers) -> Inventory:
    """Apply `with_peer_remedies` to the findings of each damaged checkpoint of a tree."""
    checkpoints = []
    for checkpoint in inventory.checkpoints:
        findings = with_peer_remedies(checkpoint.findings, checkpoint, inventory.root, has_peers)
        is_same = findings is checkpoint.findings
        checkpoints.append(checkpoint if is_same else replace(checkpoint, findings=findings))
    return replace(inventory, checkpoints=tuple(checkpoints))
