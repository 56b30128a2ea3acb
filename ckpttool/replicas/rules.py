"""Selection of the shard to rebuild from: a proven copy, without any finding against it.

A copy is proven by the manifest, by the trainer's record of the parallel layout, or by other checkpoints of the run at
which both ranks were equal in every tensor and changed together. The table in `comparing/weight` shows which rank is
the donor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpttool.core.decide.peer_remedies import MISSING_FROM_RANKS
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, unknown, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint, ResumePoint
from ckpttool.core.domain.replicas import Proof, RecordedSlices, Trust
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
    Target,
)

_TO_PROVE = (
    "a copy is proven by two other intact checkpoints in which all tensors of both ranks are equal, at least one of "
    "them of the same run, or by a record of the layout beside the checkpoints"
)

_MIN_SAMPLES = 2
"""Number of other checkpoints at which two ranks must hold equal data; at a single one, that may be a coincidence."""

_BEGINNING = 0
"""The step at which different slices may be equal because nothing has been trained yet."""

_BY_COPIES = frozenset({Code.REPLICA_DIFFERS, Code.REPLICA_STALE, Code.REPLICA_DRIFTED})
"""Findings about a shard that report only that its copies differ."""

_OF_NUMBERS = frozenset({Code.NONFINITE_VALUES, Code.NORM_JUMP, Code.ALL_ZERO_TENSOR})
"""Findings that count against one of two differing copies, even if they are minor on their own."""

_MOST_REASONS = 3
"""Maximum number of reasons in a refusal."""


def find_targets(
    checkpoint: Checkpoint, verdict: Verdict, path_of: Callable[[Place], str | None]
) -> tuple[Target, ...]:
    """Return the shards that are missing or damaged, by rank and path.

    Args:
        checkpoint: The checkpoint, with its expected ranks.
        verdict: The verdict on all of its shards.
        path_of: Returns the path of a rank's shard; None if it is unknown.
    """
    damage: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in verdict.findings:
        if finding.severity is Severity.DAMAGE:
            damage[finding.path].append(finding)
    targets = [
        Target(rank=shard.rank, role=shard.role, path=shard.path, is_missing=False, findings=tuple(damage[shard.path]))
        for shard in checkpoint.shards
        if shard.rank is not None and damage[shard.path]
    ]
    missing = [finding for finding in verdict.findings if finding.code in MISSING_FROM_RANKS]
    present = {(shard.rank, shard.role) for shard in checkpoint.shards}
    roles = sorted({shard.role for shard in checkpoint.shards if shard.rank is not None})
    named = {rank for finding in missing for rank in finding.ranks}
    for rank in sorted({*named, *map(Rank, range(checkpoint.topology.world_size or 0))}) if missing else ():
        for role in roles:
            path = None if (rank, role) in present else path_of((rank, role))
            if path is not None:
                findings = tuple(finding for finding in missing if finding.path == path)
                findings = findings or tuple(finding for finding in missing if rank in finding.ranks)
                targets.append(
                    Target(rank=rank, role=role, path=path, is_missing=True, findings=findings or tuple(missing))
                )
    return tuple(sorted(targets, key=lambda shard: (shard.rank, shard.path)))


def stays_lost(verdict: Verdict, targets: Sequence[Target], tensor: str | None = None) -> tuple[Finding, ...]:
    """Return a checkpoint's problems that rebuilding these shards would not fix.

    A rebuild removes a NaN in a damaged shard; if only one tensor is replaced, a NaN in another tensor remains.
    """
    rebuilt = {shard.path for shard in targets}
    findings = {finding for shard in targets for finding in shard.findings}
    return tuple(
        finding
        for finding in blocking(verdict.findings)
        if finding not in findings and not (finding.path in rebuilt and tensor in {None, finding.tensor})
    )


def find_donors(
    targets: Sequence[Target],
    reports: Mapping[Place, ShardReport],
    saves: Sequence[SavedShards],
    recorded: RecordedSlices | None,
    order: HealOrder,
) -> tuple[ShardHealing, ...]:
    """Find the donor of each missing or damaged shard, or the reason why it has no donor.

    Args:
        targets: The shards.
        reports: Reports of all readable shards of the checkpoint, with every element read, each with its findings.
        saves: Other checkpoints: those of the same run first, and nearest first.
        recorded: The slices of each rank according to the training's own record; None if there is no such record.
        order: The user's choice of donor and tensor.
    """
    evidence = Evidence(reports, targets, saves, recorded, order.tensor)
    return tuple(_healing(target, evidence, order) for target in targets)


def _healing(target: Target, evidence: Evidence, order: HealOrder) -> ShardHealing:
    candidates = {
        place: report
        for place, report in sorted(evidence.undamaged.items())
        if place[1] is target.role and place[0] != target.rank
    }
    ranks = [rank for rank, _ in candidates]
    if order.donor is not None and order.donor not in ranks:
        remedy = f"omit --from, or use a rank that has one: {on_ranks(ranks)}" if ranks else _TO_PROVE
        return _refused(target, f"rank {order.donor} has no such shard", remedy)
    proofs: dict[Place, CopyProof] = {}
    reasons: dict[Rank, str] = {}
    for place, report in candidates.items():
        proof = _proof_of_candidate(target, place, report, evidence)
        if isinstance(proof, str):
            reasons[place[0]] = proof
        else:
            proofs[place] = proof
    if not proofs:
        return _refused(target, _in_short(reasons), _TO_PROVE)
    if order.donor in reasons:
        remedy = f"omit --from, or use a proven rank: {on_ranks([rank for rank, _ in proofs])}"
        return _refused(target, reasons[order.donor], remedy)
    return _healing_by_copies(target, proofs, evidence, order)


def _healing_by_copies(
    target: Target, proofs: Mapping[Place, CopyProof], evidence: Evidence, order: HealOrder
) -> ShardHealing:
    copies = {place: evidence.undamaged[place] for place in proofs}
    intact = _intact_copies(target, copies, evidence)
    if isinstance(intact, str):
        return _refused(target, intact, "an earlier checksum of one of them, or more copies, would show which is right")
    donors = [place for place in intact if order.donor in {None, place[0]}]
    if not donors:
        return _refused(
            target, f"rank {order.donor} differs from the other copies", "use another donor, or omit --from"
        )
    chosen = min(donors, key=lambda place: (not copies[place].checksum_matched, place))
    agrees = next((place[0] for place in intact if are_two_files(copies[place], copies[chosen])), None)
    donor = _donor(chosen[0], copies[chosen], proofs[chosen], agrees)
    return ShardHealing(target=target, donor=donor, tensor=order.tensor)


def _proof_of_candidate(target: Target, place: Place, report: ShardReport, evidence: Evidence) -> CopyProof | str:
    """Return the proof that another rank's shard is a copy of the target, or why there is no proof."""
    if not is_sound(report):
        return f"rank {place[0]} is also suspect: {max(report.findings, key=lambda each: each.severity).message}"
    if evidence.digests_of(report) is not None:
        return evidence.proof(target.place, place, report)
    if evidence.tensor is not None:
        return f"rank {place[0]} cannot be compared: it has no tensor {evidence.tensor}"
    return f"rank {place[0]} cannot be compared: not all of its tensors could be read"


