"""Rebuild a missing or damaged shard from another rank's shard that is a proven copy of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from ckpttool.core.decide.changes import repairs
from ckpttool.core.decide.resume import choose
from ckpttool.core.decide.steps import not_acted_on
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, blocking, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import Manifest, ShardSeal
from ckpttool.core.domain.pointer import PointerFix
from ckpttool.core.domain.question import CheckQuestion, ResumeQuestion, TreeQuestion
from ckpttool.core.domain.replicas import Proof, Trust
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict
from ckpttool.core.errors import NothingToResumeError
from ckpttool.core.records.journal import TIME_FORMAT, TRASH
from ckpttool.core.records.manifest import read_manifest
from ckpttool.core.verbs.changes import (
    assert_unchanged,
    change_of,
    changeable_tree,
    in_trash,
    moving,
    obstacles,
    pending,
    seen_in_part,
    signs_of_writing,
)
from ckpttool.core.verbs.scanning import Tree, Where, looking_at, tree_question
from ckpttool.core.verbs.verifying import chosen, content_engine, session_for
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.session import reports_of
from ckpttool.replicas.findings import ReplicasCode
from ckpttool.replicas.model import Healing, HealOrder, Place, SavedShards, Sealed, ShardHealing, Target
from ckpttool.replicas.rebuilt import rebuilt_from
from ckpttool.replicas.rules import (
    contradicted,
    find_donors,
    find_targets,
    is_held_back_by,
    samples_for,
    stays_lost,
    with_shards,
)
from ckpttool.replicas.write import Rebuilding, differing_tensor, own_metadata
from ckpttool.trainers.base import Refusal

MOST_WITNESSES = 4
"""Maximum number of other checkpoints to read for a proof; a shard without a proof by then is not a copy."""


def heal(question: Where = None, order: HealOrder = HealOrder()) -> Healing:
    """Find proven copies of missing or damaged shards on other ranks, and with `apply` rebuild the shards.

    Every byte of the checkpoint is read. If no record shows the slices of each rank, the affected ranks' files at other
    checkpoints of the run are also read. Damaged files are moved to the tree's trash. If a heal is interrupted after
    its files were prepared, the next change of the tree completes it.

    Args:
        question: The tree.
        order: The checkpoint, the rank to copy from, and whether to apply the heal.

    Raises:
        UsageError: The checkpoint does not exist.
        NothingToResumeError: The tree has no checkpoint.
        UnknownLayoutError: ckpttool never changes saves of this layout.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed in the meantime, or a rebuilt file differs from its donor.
        WriteFailedError: The disk reported an error. Nothing was changed, or the next command that changes the tree
            finishes the repair.
        NotDurableError: The files were repaired, but the disk did not confirm that they are stored.
    """
    question = tree_question(question)
    tree = changeable_tree(question)
    if not order.apply:
        return _proposal(tree, question, order)[0]
    with change_of(tree.inventory.root):
        tree = changeable_tree(question)
        healing, reports = _proposal(tree, question, order)
        if not healing.applied:
            return healing
        with moving(tree.inventory.root):
            assert_unchanged(tree, question, grace=order.grace)
            Rebuilding(tree, healing, reports).run()
    return healing


def _proposal(tree: Tree, question: TreeQuestion, order: HealOrder) -> tuple[Healing, Mapping[str, ShardReport]]:
    """Return the planned repair, and the reports on the checkpoint's shards, by path."""
    selected = chosen(tree, order.checkpoint)
    if not selected:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    healing, reports = what_can_be_rebuilt(tree, tree.with_own_records(selected[0]), order)
    if healing.healable:
        healing = replace(healing, fixes=_fixes(tree, healing), trash=_trash(tree, healing))
        healing = replace(healing, refusals=tuple(_against(tree, question, healing, order)))
    return healing, reports


