"""The checks of one tree; neighbouring checkpoints that several verdicts need are read only once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import FOUND_EARLIER, Code, Finding, Severity, blocking, damage, helped
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import Shard, ShardRole
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport, Verdict
from ckpttool.core.records import OWN_FOLDER, SealPlace
from ckpttool.core.storage.base import Storage, is_there, unreadable
from ckpttool.core.verify.copies import (
    CopyComparison,
    Place,
    Reading,
    SeenShards,
    ShardTensors,
    Tensors,
    copies_of,
    tensors_of,
    with_copies,
)
from ckpttool.core.verify.observation import Engine, Engines, Observation
from ckpttool.core.verify.plan import in_bucket, plan_checks
from ckpttool.core.verify.report import (
    as_sealed,
    changed_headers,
    collect,
    files_of_other_length,
    in_order,
    is_as_healed_alone,
    judge,
    missing_files,
    says_itself,
    under_another_name,
    unproven_copies,
    written_since_seal,
)
from ckpttool.core.verify.siblings.compare import compare_in_turn, without_sample
from ckpttool.core.verify.siblings.neighbours import (
    MOST_SIBLINGS,
    MOST_WITNESSES,
    Neighbours,
    Sibling,
    are_damaged_there,
    unpaired,
)

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.replicas import RecordedSlices
    from ckpttool.core.records.damaged import Proofs
    from ckpttool.core.records.ledger import Memory
    from ckpttool.core.verify.meter import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The level of a check, and the subset to read."""

    level: Level
    bucket: tuple[int, int] | None = None
    """(n, t): only the shards whose path falls into the n-th of t buckets, n from 1; for the others, only headers and
    sizes are read."""
    jump: float | None = None
    """Factor between the norms of two checkpoints that counts as suspect; None for the default; 0 to skip the
    comparison."""
    hashes: bool = False
    """Whether to also hash every complete file, for sealing, and compare it with copies but not with records."""
    digests: bool = False
    """Whether to also hash every complete file, in addition to all comparisons."""
    memory: Memory | None = None
    """Results for files that were verified before and have not changed since."""
    proofs: Proofs | None = None
    """The store for the damage found, so that a later check of headers does not pass the file."""
    meter: Meter | None = None
    """The meter for the progress."""
    requested: Collection[CheckpointKey] = ()
    """Checkpoints that will all be judged, if known, so that reading one of them earlier costs nothing."""
    reads_other: bool = True
    """Whether to also read other shards if nothing else shows which ranks have copies of the same tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRecords:
    """The companion files of a save's shards, according to its layout."""

    seal_place: Callable[[Checkpoint], SealPlace | None]
    """The function that returns the location of the save's manifest, or None if there is no manifest."""
    with_own_records: Callable[[Checkpoint], Checkpoint]
    """The function that adds the save's own records, which the scan does not read."""
    slices: Callable[[Checkpoint], RecordedSlices | None]
    """The function that returns the slices of each rank, according to the save's own records."""
    with_remedies: Callable[[tuple[Finding, ...], Checkpoint], tuple[Finding, ...]]
    """The function that adds the remedies that the layout allows to findings about the save."""


class _Seals(NamedTuple):
    """The records of a checkpoint's files."""

    by_path: Mapping[str, ShardSeal] = {}
    findings: tuple[Finding, ...] = ()
    """The findings about the records themselves."""
    sealed_at: str | None = None
    """UTC, when its manifest last changed; None without a manifest."""


RECORD_LIMIT = 1 << 30
"""Maximum bytes of a record that is compared with a digest."""

_HELD_HEADERS = 3
"""Number of checkpoints whose headers stay in memory: the current checkpoint and its two neighbours. More would waste
memory."""


