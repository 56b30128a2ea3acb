"""Mark the save from which several starts in a row failed, by the training logs."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LocalTime, LogAttempt, LogNote, NoteKind
from ckpttool.core.domain.question import LogQuestion
from ckpttool.core.domain.units import Step, counted, on_lines
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.core.logs.base import local_time
from ckpttool.core.logs.reading import LogReader
from ckpttool.core.verbs.scanning import Tree
from ckpttool.marks.launches import by_launches
from ckpttool.marks.model import MarkKind, MarkQuestion, Marks
from ckpttool.marks.reading import MarksRead, read_marks
from ckpttool.marks.rules import FailedStarts, failed_starts, of_step
from ckpttool.marks.setting import answer, set_mark
from ckpttool.postflight.read.counting import counted_from_one, counts_from_zero
from ckpttool.postflight.read.logs import names_in, runs_in
from ckpttool.postflight.verbs import start_logs
from ckpttool.trainers.registry import log_reader, trainers

_MOST_SHOWN = 5
"""Maximum number of starts in a reason."""


def mark_after_failed_starts(tree: Tree, asked: MarkQuestion) -> Marks:
    """Mark the save from which the last starts in the logs resumed, if enough of them ended before the next save.

    The last start in the logs counts as ended: call this between two starts. Launches that `ckpttool launch` counted
    are judged first.

    Args:
        tree: The tree.
        asked: The number of failed starts, and the logs.

    Raises:
        UsageError: There is no log, or a log cannot be used.
        IncompleteError: A log cannot be read to its end, or does not show its starts, or the record of launches is
            damaged.
    """
    count = asked.after_failed_starts or 1
    found: tuple[Checkpoint, str] | str | int = by_launches(tree, count)
    if isinstance(found, int):
        found = _by_logs(tree, asked.logs, count, launched=found)
    if isinstance(found, str):
        return replace(answer(tree), unchanged=f"Nothing was marked: {found}")
    save, reason = found
    question = MarkQuestion(kind=MarkKind.BAD, reason=reason, dry_run=asked.dry_run)
    return set_mark(tree, save, question, is_automatic=True)


def _by_logs(tree: Tree, logs: LogQuestion, count: int, *, launched: int) -> tuple[Checkpoint, str] | str:
    """Return the save from which enough starts in the logs failed, and the reason; or why none is to be marked."""
    reader = log_reader(logs.columns)
    names = names_in(reader, logs.patterns, tree.storage.root, start_logs(tree))
    if not names and launched:
        return f"{launched} of {count} launches in a row from the last checkpoint made no newer one"
    if not names:
        raise UsageError("no training log was found near the checkpoints: give --log")
    saves = tree.inventory.checkpoints
    steps = tuple(sorted({save.step for save in saves if save.step is not None}))
    marks_read = read_marks(tree.inventory, tree.storage)
    found = failed_starts(_attempts(tree, reader, logs, steps), steps, _since(saves, marks_read))
    if isinstance(found, str):
        return found
    failed_count = _count_of_failed_starts(found, count)
    if len(found.starts) < count:
        return failed_count
    save = of_step(saves, found.saved)
    if isinstance(save, str):
        return f"{failed_count}; but {save}"
    marked = marks_read.of(save)
    if marked is not None and marked.counts_as(MarkKind.BAD):
        return f"{save.name} was already marked as bad by {marked.mark.author}"
    return save, f"{failed_count}: {_by(found, reader, names)}"


def _attempts(tree: Tree, reader: LogReader, logs: LogQuestion, steps: tuple[Step, ...]) -> list[LogAttempt]:
    """Return the starts in the logs, oldest first, with steps numbered as the saves number them.

    Raises:
        IncompleteError: A log has the steps of all starts, without the starts.
    """
    runs = runs_in(reader, logs.patterns, tree.storage.root, start_logs(tree))
    histories = {trainer.history_format for trainer in trainers() if trainer.history_format}
    if histories & (runs.before_formats | runs.after_formats):
        raise IncompleteError(
            f"{', '.join(runs.before_names)} has the steps of all starts, but does not show where each start began: "
            "give the printed log with --log"
        )
    by_default = tree.trainer is not None and tree.trainer.counts_from_zero
    if counts_from_zero(runs, steps, by_default=by_default):
        runs = counted_from_one(runs)
    last = [LogAttempt(rows=runs.after, begun=True, ended=False)] if runs.after else []
    return [*runs.earlier, *last]


def _since(saves: tuple[Checkpoint, ...], marks_read: MarksRead) -> dict[Step, LocalTime]:
    """Return when people last judged a save themselves: earlier starts do not count against it again."""
    since = {}
    for save in saves:
        marked = marks_read.of(save)
        if save.step is not None and marked is not None and marked.mark.kind is not MarkKind.BAD:
            since[save.step] = local_time(marked.mark.seconds)
    return since


def _count_of_failed_starts(found: FailedStarts, count: int) -> str:
    """Return how many starts failed, as a sentence."""
    number = len(found.starts)
    ends = ", ".join([*["…"] * (number > _MOST_SHOWN), *(str(start.last) for start in found.starts[-_MOST_SHOWN:])])
    if not number:
        return f"the last start from step {found.saved} is not known to have ended before the next save"
    starts = f"{number} starts in a row" if number > 1 else "1 start"
    if number < count:
        starts = f"{number} of {count} starts in a row"
    return f"{starts} from step {found.saved} ended before the next save (at step {ends})"


def _by(found: FailedStarts, reader: LogReader, names: tuple[str, ...]) -> str:
    """Return the logs, with the line at which each start begins if a log shows it."""
    notes: list[LogNote] = []
    for name in names:
        notes += [item for item in reader.read(name) if isinstance(item, LogNote) and item.kind is NoteKind.REWIND]
    seen: list[LogNote] = []
    starts = found.starts[-_MOST_SHOWN:]
    for start in reversed(starts):
        numbers = {start.first, start.first - 1}  # the log may number the first step 0
        note = next((note for note in reversed(notes) if note.step in numbers and note.line), None)
        if note is not None:
            notes = notes[: notes.index(note)]
            seen.insert(0, note)
    sources = dict.fromkeys(note.source for note in seen)
    if len(seen) == len(starts) and len(sources) == 1:
        return f"by the log {seen[0].source}, {on_lines([note.line for note in seen])}"
    return f"by {counted(len(names), 'log')}: {', '.join(names[-_MOST_SHOWN:])}"
