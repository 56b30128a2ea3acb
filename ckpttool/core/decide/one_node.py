"""Check whether all ranks' files are visible here, or only the local disk of one of several machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.expectation import RankFiles
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Job, Mount, Reach, Surroundings
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePlan
from ckpttool.core.domain.units import Rank


def judge_one_node(
    decision: ResumePlan | NoResumePoint, inventory: Inventory, around: Surroundings
) -> ResumePlan | NoResumePoint:
    """Add findings to a decision if it may rest on the files of only one of several machines.

    Args:
        decision: The choice from the files visible here.
        inventory: These files.
        around: The evidence for other machines.
    """
    if isinstance(decision, NoResumePoint):
        # If all ranks write to one folder, only a launcher shows that a disk is one of several.
        is_unseen = around.files is not RankFiles.TOGETHER or bool(around.jobs)
        is_unseen = is_unseen and around.mount.reach is not Reach.SHARED
        return _nothing_here(decision, inventory, around) if is_unseen else decision
    finding = intact_here_alone(decision.point.checkpoint, around) or _newer_elsewhere(decision, inventory, around)
    return decision if finding is None else replace(decision, findings=(finding, *decision.findings))


def _newer_elsewhere(plan: ResumePlan, inventory: Inventory, around: Surroundings) -> Finding | None:
    """Report a newer save that may be intact, because its only problems are files that other machines may have."""
    if around.mount.reach is Reach.SHARED:
        return None
    seen_ranks = _seen_ranks(inventory)
    job = _job_beyond(around, len(seen_ranks))
    newer = [
        rejection.checkpoint.name for rejection in plan.point.rejected if _lacks_folders_alone(rejection, seen_ranks)
    ]
    if job is None or not newer:
        return None
    return unknown(
        Code.ONE_NODE_ONLY,
        f"the launcher indicates more machines ({job.said_by}), which may have the files of {newer[0]} that are "
        f"missing on {_on(around.mount)}: whether it is intact is unknown here",
        path=newer[0],
        remedy=_together(around),
    )


def intact_here_alone(checkpoint: Checkpoint, around: Surroundings) -> Finding | None:
    """Return a finding if other machines may have more files of a checkpoint that looks intact here; otherwise None."""
    if around.mount.reach is Reach.SHARED or around.files is RankFiles.TOGETHER:
        return None
    if checkpoint.expected is not None and around.files is not RankFiles.UNCOUNTED:
        return None  # its own record names the files of all machines, and all of them are here
    seen_ranks = checkpoint.ranks
    if len(seen_ranks) in around.declared or any(
        job.counts_ranks and job.ranks == len(seen_ranks) for job in around.jobs
    ):
        return None
    job = _job_beyond(around, len(seen_ranks))
    if job is None:
        return None
    return unknown(
        Code.ONE_NODE_ONLY,
        f"the launcher indicates more machines than this one ({job.said_by}), and {_on(around.mount)} has only "
        f"{_ranks(seen_ranks)}: whether there are more ranks is unknown here",
        actual=f"{len(seen_ranks)} ranks found",
        remedy=_together(around) + _if_all_here(seen_ranks),
    )


def _together(around: Surroundings) -> str:
    files_text = f"all {around.sign.rstrip('/')}" if around.files is RankFiles.APART else "all files"
    parts = "run ckpttool part DIR --out FOLDER/ on every machine (srun --ntasks-per-node=1), then pass FOLDER as DIR"
    return f"{parts}; or copy {files_text} to a disk that all machines share and run it there"


def _nothing_here(decision: NoResumePoint, inventory: Inventory, around: Surroundings) -> NoResumePoint:
    """Report missing files of ranks without files here as unknown, if another machine may have them.

    Otherwise a script would conclude that there is nothing to resume from, and start from step 0.
    """
    seen_ranks = _seen_ranks(inventory)
    job = _job_beyond(around, len(seen_ranks))
    worlds = {_world(rejection) for rejection in decision.rejected if _lacks_folders_alone(rejection, seen_ranks)}
    elsewhere = {
        world
        for world in worlds
        if (_is_one_nodes(seen_ranks, world) if seen_ranks and world is not None else job is not None)
    }
    if job is None and (not elsewhere or len(seen_ranks) == 1 or around.mount.reach is not Reach.LOCAL):
        return decision  # a single rank may also be the rest of a tree that lost the others
    if not elsewhere and inventory.checkpoints:
        return decision
    known_worlds = [world for world in elsewhere if world is not None]
    where = _seen(seen_ranks) if elsewhere else "no checkpoint"
    if known_worlds:
        where = f"only {where} of {max(known_worlds)} ranks"
    why = "as one machine's share" if job is None else f"and the launcher indicates more machines ({job.said_by})"
    finding = unknown(
        Code.ONE_NODE_ONLY,
        f"{where} found on {_on(around.mount)}, {why}: the files of other machines are unknown here",
        actual=f"{len(seen_ranks)} ranks found",
        remedy=_together(around) + ("" if None in elsewhere else _if_all_here(seen_ranks)),
    )
    rejected = tuple(
        _unknown(rejection, seen_ranks) if _world(rejection) in elsewhere else rejection
        for rejection in decision.rejected
    )
    # Whether restoring them would help, as `choose` may have advised, is also unknown.
    findings = tuple(finding for finding in decision.findings if finding.code is not Code.RANKS_TO_RESTORE)
    return replace(decision, rejected=rejected, findings=(finding, *findings))


def _seen_ranks(inventory: Inventory) -> list[Rank]:
    return sorted(
        {*inventory.folder_ranks, *(rank for checkpoint in inventory.checkpoints for rank in checkpoint.ranks)}
    )


def _job_beyond(around: Surroundings, rank_count: int) -> Job | None:
    """Return the first job that runs on several machines, or that has more ranks than are visible here."""
    return next((job for job in around.jobs if job.several or (job.ranks or 0) > rank_count), None)


def _world(rejection: Rejection) -> int | None:
    return rejection.checkpoint.topology.world_size


def _lacks_folders_alone(rejection: Rejection, ranks: Sequence[Rank]) -> bool:
    """Return whether missing folders are the only problem; other damage would also be damage on any other machine."""
    reasons = blocking(rejection.reasons)
    is_elsewhere = all(_is_elsewhere(reason, ranks) for reason in reasons)
    return bool(reasons) and is_elsewhere and set(rejection.checkpoint.ranks) >= set(ranks)


def _is_elsewhere(reason: Finding, ranks: Collection[Rank]) -> bool:
    """Return whether a missing file belongs to a rank without files here, or to an unknown rank."""
    if reason.code in {Code.RANK_MISSING, Code.SHARD_MISSING}:
        return not reason.ranks or not set(reason.ranks).issubset(ranks)
    return reason.code in {Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE}  # the record covers only one rank


def _is_one_nodes(ranks: Sequence[Rank], world: int) -> bool:
    """Return whether ranks look like one machine's equal share of all ranks.

    They must be consecutive, and start at a multiple of their number.
    """
    count, first, last = len(ranks), ranks[0], ranks[-1]
    return last - first + 1 == count and world % count == 0 and first % count == 0


def _unknown(rejection: Rejection, ranks: Collection[Rank]) -> Rejection:
    return replace(
        rejection,
        reasons=tuple(_open(reason) if _is_elsewhere(reason, ranks) else reason for reason in rejection.reasons),
    )


def _open(reason: Finding) -> Finding:
    """Convert a finding about a missing file to an unknown state, because another machine may have the file."""
    if reason.code is not Code.UNCOMMITTED_SAVE:
        return replace(reason, severity=Severity.UNKNOWN)
    message = "the record that the trainer writes last is not on this machine"
    return replace(reason, severity=Severity.UNKNOWN, message=message, remedy=None)


def _on(mount: Mount) -> str:
    if mount.reach is Reach.LOCAL:
        return f"this machine's own disk ({mount.kind} on {mount.source})"
    if mount.kind:
        return f"{mount.kind}, a file system that may not be visible on other machines"
    return "a disk that may not be visible on other machines"


def _seen(ranks: Sequence[Rank]) -> str:
    """Describe the visible ranks; if all ranks write to one folder, a file may belong to any rank."""
    return _ranks(ranks) if ranks else "a part of a save"


def _ranks(ranks: Sequence[Rank]) -> str:
    if not ranks:
        return "files of unknown ranks"
    return f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _if_all_here(ranks: Sequence[Rank]) -> str:
    """Describe the option that declares these ranks complete; ranks that do not begin at 0 cannot be complete."""
    count = len(ranks)
    is_first = count > 0 and ranks[-1] == count - 1
    return f"; if the training has no more ranks than these {count}, pass --world-size {count}" if is_first else ""
