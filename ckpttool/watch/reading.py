"""Reading of a watched tree's saves in a separate thread, so that no poll waits for a hundred gigabytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress

from ckpttool.core.decide.recorded_health import health_reason
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, blocking, unknown, worst
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.question import CheckQuestion, EvidenceQuestion
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict, VerdictWord
from ckpttool.core.errors import CkptToolError
from ckpttool.core.storage import assert_changeable, is_local, is_object_store
from ckpttool.core.storage.stream import was_cached
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.verbs.sealing import TO_SEAL, seal_read
from ckpttool.core.verbs.verifying import session_for, watched
from ckpttool.core.verify.meter import Pace
from ckpttool.core.verify.session import Session
from ckpttool.health.findings import HealthCode
from ckpttool.health.verbs.evidence import gather
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.looking import by_itself
from ckpttool.watch.model import Judge, Judgement, WatchQuestion
from ckpttool.watch.seeing import on_hosts

LEDGER_SECONDS = 86400.0
"""Seconds for which an earlier check of an unchanged file is trusted when a save is read for the first time."""

PROBED = 64
"""Number of shards to probe to determine whether a save is still in memory."""

LEAVE_SECONDS = 2.0
"""Seconds to wait for the thread at the end, enough to finish a manifest. A read is abandoned."""

GIB = 1 << 30

_WORDS = {
    Severity.SUSPECT: VerdictWord.SUSPECT,
    Severity.UNKNOWN: VerdictWord.UNREADABLE,
    Severity.DAMAGE: VerdictWord.DAMAGED,
    Severity.UNSAFE: VerdictWord.UNSAFE,
}
"""The state of a save by facts other than its verdict, such as health or seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The result of reading one save."""

    request: Judge
    judgement: Judgement | None = None
    """The judgement, or None if the files changed during the read or the watch ended."""
    bytes_read: int = 0
    notes: tuple[str, ...] = ()
    """Notes for the user."""
    error: BaseException | None = None
    """The exception that stopped the read."""


class Reading:
    """An unfinished read of one save."""

    def __init__(
        self, question: WatchQuestion, tree: Tree, checkpoint: Checkpoint, request: Judge, done: Callable[[Read], None]
    ) -> None:
        """Begin reading immediately.

        Args:
            question: The level of the check, and its speed.
            tree: The tree as listed, with its own storage.
            checkpoint: The save.
            request: The reason for the read.
            done: Called once, in the reading thread.
        """
        self.requested = request
        self._question = question
        self._tree = tree
        self._checkpoint = checkpoint
        self._done = done
        self._left = False
        self._notes: list[str] = []
        self.reports: dict[str, ShardReport] = {}
        """The reports on single shards so far, by path."""
        # A daemon: a disk that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Cancel the read. It ends after the current shard, or with the process."""
        self._left = True
        self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        try:
            judgement, nbytes = self._read()
            read = Read(request=self.requested, judgement=judgement, bytes_read=nbytes, notes=tuple(self._notes))
        except BaseException as error:  # noqa: BLE001  the watch raises it: a thread cannot
            read = Read(request=self.requested, notes=tuple(self._notes), error=error)
        self._done(read)

    def _read(self) -> tuple[Judgement | None, int]:
        tree, checkpoint, judge, level = self._tree, self._checkpoint, self.requested, self._question.level
        # The query for cached pages makes Linux read ahead; for an early read, the query was made before.
        cached: bool | None = False
        if not judge.early:
            cached = is_cached(tree, checkpoint) if level.reads_content else None
        # A save that was not good yet is read once, for the verdict and for the seal.
        at_once = judge.seal and judge.fresh and level.reads_content
        with watched(Pace(self._question.max_rate)), closing(self._session(level, hashes=at_once)) as session:
            with_records = tree.with_own_records(checkpoint) if at_once else checkpoint
            verdict = self._verdict(session, with_records)
            if verdict is None or not _is_as_it_was(tree, checkpoint):
                return None, 0 if verdict is None else verdict.bytes_read  # the next poll detects the change
            findings, nbytes, sealed = self._findings(verdict), verdict.bytes_read, False
            more: tuple[Finding, ...] = ()
            if judge.seal and not blocking(findings):
                sealed, more = self._seal(session, with_records, verdict) if at_once else self._seal_apart(with_records)
        # For a part, the watch of all parts reports the health that the training recorded.
        ill, norm = (None, None) if self._question.part is not None else self._health()
        more = more if ill is None else (ill, *more)
        judgement = Judgement(
            request=judge,
            word=_WORDS[worst(more)] if worst(findings) < worst(more) else verdict.word,
            findings=(*more, *findings),
            cached=cached,
            sealed=sealed,
            norm=norm,
            written_since=_written_since(verdict, judge.good_ns),
        )
        return judgement, nbytes

    def _findings(self, verdict: Verdict) -> tuple[Finding, ...]:
        """Return the relevant findings.

        If only a part of the save is here, return only the findings about its files.
        """
        if self._question.part is not None:
            return tuple(finding for report in self.reports.values() for finding in report.findings)
        if self._tree.machines.is_here:
            return verdict.findings
        damaged = {finding.path for finding in verdict.findings if finding.severity > Severity.UNKNOWN}
        # Shards that its own machine found damaged need no further check.
        findings = [
            finding
            for finding in verdict.findings
            if finding.code is not NodesCode.NOT_LOOKED_AT or finding.path not in damaged
        ]
        return on_hosts(findings, self._tree)

    def _session(self, level: Level, *, hashes: bool) -> Session:
        """Prepare to read with one worker. No other save is read at the same time, except for a seal."""
        rate = self._question.max_rate
        if hashes:
            question = replace(TO_SEAL, level=level, jobs=1)
        else:
            max_age = None if self.requested.cold else LEDGER_SECONDS
            question = CheckQuestion(level=level, jobs=1, max_age=max_age, replicas=False)
        if rate:  # a throttled read does not hang
            question = replace(question, timeout=question.timeout + GIB / rate)
        return session_for(self._tree, question)

    def _verdict(self, session: Session, checkpoint: Checkpoint) -> Verdict | None:
        """Read a save, and return its verdict, or None if the read was cancelled."""
        for event in session.events(checkpoint):
            if isinstance(event, Verdict):
                reports = {
                    report.path: by_itself(report, self.reports.get(report.path, report)) for report in event.reports
                }
                self.reports = reports
                return event
            self.reports = {**self.reports, event.path: event}  # concurrent readers always see a complete dictionary
            if self._left:
                return None
        return None

    def _health(self) -> tuple[Finding | None, float | None]:
        """Return why an intact save must not be resumed from, and the norm in the log at its step.

        Raises:
            UsageError: A log does not exist.
        """
        checkpoint, tree, tree_question = self._checkpoint, self._tree, self._question
        if (
            tree_question.threshold is None or self.requested.cold
        ):  # logs may be deleted: their content at the time of the save counts
            return health_reason(checkpoint, require=False, ignore=False), None
        stages = None if tree_question.tree.config is None else tree_question.tree.config.pipeline_stages
        question = EvidenceQuestion(threshold=tree_question.threshold, logs=tree_question.logs)
        timeline = gather(tree.inventory, question, root=tree.storage.root, stages=stages, ignore=False)
        at = [save.key for save in tree.inventory.checkpoints].index(checkpoint.key)
        judged = timeline.inventory.checkpoints[at]
        judgement = None if timeline.report is None else timeline.report.judgements[at]
        norm = None if judgement is None else judgement.embedding_local_norm
        above = next((finding for finding in judged.findings if finding.code is HealthCode.NORM_ABOVE_THRESHOLD), None)
        if above is not None:
            return above, norm
        if judged.health is Health.UNKNOWN:
            why = f"{checkpoint.name}: {(judgement and judgement.note) or 'no log or record shows its health'}"
            return unknown(Code.HEALTH_UNKNOWN, why, remedy="give the training's log with --log"), norm
        return health_reason(judged, require=False, ignore=False), norm

    def _seal_apart(self, checkpoint: Checkpoint) -> tuple[bool, tuple[Finding, ...]]:
        """Read and seal the save as the sealer does, because the earlier read has no digests."""
        with closing(self._session(Level.CHECKSUM, hashes=True)) as session:
            with_records = self._tree.with_own_records(checkpoint)
            verdict = self._verdict(session, with_records)
            return (False, ()) if verdict is None else self._seal(session, with_records, verdict)

    def _seal(self, session: Session, checkpoint: Checkpoint, verdict: Verdict) -> tuple[bool, tuple[Finding, ...]]:
        """Seal the save. Return whether that succeeded, and the findings about differences."""
        # In a save with added files, all sealed files are unchanged: that was checked before.
        tree, reseal = self._tree, self.requested.rewritten or self.requested.grown
        try:
            if not is_object_store(tree.storage.root):
                assert_changeable(tree.storage.root)
            sealing = seal_read(tree, session, checkpoint, verdict, reseal=reseal)
        except CkptToolError as error:
            self._notes.append(f"{checkpoint.name} is not sealed: {error}")
            return False, ()
        return sealing.manifest is not None, sealing.findings