def what_can_be_rebuilt(
    tree: Tree, checkpoint: Checkpoint, order: HealOrder
) -> tuple[Healing, Mapping[str, ShardReport]]:
    """Find a donor for each missing or damaged shard, and return the reports on all shards, by path.

    Args:
        tree: The tree, scanned with sizes.
        checkpoint: A checkpoint of this tree, with all facts in its own records.
        order: The donor rank, and the part of a file.
    """
    session = session_for(tree, CheckQuestion(level=Level.NUMERICS))
    try:
        verdict = session.verdict(checkpoint)
    finally:
        session.close()
    refusal = tree.layout.peer_path(
        checkpoint, Rank(0), checkpoint.shards[0].role if checkpoint.shards else ShardRole.FULL
    )
    target: tuple[Target, ...] = ()
    against: list[Finding] = []
    if not isinstance(refusal, Refusal):
        target = _with_seals(tree, checkpoint, find_targets(checkpoint, verdict, partial(_path_of, tree, checkpoint)))
    elif blocking(verdict.findings):
        against = [unknown(ReplicasCode.NO_DONOR, f"{tree.inventory.root} {refusal.why}", path=checkpoint.name)]
    healing = Healing(
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        checkpoint=checkpoint,
        shards=_donors(tree, checkpoint, verdict, target, order) if target else (),
        lost=stays_lost(verdict, target, order.tensor),
        refusals=tuple(against),
        order=order,
        resolved_from=tree.resolved_from,
    )
    return healing, {report.path: report for report in verdict.reports}


def _against(tree: Tree, question: TreeQuestion, healing: Healing, order: HealOrder) -> Iterator[Finding]:
    """Return the findings that rule out any write."""
    if not order.apply:
        yield from pending(tree)
    yield from not_acted_on(healing.checkpoint)
    yield from seen_in_part(tree, question, healing.checkpoint)
    yield from signs_of_writing(tree, grace=order.grace)
    places = [shard.target.path for shard in healing.healable]
    yield from obstacles(tree, [*places, *(fix.path for fix in healing.fixes)])


def _path_of(tree: Tree, checkpoint: Checkpoint, place: Place) -> str | None:
    path = tree.layout.peer_path(checkpoint, *place)
    return None if isinstance(path, Refusal) else path


def _donors(
    tree: Tree, checkpoint: Checkpoint, verdict: Verdict, target: Sequence[Target], order: HealOrder
) -> tuple[ShardHealing, ...]:
    """Read as few other checkpoints as needed to find donors."""
    with looking_at(tree.inventory.root):
        recorded = tree.layout.slices(tree.storage, checkpoint)
    findings: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in verdict.findings:
        findings[finding.path].append(finding)
    seals = _seals(tree, checkpoint)
    stamps = {report.path: report.stamp for report in verdict.reports}
    # A file rebuilt from another file counts as that file under another name.
    stamps |= {path: stamps[origin] for path, origin in rebuilt_from(verdict.reports, seals).items()}
    current = _by_place(
        replace(report, findings=tuple(findings[report.path]), stamp=stamps[report.path]) for report in verdict.reports
    )
    companions: list[SavedShards] = []
    answer = find_donors(target, current, companions, recorded, order)
    for companion in samples_for(checkpoint, tree.inventory.checkpoints):
        if all(item.donor is not None for item in answer) or len(companions) == MOST_WITNESSES:
            break
        if not blocking(companion.findings):
            roles = {report.role for report in target}
            is_same = companion.run == checkpoint.run
            shards = _read(tree, companion, roles)
            companions.append(SavedShards(name=companion.name, step=companion.step, same_run=is_same, shards=shards))
            answer = find_donors(target, current, companions, recorded, order)
    told_by_header = {report.path: report.schema_hash for report in verdict.reports}
    answer = tuple(_with_trust_of_donor(item, seals) for item in answer)
    answer = tuple(_unless_contradicted(tree, item, told_by_header) for item in answer)
    return tuple(_with_metadata(tree, checkpoint, item) for item in answer)


def _with_trust_of_donor(shard: ShardHealing, seals: Mapping[str, ShardSeal]) -> ShardHealing:
    """Trust a seal that a heal wrote only as far as the evidence for that heal's donor."""
    donor = shard.donor
    if donor is None or donor.trust is not Trust.CHECKSUM:
        return shard
    seal = seals.get(shard.target.path if donor.proof is Proof.SEALED else donor.path)
    if seal is None or seal.healed is None:
        return shard
    return replace(shard, donor=replace(donor, trust=seal.healed.trust))


