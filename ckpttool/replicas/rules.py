"""Which shard another one may be rebuilt from: proven to be a copy of it, and itself beyond doubt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from shlex import quote

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, note, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, Rejection, ResumePoint
from ckpttool.core.domain.replicas import Proof, RecordedSlices, TensorDigests, Trust
from ckpttool.core.domain.shard import Shard, ShardRole
from ckpttool.core.domain.units import Rank, counted, on_ranks
from ckpttool.core.domain.verdict import MIN_COPIES, ShardReport, Verdict
from ckpttool.replicas.comparing.model import credible_record
from ckpttool.replicas.findings import ReplicasCode
from ckpttool.replicas.model import (
    Donor,
    Healing,
    HealOrder,
    Place,
    SavedShards,
    ShardHealing,
    Sick,
)
from ckpttool.replicas.rules_proof import CopyProof, Evidence, are_two_files, is_sound

_MISSING = frozenset({Code.RANK_MISSING, Code.SHARD_MISSING})

_TO_PROVE = (
    "two other whole checkpoints on which all tensors of both ranks are equal, at least one of them of the same run, "
    "or a record of the layout beside the checkpoints, would prove it"
)


def sick_shards(checkpoint: Checkpoint, verdict: Verdict, path_of: Callable[[Place], str | None]) -> tuple[Sick, ...]:
    """Find the shards that are missing or damaged, by rank and path.

    Args:
        checkpoint: With its expected ranks.
        verdict: On all of its shards.
        path_of: Says where a rank's shard would lie; None where nobody knows.
    """
    wrong: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in verdict.findings:
        if finding.severity is Severity.DAMAGE:
            wrong[finding.path].append(finding)
    sick = [
        Sick(rank=shard.rank, role=shard.role, path=shard.path, is_missing=False, findings=tuple(wrong[shard.path]))
        for shard in checkpoint.shards
        if shard.rank is not None and wrong[shard.path]
    ]
    missing = [finding for finding in verdict.findings if finding.code in _MISSING]
    present = {(shard.rank, shard.role) for shard in checkpoint.shards}
    roles = sorted({shard.role for shard in checkpoint.shards if shard.rank is not None})
    named = {rank for finding in missing for rank in finding.ranks}
    for rank in sorted({*named, *map(Rank, range(checkpoint.topology.world_size or 0))}) if missing else ():
        for role in roles:
            path = None if (rank, role) in present else path_of((rank, role))
            if path is not None:
                findings = tuple(finding for finding in missing if finding.path == path)
                findings = findings or tuple(finding for finding in missing if rank in finding.ranks)
                sick.append(Sick(rank=rank, role=role, path=path, is_missing=True, findings=findings or tuple(missing)))
    return tuple(sorted(sick, key=lambda shard: (shard.rank, shard.path)))


def stays_lost(verdict: Verdict, sick: Sequence[Sick]) -> tuple[Finding, ...]:
    """Return what is wrong with a checkpoint beside its sick shards."""
    findings = {finding for shard in sick for finding in shard.findings}
    return tuple(finding for finding in blocking(verdict.findings) if finding not in findings)


def find_donors(
    sick: Sequence[Sick],
    reports: Mapping[Place, ShardReport],
    saved_shards: Sequence[SavedShards],
    recorded: RecordedSlices | None,
    order: HealOrder,
) -> tuple[ShardHealing, ...]:
    """Say for each shard which other one it may be rebuilt from, or why there is none.

    Args:
        sick: The shards.
        reports: All that could be read of the checkpoint, every element, with what was found about each.
        saved_shards: Other checkpoints, those of the same run first, nearest first.
        recorded: What the training's own record says of the ranks' slices; None: there is none.
        order: What was asked for.
    """
    doubtful = {shard.place for shard in sick}
    sound = {place: report for place, report in reports.items() if place not in doubtful}
    sealed = {shard.place: shard.sealed for shard in sick if shard.sealed is not None}
    digests_by_role = {role: _digests(sound, role) for role in {shard.role for shard in sick}}
    recorded = recorded if all(credible_record(recorded, digests) for digests in digests_by_role.values()) else None
    evidence = Evidence(saved_shards, recorded, order.tensor, reports, doubtful, {}, sealed, {})
    return tuple(_healing(shard, sound, evidence, order) for shard in sick)


def _digests(reports: Mapping[Place, ShardReport], role: ShardRole) -> dict[Rank, TensorDigests]:
    return {
        place[0]: report.tensor_digests
        for place, report in reports.items()
        if place[1] is role and report.tensor_digests is not None
    }


def _healing(sick: Sick, reports: Mapping[Place, ShardReport], evidence: Evidence, order: HealOrder) -> ShardHealing:
    candidates = {
        place: report for place, report in sorted(reports.items()) if place[1] is sick.role and place[0] != sick.rank
    }
    if order.donor is not None and order.donor not in {rank for rank, _ in candidates}:
        has = (
            f"leave --from out, or take one that has: {on_ranks([rank for rank, _ in candidates])}"
            if candidates
            else _TO_PROVE
        )
        return _refused(sick, f"rank {order.donor} has no such shard", has)
    proofs: dict[Place, CopyProof] = {}
    against: list[str] = []
    for place, report in candidates.items():
        if not is_sound(report):
            why = max(report.findings, key=lambda finding: finding.severity).message
            against.append(f"rank {place[0]} is doubted itself: {why}")
        elif evidence.digests_of(report) is None:
            reason = "its tensors could not all be read" if order.tensor is None else f"it has no tensor {order.tensor}"
            against.append(f"rank {place[0]} tells nothing: {reason}")
        elif isinstance(proof := evidence.of(sick.place, place, report), str):
            against.append(proof)
        else:
            proofs[place] = proof
    if order.donor is not None and proofs and not any(rank == order.donor for rank, _ in proofs):
        reasons = [why for why in against if why.startswith(f"rank {order.donor} ")]
        ranks = on_ranks(sorted(rank for rank, _ in proofs))
        remedy = f"leave --from out, or name one that is proven: {ranks}"
        return _refused(sick, "; ".join(reasons), remedy)
    if not proofs:
        return _refused(sick, _in_short(against), _TO_PROVE)
    copies = {place: candidates[place] for place in proofs}
    believed = _believed(sick, copies, evidence)
    if isinstance(believed, str):
        return _refused(sick, believed, "a checksum of one of them from before, or more copies, would tell")
    donors = [place for place in believed if order.donor in {None, place[0]}]
    if not donors:
        return _refused(sick, f"rank {order.donor} differs from the other copies", "take another donor, or none")
    chosen = min(donors, key=lambda place: (not candidates[place].checksum_matched, place))
    agrees = next((place[0] for place in believed if are_two_files(candidates[place], candidates[chosen])), None)
    donor = _donor(chosen[0], candidates[chosen], proofs[chosen], agrees)
    return ShardHealing(sick=sick, donor=donor, tensor=order.tensor)


def _donor(rank: Rank, report: ShardReport, proof: CopyProof, agrees: Rank | None) -> Donor:
    """Say what speaks for a donor; at the least that its numbers were looked at, and none was odd."""
    trust = Trust.NUMERICS if agrees is None else Trust.COPY
    if report.checksum_matched or proof.proof is Proof.SEALED:
        trust, agrees = Trust.CHECKSUM, None
    return Donor(
        rank=rank,
        path=report.path,
        proof=proof.proof,
        record=proof.record,
        witnesses=proof.witnesses,
        rest_agrees=proof.rest_agrees,
        trust=trust,
        agrees=agrees,
    )


def _believed(sick: Sick, copies: Mapping[Place, ShardReport], evidence: Evidence) -> tuple[Place, ...] | str:
    """Return those of several copies that are to be believed, or say why none is.

    Where copies differ, those that are blamed for it counted, a checksum decides. Without one, so many must agree as
    are proof elsewhere, and they must be most of all that there ever were: two that were damaged alike, as by copying
    one over the other, would outvote the last that is whole. Two are enough if there never were more than three.
    """
    blamed, lost = evidence.blamed(sick.place, copies)
    by_content: dict[tuple[str | None, tuple[tuple[str, bytes], ...]], list[Place]] = defaultdict(list)
    heard = {**copies, **blamed}
    for place, report in heard.items():
        by_content[report.schema_hash, tuple(sorted((evidence.digests_of(report) or {}).items()))].append(place)
    groups = sorted(by_content.values(), key=len, reverse=True)
    verified = [group for group in groups if any(evidence.is_as_sealed(sick.place, heard[place]) for place in group)]
    verified = verified or [group for group in groups if any(heard[place].checksum_matched for place in group)]
    if len(groups) == 1 or len(verified) == 1:
        return tuple(place for place in (verified or groups)[0] if place in copies)
    ranks = sorted(place[0] for place in heard)
    files = [_files(heard[place] for place in group) for group in groups]
    believed = tuple(place for place in groups[0] if place in copies)
    every = sum(files) + lost
    enough = MIN_COPIES - 1 if every == MIN_COPIES else MIN_COPIES
    if verified or files[0] < enough or 2 * files[0] <= every or not believed:
        return f"{on_ranks(ranks)} hold the same slices and differ: which of them is right, nothing tells"
    if any(evidence.is_older_than(believed[0], heard[group[0]]) for group in groups[1:]):
        return f"{on_ranks([place[0] for place in believed])} agree, but hold an older step's tensors"
    return believed


def _files(reports: Iterable[ShardReport]) -> int:
    """Count files, each once whatever its names."""
    stamps = [report.stamp for report in reports]
    return len({stamp for stamp in stamps if stamp is not None}) + stamps.count(None)


def _in_short(against: Sequence[str]) -> str:
    most = 3
    if not against:
        return "no other rank has a shard of this kind"
    more = f"; and {counted(len(against) - most, 'other rank')}" if len(against) > most else ""
    return "; ".join(against[:most]) + more


def contradicted(shard: ShardHealing, tensor: str) -> ShardHealing:
    """Refuse a donor that nobody vouches for, whose data are not those of a file of which the header alone is broken.

    Args:
        shard: With the donor.
        tensor: One in which they differ.
    """
    rank = None if shard.donor is None else shard.donor.rank
    why = f"the data of this file and of rank {rank}'s differ in {tensor}: which of them is right, nothing tells"
    return _refused(shard.sick, why, "a checksum of one of them from before, or a third copy, would tell")


def _refused(sick: Sick, why: str, remedy: str) -> ShardHealing:
    refusal = unknown(
        ReplicasCode.NO_DONOR, f"no donor is proven: {why}", path=sick.path, remedy=remedy, ranks=(sick.rank,)
    )
    return ShardHealing(sick=sick, donor=None, refusal=refusal)


def metadata_of(
    donor: Sequence[tuple[str, str]], own_then: Sequence[tuple[str, str]], donor_then: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Return a header's text pairs: what the donor says now, but what each rank says of itself.

    Args:
        donor: What the donor says now.
        own_then: What the rank itself said at another checkpoint, whose order is kept.
        donor_then: What the donor said there.
    """
    donor_now, donor_past = dict(donor), dict(donor_then)
    mine = dict(own_then)
    pairs = {
        name: donor_now[name] if name in donor_now and donor_past.get(name) == value else value
        for name, value in own_then
    }
    return tuple(
        {**pairs, **{name: value for name, value in donor if name not in mine and name not in donor_past}}.items()
    )


