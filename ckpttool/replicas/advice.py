"""Advice to use `repair shards` for a checkpoint that `resolve` skipped, without reading the complete checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from shlex import quote
from typing import NamedTuple

from ckpttool.core.decide.peer_remedies import is_about_shard
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePoint
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.units import Rank, counted
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.storage import is_local
from ckpttool.core.verbs.resolving import PassedOver
from ckpttool.core.verbs.scanning import Tree, scan
from ckpttool.core.verbs.verifying import content_engine
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.session import reports_of
from ckpttool.replicas.model import HealOrder, Target
from ckpttool.replicas.rules import find_targets, samples_for
from ckpttool.replicas.verbs import MOST_WITNESSES, what_can_be_rebuilt

CHEAP_BYTES = 16 << 20
"""Maximum bytes to read without a request: about as fast as a check of headers."""

_MOST_LOOKED_AT = 2
"""Maximum number of rejected checkpoints to consider, newest first. Healing an older checkpoint saves less."""


_MOST_ASKED = 8
"""Maximum number of shards that are checked for possible copies; one node has about this many."""

_ALL_ASKED = 32
"""Maximum number of ranks up to which every rank is checked for copies."""


class HealAdvice(NamedTuple):
    """The benefit of healing one of the skipped checkpoints."""

    finding: Finding
    """A note about the benefit; its path is the checkpoint's name."""
    remedy: str
    """The same advice, as the remedy for the rejected checkpoint."""


def advice_on(seen: PassedOver) -> tuple[tuple[Rejection, ...], tuple[Finding, ...]]:
    """Report whether a newer checkpoint that was skipped because of its shards can or might be rebuilt.

    Args:
        seen: The choice if nothing is healed.
    """
    tree, question, point = seen
    for rejection in point.rejected[:_MOST_LOOKED_AT]:
        advice = _advice(tree, question, point, rejection)
        if advice is not None:
            return with_healing(point.rejected, advice), (advice.finding,)
    return point.rejected, ()


def _advice(
    tree: Tree, question: TreeQuestion, point: ResumePoint | NoResumePoint, rejection: Rejection
) -> HealAdvice | None:
    checkpoint, root = rejection.checkpoint, tree.inventory.root
    is_here = is_local(tree.storage.root)
    if not (is_here and is_about_shards(checkpoint, rejection.reasons) and tree.has_peers(checkpoint)):
        return None
    if _cost(tree, checkpoint) <= CHEAP_BYTES:
        sized = scan(replace(question, sizes=True))
        sized_checkpoint = next(
            (candidate for candidate in sized.inventory.checkpoints if candidate.key == checkpoint.key), None
        )
        if (
            sized_checkpoint is None
            or not what_can_be_rebuilt(sized, sized.with_own_records(sized_checkpoint), HealOrder())[0].is_mended
        ):
            return None
        return heal_advice(point, checkpoint, root=root, is_proven=True)
    verdict = Verdict(
        key=checkpoint.key,
        name=checkpoint.name,
        step=checkpoint.step,
        level=Level.STRUCTURE,
        reports=(),
        findings=rejection.reasons,
    )
    target = find_targets(checkpoint, verdict, lambda place: str(tree.layout.peer_path(checkpoint, *place)))
    companions = samples_for(checkpoint, tree.inventory.checkpoints)
    same_run = [companion for companion in companions if companion.run == checkpoint.run and not companion.findings]
    may_be = bool(target) and bool(same_run) and _may_all_have_copies(tree, same_run[0], target)
    return heal_advice(point, checkpoint, root=root, is_proven=False) if may_be else None


def _cost(tree: Tree, checkpoint: Checkpoint) -> int:
    """Return the approximate number of bytes to read for the checkpoint and the proofs; counting stops at the limit.

    All files of the rank count: a truncated file is small, but the files with which it is compared are not.
    """
    cost = 0
    for read in (checkpoint, *islice(samples_for(checkpoint, tree.inventory.checkpoints), MOST_WITNESSES)):
        for shard in read.shards:
            with suppress(OSError):
                cost += tree.storage.stamp(shard.path).size
            if cost > CHEAP_BYTES:
                return cost
    return cost