def _written_since(verdict: Verdict, good_ns: int | None) -> frozenset[str]:
    """Return the paths of the files written since a save was verified as good."""
    if good_ns is None:
        return frozenset()
    stamps = {report.path: report.stamp for report in verdict.reports if report.stamp is not None}
    return frozenset(path for path, stamp in stamps.items() if (stamp.modified_ns or 0) > good_ns)


def _is_as_it_was(tree: Tree, checkpoint: Checkpoint) -> bool:
    """Return whether all files of a save still match the listing. Retention may delete the save during the read."""
    try:
        return all(tree.storage.stamp(shard.path) == shard.stamp for shard in checkpoint.shards)
    except OSError:
        return False


def is_cached(tree: Tree, checkpoint: Checkpoint) -> bool | None:
    """Return whether most of a save is in memory, so that a read does not test the disk. None if unknown."""
    cached = []
    if not tree.machines.is_here:
        return None
    for shard in checkpoint.shards[:: 1 + len(checkpoint.shards) // PROBED]:
        if not is_local(tree.inventory.root) or shard.stamp is None:
            return None
        with suppress(OSError), open(tree.inventory.path_of(shard.path), "rb") as file:
            cached.append(was_cached(file.fileno(), 0, shard.stamp.size))
    known_states = [state for state in cached if state is not None]
    return sum(known_states) * 2 > len(known_states) if known_states else None