def with_shards(healing: Healing) -> Checkpoint:
    """Return a checkpoint as it is when all that can be rebuilt is."""
    checkpoint = healing.checkpoint
    added = tuple(
        Shard(path=shard.sick.path, rank=shard.sick.rank, role=shard.sick.role, format=checkpoint.format)
        for shard in healing.healable
        if shard.sick.is_missing
    )
    return replace(checkpoint, shards=(*checkpoint.shards, *added))


def is_held_back_by(healing: Healing, point: ResumePoint | NoResumePoint) -> bool:
    """Tell whether a checkpoint that can be mended is the newest whole one then.

    Args:
        healing: All that is wrong with it can be mended.
        point: What would be chosen as things are.
    """
    key = healing.checkpoint.key
    if isinstance(point, ResumePoint) and point.checkpoint.key == key:
        return True
    paths = {shard.sick.path for shard in healing.shards}
    codes = {finding.code for shard in healing.shards for finding in shard.sick.findings}
    reasons = next((rejection.reasons for rejection in point.rejected if rejection.checkpoint.key == key), None)
    return reasons is not None and all(reason.path in paths or reason.code in codes for reason in reasons)


def is_about_shards(checkpoint: Checkpoint, reasons: Sequence[Finding]) -> bool:
    """Tell whether all that is against a checkpoint is that ranks' shards are missing or damaged."""
    paths = {shard.path for shard in checkpoint.shards if shard.rank is not None}
    return bool(paths and reasons) and all(
        reason.severity is Severity.DAMAGE
        and (reason.path in paths or (reason.code in _MISSING and bool(reason.ranks)))
        for reason in reasons
    )


