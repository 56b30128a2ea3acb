"""Apply the marks of a tree to its saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import Code, Finding, in_order, note, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.records import MARKS
from ckpttool.core.render.shell import join
from ckpttool.core.storage.base import Storage
from ckpttool.marks.findings import MarkCode
from ckpttool.marks.identity import state_of
from ckpttool.marks.model import Mark, MarkedSave, MarkFile, MarkKind, MarkState
from ckpttool.marks.record import label_of, mark_files, newest_files, read

_WORST_FIRST = (MarkKind.BAD, MarkKind.GOOD, MarkKind.CLEARED)
"""If machines that do not see each other set different marks at once, the worst counts."""


class MarksRead(NamedTuple):
    """The marks of a tree, and what could not be read."""

    marks: tuple[tuple[CheckpointKey | None, MarkedSave], ...]
    """The newest mark of each save; None instead of the key if the tree does not have the save."""
    of_saves: dict[CheckpointKey, tuple[Finding, ...]]
    """Findings about unreadable marks of saves."""
    of_tree: tuple[Finding, ...]
    """Findings about unreadable marks whose saves are unknown."""

    def of(self, checkpoint: Checkpoint) -> MarkedSave | None:
        """Return the mark of a save; None if it has none.

        If the save had another name when it was first marked, it has marks under two labels; then the latest counts.
        """
        matches = [marked for key, marked in self.marks if key == checkpoint.key]
        return max(matches, key=lambda marked: marked.mark.at, default=None)


def with_marks(inventory: Inventory, storage: Storage) -> Inventory:
    """Set the health of each marked save, and add the findings about marks.

    A mark is not damage and repairs none: it only sets the health.
    """
    marks_read = read_marks(inventory, storage)
    return replace(
        inventory,
        checkpoints=tuple(_marked(checkpoint, marks_read, inventory.root) for checkpoint in inventory.checkpoints),
        findings=in_order((*inventory.findings, *marks_read.of_tree)),
    )


def _marked(checkpoint: Checkpoint, marks_read: MarksRead, root: str) -> Checkpoint:
    findings = marks_read.of_saves.get(checkpoint.key, ())
    marked, health = marks_read.of(checkpoint), checkpoint.health
    if marked is not None:
        findings = (*findings, *_findings(marked, checkpoint, root))
        if marked.counts_as(MarkKind.BAD):
            health = Health.UNHEALTHY
        elif marked.counts_as(MarkKind.GOOD):
            health = Health.HEALTHY
    if not findings:
        return checkpoint
    return replace(checkpoint, health=health, findings=(*checkpoint.findings, *findings))


def _findings(marked: MarkedSave, checkpoint: Checkpoint, root: str) -> Iterator[Finding]:
    mark, name = marked.mark, checkpoint.name
    if mark.kind is MarkKind.CLEARED:
        return
    told = f"{name} was marked as {mark.kind.value} by {mark.author} at {mark.at}"
    told += f": {mark.reason}" if mark.reason else ""
    clear = f"{clear_command(name, root)} removes the mark"
    if marked.state is MarkState.STALE:
        yield note(
            MarkCode.MARK_STALE,
            f"{told}; its files were written again since then, so the mark does not count",
            remedy=clear,
        )
    elif marked.state is MarkState.UNKNOWN:
        yield unknown(
            MarkCode.MARK_UNREADABLE,
            f"{told}; whether its files are those that were marked is unknown, because they cannot be read",
            remedy=clear,
        )
    elif mark.kind is MarkKind.BAD:
        yield note(Code.MARKED_BAD, told, remedy=clear)
    else:
        before = ", in place of the unhealthy record of the trainer"
        instead = before if checkpoint.health is Health.UNHEALTHY else ""
        yield note(Code.MARKED_GOOD, f"{told}{instead}", remedy=clear)


def clear_command(name: str, root: str) -> str:
    """Return the command that removes the mark of a save."""
    return join(["ckpttool", "mark", name, root, "--clear"])


def read_marks(inventory: Inventory, storage: Storage) -> MarksRead:
    """Read the newest mark of each save. A record that cannot be read is a finding, and never counts as no mark."""
    keys = {label_of(checkpoint.key): checkpoint.key for checkpoint in inventory.checkpoints}
    try:
        files, others = mark_files(storage)
    except OSError as error:
        finding = unknown(
            MarkCode.MARK_UNREADABLE,
            f"the marks of the checkpoints cannot be listed: {error.strerror or error}",
            path=MARKS,
            remedy="make the folder readable for this user",
        )
        return MarksRead((), dict.fromkeys(keys.values(), (finding,)), ())
    readings = [_newest(label, several, storage) for label, several in newest_files(files).items()]
    owners = _owners(inventory, [reading.marked.mark for reading in readings if reading.marked is not None])
    marks: list[tuple[CheckpointKey | None, MarkedSave]] = []
    of_saves: dict[CheckpointKey, tuple[Finding, ...]] = {}
    of_tree = [_of_other_file(path) for path in others]
    names = {checkpoint.key: checkpoint.name for checkpoint in inventory.checkpoints}
    for reading in readings:
        own_keys = {keys[reading.label]} if reading.label in keys else set()
        marked = reading.marked
        if marked is not None and marked.mark.witnesses:
            own_keys = {owners[witness.path] for witness in marked.mark.witnesses if witness.path in owners}
        for key in sorted(own_keys):
            if marked is not None:
                marks.append((key, replace(marked, name=names[key])))
            of_saves[key] = (*of_saves.get(key, ()), *reading.problems(inventory.root, names[key]))
        if not own_keys:
            of_tree += reading.problems(inventory.root, None)
            if marked is not None:
                marks.append((None, replace(marked, state=MarkState.ABSENT)))
    return MarksRead(tuple(marks), of_saves, tuple(of_tree))


class _Reading(NamedTuple):
    """The newest mark under one label, and the marks of the same number that cannot be read."""

    label: str
    marked: MarkedSave | None
    unread: list[tuple[str, str]]
    """Path and reason."""

    def problems(self, root: str, name: str | None) -> list[Finding]:
        """Return the findings about the unreadable marks; `name` is None if their save is unknown."""
        return [_unreadable(path, why, root, name) for path, why in self.unread]


def _newest(label: str, files: Iterable[MarkFile], storage: Storage) -> _Reading:
    marks: list[MarkedSave] = []
    unread: list[tuple[str, str]] = []
    for file in files:
        try:
            mark = read(storage, file.path)
        except ParseError as error:
            unread.append((file.path, str(error)))
            continue
        except OSError as error:
            unread.append((file.path, error.strerror or str(error)))
            continue
        is_cleared = mark.kind is MarkKind.CLEARED
        state = MarkState.COUNTS if is_cleared else state_of(mark.witnesses, storage)
        marks.append(MarkedSave(name=mark.checkpoint, mark=mark, path=file.path, state=state))
    marks.sort(key=lambda marked: (_WORST_FIRST.index(marked.mark.kind), marked.path))
    return _Reading(label, marks[0] if marks else None, unread)


def _owners(inventory: Inventory, marks: Iterable[Mark]) -> dict[str, CheckpointKey]:
    """Return the save of each file that a mark names."""
    wanted = {witness.path for mark in marks for witness in mark.witnesses}
    if not wanted:
        return {}
    return {
        shard.path: checkpoint.key
        for checkpoint in inventory.checkpoints
        for shard in checkpoint.shards
        if shard.path in wanted
    }


def _unreadable(path: str, why: str, root: str, name: str | None) -> Finding:
    if name is None:
        return unknown(
            MarkCode.MARK_UNREADABLE,
            f"a mark cannot be read: {why}; it may mark any checkpoint as bad",
            path=path,
            remedy="restore the file from a copy, or remove it and mark the checkpoint again",
        )
    return unknown(
        MarkCode.MARK_UNREADABLE,
        f"the mark of {name} cannot be read: {why}; it may mark the checkpoint as bad",
        path=path,
        remedy=f"set the mark again: {join(['ckpttool', 'mark', name, root])} with --bad REASON, --good or --clear",
    )


def _of_other_file(path: str) -> Finding:
    return unknown(
        MarkCode.MARK_UNREADABLE,
        "a file in the folder of marks has a name that ckpttool does not give: it may be a renamed mark",
        path=path,
        remedy="give the file its old name, or move it out of the folder",
    )