def _donor(rank: Rank, report: ShardReport, proof: CopyProof, agrees: Rank | None) -> Donor:
    """Return the donor with the best evidence; the minimum is that all of its numbers were checked."""
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


def _intact_copies(target: Target, copies: Mapping[Place, ShardReport], evidence: Evidence) -> tuple[Place, ...] | str:
    """Return the intact copies among several proven copies, or why they are unknown.

    If copies differ, a checksum decides. Without one, three must agree, and they must be the majority of all copies
    that ever existed: two copies with the same damage, for example because one was copied over the other, would outvote
    the last intact one. Two are enough if there were never more than three. Copies that count as damaged only because
    of this vote are included.
    """
    suspected, silent = evidence.suspected_copies(target.place, copies)
    every = {**copies, **suspected}
    by_content: dict[tuple[str | None, tuple[tuple[str, bytes], ...]], list[Place]] = defaultdict(list)
    for place, report in every.items():
        digests = evidence.digests_of(report) or {}
        by_content[report.schema_hash, tuple(sorted(digests.items()))].append(place)
    groups = sorted(by_content.values(), key=len, reverse=True)
    verified = [group for group in groups if any(evidence.matches_seal(target.place, every[place]) for place in group)]
    if not verified:
        verified = [group for group in groups if any(every[place].checksum_matched for place in group)]
    if len(verified) == 1:
        intact = tuple(place for place in verified[0] if place in copies)
        ranks = sorted(rank for rank, _ in every)
        return intact or f"{on_ranks(ranks)} differ, and a checksum matches only for a file that is also suspect"
    largest, *others = groups
    intact = tuple(place for place in largest if place in copies)
    if not others:
        return intact
    files = [_files(every[place] for place in group) for group in groups]
    ever = sum(files) + silent
    enough = MIN_COPIES - 1 if ever == MIN_COPIES else MIN_COPIES
    if verified or files[0] < enough or 2 * files[0] <= ever or not intact:
        ranks = sorted(rank for rank, _ in every)
        return f"{on_ranks(ranks)} have the same slices but differ: there is no evidence which of them is right"
    if any(evidence.is_older_than(intact[0], every[group[0]]) for group in others):
        return f"{on_ranks([rank for rank, _ in intact])} agree, but have the tensors of an older step"
    return intact


