"""Functions that show the contents of a shard or a checkpoint without the trainer that wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ckpttool.core.domain.contents import Contents, Opened
from ckpttool.core.domain.finding import Severity, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UsageError
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage.base import is_there
from ckpttool.core.verbs.data_positions import loaders_of
from ckpttool.core.verbs.sides import Side, side_of
from ckpttool.core.verbs.verifying import cores, counted
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.report import collect
from ckpttool.core.verify.session import completed
from ckpttool.inspect.read_contents import open_shard
from ckpttool.inspect.rules_contents import Gathering

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.verdict import CheckTask
    from ckpttool.core.verify.observation import Observation

TIMEOUT_SECONDS = 600.0
"""Seconds per shard, or per GiB of a shard, after which a read counts as hung."""


def inspect(  # noqa: PLR0913  what may be asked, by keyword
    path: str | None = None,
    *,
    tree: str | None = None,
    checkpoint: str | None = None,
    tensors: Sequence[str] = (),
    stats: bool = False,
    layout: str | None = None,
) -> Contents:
    """Show the tensors and scalars of a shard or a checkpoint, the program that wrote it, and its checksums.

    A damaged file is shown as far as it can be read.

    Args:
        path: A shard of any format; a checkpoint folder, or an output folder (its newest checkpoint); `DIR:NAME`; or
            the name of a checkpoint in `tree`. None for that tree.
        tree: The tree for names. None for `DEFAULT_DIR`, else a tree in or around the current folder.
        checkpoint: A checkpoint of that tree.
        tensors: Names or shell patterns. Empty for all.
        stats: Also compute statistics of the tensors' data: norms, extremes, zeros, NaN.
        layout: Search only for this layout.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint or no tensor has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    side = side_of(path, checkpoint=checkpoint, layout=layout, tree=tree)
    contents = contents_of(side, tensors=tensors, observed=opened(side, tensors=tensors, stats=stats))
    if tensors and not contents.tensors and worst(contents.findings) < Severity.DAMAGE:
        raise none_called(tensors, contents.left_out)
    return replace(contents, loaders=loaders_of(side.tree, side.checkpoint, side.file))


def none_called(tensors: Sequence[str], count: int) -> UsageError:
    """Return the error for requested names that match no tensor."""
    patterns = " or ".join(map(repr, tensors))
    tried = any(character in tensor for tensor in tensors for character in "*?[")
    more = "omit --tensor to show all" if tried else "a pattern such as '*norm*' finds more"
    return UsageError(f"none of {count} tensors is named {patterns}; {more}")


def contents_of(side: Side, *, tensors: Sequence[str], observed: Iterable[Observation]) -> Contents:
    """Combine the contents of a side's shards, in any order."""
    gathering = Gathering(tensors, _seals(side))
    reports = []
    for observed_shard in observed:
        reports.append(observed_shard.report)
        contents = observed_shard.result(Opened)
        if contents is not None:
            gathering.add(contents)
    verdict = collect(side.checkpoint, reports, Level.STRUCTURE)
    findings = completed(verdict.findings, side.checkpoint)
    return gathering.contents(side.tree.inventory, side.checkpoint, file=side.file, findings=findings)


def opened(
    side: Side, *, tensors: Sequence[str] = (), stats: bool = False, is_all: bool = True
) -> Iterator[Observation]:
    """Open every shard of a side, and yield the contents in any order.

    Args:
        side: The side with the shards.
        tensors: Names or shell patterns. Empty for all.
        stats: Also read the tensors' data.
        is_all: Whether the shards are read only this once, so that each is finished afterwards.
    """
    work = partial(check, compare=partial(open_shard, patterns=tuple(tensors), stats=stats))
    if stats:
        engine = partial(ThreadEngine, jobs=cores(), timeout=TIMEOUT_SECONDS)
        return counted(tasks_of(side), work, lambda work: engine(work=work))
    headers = plan_checks(side.tree.inventory.root, side.checkpoint, Level.STRUCTURE)
    return counted(headers, work, lambda work: WaitingEngine(timeout=TIMEOUT_SECONDS, work=work), of=int(is_all))


def tasks_of(side: Side, *, copies: int = 1) -> list[CheckTask]:
    """Return one task per shard. Its cost is `copies` times the shard's size."""
    sizes = {shard.path: shard.stamp.size for shard in side.checkpoint.shards if shard.stamp is not None}
    tasks = plan_checks(side.tree.inventory.root, side.checkpoint, Level.STRUCTURE)
    return [replace(task, cost=ByteCount(copies * sizes.get(task.path, 0))) for task in tasks]


def _seals(side: Side) -> Mapping[str, ShardSeal]:
    """Return the records of a manifest. An invalid manifest is reported by `verify`."""
    place = side.tree.seal_place(side.checkpoint)
    if place is None or (place.is_apart and not is_there(side.tree.storage, OWN_FOLDER)):
        return {}
    from ckpttool.core.records.birth import recorded

    manifest = recorded(side.tree.storage, place, side.checkpoint.shards).manifest
    return {} if manifest is None else manifest.by_path
