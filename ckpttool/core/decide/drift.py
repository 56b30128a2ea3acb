"""Effect of a drifted replica on checkpoints other than the one that revealed the drift."""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, suspect
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Step, at_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A shard that is known to have drifted from its replicas."""

    checkpoint: Checkpoint
    shard: Shard
    since: Step
    """Step of the first save that is known to differ."""


def with_drift(inventory: Inventory, drifts: Iterable[Drift]) -> Inventory:
    """Add a finding to every save that contains a drifted shard.

    The error stays in the weights, so all saves of the run from the first that differs are affected. A save is excluded
    if the run had gone back to a point before the save in which the drift was found.

    Args:
        inventory: The inventory, with the findings of each save.
        drifts: The drifts.
    """
    for drift in drifts:
        checkpoints = tuple(_with_objections(save, drift, inventory) for save in inventory.checkpoints)
        inventory = replace(inventory, checkpoints=checkpoints)
    return inventory


def _with_objections(save: Checkpoint, drift: Drift, inventory: Inventory) -> Checkpoint:
    mine = (shard for shard in save.shards if (shard.rank, shard.role) == (drift.shard.rank, drift.shard.role))
    shard = next(mine, None)
    paths = {finding.path for finding in save.findings if finding.code is Code.REPLICA_DRIFTED}
    if shard is None or shard.path in paths or not _has_it(save, drift, inventory):
        return save
    return replace(save, findings=(*save.findings, _inherited(shard, drift)))


def _has_it(save: Checkpoint, drift: Drift, inventory: Inventory) -> bool:
    drifted = drift.checkpoint
    if not _same_run(save, drifted) or save.step is None or drifted.step is None or save.step < drift.since:
        return False
    if save.step <= drifted.step:
        return not _is_after(save, drifted)
    return not any(
        _same_run(candidate, drifted)
        and candidate.step is not None
        and candidate.step < drifted.step
        and _is_after(candidate, drifted)
        for candidate in inventory.checkpoints
    )


def _same_run(save: Checkpoint, later: Checkpoint) -> bool:
    return (save.prefix, save.run, save.format) == (later.prefix, later.run, later.format)


def _is_after(save: Checkpoint, later: Checkpoint) -> bool:
    """Return whether a save is later than another by file times or, if these are unknown, by steps."""
    return save.saved_ns is not None and later.saved_ns is not None and save.saved_ns > later.saved_ns


def _inherited(shard: Shard, drift: Drift) -> Finding:
    message = (
        f"not read: {drift.checkpoint.name} ({at_step(drift.checkpoint.step)}) of the same run is known to differ from "
        f"its replicas from step {drift.since} on, and the error stays in the weights"
    )
    ranks = () if shard.rank is None else (shard.rank,)
    return suspect(Code.REPLICA_DRIFTED, message, path=shard.path, ranks=ranks)