def _files(reports: Iterable[ShardReport]) -> int:
    """Count the files; several names of one file count once."""
    stamps = [report.stamp for report in reports]
    return len({stamp for stamp in stamps if stamp is not None}) + stamps.count(None)


def _in_short(reasons: Mapping[Rank, str]) -> str:
    """Join the reasons; ranks with the same reason share it."""
    if not reasons:
        return "no other rank has a shard of this kind"
    ranks: dict[str, list[Rank]] = {}
    for rank, reason in reasons.items():
        ranks.setdefault(reason.removeprefix(f"rank {rank} was "), []).append(rank)
    texts = [
        reasons[sharing[0]] if len(sharing) == 1 else f"{on_ranks(sharing)} were {reason}"
        for reason, sharing in ranks.items()
    ]
    text = "; ".join(texts[:_MOST_REASONS])
    remaining = sum(map(len, [*ranks.values()][_MOST_REASONS:]))
    return f"{text}; and {counted(remaining, 'other rank')}" if remaining else text


def contradicted(shard: ShardHealing, tensor: str) -> ShardHealing:
    """Refuse a donor without further proof whose data differ from a target with only a damaged header.

    Args:
        shard: The target and its donor.
        tensor: A tensor in which the two differ.
    """
    rank = None if shard.donor is None else shard.donor.rank
    why = f"the data of this file and of rank {rank}'s file differ in {tensor}: there is no evidence which is right"
    return _refused(shard.target, why, "an earlier checksum of one of them, or a third copy, would show which is right")


def _refused(target: Target, why: str, remedy: str) -> ShardHealing:
    refusal = unknown(
        ReplicasCode.NO_DONOR, f"no donor is proven: {why}", path=target.path, remedy=remedy, ranks=(target.rank,)
    )
    return ShardHealing(target=target, donor=None, refusal=refusal)


