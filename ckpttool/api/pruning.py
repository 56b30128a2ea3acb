"""Let go what newer checkpoints replace, so that whatever happens meanwhile nothing good is lost."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress

from ckpttool.api.changes import (
    assert_unchanged,
    blockers,
    change_of,
    in_trash,
    members_of,
    moving,
    not_moved,
    pending,
    seen_in_part,
    signs_of_writing,
    unreadable,
    unwritable,
    whole_tree,
    write_pointers,
)
from ckpttool.api.scanning import Tree, Where, asked, looking_at, scans_without
from ckpttool.api.verifying import assert_kept, session_for
from ckpttool.decide.changes import left_behind
from ckpttool.decide.retention import retain
from ckpttool.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.domain.finding import Finding, blocking
from ckpttool.domain.finding import seen_in_part as may_be_elsewhere
from ckpttool.domain.frozen import replace
from ckpttool.domain.pointer import Pointer, PointerFix
from ckpttool.domain.question import CheckQuestion, TreeQuestion
from ckpttool.domain.retention import (
    Batch,
    Elsewhere,
    Move,
    PruneOrder,
    Pruning,
    RetentionPlan,
    RetentionPolicy,
    Trashed,
)
from ckpttool.domain.units import ByteCount
from ckpttool.domain.verdict import Level, Verdict
from ckpttool.errors import CkptToolError, IncompleteError, NotDurableError, UnsafeError, WriteFailedError
from ckpttool.records import JOURNAL, OWN_FOLDER
from ckpttool.records.birth import birth_paths, recorded
from ckpttool.records.journal import TIME_FORMAT, TRASH, journal_bytes
from ckpttool.records.manifest import manifests_beside
from ckpttool.storage import is_local
from ckpttool.storage.base import Kind
from ckpttool.verify.session import Session
from ckpttool.write.blockers import files_to_move
from ckpttool.write.files import ensure_folder, remove
from ckpttool.write.files import replace as write
from ckpttool.write.moves import delete, move_to_trash, restore
from ckpttool.write.reserve import is_full_disk, keep_reserve, spend_reserve

DAY_SECONDS = 86400.0


POLL_SECONDS = 10.0
"""Between two looks at a tree in which a save is under way: a save takes minutes, a look at a large tree a second."""


def prune(
    question: Where,
    policy: RetentionPolicy,
    order: PruneOrder = PruneOrder(),
    *,
    waiting: Callable[[Finding], None] | None = None,
) -> Pruning:
    """Decide which checkpoints may go, and with `order.apply` let them go.

    What goes is moved to a trash folder in the tree, whole or not at all, and deleted from there when its days are
    over. A prune that was interrupted is undone first.

    Args:
        question: Which tree.
        policy: What to keep.
        order: How to look, what to do, and how long to wait for a save that is under way.
        waiting: Told what is waited for, each time that it is something else.

    Raises:
        UsageError: The policy names what is not there.
        LockedError: Another ckpttool changes this tree.
        IncompleteError: The tree changed since the plan was made. Nothing was changed.
        UnsafeError: A link or another disk is in the way. Nothing was changed.
        WriteFailedError: The disk refused. What was moved has gone back, or goes back with the next prune.
        NotDurableError: It is done, but the disk did not confirm it.
    """
    question = asked(question)
    tree, patience = _when_quiet(question, order, waiting)
    if order.apply:
        _assert_here(tree)
    if not order.apply:
        return _proposal(tree, question, policy, order, pending(tree))[0]
    try:
        return _apply(tree.inventory.root, question, policy, order, patience)
    except WriteFailedError as error:
        if is_full_disk(error):
            raise WriteFailedError(f"{error}; {_MAKE_ROOM.format(root=shlex.quote(tree.inventory.root))}") from error
        raise


def _assert_here(tree: Tree) -> None:
    """See that what is to go lies in a folder of this machine.

    Raises:
        UnsafeError: It does not.
    """
    told = "without --apply it is said what would go, and --json names each file"
    if tree.looks is not None:
        raise UnsafeError(f"nothing is deleted by what machines wrote down of a tree: {told} with its machine")
    if not is_local(tree.storage.root):
        raise UnsafeError(
            f"{tree.inventory.root} is only read: ckpttool changes nothing but folders of this machine; {told}"
        )


_MAKE_ROOM = (
    "the disk is full, and what must be written before anything can go does not fit: free some hundred KiB by hand "
    "(an old log, or ckpttool trash empty {root} --apply) and run again; prune and seal then leave a reserve for "
    "next time"
)


def _apply(root: str, question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder, patience: float) -> Pruning:
    """Plan anew under the lock, and do it."""
    with change_of(root, timeout=patience):
        tree = whole_tree(question)
        if signs_of_writing(tree, grace=order.grace):  # it will be refused: no content need be read for that
            order = replace(order, level=Level.STRUCTURE)
        pruning, batches = _proposal(tree, question, policy, order, [])
        if pruning.applied:
            if batches:
                with moving(root):
                    assert_unchanged(tree, question, grace=order.grace)
                    try:
                        _move(root, batches, pruning.fixes)
                    except WriteFailedError as error:
                        if not is_full_disk(error) or not _made_room(tree, order):
                            raise
                        _move_one_by_one(root, batches, pruning.fixes, order)
            for name in _expired(tree, order):
                delete(root, f"{TRASH}/{name}")
            files = max((len(checkpoint.shards) for checkpoint in tree.inventory.checkpoints), default=0)
            keep_reserve(f"{root}/{OWN_FOLDER}", files=files)
    return pruning


def _when_quiet(
    question: TreeQuestion, order: PruneOrder, waiting: Callable[[Finding], None] | None
) -> tuple[Tree, float]:
    """Scan until nobody is saving, and return the tree and the seconds that are left; no longer than the order says."""
    end, told = time.monotonic() + order.wait, None
    while True:
        tree = whole_tree(question, planned=True)
        left = max(0.0, end - time.monotonic())
        sign = next(iter(signs_of_writing(tree, grace=order.grace)), None) if left else None
        if sign is None:
            return tree, left
        if waiting is not None and sign.path != told:
            waiting(sign)
        told = sign.path
        time.sleep(min(POLL_SECONDS, left))


def _proposal(
    tree: Tree, question: TreeQuestion, policy: RetentionPolicy, order: PruneOrder, refusals: Sequence[Finding]
) -> tuple[Pruning, tuple[Batch, ...]]:
    """Say what would be done, and what speaks against doing it."""
    scan_without = scans_without(replace(question, sizes=True))

    def without(gone: Sequence[Checkpoint]) -> Inventory:
        return scan_without([path for checkpoint in gone for path in members_of(tree, checkpoint).paths])

    with closing(_Verifier(tree, order)) as verifier:
        plan = retain(tree.inventory, policy, verifier, without, not_moved(tree))
    against = [*refusals, *_not_seen(tree, plan)]
    batches: tuple[Batch, ...] = ()
    pointers = _pointers(tree, plan)
    fixes = tuple(left_behind(pointers, plan.going, plan.whole, tree.layout.pointing_to))
    is_here = is_local(tree.storage.root)
    if plan.going and not is_here:
        against += [*signs_of_writing(tree, grace=order.grace), *unreadable(pointers)]
    elif plan.going:
        paths = (path for checkpoint in plan.going for path in _paths(tree, checkpoint))
        in_the_way = blockers(tree, paths) or unwritable(tree, fixes)
        for checkpoint in plan.good[:1]:
            against += seen_in_part(tree, question, checkpoint)
        against += [*signs_of_writing(tree, grace=order.grace), *in_the_way, *unreadable(pointers)]
        batches = () if against else _batches(tree, plan.going)
    trash, expired = (in_trash(tree), {*_expired(tree, order)}) if is_here else ([], set())
    pruning = Pruning(
        plan=plan,
        order=order,
        fixes=fixes,
        trash=tuple(Trashed(name=folder.name, goes=folder.name in expired) for folder in trash),
        refusals=tuple(against),
        resolved_from=tree.resolved_from,
        elsewhere=None if is_here else () if against else tuple(_elsewhere(tree, plan)),
    )
    return pruning, batches


def _not_seen(tree: Tree, plan: RetentionPlan) -> list[Finding]:
    """Say what machines may have that nobody asked, or not in time: that no good save is seen proves nothing then."""
    if tree.looks is None:
        return []
    own = () if plan.good else (finding for save in tree.inventory.checkpoints for finding in save.findings)
    return [*blocking(tree.inventory.findings), *(finding for finding in own if may_be_elsewhere([finding]))]


def _elsewhere(tree: Tree, plan: RetentionPlan) -> Iterator[Elsewhere]:
    """Say which files would go, machine by machine; what several machines see of one disk goes on one of them."""
    found: dict[str | None, dict[int, list[tuple[str, int]]]] = {}
    for number, checkpoint in enumerate(reversed(plan.going)):
        for path in _files(tree, _paths(tree, checkpoint)):
            for host, size in _held(tree, path):
                found.setdefault(host, {}).setdefault(number, []).append((path, size))
    names = [checkpoint.name for checkpoint in reversed(plan.going)]
    for host in sorted(found, key=lambda host: host or ""):
        for number, files in found[host].items():
            paths, nbytes = tuple(path for path, _ in files), ByteCount(sum(size for _, size in files))
            yield Elsewhere(checkpoint=names[number], host=host, paths=paths, nbytes=nbytes)


def _files(tree: Tree, paths: Sequence[str]) -> Iterator[str]:
    """Yield the files at paths, and of folders all in them."""
    for path in paths:
        try:
            is_folder = tree.storage.kind(path) is Kind.FOLDER
            inside = [f"{path}/{entry.name}" for entry in tree.storage.entries(path)] if is_folder else []
        except OSError as error:
            raise IncompleteError(f"{path} cannot be read: {error.strerror or error}; no plan was made") from None
        if is_folder:
            yield from _files(tree, inside)
        else:
            yield path


def _held(tree: Tree, path: str) -> list[tuple[str | None, int]]:
    """Return which machines have a file, one for each disk, and how large it is there."""
    if tree.looks is None:
        return [(None, tree.storage.stamp(path).size)]
    merge = tree.looks.merge
    copies = {copy.seat.disk: copy.stamp.size for copy in merge.copies.get(path, ())}
    seats = sorted((merge.seats[at] for at in merge.held.get(path, ())), key=lambda seat: seat.host)
    hosts = {seat.disk: seat.host for seat in reversed(seats)}
    return [(host, copies[disk] if disk in copies else tree.storage.stamp(path).size) for disk, host in hosts.items()]


def _expired(tree: Tree, order: PruneOrder) -> list[str]:
    """Name the trash folders that were there long enough; with no days to wait, whatever a clock says."""
    now, patience = time.time(), order.trash_days * DAY_SECONDS
    return [folder.name for folder in in_trash(tree) if not patience or now - folder.since >= patience]


def _pointers(tree: Tree, plan: RetentionPlan) -> list[Pointer]:
    """Read the records that may name what goes."""
    if not plan.going:
        return []
    ranks = sorted({rank for checkpoint in plan.going for rank in checkpoint.ranks})
    with looking_at(tree.inventory.root):
        return list(tree.layout.pointers(tree.storage, ranks))


def _paths(tree: Tree, checkpoint: Checkpoint) -> list[str]:
    """Return what goes with a checkpoint, in order: its members, and its seals where these are kept apart from them."""
    paths = list(members_of(tree, checkpoint).paths)
    place = tree.seal_place(checkpoint)
    if place is None:
        return paths
    paths += manifests_beside(tree.storage, place)
    if not place.is_apart:
        return paths
    births: list[str] = []
    try:
        births = birth_paths(tree.storage, place)
        tree.storage.stamp(place.path)
    except (FileNotFoundError, NotADirectoryError):
        return [*paths, *births]
    except OSError as error:
        raise IncompleteError(f"{place.path}: whether it is there is not known ({error.strerror or error})") from None
    return [*paths, place.path, *births]


def _batches(tree: Tree, going: Sequence[Checkpoint]) -> tuple[Batch, ...]:
    """Plan every rename, oldest checkpoint first."""
    taken = {folder.name for folder in in_trash(tree)}
    start = time.strftime(TIME_FORMAT, time.gmtime())
    batches = []
    for checkpoint in reversed(going):
        name = f"{start}-{checkpoint.name}"
        while name in taken:  # the same save in two formats, or a prune a second ago
            name += "+"
        taken.add(name)
        try:
            found = list(files_to_move(tree.storage.root, _paths(tree, checkpoint)))
        except OSError as error:
            raise IncompleteError(f"{checkpoint.name} changed while the plan was made ({error.strerror})") from None
        moves = tuple(Move(path=file.path, stamp=file.stamp) for file in found if file.stamp is not None)
        batches.append(Batch(trash=f"{TRASH}/{name}", moves=moves))
    return tuple(batches)


def _move(root: str, batches: Sequence[Batch], fixes: Sequence[PointerFix]) -> None:
    """Move everything, or nothing.

    The journal is on the disk before the first file moves, and stays until the last one has: whoever finds it puts
    back what it names. Records are written before, so that none ever names what is gone.
    """
    ensure_folder(f"{root}/{TRASH}")
    try:
        try:
            write(f"{root}/{JOURNAL}", journal_bytes(batches), overwrite=True, backup=False)
            write_pointers(root, fixes)
        except NotDurableError as error:
            raise WriteFailedError(f"nothing was moved, for what must be on the disk first is not: {error}") from error
        move_to_trash(root, batches)
    except BaseException:
        # Where this fails too, the next prune does it.
        with suppress(CkptToolError):
            restore(root, batches)
            remove(f"{root}/{JOURNAL}")
        raise
    remove(f"{root}/{JOURNAL}")


def _made_room(tree: Tree, order: PruneOrder) -> bool:
    """Delete what would be deleted in the end, and the reserve; tell whether there was any of that."""
    root = tree.inventory.root
    expired = _expired(tree, order)
    for name in expired:
        delete(root, f"{TRASH}/{name}")
    return spend_reserve(f"{root}/{OWN_FOLDER}") or bool(expired)


def _move_one_by_one(root: str, batches: Sequence[Batch], fixes: Sequence[PointerFix], order: PruneOrder) -> None:
    """Move and delete a checkpoint before the next one: each makes the room that the next one needs."""
    for number, batch in enumerate(batches):
        _move(root, [batch], () if number else fixes)
        if not order.trash_days:
            delete(root, batch.trash)


class _Verifier:
    """Verifies checkpoints of one tree as hard as the order says."""

    def __init__(self, tree: Tree, order: PruneOrder) -> None:
        if order.level is not None:
            assert_kept(tree.inventory.root, order.level)
        self._tree = tree
        self._order = order
        self._headers = session_for(tree, CheckQuestion(level=Level.STRUCTURE))
        self._content: Session | None = None
        self._verdicts: dict[CheckpointKey, Verdict] = {}

    def close(self) -> None:
        """Bring what was verified to the ledger, also when interrupted."""
        if self._content is not None:
            self._content.close()

    def headers(self, checkpoint: Checkpoint) -> Verdict:
        self._verdicts[checkpoint.key] = verdict = self._headers.verdict(checkpoint)
        return verdict

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
        if self._content is None:
            deep = level or Level.CHECKSUM
            question = CheckQuestion(level=deep, jump=0, max_age=self._order.max_age, replicas=False)
            self._content = session_for(self._tree, question)
        return self._content.verdict(checkpoint)
