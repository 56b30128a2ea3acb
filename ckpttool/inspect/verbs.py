"""Functions that show the contents of a shard or a checkpoint without the trainer that wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.contents import Contents, Opened
from ckpttool.core.domain.finding import Severity, blocking, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import IncompleteError, NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.core.records import OWN_FOLDER
from ckpttool.core.storage import is_folder, open_storage
from ckpttool.core.storage.base import Kind, is_there
from ckpttool.core.verbs.scanning import Tree, scan
from ckpttool.core.verbs.verifying import chosen, cores, counted, session_for
from ckpttool.core.verify.check import check
from ckpttool.core.verify.engines.threads import ThreadEngine
from ckpttool.core.verify.engines.waiting import WaitingEngine
from ckpttool.core.verify.plan import plan_checks
from ckpttool.core.verify.report import collect
from ckpttool.core.verify.session import completed
from ckpttool.inspect.read_contents import open_shard
from ckpttool.inspect.rules_contents import Gathering
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal
    from ckpttool.core.domain.verdict import CheckTask
    from ckpttool.core.verify.observation import Observation

TIMEOUT_SECONDS = 600.0
"""Seconds per shard, or per GiB of a shard, after which a read counts as hung."""


class Side(NamedTuple):
    """The selected object: a checkpoint, or one of its files."""

    tree: Tree
    checkpoint: Checkpoint
    """The checkpoint. If a file was selected, it has only that shard."""
    file: str | None
    """The path of the selected file, or None for a checkpoint."""


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
    return contents


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


def side_of(
    path: str | None,
    *,
    checkpoint: str | None = None,
    layout: str | None = None,
    tree: str | None = None,
    is_intact: bool = False,
) -> Side:
    """Resolve an argument of a command line.

    Args:
        path: A file, a folder, `DIR:NAME`, or the name of a checkpoint in `tree`. None for that tree.
        checkpoint: A checkpoint of that tree.
        layout: Search only for this layout.
        tree: The tree for names.
        is_intact: In a tree without a name, choose the newest checkpoint that is intact according to its headers; else
            the newest without missing files; else the newest.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    if path is None:
        return _of_tree(tree, checkpoint, layout, is_intact=is_intact)
    kind = _kind(path)
    if kind is Kind.FILE and checkpoint is None:
        return _of_file(path, layout)
    if kind is None:
        folder, colon, name = path.rpartition(":")
        if colon and is_folder(folder):
            return _of_tree(folder, name, layout, is_intact=is_intact)
        if checkpoint is None and not os.path.dirname(path):
            return _of_name(path, tree, layout)
    return _of_tree(path, checkpoint, layout, is_intact=is_intact)


def _kind(path: str) -> Kind | None:
    try:
        return open_storage(path).kind("")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # the search for the tree reports the reason
        return Kind.OTHER


def _of_name(name: str, tree: str | None, layout: str | None) -> Side:
    try:
        return _of_tree(tree, name, layout, is_intact=False)
    except UnknownLayoutError as error:
        raise UnknownLayoutError(
            f"there is no file or folder {name!r}, and no tree with such a checkpoint: {error}"
        ) from None


def _here(question: TreeQuestion) -> Tree:
    """Return a tree whose shards can be opened on this machine.

    Raises:
        IncompleteError: The shards are on other machines.
    """
    tree = scan(question)
    if not tree.machines.is_here:
        raise IncompleteError(
            f"{question.path} has parts, the records that machines wrote about {tree.inventory.root}, without the "
            "shards' contents; run this on the machine that has the shards"
        )
    return tree


def _of_tree(path: str | None, name: str | None, layout: str | None, *, is_intact: bool) -> Side:
    tree = _here(TreeQuestion(path=path, layout=layout, sizes=True))
    if not tree.inventory.checkpoints:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    several = chosen(tree, name)
    if is_intact and name is None and tree.focus is None:
        ordered = newest_first(tree.inventory.checkpoints)
        complete = [checkpoint for checkpoint in ordered if not blocking(checkpoint.findings)]
        session = session_for(tree, CheckQuestion())
        is_whole = (checkpoint for checkpoint in complete if not blocking(session.verdict(checkpoint).findings))
        several = [next(is_whole, (complete or ordered)[0])]
    elif len(several) > 1:
        names = ", ".join(f"{checkpoint.prefix}-{checkpoint.name}" for checkpoint in several)
        title = name or path or tree.inventory.root
        raise UsageError(f"{title} matches several checkpoints ({names}): give the file of one of its shards")
    return Side(tree, several[0], None)


def _of_file(path: str, layout: str | None) -> Side:
    """Return a file with its checkpoint, which provides its rank and seal. Without one, return only the file."""
    try:
        tree = _here(TreeQuestion(path=path, layout=layout, sizes=True))
        several = chosen(tree, None)
    except (UsageError, UnknownLayoutError):
        tree = scan(TreeQuestion(path=path, layout=LOOSE_FILE_LAYOUT, sizes=True))
        several = chosen(tree, None)
    for checkpoint in several:
        for shard in checkpoint.shards:
            if os.path.abspath(os.path.join(tree.inventory.root, shard.path)) == os.path.abspath(path):
                return Side(tree, replace(checkpoint, shards=(shard,), findings=()), shard.path)
    if not several:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    return Side(tree, several[0], None)


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
