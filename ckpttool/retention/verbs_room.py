"""Prune several trees until they have a requested space together."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.finding import Finding, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Space
from ckpttool.core.domain.retention import Aim, Batch, PruneOrder, Pruning, Reached, RetentionPlan, RetentionPolicy, Why
from ckpttool.core.domain.units import in_gib
from ckpttool.core.errors import CkptToolError, IncompleteError, UsageError
from ckpttool.core.records.journal import TRASH
from ckpttool.core.verbs.changes import in_trash
from ckpttool.core.verbs.scanning import Tree, Where, tree_question
from ckpttool.retention.apply import own_bytes, paths_of
from ckpttool.retention.execution import Begun, begun, carry_out
from ckpttool.retention.findings import RetentionCode
from ckpttool.retention.reading_room import size_of, spaces_of, uses_of
from ckpttool.retention.rules_room import FileUse, Measured, Needed, Superseded, TreeUse, needed, planned


def prune_to(
    questions: Sequence[Where],
    policy: RetentionPolicy,
    order: PruneOrder,
    *,
    aim: Aim,
    waiting: Callable[[Finding], None] | None = None,
) -> tuple[Pruning | CkptToolError, ...]:
    """Prune several trees until they have the requested space together, the oldest checkpoints of all trees first.

    Every tree keeps what the policy keeps, so the aim may not be reached: then a finding reports how much is missing. A
    tree that cannot be pruned has an error instead of an answer, and the others are pruned without it.

    Args:
        questions: The trees.
        policy: The checkpoints to keep in each tree.
        order: As for `prune`.
        aim: Space to have afterwards.
        waiting: As for `prune`.

    Raises:
        UsageError: Deleted checkpoints would stay in the trash, or a tree is given twice.
    """
    if order.trash_days:
        raise UsageError(
            "--trash-days cannot be used with --free or --max-size: checkpoints in the trash still need their space, "
            "so nothing would be freed"
        )
    with ExitStack() as held:
        seats = [_Seat() for _ in questions]
        for seat, question in zip(seats, questions, strict=True):
            with seat.failing():
                seat.begin(held.enter_context(begun(tree_question(question), policy, order, waiting, aim=aim)))
        _assert_distinct(seats)
        budget = _Budget(seats, aim)
        budget.share_out()
        for seat in seats:
            with seat.failing():
                if seat.error is None and seat.answer.applied and seat.deletion != _NOTHING:
                    carry_out(seat.begun, seat.answer, seat.batches)
        if order.apply:
            budget.measure_again()
        return tuple(seat.answer if seat.error is None else seat.error for seat in seats)


@dataclass(slots=True)
class _Seat:
    """One of the trees, and its answer so far."""

    error: CkptToolError | None = None
    plan: RetentionPlan = field(init=False)
    superseded: tuple[Checkpoint, ...] = ()
    """Checkpoints that may be deleted, whether or not the aim needs it."""
    use: TreeUse = field(init=False)
    answer: Pruning = field(init=False)
    batches: tuple[Batch, ...] = ()
    empties_trash: bool = False
    begun: Begun = field(init=False)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Keep an error as the answer."""
        try:
            yield
        except CkptToolError as error:
            self.error = error

    def begin(self, started: Begun) -> None:
        """Plan as without an aim, and measure what the plan frees."""
        self.begun = started
        self.settle(started.prospect.plan())
        self.superseded = self.plan.going
        try:
            self.use = _use(started.prospect.tree, self.plan, refused=bool(self.answer.refusals))
        except OSError as error:
            raise IncompleteError(f"{error.filename} cannot be read ({error.strerror}); run again") from None

    def settle(self, plan: RetentionPlan) -> None:
        """Answer with a plan."""
        self.plan = plan
        self.answer, self.batches = self.begun.prospect.answer(plan, self.begun.refusals)

    @property
    def deletion(self) -> Needed:
        """What is deleted."""
        if self.answer.refusals:
            return _NOTHING
        return Needed(trash=self.empties_trash and bool(self.answer.trash), checkpoints=self.plan.going)

    @property
    def root(self) -> str:
        """The tree's folder on this machine."""
        return self.begun.prospect.tree.inventory.root

    @property
    def is_here(self) -> bool:
        """Whether the tree is on a disk of this machine."""
        return self.begun.prospect.tree.is_on_own_disk

    def spaces(self) -> tuple[tuple[Space, ...], tuple[str, ...]]:
        """Return the limits on the next save, and the reasons why a limit is unknown."""
        newest = next(iter(self.plan.good), None)
        return spaces_of(self.root, newest.shards[0].path if newest is not None and newest.shards else None)


