"""Check shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ckpttool.core.decide.naming import LATEST, focused, named, none_called
from ckpttool.core.decide.steps import latest
from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.question import CheckQuestion
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level, ShardReport, Verdict, Verification
from ckpttool.core.storage import is_object_store
from ckpttool.core.verbs.saved_results import DAMAGED, memory_place
from ckpttool.core.verbs.scanning import Tree, Where, tree_of
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.waiting import OnceEngine, SavedResults, WaitingEngine
from ckpttool.core.verify.meter import Meter, Work
from ckpttool.core.verify.observation import Engines, Observation
from ckpttool.core.verify.plan import HEADER_COST, in_bucket, plan_checks
from ckpttool.core.verify.session import SaveRecords, Scope, Session
from ckpttool.core.verify.siblings.neighbours import Neighbours

if TYPE_CHECKING:
    from ckpttool.core.domain.forecast import Forecast
    from ckpttool.core.domain.verdict import CheckTask
    from ckpttool.core.errors import ExitCode
    from ckpttool.core.records.damaged import Proofs
    from ckpttool.core.records.ledger import Memory
    from ckpttool.core.verify.engines.ray import RayCluster
    from ckpttool.core.verify.observation import Engine


E = TypeVar("E")
A = TypeVar("A", bound=Answered)


class Running(Iterator[E], Generic[E, A]):
    """The results of a verb as they arrive, followed by its answer. Nothing is read before a result is requested."""

    def __init__(self, found: Generator[E, None, None], whole: Callable[[Sequence[E]], A]) -> None:
        """Store an iterator of results, and the function that makes an answer from them."""
        self._found = found
        self._whole = whole
        self._kept: list[E] = []

    def __next__(self) -> E:
        """Return the next result."""
        event = next(self._found)
        self._kept.append(event)
        return event

    def close(self) -> None:
        """Stop reading."""
        self._found.close()

    def answer(self) -> A:
        """Read all remaining results, and return the answer."""
        for _ in self:
            pass
        return self._whole(self._kept)

    @property
    def exit_code(self) -> ExitCode:
        """Read all remaining results, and return the exit code of the command."""
        return self.answer().exit_code

    def __bool__(self) -> bool:
        """Read all remaining results, and return whether the command would exit with 0."""
        return bool(self.answer())

    def __repr__(self) -> str:
        """Show the results so far, without reading more."""
        return f"<{type(self).__name__} found={len(self._kept)}>"

    def to_dict(self) -> dict[str, Any]:
        """Read all remaining results, and return the document that the command prints with `--format json`."""
        return self.answer().to_dict()


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def watched(meter: Meter) -> Iterator[None]:
    """Count the bytes that verbs read in this block. The meter is not part of a question."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)


_KEPT: ContextVar[SavedResults | None] = ContextVar("kept", default=None)


@contextmanager
def read_once() -> Iterator[SavedResults]:
    """Reuse the results of all files that are read in this block while `takes` of the yielded object is true."""
    results = SavedResults()
    token = _KEPT.set(results)
    try:
        yield results
    finally:
        _KEPT.reset(token)


_CLUSTER: ContextVar[RayCluster | None] = ContextVar("cluster", default=None)


@contextmanager
def on_ray(address: str | None = None) -> Iterator[None]:
    """Let the nodes of a Ray cluster read for every function called in this block; all nodes must see the tree.

    Args:
        address: `HOST:PORT`, as `ray start` prints it; None to use this program's existing connection.

    Raises:
        UsageError: Ray is not installed, or the cluster has a different version.
        IncompleteError: The address does not respond.
    """
    from ckpttool.core.verify.engines.ray import RayCluster

    cluster = RayCluster(address)
    token = _CLUSTER.set(cluster)
    try:
        yield
    finally:
        _CLUSTER.reset(token)
        cluster.leave()


def joined() -> RayCluster | None:
    """Return the cluster that reads, or None if this process reads."""
    return _CLUSTER.get()


def expect(*, nbytes: int, shards: int) -> None:
    """Add the expected amount to the meter, if there is one."""
    meter = _METER.get()
    if meter is not None:
        meter.expect(nbytes=nbytes, shards=shards)


def advance(nbytes: int) -> None:
    """Add bytes that no task reads to the meter, if there is one."""
    meter = _METER.get()
    if meter is not None:
        meter.advance(nbytes)


def counted(
    tasks: Sequence[CheckTask],
    work: Work,
    engine: Callable[[Callable[[CheckTask], Observation]], Engine],
    *,
    of: int = 1,
) -> Iterator[Observation]:
    """Run tasks, and report their progress to the meter, if there is one.

    Args:
        tasks: The tasks.
        work: The function that runs a task.
        engine: Returns the engine.
        of: Number of shards that each task reports.
    """
    meter = _METER.get()
    if meter is None:
        yield from engine(work).run(tasks)
        return
    meter.begin(of * len(tasks))
    meter.plan(tasks)
    for observed in engine(meter.counting(work)).run(tasks):
        for _ in range(of):
            meter.reported(kept=False)
        yield observed