def metadata_of(
    donor: Sequence[tuple[str, str]], own_then: Sequence[tuple[str, str]], donor_then: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Return the text pairs of a rebuilt header: the donor's, except for pairs that differ elsewhere.

    Args:
        donor: The donor's pairs.
        own_then: The target rank's pairs at another checkpoint, in the order that is kept.
        donor_then: The donor's pairs at that checkpoint.
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
    """Return a checkpoint with the missing shards that can be rebuilt."""
    checkpoint = healing.checkpoint
    added = tuple(
        Shard(path=shard.target.path, rank=shard.target.rank, role=shard.target.role, format=checkpoint.format)
        for shard in healing.healable
        if shard.target.is_missing
    )
    return replace(checkpoint, shards=(*checkpoint.shards, *added))


def is_held_back_by(healing: Healing, point: ResumePoint | NoResumePoint) -> bool:
    """Return whether a checkpoint would be the newest intact one once it is healed.

    Args:
        healing: The repair of all problems of the checkpoint.
        point: The current choice.
    """
    key = healing.checkpoint.key
    if isinstance(point, ResumePoint) and point.checkpoint.key == key:
        return True
    paths = {shard.target.path for shard in healing.shards}
    codes = {finding.code for shard in healing.shards for finding in shard.target.findings}
    reasons = next((rejection.reasons for rejection in point.rejected if rejection.checkpoint.key == key), None)
    return reasons is not None and all(reason.path in paths or reason.code in codes for reason in reasons)


def samples_for(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield the other checkpoints of the same run, then those of its other starts, nearest first in each group."""
    alike = [save for save in checkpoints if _kind(save) == _kind(checkpoint)]
    at = next((index for index, save in enumerate(alike) if save.key == checkpoint.key), len(alike))
    order = sorted(
        range(len(alike)), key=lambda index: (alike[index].run != checkpoint.run, abs(index - at), index > at)
    )
    return (alike[index] for index in order if index != at)


def _kind(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.prefix, checkpoint.format, checkpoint.topology.world_size


class CopyProof(NamedTuple):
    """The evidence that a shard is a copy of another."""

    proof: Proof
    record: str | None = None
    witnesses: tuple[str, ...] = ()
    rest_agrees: bool = False


class _Past(NamedTuple):
    """The contents of a shard at another checkpoint."""

    schema: str | None
    digests: Mapping[str, bytes]


class _RecordCheck(NamedTuple):
    """The extent to which the undamaged shards of a checkpoint confirm the trainer's record."""

    is_confirmed: bool
    """Whether some shards are copies according to the record, and all such shards are equal."""
    shared: frozenset[str]
    """Tensors that are equal in all of these shards, and therefore in any other."""


class Evidence:
    """The evidence for copies among shards, in the tensors to rebuild."""

    def __init__(
        self,
        reports: Mapping[Place, ShardReport],
        targets: Sequence[Target],
        saves: Sequence[SavedShards],
        recorded: RecordedSlices | None,
        tensor: str | None,
    ) -> None:
        """Store the evidence of one checkpoint.

        Args:
            reports: All shards of the checkpoint that could be read.
            targets: Missing or damaged shards.
            saves: Other checkpoints.
            recorded: The trainer's record, which is ignored if the shards contradict it.
            tensor: The one tensor to replace; None if all tensors must be equal.
        """
        self._reports = reports
        self._saves = saves
        self.tensor = tensor
        self._damaged = {target.place for target in targets}
        self._sealed = {target.place: target.sealed for target in targets if target.sealed is not None}
        self.undamaged = {place: report for place, report in reports.items() if place not in self._damaged}
        for role in {target.role for target in targets}:
            current = {
                place[0]: report.tensor_digests
                for place, report in self.undamaged.items()
                if place[1] is role and report.tensor_digests is not None
            }
            recorded = credible_record(recorded, current)
        self._recorded = recorded
        # Thousands of donors need the same facts about all shards.
        self._steady: dict[tuple[str, ShardRole, str | None], bool] = {}
        self._record_checks: dict[tuple[ShardRole, str | None], _RecordCheck] = {}

    def digests_of(self, report: ShardReport) -> dict[str, bytes] | None:
        """Return the digests of the tensors to rebuild, or None if any digest is unknown."""
        if self.tensor is None:
            return _all_digests(report)
        by_name = {} if report.tensor_digests is None else report.tensor_digests.by_name
        return {self.tensor: by_name[self.tensor]} if self.tensor in by_name else None

    def proof(self, target: Place, donor: Place, report: ShardReport) -> CopyProof | str:
        """Return the proof that a shard is a copy of the target, or why there is no proof."""
        if self.matches_seal(target, report):
            return CopyProof(Proof.SEALED, record=self._sealed[target].record)
        current = self.digests_of(report) or {}
        recorded = self._proof_by_record(target, donor, report.schema_hash, current)
        return self._proof_by_saves(target, donor, report, current) if recorded is None else recorded

    def matches_seal(self, target: Place, report: ShardReport) -> bool:
        """Return whether a shard matches the manifest's record of the target."""
        sealed, current = self._sealed.get(target), self.digests_of(report)
        if sealed is None or current is None:
            return False
        if self.tensor is not None:
            return sealed.tensors.by_name.get(self.tensor) == current[self.tensor]
        return (sealed.schema_hash, sealed.tensors.by_name) == (report.schema_hash, current)

    def suspected_copies(
        self, target: Place, copies: Mapping[Place, ShardReport]
    ) -> tuple[dict[Place, ShardReport], int]:
        """Return the possible copies that only other copies contradict, and count those that cannot be compared.

        Args:
            target: The shard to rebuild, which may be among them.
            copies: The proven and unsuspected copies.
        """
        like = next(iter(copies.values()))
        suspected: dict[Place, ShardReport] = {}
        silent = 0
        for place in {*self._reports, *self._damaged} - copies.keys():
            if place[1] is not target[1] or not self._may_be_copy(target, place):
                continue
            report = self._reports.get(place)
            if report is None or not _is_only_outvoted(report) or self.digests_of(report) is None:
                silent += 1
            elif report.schema_hash == like.schema_hash and not self.is_older_than(place, like):
                suspected[place] = report
        return suspected, silent

    def _may_be_copy(self, target: Place, other: Place) -> bool:
        """Return whether neither the record nor another checkpoint of the run shows that two shards are not copies."""
        slices = {} if self._recorded is None else self._recorded.slices
        if any(target[0] in ranks and ranks[target[0]] != ranks.get(other[0]) for ranks in slices.values()):
            return False
        for saved in self._saves:
            ours, theirs = self._past(saved, target), self._past(saved, other)
            if saved.same_run and ours is not None and theirs is not None and ours != theirs:
                return False
        return True

    def is_older_than(self, place: Place, later: ShardReport) -> bool:
        """Return whether most tensors of a shard differ from another's, and most of these match its other save."""
        ours, theirs = self.digests_of(self._reports[place]) or {}, self.digests_of(later) or {}
        differing = [name for name in ours if ours[name] != theirs.get(name)]
        if 2 * len(differing) <= len(ours):
            return False
        for saved in self._saves:
            past = self._past(saved, place) if saved.same_run else None
            if past is not None:
                unchanged = sum(past.digests.get(name) == ours[name] for name in differing)
                if 2 * unchanged > len(differing):
                    return True
        return False

    def _proof_by_record(
        self, target: Place, donor: Place, schema: str | None, tensors: Collection[str]
    ) -> CopyProof | str | None:
        """Return the proof by the trainer's record, or the contradiction, or None if the record lacks a tensor.

        A record that was not written with the save proves nothing alone: another checkpoint of the run, or other copies
        in this one, must confirm it. A tensor that it does not cover is the same slice if all undamaged shards agree.
        """
        if self._recorded is None:
            return None
        slices = self._recorded.slices
        for name in sorted(slices.keys() - self._in_other_files(target)) if self.tensor is None else tensors:
            numbers = slices.get(name, {})
            if numbers.get(target[0]) != numbers.get(donor[0]):
                return f"rank {donor[0]} has another slice of {name} according to {self._recorded.source}"
        uncovered = {name for name in tensors if not {target[0], donor[0]} <= slices.get(name, {}).keys()}
        if not self._recorded.is_of_save:
            check = self._record_check(donor[1], schema, slices)
            uncovered -= check.shared
            if not check.is_confirmed and not any(self._were_equal(target, donor, saved) for saved in self._saves):
                return None
        return None if uncovered else CopyProof(Proof.RECORDED, record=self._recorded.source)

    def _in_other_files(self, target: Place) -> set[str]:
        """Return the tensors in the rank's intact files: an optimizer may be sliced although weights are not."""
        reports = (self.undamaged.get((target[0], role)) for role in ShardRole if role is not target[1])
        return {
            name
            for report in reports
            if report is not None and is_sound(report)
            for name in self.digests_of(report) or ()
        }

    def _were_equal(self, target: Place, donor: Place, saved: SavedShards) -> bool:
        ours = self._past(saved, target)
        return saved.same_run and ours is not None and ours == self._past(saved, donor)

    def _record_check(
        self, role: ShardRole, schema: str | None, slices: Mapping[str, Mapping[Rank, int]]
    ) -> _RecordCheck:
        """Compare the undamaged shards of a role and schema with the record."""
        key = role, schema
        if key in self._record_checks:
            return self._record_checks[key]
        firsts: dict[tuple[int | None, ...], tuple[ShardReport, Mapping[str, bytes]]] = {}
        every: list[set[tuple[str, bytes]]] = []
        has_copies = False
        are_equal = True
        for place, report, digests in self._comparable(role, schema):
            numbers = tuple(ranks.get(place[0]) for ranks in slices.values())
            first, first_digests = firsts.setdefault(numbers, (report, digests))
            has_copies |= are_two_files(report, first)
            are_equal &= digests == first_digests
            every.append(set(digests.items()))
        shared = {name for name, _ in set.intersection(*every)} if len(every) > 1 else set()
        is_confirmed = has_copies and are_equal and self._has_recorded_tensors(role, slices)
        self._record_checks[key] = _RecordCheck(is_confirmed, frozenset(shared))
        return self._record_checks[key]

    def _comparable(self, role: ShardRole, schema: str | None) -> Iterator[tuple[Place, ShardReport, dict[str, bytes]]]:
        """Yield the undamaged shards of a role and schema with their digests."""
        for place, report in self.undamaged.items():
            if place[1] is role and report.schema_hash == schema and is_sound(report):
                digests = self.digests_of(report)
                if digests is not None:
                    yield place, report, digests

    def _has_recorded_tensors(self, role: ShardRole, slices: Mapping[str, Mapping[Rank, int]]) -> bool:
        """Return whether every undamaged shard has the tensors that the record lists for its rank.

        The states of another tensor are not required: accumulators are never saved, and moments not always.
        """
        states = {name for name in slices if any(name[at + 1 :] in slices for at in _dots(name))}
        by_ranks: dict[int, tuple[Mapping[Rank, int], list[str]]] = {}
        for name in slices.keys() - states:
            by_ranks.setdefault(id(slices[name]), (slices[name], []))[1].append(name)
        for place, report in self.undamaged.items():
            digests = _all_digests(report) if place[1] is role and is_sound(report) else None
            if digests is not None:
                expected = {name for ranks, names in by_ranks.values() if place[0] in ranks for name in names}
                if not expected <= digests.keys():
                    return False
        return True

    def _proof_by_saves(
        self, target: Place, donor: Place, report: ShardReport, current: Mapping[str, bytes]
    ) -> CopyProof | str:
        """Return the proof by other checkpoints at which the two shards were equal, or why there is no proof."""
        in_run: list[tuple[SavedShards, _Past]] = []
        elsewhere: list[tuple[SavedShards, _Past]] = []
        for saved in self._saves:
            ours, theirs = self._past(saved, target), self._past(saved, donor)
            if ours is None or theirs is None:
                continue
            has_same_schema = theirs.schema == report.schema_hash
            if ours != theirs and (saved.same_run or has_same_schema):
                return f"rank {donor[0]} {_difference(ours, theirs)} at {saved.name}"
            if ours == theirs and has_same_schema:
                (in_run if saved.same_run else elsewhere).append((saved, ours))
        samples = in_run
        if len(in_run) < _MIN_SAMPLES:
            samples = [
                (saved, past)
                for saved, past in (*in_run, *elsewhere)
                if self._is_steady(saved, donor[1], report.schema_hash)
            ]
            is_steady = bool(in_run) and in_run[0] in samples
            if is_steady and self._rest_agrees(target, report, in_run[0][0].shards[donor]):
                return CopyProof(Proof.LEARNED, witnesses=(in_run[0][0].name,), rest_agrees=True)
            if not is_steady or len(samples) < _MIN_SAMPLES:
                return f"rank {donor[0]} was equal at {counted(len(in_run), 'other checkpoint')} of the run"
        for name, digest in current.items():
            values = {past.digests[name] for _, past in samples}
            if len(values) == 1 and digest not in values:  # its equality proves nothing
                return (
                    f"{name} was constant while rank {donor[0]} was equal, which proves nothing; it has changed since"
                )
        return CopyProof(Proof.LEARNED, witnesses=tuple(saved.name for saved, _ in samples))

    def _past(self, saved: SavedShards, place: Place) -> _Past | None:
        """Return the contents of a shard at another checkpoint, or None if they are unknown or suspected."""
        report = saved.shards.get(place)
        if report is None or not is_sound(report):
            return None
        digests = self.digests_of(report)
        return None if digests is None else _Past(report.schema_hash, digests)

    def _is_steady(self, saved: SavedShards, role: ShardRole, schema: str | None) -> bool:
        """Return whether exactly the ranks that were equal in a tensor at another checkpoint are equal now.

        Between two starts of a training run, ranks may change places, and untrained tensors are equal by coincidence.
        Both are visible in the ranks that can still be compared.
        """
        key = saved.name, role, schema
        if key not in self._steady:
            pairs = []
            for place, _, digests in self._comparable(role, schema):
                past = self._past(saved, place)
                if past is not None and past.schema == schema:
                    pairs.append((digests, past.digests))
            names = pairs[0][0] if pairs else ()
            columns = ({(digests[name], past[name]) for digests, past in pairs} for name in names)
            self._steady[key] = saved.step != _BEGINNING and all(
                len(both) == len({now for now, _ in both}) == len({then for _, then in both}) for both in columns
            )
        return self._steady[key]

    def _rest_agrees(self, target: Place, donor: ShardReport, donor_past: ShardReport) -> bool:
        """Return whether a damaged file's readable tensors changed like the donor's since another save of the run.

        This is valid only if most ranks are undamaged: these then include ranks with another slice, which would show.
        """
        report = self._reports.get(target)
        damaged = sum(place[1] is target[1] for place in self._damaged)
        comparable = sum(
            place[1] is target[1] and other.schema_hash == donor.schema_hash for place, other in self.undamaged.items()
        )
        if report is None or report.schema_hash != donor.schema_hash or damaged >= comparable:
            return False
        ours, theirs, before = map(_all_digests, (report, donor, donor_past))
        if ours is None or theirs is None or before is None:
            return False
        differing = sum(ours[name] != theirs[name] for name in theirs)
        changed = sum(ours[name] == theirs[name] != before[name] for name in theirs)
        return changed > differing


def _difference(ours: _Past, theirs: _Past) -> str:
    if ours.digests.keys() != theirs.digests.keys():
        return "had other tensors"
    for name, digest in ours.digests.items():
        if digest != theirs.digests[name]:
            return f"differed in {name}"
    return "had tensors of other shapes"


def _dots(name: str) -> Iterator[int]:
    at = name.find(".")
    while at >= 0:
        yield at
        at = name.find(".", at + 1)


def _all_digests(report: ShardReport) -> dict[str, bytes] | None:
    """Return the digests of all tensors, or None if any digest is unknown."""
    digests = report.tensor_digests
    return None if digests is None or len(digests) != report.tensors else digests.by_name


def _is_only_outvoted(report: ShardReport) -> bool:
    """Return whether the only finding against a shard is that its copies differ."""
    against = {
        finding.code
        for finding in report.findings
        if finding.severity >= Severity.SUSPECT or finding.code in _OF_NUMBERS
    }
    return bool(against) and against <= _BY_COPIES


def are_two_files(report: ShardReport, peer: ShardReport) -> bool:
    """Return whether two reports are about two files. One file with two names is not its own copy."""
    return report is not peer and (report.stamp is None or report.stamp != peer.stamp)


def is_sound(report: ShardReport) -> bool:
    """Return whether there is no finding against a shard."""
    return worst(report.findings) < Severity.SUSPECT