_NOTHING = Needed(trash=False, checkpoints=())


def _use(tree: Tree, plan: RetentionPlan, *, refused: bool) -> TreeUse:
    """Return the space that a plan frees; none if it is refused.

    Raises:
        OSError: A file cannot be read.
    """
    oldest_first = () if refused else tuple(reversed(plan.going))
    root = tree.inventory.root
    if not tree.is_on_own_disk:
        saves = [(save, FileUse(identity=(root, save.key), names=1, nbytes=save.nbytes or 0)) for save in oldest_first]
        superseded = tuple(Superseded(checkpoint=save, uses=(use,)) for save, use in saves)
        return TreeUse(disk=None, trash=(), superseded=superseded)
    folders = [] if refused else [f"{TRASH}/{folder.name}" for folder in in_trash(tree)]
    own = FileUse(identity=None, names=0, nbytes=own_bytes(tree), uid=os.geteuid(), gid=os.getegid())
    return TreeUse(
        own=own,
        disk=os.stat(root).st_dev,
        trash=tuple(uses_of(root, folders)),
        superseded=tuple(
            Superseded(checkpoint=save, uses=tuple(uses_of(root, paths_of(tree, save)))) for save in oldest_first
        ),
    )


def _assert_distinct(seats: Sequence[_Seat]) -> None:
    """Check that no tree is given twice, because its files would count twice.

    Raises:
        UsageError: A tree is given twice.
    """
    seen: set[str] = set()
    for seat in seats:
        if seat.error is None:
            place = os.path.realpath(seat.root) if seat.is_here else seat.root
            if place in seen:
                raise UsageError(f"{seat.root} is given twice: with --free and --max-size, give each tree once")
            seen.add(place)