def session_for(tree: Tree, question: CheckQuestion) -> Session:
    """Prepare to check checkpoints of a tree; neighbouring checkpoints that several checks need are read only once."""
    meter = _METER.get()
    recorded = tree.machines.engines(question)
    if recorded is not None:
        return _recorded_session(tree, question, recorded)
    scope = Scope(
        level=question.level,
        bucket=question.bucket,
        jump=question.jump,
        hashes=question.hashes,
        digests=question.digests,
        memory=_memory(tree, question),
        meter=meter,
        proofs=_proofs(tree, question),
        requested=_read_in_any_case(tree, question),
        reads_other=question.replicas,
    )
    counts = meter is not None and not question.level.reads_content
    headers = header_engine(question, meter if counts else None)
    tasks = content_engine(question, meter) if question.level.reads_content else headers
    results = _KEPT.get()
    if results is not None and question.level.reads_content:
        done = (lambda _: None) if meter is None else meter.done
        tasks = OnceEngine(tasks, results, stamp=tree.storage.stamp, done=done)
    engines = Engines(tasks=tasks, headers=headers)
    return Session(tree.storage, tree.inventory, scope, engines, _records(tree))


def _recorded_session(tree: Tree, question: CheckQuestion, recorded: Engines) -> Session:
    """Prepare to judge the results of other machines, without reading or saving anything."""
    scope = Scope(
        level=question.level,
        bucket=question.bucket,
        jump=question.jump,
        requested=_read_in_any_case(tree, question),
        reads_other=question.replicas,
    )
    return Session(tree.storage, tree.inventory, scope, recorded, _records(tree))


def _records(tree: Tree) -> SaveRecords:
    return SaveRecords(
        seal_place=tree.seal_place,
        with_own_records=tree.with_own_records,
        slices=tree.slices,
        with_remedies=tree.with_remedies,
    )


def _read_in_any_case(tree: Tree, question: CheckQuestion) -> frozenset[CheckpointKey]:
    """Return the checkpoints that are read in any case, so that their reports may stay in memory until needed.

    Reports with statistics take too much memory.
    """
    if question.level is not Level.CHECKSUM or question.name is None:
        return frozenset()
    return frozenset(checkpoint.key for checkpoint in chosen(tree, question.name))


def _memory(tree: Tree, question: CheckQuestion) -> Memory | None:
    if question.level is not Level.CHECKSUM or question.max_age is None or question.hashes or question.digests:
        return None
    from ckpttool.core.records.ledger import Memory

    return Memory(tree.storage, memory_place(tree.inventory.root), max_age=question.max_age)


def _proofs(tree: Tree, question: CheckQuestion) -> Proofs | None:
    if not question.level.reads_content:
        return None
    from ckpttool.core.records.damaged import Proofs

    return Proofs(lambda: memory_place(tree.inventory.root, DAMAGED), time.time)


def header_engine(question: CheckQuestion, meter: Meter | None) -> Engine:
    """Return the engine that reads headers."""
    cluster = _CLUSTER.get()
    if cluster is not None:
        return _Counted(cluster.engine(timeout=question.timeout), meter)
    return WaitingEngine(timeout=question.timeout, work=check if meter is None else meter.counting(check))


def content_engine(question: CheckQuestion, meter: Meter | None) -> Engine:
    """Return the engine that reads complete shards, with the requested parallelism."""
    cluster = _CLUSTER.get()
    if cluster is not None:
        return _Counted(cluster.engine(timeout=question.timeout), meter)
    from ckpttool.core.verify.engines.threads import ThreadEngine
    from ckpttool.core.verify.report import check_and_judge

    work = check_and_judge if meter is None else meter.counting(check_and_judge)
    return ThreadEngine(jobs=question.jobs or cores(), timeout=question.timeout, work=work)


class _Counted:
    """An engine whose tasks run elsewhere; a meter counts each task when it returns."""

    def __init__(self, engine: Engine, meter: Meter | None) -> None:
        self._engine, self._meter = engine, meter

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        for observed in self._engine.run(tasks):
            if self._meter is not None:
                self._meter.done(observed.task)
            yield observed


