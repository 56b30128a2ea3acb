"""Let go, on the machine that has the files, what a plan says: after a look at every one of them, and to the trash."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from ckpttool.api.changes import (
    blockers,
    change_of,
    in_trash,
    moving,
    pending,
    signs_of_writing,
    unreadable,
    unwritable,
)
from ckpttool.api.letting_go import batches_of, expired, let_go, tidy
from ckpttool.api.pruning import POLL_SECONDS
from ckpttool.api.scanning import Tree, Where, asked, looking_at, scanned
from ckpttool.decide.merging import SKEW_SECONDS
from ckpttool.domain.finding import Code, Finding, unknown
from ckpttool.domain.frozen import replace
from ckpttool.domain.pointer import Pointer, PointerFix
from ckpttool.domain.prune_plan import (
    MOST_PLAN_BYTES,
    ApplyOrder,
    Fate,
    PlanApplied,
    PlannedSave,
    PrunePlan,
    SaveHere,
    Share,
)
from ckpttool.domain.question import DEFAULT_DIR, TreeQuestion
from ckpttool.domain.retention import Trashed
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import ByteCount, moment
from ckpttool.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.records import OWN_FOLDER, STREAM
from ckpttool.records.prune_plan import read_plan
from ckpttool.storage import assert_changeable, open_storage, shortest
from ckpttool.storage.base import Kind, NotRegularError, OverLimitError, Storage, is_there
from ckpttool.storage.mounts import disk_id
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.locate import Located, locate
from ckpttool.trainers.places_below import places_below
from ckpttool.trainers.registry import layouts


def apply_plan(
    question: Where,
    path: str,
    order: ApplyOrder = ApplyOrder(),
    *,
    waiting: Callable[[Finding], None] | None = None,
) -> PlanApplied:
    """Say what this machine has of a plan, and with `order.apply` move it to the tree's trash, all of it or nothing.

    Nothing that the plan names is deleted. A change of the tree that was interrupted is undone first.

    Args:
        question: Which tree; of what is known of it beforehand only where it is, and by how much clocks may differ.
        path: The plan's file; `-` for standard input.
        order: Whether to do it, and how long to wait for a save that is under way.
        waiting: Told what is waited for, each time that it is something else.

    Raises:
        UsageError: The file is no plan, or it is the plan of another tree.
        LockedError: Another ckpttool changes this tree.
        IncompleteError: The plan is torn, edited or too old, or something changed meanwhile. Nothing was changed.
        UnsafeError: The tree is no folder of this machine, or a link or another disk is in the way.
        WriteFailedError: The disk refused. What was moved has gone back, or goes back with the next change.
        NotDurableError: It is done, but the disk did not confirm it.
    """
    question = asked(question)
    if order.trash_days is not None and order.trash_days < 1:
        raise UsageError("a plan deletes nothing at once: what goes stays in the trash for --trash-days 1 at least")
    here = _Here(_read(path), path, question, order)
    answer, patience = _when_quiet(here, waiting)
    if not order.apply or not here.has_work(answer):
        return answer
    with change_of(here.root, timeout=patience):
        answer = here.look()
        if answer.applied:
            here.do(answer)
    return answer


def _read(path: str) -> PrunePlan:
    folder, name = os.path.split(path)
    try:
        if path == STREAM:
            data = sys.stdin.buffer.read(MOST_PLAN_BYTES + 1)
        else:
            data = open_storage(folder or ".").small_file(name, limit=MOST_PLAN_BYTES)
    except OverLimitError:
        raise UsageError(f"{path} is no plan: it has more than {MOST_PLAN_BYTES} bytes") from None
    except (FileNotFoundError, NotADirectoryError, NotRegularError) as error:
        raise UsageError(f"{path} is no plan: {error.strerror or error}") from None
    except OSError as error:
        raise IncompleteError(f"{path} cannot be read: {error.strerror or error}; nothing was changed") from None
    return read_plan(data, name="standard input" if path == STREAM else path)


def _root_of(question: TreeQuestion, plan: PrunePlan) -> str:
    """Return the tree that is meant, as it was given; it need not be there.

    Raises:
        UnsafeError: It is no folder of this machine.
        UsageError: It is none that the plan was made of.
    """
    path = shortest(DEFAULT_DIR if question.path is None else question.path)
    assert_changeable(path)
    found = []
    try:
        located = locate(question.path, layout=plan.layout)
    except (UnknownLayoutError, IncompleteError):
        pass
    else:
        assert_changeable(located.storage.root)
        found = [located.storage.root]
    known = {os.path.realpath(machine.root) for disk in plan.disks for machine in disk.machines}
    for root in (*found, path, *places_below(path)):
        if os.path.realpath(root) in known:
            return root
    named = " or ".join(sorted({machine.root for disk in plan.disks for machine in disk.machines})[:2])
    raise UsageError(f"{path} is not the tree that the plan is of, which is {named}")


def _when_quiet(here: _Here, waiting: Callable[[Finding], None] | None) -> tuple[PlanApplied, float]:
    """Look until nobody is saving, and return what was seen and the seconds that are left to wait."""
    end, told = time.monotonic() + here.order.wait, None
    while True:
        answer = here.look()
        left = max(0.0, end - time.monotonic())
        signs = (each for each in answer.refusals if each.code is Code.IN_PROGRESS and not here.is_ours(each))
        sign = next(signs, None) if left else None
        if sign is None:
            return answer, left
        if waiting is not None and sign.path != told:
            waiting(sign)
        told = sign.path
        time.sleep(min(POLL_SECONDS, left))


class _Here:
    """This machine, and what it has of a plan."""

    def __init__(self, plan: PrunePlan, path: str, question: TreeQuestion, order: ApplyOrder) -> None:
        self.order = order
        self._plan, self._path, self._question = plan, path, question
        self._assert_in_time()
        self.root = root = _root_of(question, plan)
        self._host = socket.gethostname()
        real, disk = os.path.realpath(root), disk_id(root)
        self._own = {
            number
            for number, each in enumerate(plan.disks)
            if each.disk == disk and real in {os.path.realpath(machine.root) for machine in each.machines}
        }
        """The plan's disks on which this tree lies."""
        seen_by = {machine.host for number in self._own for machine in plan.disks[number].machines}
        movers = {plan.disks[number].mover for number in self._own}
        self._left_to = min(movers, key=str) if self._host in seen_by and self._host not in movers else None

    def _assert_in_time(self) -> None:
        """See that the plan is not too old, nor of a time that is still to come.

        Raises:
            IncompleteError: It is.
        """
        now, plan, path = time.time(), self._plan, self._path
        skew = SKEW_SECONDS if self._question.skew is None else self._question.skew
        if moment(now) > plan.valid_until:
            raise IncompleteError(f"{path} was good until {plan.valid_until}; nothing was changed: make a new plan")
        if plan.made > moment(now + skew):
            raise IncompleteError(
                f"{path} was made at {plan.made}, which is still to come on this machine: how old it is is not known; "
                "set its clock, or say by how much clocks may differ with --skew"
            )

    def is_ours(self, sign: Finding) -> bool:
        """Tell whether a sign of writing is one of a change that was interrupted."""
        return (sign.path or "").startswith(f"{OWN_FOLDER}/")

    def has_work(self, answer: PlanApplied) -> bool:
        """Tell whether anything is to be changed: what was interrupted is undone before it is looked at again."""
        is_halfway = any(map(self.is_ours, answer.refusals))
        return is_halfway or (not answer.refusals and bool(answer.batches or any(each.goes for each in answer.trash)))

    def do(self, answer: PlanApplied) -> None:
        """Do what was seen under the same lock."""
        tree = self._tree()
        if answer.batches:
            with moving(self.root):
                let_go(tree, answer.batches, answer.fixes, days=self.order.trash_days)
        tidy(tree, days=self.order.trash_days)

    def look(self) -> PlanApplied:
        """Say what is here, and what speaks against its being moved.

        Raises:
            IncompleteError: Something cannot be read, or the plan is too old by now.
        """
        self._assert_in_time()
        answer = PlanApplied(
            plan=self._plan,
            path=self._path,
            order=self.order,
            host=self._host,
            root=self.root,
            left_to=self._left_to,
            resolved_from=None if self._question.path in {None, self.root} else self.root,
        )
        if self._left_to is not None or not is_there(open_storage(self.root), ""):
            return answer
        tree = self._tree()
        answer = replace(answer, trash=self._trash(tree))
        halfway = pending(tree)
        if halfway:
            return replace(answer, refusals=tuple(halfway))
        if not self._own:
            return replace(answer, refusals=tuple(self._not_of_this_disk(tree)))
        return self._of_saves(answer, tree)

    def _tree(self) -> Tree:
        """Scan what is here, which may be too little of a tree to be told as one."""
        layout = next((each for each in layouts() if each.name == self._plan.layout), None)
        if layout is None:
            raise IncompleteError(f"{self._path} is of a layout {self._plan.layout!r}: another ckpttool made it")
        storage = open_storage(self.root)
        with looking_at(self.root):
            listing = list_root(storage)
        located = Located(storage=storage, listing=listing, layout=layout, focus=None, resolved_from=None)
        return scanned(located, TreeQuestion(path=self.root, sizes=True))

    def _trash(self, tree: Tree) -> tuple[Trashed, ...]:
        days = self.order.trash_days
        goes = set() if days is None else {*expired(tree, days)}
        return tuple(Trashed(name=folder.name, goes=folder.name in goes) for folder in in_trash(tree))

    def _not_of_this_disk(self, tree: Tree) -> Iterator[Finding]:
        """Say where files of the plan lie on a disk that nobody looked at."""
        shares = [share for save in self._plan.going for share in save.shares]
        paths = (path for share in shares for path in (*share.folders, *(file.path for file in share.files)))
        there = next((path for path in paths if is_there(tree.storage, path)), None)
        if there is not None:
            yield unknown(
                Code.NOT_AS_PLANNED,
                f"lies on a disk of {self._host} that the plan was not made of: it was not looked at, or the machine "
                "started anew since",
                path=there,
                remedy=_PLAN_ANEW,
            )

    def _of_saves(self, answer: PlanApplied, tree: Tree) -> PlanApplied:
        """Say what is to be moved, and where not all of it is as it was planned."""
        found: list[Finding] = []
        saves: list[SaveHere] = []
        going: list[tuple[PlannedSave, list[str]]] = []
        for save, shares in self._shares(self._plan.going):
            members = [path for share in shares for path in _members(share)]
            differs = [finding for share in shares for finding in _differing(tree.storage, share)]
            is_gone = not any(is_there(tree.storage, path) for path in members)
            files = [file for share in shares for file in share.files]
            nbytes = ByteCount(sum(file.stamp.size for file in files))
            fate = Fate.GONE if is_gone else Fate.GO
            saves.append(SaveHere(name=save.name, fate=fate, files=len(files), nbytes=nbytes))
            if not is_gone:
                found += differs
                going.append((save, members))
        answer = replace(answer, saves=tuple(saves))
        if not going:
            return answer
        for _, shares in self._shares(self._plan.good):
            found += [_witness(finding) for share in shares for finding in _differing(tree.storage, share)]
        if not found:
            fixes, against = self._records(tree, [save for save, _ in going])
            found = [*signs_of_writing(tree, grace=self.order.grace), *against]
            found += blockers(tree, (path for _, members in going for path in members)) or unwritable(tree, fixes)
            answer = replace(answer, fixes=tuple(fixes))
        if found:
            return replace(answer, refusals=tuple(found))
        return replace(answer, batches=batches_of(tree, ((save.name, members) for save, members in going)))

    def _shares(self, saves: Sequence[PlannedSave]) -> Iterator[tuple[PlannedSave, list[Share]]]:
        """Yield what this machine has of each save, where it has anything."""
        for save in saves:
            shares = [share for share in save.shares if share.disk in self._own]
            if shares:
                yield save, shares

    def _records(self, tree: Tree, going: Sequence[PlannedSave]) -> tuple[list[PointerFix], list[Finding]]:
        """Find the records that name what goes from here, and what keeps them from naming something else."""
        shares = [share for save in going for share in save.shares if share.disk in self._own]
        gone = {file.path for share in shares for file in share.files} | {save.name for save in going}
        with looking_at(self.root):
            pointers = list(
                tree.layout.pointers(tree.storage, sorted({rank for share in shares for rank in share.ranks}))
            )
        stale = [pointer for pointer in pointers if pointer.target in gone]
        planned = {fix.path: fix for fix in self._plan.records}
        unplanned = [_unplanned(pointer) for pointer in stale if pointer.path not in planned]
        return [planned[each.path] for each in stale if each.path in planned], [*unreadable(pointers), *unplanned]