def _may_all_have_copies(tree: Tree, companion: Checkpoint, target: Sequence[Target]) -> bool:
    """Return whether each of these ranks had an equal file at another checkpoint, judged by headers and last pages.

    If there are many ranks, only those at a distance of a power of two are checked: in most layouts the copies are
    there.
    """
    world = {shard.rank for shard in companion.shards if shard.rank is not None}
    near = {
        report.place: world.difference({report.rank})
        if len(world) <= _ALL_ASKED
        else {Rank(report.rank + sign * 2**power) for power in range(13) for sign in (-1, 1)}
        for report in target[:_MOST_ASKED]
    }
    places = {(rank, role) for (own_rank, role), ranks in near.items() for rank in (own_rank, *ranks)}
    shards = tuple(shard for shard in companion.shards if (shard.rank, shard.role) in places)
    tasks = plan_checks(tree.inventory.root, replace(companion, shards=shards), Level.STRUCTURE)
    reports = {
        (report.rank, report.role): (report.schema_hash, report.tail_hash)
        for report in reports_of(tasks, content_engine(CheckQuestion(), None))
        if report.tail_hash is not None
    }
    target_places = {report.place for report in target}
    sound = {(rank, role): like for (rank, role), like in reports.items() if (rank, role) not in target_places}
    return all(
        own_rank in reports and any(sound.get((rank, own_rank[1])) == reports[own_rank] for rank in ranks)
        for own_rank, ranks in near.items()
    )


def is_about_shards(checkpoint: Checkpoint, reasons: Sequence[Finding]) -> bool:
    """Return whether missing or damaged shards are the only problem of a checkpoint."""
    has_shards = any(shard.rank is not None for shard in checkpoint.shards)
    return bool(has_shards and reasons) and all(is_about_shard(reason, checkpoint) for reason in reasons)


def heal_advice(
    point: ResumePoint | NoResumePoint, checkpoint: Checkpoint, *, root: str, is_proven: bool
) -> HealAdvice | None:
    """Return the benefit of healing a checkpoint, or None if there is no benefit.

    Args:
        point: The choice if nothing is healed.
        checkpoint: A checkpoint that was skipped.
        root: Root of the tree.
        is_proven: Whether the checkpoint was read completely and has proven copies; otherwise some rank's files were
            equal to those of other ranks.
    """
    command = f"ckpttool repair shards {quote(root)} --checkpoint {quote(checkpoint.name)}"
    gain = f"make {checkpoint.name} intact"
    if isinstance(point, ResumePoint):
        saved = None if checkpoint.step is None else checkpoint.step - point.step
        if saved is not None and saved <= 0:
            return None
        gain = "save the steps since then" if saved is None else f"save {counted(saved, 'step')}"
    if is_proven:
        effect = f"would {gain}: other ranks have proven copies of all missing or damaged files"
        message, next_command = f"{command} {effect}", f"{command} --apply"
        remedy = f"other ranks have proven copies of all missing or damaged files; to {gain}: {next_command}"
    else:
        message = f"other ranks may have copies of the missing or damaged files, and healing would {gain}"
        next_command = f"check with {command}"
        remedy = f"{message}; to check: {command}"
    finding = note(Code.CAN_BE_HEALED, message, path=checkpoint.name, remedy=next_command)
    return HealAdvice(finding, remedy)


def with_healing(rejected: Iterable[Rejection], advice: HealAdvice) -> tuple[Rejection, ...]:
    """Add healing as the remedy of a checkpoint's problems, if it would fix them.

    Args:
        rejected: The rejected checkpoints.
        advice: The benefit of healing one of them, from `heal_advice`.
    """
    return tuple(
        replace(rejection, reasons=tuple(_healed_by(advice.remedy, reason) for reason in rejection.reasons))
        if rejection.checkpoint.name == advice.finding.path
        else rejection
        for rejection in rejected
    )


def _healed_by(remedy: str, reason: Finding) -> Finding:
    return reason if reason.severity is Severity.NOTE else replace(reason, remedy=remedy)
