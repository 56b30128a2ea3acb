"""Rebuild a missing or damaged shard from another rank's that is proven to be a copy of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from ckpttool.api.changes import changeable_tree
from ckpttool.api.scanning import Tree, Where, asked, looking_at
from ckpttool.api.verifying import chosen, cores, counted, session_for
from ckpttool.decide.healing import find_donors, sick_shards, stays_lost, witnesses_for
from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, blocking, unknown
from ckpttool.domain.frozen import replace
from ckpttool.domain.healing import Healing, HealOrder, HeldShard, Place, ShardHealing, Sick, Witness
from ckpttool.domain.question import CheckQuestion
from ckpttool.domain.shard import Shard, ShardRole
from ckpttool.domain.units import Rank
from ckpttool.domain.verdict import CheckTask, Level, ShardReport, Verdict
from ckpttool.errors import NothingToResumeError
from ckpttool.storage.base import ByteSource
from ckpttool.trainers.base import Refusal
from ckpttool.verify.check import check
from ckpttool.verify.engines.threads import ThreadEngine
from ckpttool.verify.observation import Observation
from ckpttool.verify.plan import plan_checks

MOST_WITNESSES = 4
"""Checkpoints that are read until enough of them tell: a run that does not prove it by then has no copies."""


def heal(question: Where = None, order: HealOrder = HealOrder()) -> Healing:
    """Find for each missing or damaged shard of a checkpoint another rank's that is proven to hold the same.

    Every byte of the checkpoint is read, and those of the ranks in question at other checkpoints of the run where no
    record tells who holds what.

    Args:
        question: Which tree.
        order: Which checkpoint, and from which rank.

    Raises:
        UsageError: The checkpoint is not there.
        NothingToResumeError: The tree has none.
        UnknownLayoutError: It is of a layout whose saves are never moved.
    """
    question = asked(question)
    tree = changeable_tree(question)
    meant = chosen(tree, order.checkpoint)
    if not meant:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    return _proposal(tree, tree.closer(meant[0]), order)


def _proposal(tree: Tree, checkpoint: Checkpoint, order: HealOrder) -> Healing:
    session = session_for(tree, CheckQuestion(level=Level.NUMERICS))
    try:
        verdict = session.verdict(checkpoint)
    finally:
        session.close()
    role = checkpoint.shards[0].role if checkpoint.shards else ShardRole.FULL
    refusal = tree.layout.twin(checkpoint, Rank(0), role)
    if isinstance(refusal, Refusal):
        sick: tuple[Sick, ...] = ()
        why = unknown(Code.NO_DONOR, f"{tree.inventory.root} {refusal.why}", path=checkpoint.name)
        refusals = (why,) if blocking(verdict.findings) else ()
    else:
        sick, refusals = sick_shards(checkpoint, verdict, partial(_path_of, tree, checkpoint)), ()
    return Healing(
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        checkpoint=checkpoint,
        shards=_donors(tree, checkpoint, verdict, sick, order) if sick else (),
        lost=stays_lost(verdict, sick),
        refusals=refusals,
        apply=order.apply,
        resolved_from=tree.resolved_from,
    )


def _path_of(tree: Tree, checkpoint: Checkpoint, place: Place) -> str | None:
    path = tree.layout.twin(checkpoint, *place)
    return None if isinstance(path, Refusal) else path


def _donors(
    tree: Tree, checkpoint: Checkpoint, verdict: Verdict, sick: Sequence[Sick], order: HealOrder
) -> tuple[ShardHealing, ...]:
    """Read what the shards hold, and of other checkpoints no more than it takes."""
    with looking_at(tree.inventory.root):
        recorded = tree.layout.slices(tree.storage, checkpoint)
    roles = {each.role for each in sick}
    reports = {report.path: report for report in verdict.reports}
    wrong = {finding.path for finding in blocking(verdict.findings)}
    shards = [shard for shard in checkpoint.shards if shard.role in roles and shard.path not in wrong]
    now = _held(tree, checkpoint, shards, reports)
    for report in verdict.reports:  # those with a finding are told, and not read once more
        if report.rank is not None and report.path in wrong:
            found = tuple(finding for finding in blocking(verdict.findings) if finding.path == report.path)
            now[report.rank, report.role] = HeldShard(report=replace(report, findings=found), held=None)
    witnesses: list[Witness] = []
    answer = find_donors(sick, now, witnesses, recorded, order)
    for other in witnesses_for(checkpoint, tree.inventory.checkpoints):
        if all(each.donor is not None for each in answer) or len(witnesses) == MOST_WITNESSES:
            break
        if not list(blocking(other.findings)):
            places = {*now, *(each.place for each in sick)}
            own = [shard for shard in other.shards if shard.rank is not None and (shard.rank, shard.role) in places]
            witnesses.append(Witness(name=other.name, shards=_held(tree, other, own)))
            answer = find_donors(sick, now, witnesses, recorded, order)
    return answer


def _held(
    tree: Tree, checkpoint: Checkpoint, shards: Collection[Shard], reports: Mapping[str, ShardReport] | None = None
) -> dict[Place, HeldShard]:
    """Read what shards hold, by rank and role."""
    tasks = plan_checks(tree.inventory.root, replace(checkpoint, shards=tuple(shards)), Level.STRUCTURE)
    engine = partial(ThreadEngine, jobs=cores(), timeout=CheckQuestion().timeout)
    found: dict[Place, HeldShard] = {}
    held: dict[str, dict[str, bytes]] = {}
    work = partial(check, look=partial(_look, held))
    for observed in counted(tasks, work, lambda work: engine(work=work)):
        report = (reports or {}).get(observed.task.path, observed.report)
        if report.rank is not None:
            found[report.rank, report.role] = HeldShard(report=report, held=held.get(report.path))
    return found


def _look(held: dict[str, dict[str, bytes]], task: CheckTask, source: ByteSource, **_: object) -> Observation:
    from xxhash import xxh3_64_digest

    from ckpttool.verify.checks.structure import observe_header

    observed = observe_header(task, source)
    if observed.header is not None and observed.report.schema_hash is not None:
        held[task.path] = {
            entry.name: xxh3_64_digest(b"".join(source.read(begin, end - begin) for begin, end in entry.spans))
            for entry in observed.header.entries
        }
    return Observation(task=task, report=observed.report)
