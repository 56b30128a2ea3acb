"""The record of launches in a tree, and the save from which they fail again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.units import ByteCount, Step, moment, step_and_name
from ckpttool.core.errors import IncompleteError
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_object,
    get_int,
    get_list,
    get_optional_int,
    get_str,
    parse_object,
)
from ckpttool.core.records import OWN_FOLDER, STARTS
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.storage import assert_changeable
from ckpttool.core.verbs.scanning import Tree, scan
from ckpttool.core.write.files import ensure_folder, locked
from ckpttool.core.write.files import replace as write
from ckpttool.marks.model import MarkedSave, MarkKind, MarkQuestion
from ckpttool.marks.reading import read_marks
from ckpttool.marks.record import label_of
from ckpttool.marks.setting import PATIENCE_SECONDS, set_mark

SCHEMA = "ckpttool/starts/1"

_LIMIT = ByteCount(1 << 20)
_MOST_STARTS = 100
"""Maximum number of launches in the record, latest last; each takes about 100 bytes."""

_MOST_SHOWN = 5
"""Maximum number of times in a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStart:
    """One launch."""

    label: str
    """The save, by the label of its marks."""
    step: Step | None
    at: int
    """Time in Unix seconds."""


class LaunchCounter:
    """Counts launches in the record of the tree."""

    def __init__(self, count: int) -> None:
        """Store the number of launches from one save after which it is marked."""
        self._count = count

    def mark_failed(self, question: TreeQuestion) -> None:
        """Mark the save from which the last launches made no newer save, if there were enough of them.

        Raises:
            UnsafeError: The tree is not in a folder of this machine.
            IncompleteError: The record is damaged or cannot be read.
        """
        tree = scan(replace(question, sizes=True))
        assert_changeable(tree.storage.root)
        found = by_launches(tree, self._count)
        if not isinstance(found, int):
            save, reason = found
            set_mark(tree, save, MarkQuestion(kind=MarkKind.BAD, reason=reason), is_automatic=True)

    def record(self, tree: Tree, checkpoint: Checkpoint) -> None:
        """Record a launch from a save.

        Raises:
            LockedError: Another process records a launch.
            WriteFailedError: Nothing was changed.
            NotDurableError: The record is in place, but the disk did not confirm it.
        """
        root = tree.storage.root
        assert_changeable(root)
        ensure_folder(f"{root}/{OWN_FOLDER}")
        new = LaunchedStart(label=label_of(checkpoint.key), step=checkpoint.step, at=int(time.time()))
        with locked(f"{root}/{STARTS}", timeout=PATIENCE_SECONDS):
            starts = [*read_starts(tree), new][-_MOST_STARTS:]
            write(f"{root}/{STARTS}", encode_starts(starts), overwrite=True, backup=False)


def by_launches(tree: Tree, count: int) -> tuple[Checkpoint, str] | int:
    """Return the save from which enough launches in a row failed, and the reason; or the number that failed.

    Raises:
        IncompleteError: The record is damaged or cannot be read.
    """
    starts = read_starts(tree)
    saves = tree.inventory.checkpoints
    save = next((save for save in saves if starts and label_of(save.key) == starts[-1].label), None)
    if save is None:
        return 0
    marked = read_marks(tree.inventory, tree.storage).of(save)
    is_bad = marked is not None and marked.counts_as(MarkKind.BAD)
    failed = failed_launches(starts, save, saves, _since(marked))
    if len(failed) < count or is_bad:
        return len(failed)
    times = ", ".join(moment(start.at) for start in failed[-_MOST_SHOWN:])
    number = f"{len(failed)} starts in a row" if len(failed) > 1 else "1 start"
    return (
        save,
        f"{number} from {step_and_name(save.step, save.name)} made no newer checkpoint: by ckpttool launch, {times}",
    )


def failed_launches(
    starts: Sequence[LaunchedStart], save: Checkpoint, saves: Sequence[Checkpoint], since: float
) -> list[LaunchedStart]:
    """Return the last launches in a row from a save after which no newer save was written.

    Args:
        starts: All launches, oldest first.
        save: The save of the last one.
        saves: The saves of the tree.
        since: Launches before this time do not count, in Unix seconds.
    """
    label = label_of(save.key)
    newer = [
        other.saved_ns / 1e9
        for other in saves
        if other.saved_ns is not None and other.step is not None and other.step > (save.step or 0)
    ]
    written = (save.saved_ns or 0) / 1e9
    if written > time.time():  # by a wrong clock; no launch would ever count
        written = 0.0
    begin = int(max(since, written, *newer))
    failed: list[LaunchedStart] = []
    for start in reversed(starts):
        if start.label != label or start.at < begin:
            break
        failed.insert(0, start)
    return failed


def _since(marked: MarkedSave | None) -> float:
    """Return when a person last judged a save; launches before that do not count again."""
    return 0.0 if marked is None or marked.mark.kind is MarkKind.BAD else marked.mark.seconds


def read_starts(tree: Tree) -> list[LaunchedStart]:
    """Read the launches of a tree, oldest first.

    Raises:
        IncompleteError: The record is damaged or cannot be read.
    """
    try:
        return _parsed(tree.storage.small_file(STARTS, limit=_LIMIT))
    except FileNotFoundError:
        return []
    except (ParseError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise IncompleteError(
            f"the record of launches, {tree.inventory.path_of(STARTS)}, cannot be read ({why}): remove it to count "
            "from 0 again"
        ) from None


def _parsed(data: bytes) -> list[LaunchedStart]:
    if not is_intact(data):
        raise ParseError("it does not match its own hash")
    record = parse_object(data, where=STARTS, limit=_LIMIT, most_memory=OWN_MEMORY)
    if get_str(record, "schema") != SCHEMA:
        raise ParseError(f"expected {SCHEMA}")
    return [_decode(as_object(value)) for value in get_list(record, "starts")]


def _decode(record: JsonObject) -> LaunchedStart:
    step = get_optional_int(record, "step")
    at = get_int(record, "at")
    try:
        moment(at)
    except OverflowError:
        raise ParseError("a time is outside the calendar") from None
    return LaunchedStart(label=get_str(record, "save"), step=None if step is None else Step(step), at=at)


def encode_starts(starts: Sequence[LaunchedStart]) -> bytes:
    """Return the content of the record."""
    lines = [json.dumps({"save": start.label, "step": start.step, "at": start.at}) for start in starts]
    joined = ",\n".join(f"    {line}" for line in lines)
    return closed(f'{{\n  "schema": "{SCHEMA}",\n  "starts": [\n{joined}\n  ]')