class _Budget:
    """The space that all trees have together."""

    def __init__(self, seats: Sequence[_Seat], aim: Aim) -> None:
        """Measure the space before the prune."""
        self._seats = [seat for seat in seats if seat.error is None]
        self._aim = aim
        self._unknown: list[Finding] = []
        if aim.max_size is not None:
            self._unknown += [_size_unknown(str(seat.error)) for seat in seats if seat.error is not None]
        self._before = self._measured()

    def share_out(self) -> None:
        """Reduce the plans to what the aim needs, and add to each answer how far it is reached."""
        seats = [seat for seat in self._seats if not seat.answer.refusals]
        barred: list[set[CheckpointKey]] = [set() for _ in seats]
        """Checkpoints that must stay if fewer checkpoints than before are deleted."""
        is_settled = False
        while not is_settled:
            uses = [_without(seat.use, keys) for seat, keys in zip(seats, barred, strict=True)]
            chosen = needed(uses, self._aim, self._before)
            is_settled = True
            for seat, keys, deletion in zip(seats, barred, chosen, strict=True):
                wanted = {save.key for save in deletion.checkpoints}
                spared = {
                    save.key: Why.EVIDENCE if save.key in keys else Why.ROOM
                    for save in seat.superseded
                    if save.key not in wanted
                }
                with seat.failing():
                    seat.settle(seat.begun.prospect.plan(spared))
                seat.empties_trash = deletion.trash
                more = wanted - {save.key for save in seat.plan.going}
                keys.update(more)
                is_settled = is_settled and not more
        if any(seat.error is not None for seat in seats):  # the others have to free more
            self._seats = [seat for seat in self._seats if seat.error is None]
            self.share_out()
            return
        deletions = [seat.deletion for seat in self._seats]
        by_disk = planned([seat.use for seat in self._seats], deletions, self._aim, self._before)
        for seat in self._seats:
            self._conclude(seat, by_disk[seat.use.disk], _NOTHING_MORE)

    def measure_again(self) -> None:
        """Replace the planned space by the measured one."""
        after = self._measured()
        for seat in self._seats:
            spaces = {space.limit: space.free_bytes for space in after.spaces.get(seat.use.disk, ())}
            reached = []
            was_enough = True
            for aim in seat.answer.reached:
                was_enough = was_enough and not aim.missing
                measured = after.size if aim.aim == "max-size" else spaces.get(aim.of, aim.after)
                reached.append(replace(aim, after=measured))
            self._conclude(seat, reached, _FREED_LATER if was_enough else _NOTHING_MORE)

    def _conclude(self, seat: _Seat, reached: Sequence[Reached], remedy: str) -> None:
        """Add to an answer how far the aim is reached, and a finding if it is not."""
        remarks = [finding for finding in seat.answer.remarks if finding.code not in _OF_ROOM]
        remarks += [*self._unknown, *(_shortage(aim, remedy) for aim in reached if aim.missing)]
        trash = tuple(replace(entry, goes=entry.goes and seat.deletion.trash) for entry in seat.answer.trash)
        seat.answer = replace(seat.answer, reached=tuple(reached), remarks=tuple(remarks), trash=trash)

    def _measured(self) -> Measured:
        spaces: dict[Hashable, dict[str, Space]] = {}
        size, seen = 0, set[Hashable]()
        for seat in self._seats:
            try:
                if self._aim.free is not None:
                    limits, troubles = seat.spaces()
                    spaces.setdefault(seat.use.disk, {}).update((space.limit, space) for space in limits)
                    self._unknown += [_quota_unknown(trouble) for trouble in troubles]
                if self._aim.max_size is not None and seat.is_here:
                    unread: list[OSError] = []
                    size += size_of(seat.root, seen, unread)
                    self._unknown += [_size_unknown(f"{error.filename}: {error.strerror}") for error in unread[:1]]
                elif self._aim.max_size is not None:
                    size += sum(save.nbytes or 0 for save in seat.begun.prospect.tree.inventory.checkpoints)
            except OSError as error:
                self._unknown.append(_quota_unknown(f"{error.filename}: {error.strerror}"))
        self._unknown = [*dict.fromkeys(self._unknown)]
        return Measured(spaces={disk: tuple(limits.values()) for disk, limits in spaces.items()}, size=size)


def _without(use: TreeUse, keys: Collection[CheckpointKey]) -> TreeUse:
    return replace(use, superseded=tuple(save for save in use.superseded if save.checkpoint.key not in keys))


_OF_ROOM = frozenset({RetentionCode.ROOM_SHORT, RetentionCode.ROOM_UNKNOWN})
_NOTHING_MORE = (
    "keep fewer checkpoints (--keep-last and the other --keep options), or free space elsewhere: no other checkpoint "
    "may be deleted"
)
_FREED_LATER = (
    "run again: other programs write to the disk or still have deleted files open, or the disk frees space later"
)


def _shortage(aim: Reached, remedy: str) -> Finding:
    missing = in_gib(aim.missing)
    if aim.aim == "max-size":
        return suspect(
            RetentionCode.ROOM_SHORT,
            f"the trees may have at most {in_gib(aim.nbytes)}, but {in_gib(aim.after)} remain: {missing} too much",
            remedy=remedy,
        )
    return suspect(
        RetentionCode.ROOM_SHORT,
        f"{in_gib(aim.nbytes)} are to be free on the tree's disk, but {aim.of} has only "
        f"{in_gib(max(0, aim.after))}: {missing} are missing",
        remedy=remedy,
    )


def _size_unknown(why: str) -> Finding:
    return unknown(
        RetentionCode.ROOM_UNKNOWN,
        f"the size of a tree is unknown, so the trees may be larger than shown: {why}",
        remedy="make it readable, and run again",
    )


def _quota_unknown(why: str) -> Finding:
    return unknown(
        RetentionCode.ROOM_UNKNOWN,
        f"less space may be free than shown: {why}",
        remedy="run quota or lfs quota yourself, or ask the administrator of the file system",
    )
