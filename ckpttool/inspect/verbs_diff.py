"""Comparison of two shards, or of two checkpoints from one tree or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ckpttool.core.domain.contents import Opened
from ckpttool.core.domain.finding import Finding, Severity, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UsageError
from ckpttool.core.verbs.sides import Side, side_of
from ckpttool.core.verbs.verifying import cores, counted, expect
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.observation import Observation
from ckpttool.core.verify.plan import HEADER_COST
from ckpttool.inspect.model import Difference
from ckpttool.inspect.read_contents import Counterparts, ShardDistances, compare_shard
from ckpttool.inspect.rules_difference import Distances, compared, reported_as_scalars
from ckpttool.inspect.verbs import TIMEOUT_SECONDS, contents_of, none_called, opened, tasks_of

_Held = tuple[Rank | None, ShardRole]


def diff(  # noqa: PLR0913  what may be asked, by keyword
    a: str,
    b: str,
    *,
    tree: str | None = None,
    checkpoint: str | None = None,
    level: Level = Level.STRUCTURE,
    tensors: Sequence[str] = (),
    layout: str | None = None,
) -> Difference:
    """Compare two shards or two checkpoints: tensors, scalars, and how far values moved.

    Args:
        a: A shard of any format; a tree (its newest intact checkpoint); `DIR:NAME`; or a checkpoint's name in `tree`.
        b: The other side.
        tree: The tree for names.
        checkpoint: A checkpoint of both trees.
        level: STRUCTURE compares headers, CHECKSUM every bit of the tensors, NUMERICS every element.
        tensors: Names or shell patterns. Empty for all.
        layout: Search only for this layout.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint or no tensor has that name, or only one side is a file.
        NothingToResumeError: A tree has no checkpoint.
        IncompleteError: A tree's folder cannot be read.
    """
    sides = [side_of(side, checkpoint=checkpoint, layout=layout, tree=tree, is_intact=True) for side in (a, b)]
    ours, theirs = _comparable(a, b, *sides)
    lists: dict[_Held, dict[str, str]] = {}
    values = level is not Level.STRUCTURE
    if values:
        several = len(ours.checkpoint.shards), len(theirs.checkpoint.shards)
        read = sum(task.cost for task in tasks_of(ours, copies=2)) + sum(several) * HEADER_COST
        expect(nbytes=read, shards=sum(several))
    first = contents_of(ours, tensors=tensors, observed=opened(ours, is_all=not values))
    listed = _listed(opened(theirs, is_all=not values), _shared_places(theirs), lists)
    second = contents_of(theirs, tensors=tensors, observed=listed)
    findings = [*_placed(ours, theirs, first.findings), *_placed(theirs, ours, second.findings)]
    if tensors and not (first.tensors or second.tensors) and worst(findings) < Severity.DAMAGE:
        raise none_called(tensors, first.left_out)
    distances = Distances(scalars=reported_as_scalars(first, second))
    if values:
        for observed in _compared(ours, theirs, lists, tensors=tensors, numerics=level is Level.NUMERICS):
            unknown = (finding for finding in observed.report.findings if finding.severity is Severity.UNKNOWN)
            findings += (place for place in unknown if place not in findings)
            shard_distances = observed.result(ShardDistances)
            if shard_distances is not None:
                for distance in shard_distances.distances:
                    distances.add(distance, observed.task.rank)
    return compared(first, second, level=level, distances=distances, findings=findings)


def _comparable(a: str, b: str, ours: Side, theirs: Side) -> tuple[Side, Side]:
    """Return both sides in comparable form. The ranks of two single files are ignored.

    Raises:
        UsageError: One side is one file of several, and the other a checkpoint.
    """
    if (ours.file is None) is not (theirs.file is None) and max(
        len(side.checkpoint.shards) for side in (ours, theirs)
    ) > 1:
        file, folder = (a, b) if ours.file is not None else (b, a)
        raise UsageError(f"{file} is one file, and {folder} a checkpoint of several: give two files or two checkpoints")
    if ours.file is None and theirs.file is None:
        return ours, theirs
    return _without_rank(ours), _without_rank(theirs)


def _without_rank(side: Side) -> Side:
    shards = tuple(replace(shard, rank=None) for shard in side.checkpoint.shards)
    return side._replace(checkpoint=replace(side.checkpoint, shards=shards))


def _placed(side: Side, peer: Side, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Add to each finding the tree that has the problem."""
    root = side.tree.inventory.root
    for finding in findings:
        is_foreign = finding.path is not None and root not in {peer.tree.inventory.root, "."}
        yield replace(finding, path=f"{root}/{finding.path}") if is_foreign else finding


def _shard_key(side: Side, shard_rank: Rank | None, role: ShardRole) -> _Held:
    """Return the key that pairs the files of two sides. A single file is compared with any other."""
    return (None, ShardRole.FULL) if side.file is not None else (shard_rank, role)


def _shared_places(side: Side) -> set[_Held]:
    """Return the ranks and roles with several files, any of which may contain a tensor."""
    count = Counter(_shard_key(side, shard.rank, shard.role) for shard in side.checkpoint.shards)
    return {shard_key for shard_key, files in count.items() if files > 1}


def _listed(
    observed: Iterable[Observation], shared: set[_Held], lists: dict[_Held, dict[str, str]]
) -> Iterator[Observation]:
    """Record, while reading, which of several files contains each tensor."""
    for observation in observed:
        shard_key, contents = (observation.task.rank, observation.task.role), observation.result(Opened)
        if contents is not None and shard_key in shared:
            names = lists.setdefault(shard_key, {})
            names.update((entry.name, observation.task.path) for entry in contents.entries)
        yield observation


def _compared(
    ours: Side, theirs: Side, lists: dict[_Held, dict[str, str]], *, tensors: Sequence[str], numerics: bool
) -> Iterator[Observation]:
    """Compare the values in every file of A with those in B."""
    counterparts_by_key = {_shard_key(theirs, shard.rank, shard.role): shard.path for shard in theirs.checkpoint.shards}
    by_file = {
        shard.path: counterparts_by_key[shard_key]
        for shard in ours.checkpoint.shards
        if (shard_key := _shard_key(ours, shard.rank, shard.role)) in counterparts_by_key and shard_key not in lists
    }
    counterparts = Counterparts(
        tasks={task.path: task for task in tasks_of(theirs)},
        by_file=by_file,
        by_tensor={(rank, name): path for (rank, _), names in lists.items() for name, path in names.items()},
    )
    compare = partial(compare_shard, counterparts=counterparts, patterns=tuple(tensors), numerics=numerics)
    engine = partial(ThreadEngine, jobs=cores(), timeout=TIMEOUT_SECONDS)
    # The compared file has about the same size as the shard.
    tasks = tasks_of(ours, copies=2)
    yield from counted(tasks, partial(check, compare=compare), lambda work: engine(work=work), of=2)