def _unless_contradicted(tree: Tree, shard: ShardHealing, schemas: Mapping[str, str | None]) -> ShardHealing:
    """Compare the data if only the header is damaged and the donor, with no checksum or copy, may have flipped bits."""
    donor = shard.donor
    if donor is None or shard.target.is_missing or shard.tensor is not None or donor.trust is not Trust.NUMERICS:
        return shard
    if schemas.get(shard.target.path) == schemas[donor.path]:
        return shard
    tensor = differing_tensor(tree.storage, shard.target.path, donor.path)
    return shard if tensor is None else contradicted(shard, tensor)


def _seals(tree: Tree, checkpoint: Checkpoint) -> Mapping[str, ShardSeal]:
    place = tree.seal_place(checkpoint)
    manifest = None if place is None else read_manifest(tree.storage, place)
    return manifest.by_path if isinstance(manifest, Manifest) else {}


def _with_seals(tree: Tree, checkpoint: Checkpoint, target: Sequence[Target]) -> tuple[Target, ...]:
    """Add the manifest's records of the shards that are missing or damaged now."""
    place = tree.seal_place(checkpoint)
    seals = _seals(tree, checkpoint)
    if place is None:
        return tuple(target)
    return tuple(
        report
        if (seal := seals.get(report.path)) is None or seal.tensors is None
        else replace(report, sealed=Sealed(place.path, seal.schema_hash, seal.tensors))
        for report in target
    )


def _read(tree: Tree, checkpoint: Checkpoint, roles: set[ShardRole]) -> dict[Place, ShardReport]:
    """Read every byte of another checkpoint's shards."""
    shards = tuple(shard for shard in checkpoint.shards if shard.role in roles)
    question = CheckQuestion(level=Level.CHECKSUM)
    tasks = plan_checks(tree.inventory.root, replace(checkpoint, shards=shards), question.level)
    seals = _seals(tree, checkpoint)
    rebuilt = {path for path, seal in seals.items() if seal.healed is not None}
    return _by_place(
        report for report in reports_of(tasks, content_engine(question, None)) if report.path not in rebuilt
    )


def _by_place(reports: Iterable[ShardReport]) -> dict[Place, ShardReport]:
    return {(report.rank, report.role): report for report in reports if report.rank is not None}


def _with_metadata(tree: Tree, checkpoint: Checkpoint, shard: ShardHealing) -> ShardHealing:
    if shard.donor is None or shard.tensor is not None:
        return shard
    samples = samples_for(checkpoint, tree.inventory.checkpoints)
    with looking_at(tree.inventory.root):
        return replace(shard, metadata=own_metadata(tree.storage, shard.target, shard.donor, samples))


def _trash(tree: Tree, healing: Healing) -> str | None:
    """Return the folder in the trash for the replaced files, or None if all of them are missing."""
    if all(shard.target.is_missing for shard in healing.healable):
        return None
    taken = {folder.name for folder in in_trash(tree)}
    name = f"{time.strftime(TIME_FORMAT, time.gmtime())}-{healing.checkpoint.name}"
    while name in taken:
        name += "+"
    return f"{TRASH}/{name}"


def _fixes(tree: Tree, healing: Healing) -> tuple[PointerFix, ...]:
    """Find the trainer's records that must name the checkpoint, because it will be the newest intact one."""
    if not healing.is_mended:
        return ()
    sharded = with_shards(healing)
    question = ResumeQuestion(ignore_health=True)
    session = session_for(tree, CheckQuestion())
    point = choose(tree.inventory, question, session.verdict)
    if not is_held_back_by(healing, point):
        return ()
    with looking_at(tree.inventory.root):
        pointers = tuple(tree.layout.pointers(tree.storage, sharded.ranks))
    return tuple(repairs(pointers, sharded, tree.layout.pointing_to))