def cores() -> int:
    """Return the number of cores that this process may use; on macOS, the total number."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def verify(
    tree: Tree | Where = None, question: CheckQuestion = CheckQuestion()
) -> Running[ShardReport | Verdict, Verification]:
    """Check the shards of one or all checkpoints.

    Args:
        tree: The answer of `scan`, or a question about a tree.
        question: The shards to check, and how thoroughly.

    Returns:
        Each shard's report as it is finished, then the verdict on its checkpoint; newest checkpoint first.

    Raises:
        UsageError: The named checkpoint does not exist.
    """
    tree_, started = tree_of(tree), time.monotonic()
    return Running(
        _verified(tree_, question),
        lambda events: Verification(
            inventory=tree_.inventory,
            verdicts=tuple(event for event in events if isinstance(event, Verdict)),
            level=question.level,
            seconds=time.monotonic() - started,
        ),
    )


def _verified(tree: Tree, question: CheckQuestion) -> Generator[ShardReport | Verdict, None, None]:
    if _METER.get() is not None:
        expect(nbytes=bytes_to_read(tree, question), shards=_shards_to_judge(tree, question))
    from ckpttool.core.verbs.data_positions import Positions  # other commands need no states of loaders

    session, positions = session_for(tree, question), Positions(tree)
    try:
        for checkpoint, following in pairwise((*chosen(tree, question.name), None)):
            if checkpoint is None:
                continue
            for event in session.events(checkpoint, followed_by=following):
                yield positions.completed(event, checkpoint) if isinstance(event, Verdict) else event
    finally:  # also when interrupted, so that files read so far need not be read again
        session.close()


def chosen(tree: Tree, name: str | tuple[str, ...] | None) -> Sequence[Checkpoint]:
    """Return the checkpoints that `--checkpoint NAME|latest|all` selects, used once or several times, newest first.

    Raises:
        UsageError: No checkpoint has that name, or the path selects a different checkpoint.
    """
    ordered = newest_first(tree.inventory.checkpoints)
    if isinstance(name, tuple):
        selected = {
            checkpoint.key
            for checkpoint_name in name or (None,)
            for checkpoint in _selected(tree, ordered, checkpoint_name)
        }
        return [checkpoint for checkpoint in ordered if checkpoint.key in selected]
    return _selected(tree, ordered, name)


def _selected(tree: Tree, ordered: Sequence[Checkpoint], name: str | None) -> Sequence[Checkpoint]:
    if name == "all" and tree.focus is None:
        return ordered
    if not ordered or (name in {None, LATEST} and tree.focus is None):
        return latest(ordered)
    matches = named(ordered, name or "") if tree.focus is None else focused(ordered, tree.focus, name)
    if not matches:
        raise none_called(name or tree.focus or "", ordered, tree.inventory.root, also="; or latest, or all")
    return matches


def _shards_to_judge(tree: Tree, question: CheckQuestion) -> int:
    shards = (shard for checkpoint in chosen(tree, question.name) for shard in checkpoint.shards)
    return sum(in_bucket(shard.path, question.bucket) for shard in shards)


def bytes_to_read(tree: Tree, question: CheckQuestion) -> int:
    """Return the approximate number of bytes that `verify` will read."""
    return sum(task.cost for checkpoint in _read(tree, question) for task in _tasks(tree, checkpoint, question))


def forecast(tree: Tree | Where = None, question: CheckQuestion = CheckQuestion()) -> Forecast:
    """Compute the amount that `verify` would read; this reads no more than `scan` does.

    Args:
        tree: The answer of `scan`, or a question about a tree.
        question: The same question as for `verify`.

    Raises:
        UsageError: The named checkpoint does not exist.
    """
    from ckpttool.core.domain.forecast import CheckpointForecast, Forecast

    tree_ = tree_of(tree)
    selected = {checkpoint.key for checkpoint in chosen(tree_, question.name)}
    forecasts = []
    for checkpoint in newest_first(_read(tree_, question)):
        tasks = _tasks(tree_, checkpoint, question)
        forecasts.append(
            CheckpointForecast(
                name=checkpoint.name,
                asked=checkpoint.key in selected,
                shards=len({task.path for task in tasks}),
                tasks=len(tasks),
                nbytes=ByteCount(sum(task.cost for task in tasks)),
                requests=_requests(tasks) if is_object_store(tree_.inventory.root) else None,
            )
        )
    return Forecast(inventory=tree_.inventory, level=question.level, checkpoints=tuple(forecasts))


def _requests(tasks: Sequence[CheckTask]) -> int:
    """Count one request per header, and one for the remaining bytes of a shard or a part."""
    return sum(1 + (task.cost > HEADER_COST) for task in tasks)


def _tasks(tree: Tree, checkpoint: Checkpoint, question: CheckQuestion) -> list[CheckTask]:
    tasks = plan_checks(tree.inventory.root, checkpoint, question.level)
    return [task for task in tasks if in_bucket(task.path, question.bucket)]


def _read(tree: Tree, question: CheckQuestion) -> Collection[Checkpoint]:
    """Return the requested checkpoints, and those to read for comparison."""
    judged: Collection[Checkpoint] = chosen(tree, question.name)
    neighbours = Neighbours(tree.inventory.checkpoints)
    if question.level is Level.NUMERICS and question.jump != 0:
        before = map(neighbours.earlier, judged)
        judged = {checkpoint.key: checkpoint for checkpoint in (*judged, *before) if checkpoint is not None}.values()
    if question.level.reads_content and question.replicas and len(judged) == 1:
        # Another checkpoint shows which replicas must be equal.
        (only,) = judged
        nearest = (*neighbours.in_line(only)[0], *neighbours.in_line(only)[1])[:1]
        judged = (only, *(nearest if len(only.shards) > 1 else ()))
    return judged
