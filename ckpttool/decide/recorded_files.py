"""The files of a checkpoint against those that the trainer's own record names."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.remedies import helped
from ckpttool.domain.units import Rank


def with_recorded(checkpoint: Checkpoint) -> Checkpoint:
    """Compare the files with those that the trainer's own record names."""
    if checkpoint.expected is None:
        return checkpoint
    present = {shard.path for shard in checkpoint.shards}
    lacking = [path for path in checkpoint.expected if path not in present]
    ranks = _ranks_by_path(checkpoint) if lacking else {}
    findings = tuple(
        helped(
            Finding(
                code=Code.SHARD_MISSING,
                severity=Severity.DAMAGE,
                message="the checkpoint's own record names this file, but it is not there",
                path=path,
                ranks=(ranks[path],) if path in ranks else (),
            )
        )
        for path in lacking
    )
    return replace(checkpoint, findings=(*checkpoint.findings, *findings))


def _ranks_by_path(checkpoint: Checkpoint) -> dict[str, Rank]:
    """Spell the path of every rank's file in the newer layout, after those that are there."""
    models = {shard.role: shard for shard in checkpoint.shards if shard.rank is not None}
    return {
        shard.path.replace(f"-{shard.rank:07}-", f"-{rank:07}-"): Rank(rank)
        for shard in models.values()
        for rank in range(checkpoint.topology.world_size or 0)
    }
