"""The plan for a tree, with the reasons against it, and the checks of the checkpoints on which it depends."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ckpttool.core.decide.changes import stale_pointers
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import Finding, blocking, note
from ckpttool.core.domain.finding import seen_in_part as may_be_elsewhere
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.pointer import Pointer
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.retention import (
    Batch,
    Elsewhere,
    PruneOrder,
    Pruning,
    RetentionPlan,
    RetentionPolicy,
    Trashed,
    Why,
)
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import Level, Verdict
from ckpttool.core.errors import IncompleteError
from ckpttool.core.records.birth import recorded
from ckpttool.core.storage import is_local
from ckpttool.core.storage.base import Kind
from ckpttool.core.verbs.changes import (
    blockers,
    in_trash,
    members_of,
    not_moved,
    seen_in_part,
    signs_of_writing,
    unreadable,
    unwritable,
)
from ckpttool.core.verbs.scanning import Tree, looking_at, scans_without
from ckpttool.core.verbs.verifying import session_for
from ckpttool.core.verify.session import Session
from ckpttool.retention.apply import batches_of, expired, paths_of
from ckpttool.retention.findings import RetentionCode
from ckpttool.retention.rules import Circumstances, retain
from ckpttool.trainers.located import DiskKey


class Prospect:
    """A tree to prune, with the checks of its checkpoints. Plans of the same tree share these checks."""

    def __init__(self, tree: Tree, question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder) -> None:
        """Prepare to plan; nothing is read yet."""
        self.tree = tree
        self.order = order
        self._question = question
        self._policy = policy
        self._verifier = _Verifier(tree, order)
        self._given: Circumstances | None = None

    def close(self) -> None:
        """Write results to the ledger, also after an interrupt."""
        self._verifier.close()

    def plan(self, spared: Mapping[CheckpointKey, Why] | None = None) -> RetentionPlan:
        """Decide about every checkpoint.

        Args:
            spared: Checkpoints that stay even if they are superseded, each with the reason.
        """
        tree = self.tree
        if self._given is None:
            refused = not_moved(tree, self._question.config)
            self._given = Circumstances(refused=refused, now_ns=time.time_ns())
        scan_without = scans_without(replace(self._question, sizes=True))

        def without(removed: Sequence[Checkpoint]) -> Inventory:
            return scan_without([path for checkpoint in removed for path in members_of(tree, checkpoint).paths])

        given = Circumstances(refused=self._given.refused, now_ns=self._given.now_ns, spared=spared or {})
        return retain(tree.inventory, self._policy, self._verifier, without, given)

    def answer(self, plan: RetentionPlan, refusals: Sequence[Finding]) -> tuple[Pruning, tuple[Batch, ...]]:
        """Return the answer for a plan, and its renames; none if a finding forbids to carry it out.

        Args:
            plan: The decisions.
            refusals: Findings that forbid it, besides those of the plan itself.
        """
        tree, order = self.tree, self.order
        against = [*refusals, *_not_seen(tree, plan)]
        batches: tuple[Batch, ...] = ()
        pointers = _pointers(tree, plan)
        fixes = tuple(stale_pointers(pointers, plan.going, plan.intact, tree.layout.pointing_to))
        is_here = is_local(tree.storage.root)
        if plan.going and not is_here:
            against += [*signs_of_writing(tree, grace=order.grace), *unreadable(pointers)]
        elif plan.going:
            paths = (path for checkpoint in plan.going for path in paths_of(tree, checkpoint))
            in_the_way = blockers(tree, paths) or unwritable(tree, fixes)
            for checkpoint in plan.good[:1]:
                against += seen_in_part(tree, self._question, checkpoint)
            against += [*signs_of_writing(tree, grace=order.grace), *in_the_way, *unreadable(pointers)]
            saves = ((checkpoint.name, paths_of(tree, checkpoint)) for checkpoint in reversed(plan.going))
            batches = () if against else batches_of(tree, saves)
        trash: tuple[Trashed, ...] = ()
        elsewhere: tuple[Elsewhere, ...] | None = None
        if is_here:
            old = {*expired(tree, order.trash_days)}
            trash = tuple(Trashed(name=folder.name, goes=folder.name in old) for folder in in_trash(tree))
        else:
            elsewhere = () if against else tuple(_elsewhere(tree, plan))
        pruning = Pruning(
            plan=plan,
            order=order,
            fixes=fixes,
            trash=trash,
            refusals=tuple(against),
            resolved_from=tree.resolved_from,
            remarks=tuple(_timeless(plan)),
            elsewhere=elsewhere,
        )
        return pruning, batches


def _not_seen(tree: Tree, plan: RetentionPlan) -> list[Finding]:
    """Report machines without a recent part: they may have files, so that a missing good save proves nothing."""
    if tree.machines.is_here:
        return []
    against = list(blocking(tree.inventory.findings))
    for save in () if plan.good else tree.inventory.checkpoints:
        against += [finding for finding in save.findings if may_be_elsewhere([finding])]
    return against


def _timeless(plan: RetentionPlan) -> Iterator[Finding]:
    """Report the checkpoints that stay only because it is unknown when they were saved."""
    fates = [fate for fate in plan.fates if fate.why == (Why.TIME_UNKNOWN,)]
    if fates:
        names = ", ".join(fate.checkpoint.name for fate in fates[:_MOST_NAMED])
        more = f" and {len(fates) - _MOST_NAMED} more" if len(fates) > _MOST_NAMED else ""
        yield note(
            RetentionCode.SAVE_TIME_UNKNOWN,
            f"kept, because it is unknown when they were saved: {names}{more}",
            remedy="copy trees with their times (cp -p, rsync -a), or keep checkpoints by step with --keep-every",
        )


_MOST_NAMED = 3
"""Maximum number of checkpoints named in a finding."""


def _pointers(tree: Tree, plan: RetentionPlan) -> list[Pointer]:
    """Read the records that may name a checkpoint to delete."""
    if not plan.going:
        return []
    ranks = sorted({rank for checkpoint in plan.going for rank in checkpoint.ranks})
    with looking_at(tree.inventory.root):
        return list(tree.layout.pointers(tree.storage, ranks))


def _elsewhere(tree: Tree, plan: RetentionPlan) -> list[Elsewhere]:
    """Return the files to delete, by machine; a shared disk is listed for one of its machines.

    Raises:
        IncompleteError: Something can no longer be read.
    """
    hosts = tree.machines.hosts()
    places = []
    for checkpoint in reversed(plan.going):
        files: dict[DiskKey, list[tuple[str, int]]] = defaultdict(list)
        for path in _files(tree, paths_of(tree, checkpoint)):
            for disk, size in _sizes(tree, path).items():
                files[disk].append((path, size))
        for disk, disk_files in files.items():
            entry = Elsewhere(
                checkpoint=checkpoint.name,
                host=hosts.get(disk),
                paths=tuple(path for path, _ in disk_files),
                nbytes=ByteCount(sum(size for _, size in disk_files)),
            )
            places.append((entry.host or "", disk, entry))
    places.sort(key=lambda item: item[:2])
    return [entry for _, _, entry in places]


def _files(tree: Tree, paths: Sequence[str]) -> Iterator[str]:
    """Yield the files at paths, and all files in folders."""
    for path in paths:
        try:
            if tree.storage.kind(path) is not Kind.FOLDER:
                yield path
                continue
            inside = [f"{path}/{entry.name}" for entry in tree.storage.entries(path)]
        except OSError as error:
            raise _unread(path, error) from None
        yield from _files(tree, inside)


def _sizes(tree: Tree, path: str) -> Mapping[DiskKey, ByteCount]:
    """Return the size of a file on each disk that has the file; an object store is one disk, without a name."""
    try:
        size = tree.storage.stamp(path).size
    except OSError as error:
        raise _unread(path, error) from None
    return tree.machines.sizes(path, size)


def _unread(path: str, error: OSError) -> IncompleteError:
    return IncompleteError(f"{path} cannot be read: {error.strerror or error}; what would be deleted is unknown")


class _Verifier:
    """The checks of one tree's checkpoints, at the requested level."""

    def __init__(self, tree: Tree, order: PruneOrder) -> None:
        self._tree = tree
        self._order = order
        self._headers = session_for(tree, CheckQuestion(level=Level.STRUCTURE))
        self._content: Session | None = None
        self._verdicts: dict[CheckpointKey, Verdict] = {}
        self._contents: dict[CheckpointKey, Verdict] = {}
        self._left: tuple[Inventory, Session] | None = None
        self._whole: dict[tuple[CheckpointKey, ...], bool] = {}
        """Whether a checkpoint is intact, by the checkpoint and those with which it was compared."""

    def close(self) -> None:
        """Write results to the ledger, also after an interrupt."""
        if self._content is not None:
            self._content.close()

    def headers(self, checkpoint: Checkpoint) -> Verdict:
        if checkpoint.key not in self._verdicts:
            self._verdicts[checkpoint.key] = self._headers.verdict(checkpoint)
        return self._verdicts[checkpoint.key]

    def is_intact_in(self, remaining: Inventory, checkpoint: Checkpoint) -> bool:
        if self._left is None or self._left[0] is not remaining:
            tree = replace(self._tree, inventory=remaining)
            self._left = remaining, session_for(tree, CheckQuestion(level=Level.STRUCTURE))
        session = self._left[1]
        keys = checkpoint.key, *session.compared_with(checkpoint)
        if keys == (checkpoint.key, *self._headers.compared_with(checkpoint)):
            return not blocking(self._verdicts[checkpoint.key].findings)
        if keys not in self._whole:
            self._whole[keys] = not blocking(session.verdict(checkpoint).findings)
        return self._whole[keys]

    def has_checksums(self, checkpoint: Checkpoint) -> bool:
        place = self._tree.seal_place(checkpoint)
        manifest = None if place is None else recorded(self._tree.storage, place, checkpoint.shards).manifest
        sealed = set[str]() if manifest is None else manifest.by_path.keys()
        reports = self._verdicts[checkpoint.key].reports
        return all(report.embedded_checksum or report.path in sealed for report in reports)

    def content(self, checkpoint: Checkpoint) -> Verdict | None:
        level = self._order.level
        if level is Level.STRUCTURE or (level is None and not self.has_checksums(checkpoint)):
            return None
        if checkpoint.key in self._contents:
            return self._contents[checkpoint.key]
        if self._content is None:
            deep = level or Level.CHECKSUM
            question = CheckQuestion(level=deep, jump=0, max_age=self._order.max_age, replicas=False)
            self._content = session_for(self._tree, question)
        self._contents[checkpoint.key] = self._content.verdict(checkpoint)
        return self._contents[checkpoint.key]