def heal_advice(
    point: ResumePoint | NoResumePoint, checkpoint: Checkpoint, *, root: str, is_proven: bool
) -> Finding | None:
    """Say what healing a checkpoint would save; None where it saves nothing.

    Args:
        point: What was chosen without it.
        checkpoint: One that was passed over.
        root: Of the tree.
        is_proven: Whether all of it was looked at and has proven copies; else some rank's files were like the others'.
    """
    command = f"ckpttool heal {quote(root)} --checkpoint {quote(checkpoint.name)}"
    gain = f"make {checkpoint.name} whole"
    if isinstance(point, ResumePoint):
        saved = None if checkpoint.step is None else checkpoint.step - point.step
        if saved is not None and saved <= 0:
            return None
        gain = "save what was done since" if saved is None else f"save {counted(saved, 'step')}"
    if is_proven:
        message = f"{command} would {gain}: other ranks hold proven copies of all that is missing or damaged"
    else:
        message = f"what is missing or damaged may lie on other ranks as well, and to heal it would {gain}"
    remedy = f"{command} --apply" if is_proven else f"run {command} to see"
    return note(Code.CAN_BE_HEALED, message, path=checkpoint.name, remedy=remedy)


def with_healing(rejected: Iterable[Rejection], advice: Finding) -> tuple[Rejection, ...]:
    """Name healing as the remedy of what is against a checkpoint, if that is what would mend it.

    Args:
        rejected: What was not chosen.
        advice: What healing one of them would save, by `heal_advice`.
    """
    return tuple(
        replace(rejection, reasons=tuple(_healed_by(advice, reason) for reason in rejection.reasons))
        if rejection.checkpoint.name == advice.path
        else rejection
        for rejection in rejected
    )


def _healed_by(advice: Finding, reason: Finding) -> Finding:
    if reason.severity is Severity.NOTE:
        return reason
    command, would = str(advice.remedy), advice.message
    is_proven = would.startswith(command.removesuffix(" --apply"))
    remedy = would.replace(command.removesuffix(" --apply"), command, 1) if is_proven else f"{command}: {would}"
    return replace(reason, remedy=remedy)


def witnesses_for(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield the other checkpoints of the same run, then those of other starts of it: each nearest first."""
    kin = [save for save in checkpoints if _kind(save) == _kind(checkpoint)]
    at = next((index for index, save in enumerate(kin) if save.key == checkpoint.key), len(kin))
    nearest = sorted(range(len(kin)), key=lambda index: (kin[index].run != checkpoint.run, abs(index - at), index > at))
    return (kin[index] for index in nearest if index != at)


def _kind(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.prefix, checkpoint.format, checkpoint.topology.world_size