class Session:
    """The verification of checkpoints of one tree."""

    def __init__(
        self, storage: Storage, inventory: Inventory, scope: Scope, engines: Engines, records: SaveRecords
    ) -> None:
        """Store the tree, the scope, the engines, and the companion files of a save."""
        self._storage = storage
        self._records = records
        self._inventory = inventory
        self._neighbours = Neighbours(inventory.checkpoints)
        self._scope = scope
        self._engines = engines
        self._headers: dict[CheckpointKey, tuple[ShardReport, ...]] = {}
        self._read_ahead: tuple[CheckpointKey, list[ShardReport]] | None = None
        """Reports of the previous checkpoint, whose statistics were needed, so that it need not be read again."""
        self._copies = copies_of(self._neighbours, self._reading()) if scope.level.reads_content else None

    def _reading(self) -> Reading:
        return Reading(
            storage=self._storage,
            read=self._read_other,
            slices=self._records.slices,
            requested=self._scope.requested,
            recorded=self._recorded_tensors,
            only_asked=not self._scope.reads_other,
            rebuilt=self._rebuilt,
        )

    def verdict(self, checkpoint: Checkpoint) -> Verdict:
        """Judge one checkpoint."""
        return next(event for event in self.events(checkpoint) if isinstance(event, Verdict))

    def events(
        self, checkpoint: Checkpoint, *, followed_by: Checkpoint | None = None
    ) -> Iterator[ShardReport | Verdict]:
        """Judge one checkpoint: yield each shard's report as it is finished, and the verdict last.

        If statistics are compared, the reports of the previous checkpoint are also yielded, before its turn.

        Args:
            checkpoint: A checkpoint of this tree, with its shards' sizes if content is read.
            followed_by: The checkpoint that is judged next; its files that are read now need not be read again.
        """
        checkpoint = self._records.with_own_records(checkpoint)
        # A checkpoint to be sealed is judged alone: sealing compares it with an older manifest.
        seals, findings, sealed_at = _Seals() if self._scope.hashes else self._seals(checkpoint)
        reports = []
        meter, memory, proofs = self._scope.meter, self._scope.memory, self._scope.proofs
        damaged_before = _found_damaged(checkpoint)
        if meter is not None:
            meter.begin(len(self._in_scope(checkpoint)))
        for report in self._reports(checkpoint, seals):
            reports.append(report)
            if memory is not None:
                memory.remember((report,), seals)
            if proofs is not None:
                seal, is_doubtful = seals.get(report.path), report.path in damaged_before and not self._scope.hashes
                proofs.take(
                    report,
                    None if seal is None else seal.xxh3_128,
                    was_damaged=is_doubtful,
                    hidden=self._hidden_damage(checkpoint, report),
                )
            if meter is not None:
                meter.reported(kept=memory is not None and memory.keeps(report))
            yield report
        reports = [*in_order(reports)]  # they arrived in the order of completion
        if self._scope.level is Level.NUMERICS:
            yield from self._read_before(checkpoint, reports, followed_by=followed_by)
        seals_known, witnesses = seals, reports
        # A manifest proves the sealed content, whatever its siblings contain.
        sealed = {report.path for report in reports if report.path in seals and report.checksum_matched}
        if self._scope.hashes:
            seals_known = self._seals(checkpoint).by_path
            sealed = {
                report.path
                for report in reports
                if report.path in seals_known and _holds(report, seals_known[report.path])
            }
            witnesses = [
                replace(report, checksum_matched=True) if report.path in sealed else report for report in reports
            ]
        healed = {path for path in sealed if is_as_healed_alone(seals_known[path])}
        sealed -= healed
        comparison = CopyComparison()
        if self._copies is not None:
            witnesses = [
                replace(sample, checksum_matched=False) if sample.path in healed else sample for sample in witnesses
            ]
            seen_shards = SeenShards(witnesses, seals_known, sealed, healed)
            comparison = yield from self._copies.compare(checkpoint, seen_shards, followed_by=followed_by)
            reports = with_copies(reports, comparison)
            self._keep_suspicions(comparison, checkpoint, reports, seals)
        findings += (*comparison.findings, *missing_files(checkpoint, seals, self._inventory.unlisted))
        findings += tuple(under_another_name(reports, seals))
        findings += tuple(self._records_differ(checkpoint))
        companions = self._outside_subset(checkpoint)
        all_reports = (*reports, *companions)
        findings += (
            *files_of_other_length(checkpoint, all_reports),
            *changed_headers(all_reports, seals),
            *written_since_seal(all_reports, seals, sealed_at),
        )
        compared = self._compared(checkpoint, all_reports, seals, reported=comparison.compared_paths)
        findings += tuple(finding for finding in compared if finding.path not in sealed)
        # Files that were sealed before are judged when sealing.
        judged = {
            report.path
            for report in reports
            if says_itself(report) or (self._scope.hashes and report.path in seals_known)
        }
        judged |= {finding.path for finding in blocking(comparison.findings) if finding.path is not None}
        remaining = tuple(f for f in checkpoint.findings if f.code not in FOUND_EARLIER or f.path not in judged)
        unproven = unproven_copies(reports, healed, seals_known)
        reports = [replace(report, checksum_matched=False) if report.path in unproven else report for report in reports]
        verdict = collect(replace(checkpoint, findings=remaining), reports, self._scope.level, extras=companions)
        yield replace(
            verdict,
            findings=self._records.with_remedies(completed(verdict.findings + findings, checkpoint), checkpoint),
            compared_with=comparison.compared_with,
            also_read=comparison.also_read,
        )

    def compared_with(self, checkpoint: Checkpoint) -> tuple[CheckpointKey, ...]:
        """Return the checkpoints whose headers are compared with a checkpoint's."""
        return tuple(sibling.key for sibling in self._neighbours.siblings(checkpoint, most=MOST_WITNESSES))

    def differs(self, report: ShardReport, mismatch: Finding) -> None:
        """Record that a shard differs from its seal, as found when sealing."""
        if self._scope.proofs is not None:
            self._scope.proofs.take(replace(report, findings=(mismatch,)), mismatch.expected, was_damaged=False)

    def close(self) -> None:
        """Write pending results to the disk."""
        for store in (self._scope.memory, self._scope.proofs):
            if store is not None:
                store.save()

    def _seals(self, checkpoint: Checkpoint) -> _Seals:
        """Read the checkpoint's records; a record that is truncated or of a newer version is ignored and reported."""
        place = self._records.seal_place(checkpoint)
        # Most trees have no place for manifests, and need only this check.
        if place is None or (place.is_apart and not is_there(self._storage, OWN_FOLDER)):
            return _Seals()
        from ckpttool.core.records.birth import recorded

        manifest = recorded(self._storage, place, checkpoint.shards)
        # Headers alone verify nothing, with or without a manifest, so at that level the findings do not reject a
        # checkpoint.
        at_most = Severity.NOTE if self._scope.level is Level.STRUCTURE else Severity.UNKNOWN
        findings = tuple(replace(finding, severity=at_most) for finding in manifest.findings)
        return _Seals(manifest.seals, (*findings, *manifest.disputed), manifest.sealed_at)

    def _in_part(self, path: str) -> bool:
        return in_bucket(path, self._scope.bucket)

    def _in_scope(self, checkpoint: Checkpoint) -> tuple[Shard, ...]:
        return tuple(shard for shard in checkpoint.shards if self._in_part(shard.path))

    def _outside_subset(self, checkpoint: Checkpoint) -> tuple[ShardReport, ...]:
        """Check headers and sizes of the shards outside the subset, which may not include the newest for a week."""
        if self._scope.bucket is None:
            return ()
        return tuple(report for report in self._headers_of(checkpoint) if not self._in_part(report.path))

    def _reports(self, checkpoint: Checkpoint, seals: Mapping[str, ShardSeal]) -> Iterator[ShardReport]:
        """Check the shards in scope, unless they were already checked for a neighbour."""
        if not self._scope.level.reads_content:
            yield from [report for report in self._headers_of(checkpoint) if self._in_part(report.path)]
        elif self._read_ahead is not None and self._read_ahead[0] == checkpoint.key:
            read_ahead, self._read_ahead = self._read_ahead[1], None
            yield from read_ahead
        elif self._copies is not None and checkpoint.key in self._copies.ahead:
            yield from self._copies.ahead.pop(checkpoint.key)
        else:
            yield from self._run(checkpoint, self._in_scope(checkpoint), seals)

    def _read_other(self, checkpoint: Checkpoint, places: Collection[Place] | None) -> Iterator[ShardReport]:
        """Read some of another checkpoint's shards, or all shards in scope if `places` is None."""
        shards = self._in_scope(checkpoint) if places is None else checkpoint.shards
        chosen = tuple(shard for shard in shards if places is None or (shard.rank, shard.role) in places)
        seals = {} if self._scope.hashes else self._seals(checkpoint).by_path
        for report in self._run(checkpoint, chosen, seals):
            if self._scope.memory is not None:
                self._scope.memory.remember((report,), seals)
            yield report

    def _rebuilt(self, checkpoint: Checkpoint) -> frozenset[Place]:
        """Return the shards that were rebuilt from others."""
        healed = {path for path, seal in self._seals(checkpoint).by_path.items() if seal.healed is not None}
        return frozenset((shard.rank, shard.role) for shard in checkpoint.shards if shard.path in healed)

    def _recorded_tensors(self, checkpoint: Checkpoint) -> Tensors:
        """Return the tensor digests of another checkpoint, from its manifest or the ledger."""
        seals, memory = self._seals(checkpoint).by_path, self._scope.memory
        tensors: dict[Place, ShardTensors] = {}
        for shard in checkpoint.shards:
            seal = seals.get(shard.path)
            if seal is not None and seal.healed is not None:
                continue
            if seal is not None and seal.tensors is not None:
                tensors[shard.rank, shard.role] = seal.schema_hash, seal.tensors
            elif memory is not None and (known_tensors := memory.tensors(shard.path)) is not None:
                tensors[shard.rank, shard.role] = known_tensors
        return tensors

    def _keep_suspicions(
        self,
        comparison: CopyComparison,
        checkpoint: Checkpoint,
        reports: Iterable[ShardReport],
        seals: Mapping[str, ShardSeal],
    ) -> None:
        """Store which shards are damaged according to replicas, and which shards no longer are."""
        wrong = {finding.path: (finding,) for finding in comparison.findings if finding.severity >= Severity.DAMAGE}
        damaged_before = {finding.path for finding in checkpoint.findings if finding.code in FOUND_EARLIER}
        drifted = {finding.path: finding for finding in comparison.findings if finding.path in comparison.drifted}
        for report in reports:
            if self._scope.proofs is not None and report.path in drifted:
                since = comparison.drifted[report.path]
                step = checkpoint.step if since is None else since.step
                self._scope.proofs.drifted(report, drifted[report.path], step)
            elif self._scope.proofs is not None and (report.path in wrong or report.copies > 1):
                seal = seals.get(report.path)
                changed = replace(report, findings=wrong.get(report.path, ()))
                was_damaged = report.path in damaged_before and not self._scope.hashes
                self._scope.proofs.take(changed, None if seal is None else seal.xxh3_128, was_damaged=was_damaged)

    def _hidden_damage(self, checkpoint: Checkpoint, report: ShardReport) -> tuple[Finding, ...]:
        """Return the damage in a completely read file, if its header alone would pass."""
        grave = tuple(
            finding
            for finding in report.findings
            if finding.severity >= Severity.DAMAGE and finding.code is not Code.OVER_LIMIT
        )
        if not grave:
            return ()
        shards = tuple(shard for shard in checkpoint.shards if shard.path == report.path)
        tasks = plan_checks(self._inventory.root, replace(checkpoint, shards=shards), Level.STRUCTURE)
        by_header = [*reports_of(tasks, self._engines.headers)]
        passes = all(seen.stamp == report.stamp and not blocking(seen.findings) for seen in by_header)
        return grave if passes else ()

    def _records_differ(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Compare the small records that the save's own digests cover in addition to its shards."""
        paths = {shard.path for shard in checkpoint.shards}
        if not self._scope.level.reads_content or checkpoint.digests == ():
            return
        from hashlib import sha256

        from ckpttool.core.verify.checks.checksum import differing_sha256

        for path, expected in checkpoint.digests:
            if path in paths or not self._in_part(path):
                continue
            try:
                content = self._storage.small_file(path, limit=RECORD_LIMIT)
            except FileNotFoundError:
                message = "is missing, but the save's own record has its digest"
                yield damage(Code.SHARD_MISSING, message, path=path)
            except OSError as error:
                yield unreadable(path, error)
            else:
                yield from differing_sha256(path, expected, sha256(content, usedforsecurity=False).hexdigest())

    def _run(
        self, checkpoint: Checkpoint, shards: tuple[Shard, ...], seals: Mapping[str, ShardSeal]
    ) -> Iterator[ShardReport]:
        """Check shards, and yield the reports as they are finished."""
        scope, chosen = self._scope, replace(checkpoint, shards=shards)
        hashes = scope.hashes or scope.digests
        tasks = plan_checks(self._inventory.root, chosen, scope.level, seals=seals, hashes=hashes)
        damaged_before = _found_damaged(checkpoint)
        remembered = self._remembered([task for task in tasks if task.path not in damaged_before])
        yield from remembered.values()
        remaining = [task for task in tasks if task.path not in remembered]
        if scope.meter is not None:
            scope.meter.remembered(task for task in tasks if task.path in remembered)
            scope.meter.plan(remaining)
        yield from reports_of(remaining, self._engines.tasks)

    def _remembered(self, tasks: Sequence[CheckTask]) -> dict[str, ShardReport]:
        memory = self._scope.memory
        if memory is None:
            return {}
        first_parts = {task.path: task for task in reversed(tasks)}
        remembered = {path: memory.recall(task) for path, task in first_parts.items()}
        return {path: report for path, report in sorted(remembered.items()) if report is not None}

    def _compared(
        self,
        checkpoint: Checkpoint,
        reports: Sequence[ShardReport],
        seals: Mapping[str, ShardSeal],
        *,
        reported: Collection[str],
    ) -> list[Finding]:
        """Compare with siblings. If siblings contradict a shard, compare again with only the reliable siblings."""
        is_complete = len({shard.rank for shard in checkpoint.shards}) >= (checkpoint.topology.world_size or 0)
        findings = compare_in_turn(reports, self._nearest(checkpoint, reports), reported, is_complete=is_complete)
        if not any(blocking(findings)):
            later = self._testifying(checkpoint, self._neighbours.later_start(checkpoint))
            alone = without_sample(reports, self._siblings(checkpoint), later, sealed=as_sealed(reports, seals))
            return [*findings, *alone]
        witnesses = self._testifying(checkpoint, self._neighbours.siblings(checkpoint, most=MOST_WITNESSES))
        return compare_in_turn(reports, witnesses, reported, is_complete=is_complete, sealed=as_sealed(reports, seals))

    def _siblings(self, checkpoint: Checkpoint, *, most: int = MOST_SIBLINGS) -> Iterator[Sibling]:
        """Read the headers of other checkpoints, best first."""
        for candidate in self._neighbours.siblings(checkpoint, most=most):
            yield self._sibling(checkpoint, candidate, self._headers_of(candidate))

    def _nearest(self, checkpoint: Checkpoint, reports: Sequence[ShardReport]) -> Iterator[Sibling]:
        """Read the headers of the nearest checkpoints; read more only if a shard's files in the nearest are damaged."""
        seen: list[Sibling] = []
        for sibling in self._siblings(checkpoint, most=MOST_WITNESSES):
            seen.append(sibling)
            yield sibling
            if len(seen) >= MOST_SIBLINGS and not are_damaged_there(unpaired(reports, seen), seen):
                return

    def _testifying(self, checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> Iterator[Sibling]:
        """Read the headers of checkpoints, excluding files that are damaged or differ from their seal.

        This requires the checkpoints' manifests.
        """
        for candidate in checkpoints:
            reports, seals = self._headers_of(candidate), self._seals(candidate).by_path
            wrong = {finding.path for finding in candidate.findings if finding.severity >= Severity.DAMAGE}
            wrong |= {*_found_damaged(candidate), *(finding.path for finding in changed_headers(reports, seals))}
            sound = tuple(report for report in reports if report.path not in wrong)
            yield self._sibling(checkpoint, candidate, sound, as_sealed(sound, seals))

    def _sibling(
        self,
        checkpoint: Checkpoint,
        candidate: Checkpoint,
        reports: tuple[ShardReport, ...],
        sealed: frozenset[str] = frozenset(),
    ) -> Sibling:
        older, same_run = self._neighbours.is_older(candidate, checkpoint), candidate.run == checkpoint.run
        return Sibling(reports=reports, older=older, same_run=same_run, sealed=sealed)

    def _headers_of(self, checkpoint: Checkpoint) -> tuple[ShardReport, ...]:
        key = checkpoint.key
        if key not in self._headers:
            while len(self._headers) >= _HELD_HEADERS:
                self._headers.pop(next(iter(self._headers)))
            tasks = plan_checks(self._inventory.root, checkpoint, Level.STRUCTURE)
            if self._scope.meter is not None and not self._scope.level.reads_content:
                self._scope.meter.plan(tasks)
            self._headers[key] = tuple(reports_of(tasks, self._engines.headers))
        return self._headers[key]

    def _read_before(
        self, checkpoint: Checkpoint, reports: list[ShardReport], *, followed_by: Checkpoint | None
    ) -> Iterator[ShardReport]:
        """Read the previous checkpoint, and add to `reports` the tensors that changed too much since.

        The comparison runs rank by rank during the read, and the reports are kept only if that checkpoint is judged
        next.
        """
        from ckpttool.core.verify.checks.numerics import JUMP, compare_numbers

        before = None if self._scope.jump == 0 else self._neighbours.earlier(checkpoint)
        if before is None:
            return
        jump = JUMP if self._scope.jump is None else self._scope.jump
        sizes: dict[tuple[int | None, ShardRole], list[int]] = defaultdict(list)
        for index, report in enumerate(reports):
            sizes[report.rank, report.role].append(index)
        places = {(shard.rank, shard.role) for shard in self._in_scope(checkpoint)}
        changes: dict[int, Sequence[Finding]] = {}
        unread = []
        # With a subset, the next checkpoint reads its own part of the shards.
        keeps = self._scope.bucket is None and followed_by is not None and followed_by.key == before.key
        tensors: dict[Place, ShardTensors] = {}
        # All of its files are stored, including shards that the current checkpoint lacks.
        for report in self._read_other(before, None if keeps else places):
            tensors |= tensors_of((report,))
            for index in sizes[report.rank, report.role]:
                changes[index] = compare_numbers(reports[index].path, reports[index].stats, report.stats, jump=jump)
            if keeps:
                unread.append(report)
            yield report
        self._read_ahead = (before.key, unread) if keeps else None
        if self._copies is not None:
            self._copies.keep(before, tensors)
        for index, findings in changes.items():
            if findings:
                reports[index] = replace(reports[index], findings=(*reports[index].findings, *findings))


def _holds(report: ShardReport, seal: ShardSeal) -> bool:
    """Return whether a file matches its seal, byte for byte."""
    return report.digest is not None and report.digest.xxh3_128 == seal.xxh3_128


def _found_damaged(checkpoint: Checkpoint) -> set[str | None]:
    return {finding.path for finding in checkpoint.findings if finding.code is Code.FOUND_DAMAGED}


def completed(findings: Iterable[Finding], checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Add the rank and the remedy to findings that lack them."""
    rank_of = {shard.path: shard.rank for shard in checkpoint.shards}
    completed = []
    for finding in findings:
        rank = None if finding.path is None or finding.ranks else rank_of.get(finding.path)
        completed.append(helped(finding if rank is None else replace(finding, ranks=(rank,))))
    return tuple(completed)


def reports_of(tasks: Sequence[CheckTask], engine: Engine) -> Iterator[ShardReport]:
    """Yield one report per shard, as soon as the shard's last part is finished."""
    waiting = Counter(task.path for task in tasks)
    observations: dict[str, list[Observation]] = defaultdict(list)
    for observed in engine.run(tasks):
        path = observed.task.path
        observations[path].append(observed)
        if len(observations[path]) == waiting[path]:
            yield judge(observations.pop(path))