_PLAN_ANEW = (
    "make a new plan: run ckpttool part on all machines, then prune --plan-out; on one disk prune --plan-out alone"
)


def _members(share: Share) -> list[str]:
    """Return what is renamed, in order: a folder where its first file stands, else its files."""
    paths = (
        next((each for each in share.folders if file.path.startswith(f"{each}/")), file.path) for file in share.files
    )
    return [*dict.fromkeys((*paths, *share.folders))]


def _differing(storage: Storage, share: Share) -> Iterator[Finding]:
    """Say which files are not those that were looked at, and which lie in a folder that goes and were not there."""
    planned = {file.path: file.stamp for file in share.files}
    for path, stamp in planned.items():
        now = _stamp(storage, path)
        if now is None:
            yield _not_as_planned(path, "is gone since the plan was made")
        elif now != stamp:
            yield _not_as_planned(path, "is another file than the plan was made of: it was written since")
    for folder in share.folders:
        for path in _files_in(storage, folder):
            if path not in planned:
                yield _not_as_planned(path, "lies in a folder that is to go, and was not there when the plan was made")


def _stamp(storage: Storage, path: str) -> FileStamp | None:
    try:
        return storage.stamp(path)
    except OSError:  # whatever it is now, it is no file that was looked at
        return None


def _files_in(storage: Storage, folder: str) -> Iterator[str]:
    try:
        entries = storage.entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise IncompleteError(f"{folder} cannot be read: {error.strerror or error}; nothing was changed") from None
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.kind is Kind.FOLDER and not os.path.islink(f"{storage.root}/{path}"):  # it may lead round in a loop
            yield from _files_in(storage, path)
        else:
            yield path


def _not_as_planned(path: str, message: str) -> Finding:
    return unknown(Code.NOT_AS_PLANNED, message, path=path, remedy=_PLAN_ANEW)


def _witness(finding: Finding) -> Finding:
    return replace(finding, message=f"{finding.message}; because of it others were to go")


def _unplanned(pointer: Pointer) -> Finding:
    return _not_as_planned(pointer.path, f"names {pointer.name}, which is to go, and did not when the plan was made")
