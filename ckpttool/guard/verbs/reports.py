"""The report on a guarded training run, from its event files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain

from ckpttool.core.domain.guarding import EVENTS_FOLDER
from ckpttool.core.domain.metrics import LogNote, LogProblem
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import LogSource, lines
from ckpttool.core.logs.guard_events import EventLine, GuardFiles, event_lines, is_run
from ckpttool.core.logs.merge import KEPT_PROBLEMS
from ckpttool.core.logs.reading import expand_globs, open_log
from ckpttool.core.storage import is_folder
from ckpttool.guard.files.capture import head_step
from ckpttool.guard.files.replayed import recorded
from ckpttool.guard.model.attribution import RecordedReplay
from ckpttool.guard.model.report import CaptureTold, GuardReport
from ckpttool.guard.rules.report import GuardTally
from ckpttool.health.model.reading import LogReading


def guard_report(events: str | os.PathLike[str] | Sequence[str]) -> GuardReport:
    """Show what happened in a guarded training run and what to do next, in one pass and bounded memory.

    Args:
        events: Event files, their folder, the output folder of the training run, globs, or `-`.

    Raises:
        UsageError: There is no such file.
    """
    patterns = (os.fspath(events),) if isinstance(events, (str, os.PathLike)) else tuple(events)
    matches = dict.fromkeys(name for pattern in patterns for name in _files(pattern))
    # The oldest first: full files are renamed to `.1`.
    names = tuple(sorted(matches, key=lambda name: (name.removesuffix(".1"), not name.endswith(".1"))))
    tally = GuardTally()
    notes: list[LogNote] = []
    problems: list[LogProblem] = []
    count = unreadable = 0
    for name in names:
        folder = os.path.dirname(name) or "."
        is_in_place = os.path.basename(os.path.abspath(folder)) == EVENTS_FOLDER
        tally.begin(f"{folder}/captures" if is_in_place else None)
        for item in _read(name):
            if isinstance(item, EventLine):
                tally.add(item.event)
            elif isinstance(item, LogNote):
                notes += [item] if len(notes) < KEPT_PROBLEMS else []
            else:
                count += 1
                unreadable += item.ends_the_log
                problems += [item] if len(problems) < KEPT_PROBLEMS else []
    reading = LogReading(
        sources=names,
        steps=tally.steps,
        notes=tuple(notes),
        problems=tuple(problems),
        problem_count=count,
        unreadable=unreadable,
    )
    return tally.report(reading, replays={capture.path: _replays(capture, tally) for capture in tally.captures})


def _replays(capture: CaptureTold, tally: GuardTally) -> tuple[RecordedReplay, ...]:
    """Return the recorded replays of a capture next to its events. Other paths in the events are not trusted."""
    folder, _, name = capture.here.rpartition("/")
    if folder not in tally.capture_folders or head_step(name) is None:
        return ()
    return recorded(capture.here)


def _files(pattern: str) -> tuple[str, ...]:
    if not is_folder(pattern):
        return expand_globs([pattern])
    files = GuardFiles().inside(pattern)
    if not files:
        raise UsageError(f"{pattern} has no {GuardFiles.names[0]}: a guard writes it to the training's output folder")
    return files


def _read(name: str) -> Iterator[EventLine | LogNote | LogProblem]:
    try:
        with open_log(name) as stream:
            source = LogSource(name=name, stream=stream)
            items = lines(source)
            first = next(items, None)
            if first is None or isinstance(first, LogProblem) or not is_run(first[1]):
                reason = "is empty" if first is None else "is not an event file of a guard"
                yield LogProblem(source=name, line=0, reason=reason, text="")
                return
            yield from event_lines(source, chain([first], items))
    except (EOFError, zlib.error) as error:
        reason = f"the compressed data is truncated or damaged: {error}"
        yield LogProblem(source=name, line=0, reason=reason, text="")
    except OSError as error:
        yield LogProblem(source=name, line=0, reason=f"cannot be read: {error.strerror or error}", text="")
