"""Recording of this machine's part of a tree while it is watched, for another watch that judges all parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import CkptToolError, UsageError
from ckpttool.nodes.names import process_of_part
from ckpttool.nodes.verbs import earlier_reports, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckpttool.nodes.model import PartQuestion
    from ckpttool.watch.model import WatchQuestion
    from ckpttool.watch.reading import Reading

RUN = "watch"
"""Name of the run if none is given, because unnamed parts count as older after an hour."""

ANEW_EVERY = 4
"""Number of polls after which an unchanged part is rewritten, so that this machine is not considered dead."""


def part_keeping(question: WatchQuestion, say: Callable[[str, str], None]) -> PartKeeping | None:
    """Return the updater of the part that a watch records, or None if the watch judges saves itself.

    Raises:
        UsageError: As for `PartKeeping`, or the part is to be sealed.
    """
    if question.part is None:
        return None
    if question.seal:
        raise UsageError(
            "--seal: a part of a save does not show whether the save is good; seal it on a machine that sees all of it"
        )
    return PartKeeping(question.part, say)


class PartKeeping:
    """The part of this machine, in a folder that another machine can read."""

    def __init__(self, question: PartQuestion, say: Callable[[str, str], None]) -> None:
        """Determine the number of the part, and read the existing part.

        Args:
            question: The part's number, its tree, and its output folder.
            say: Called with each problem and its subject.

        Raises:
            UsageError: The number of the part is unknown, or the part cannot be written there.
        """
        process = process_of_part(question.part)
        if process is None:
            raise UsageError("this process only coordinates others: it has no part to write")
        run = question.run or (RUN if process.run is None else None)
        # Headers only: the watch supplies the results about the content.
        self._question = replace(question, run=run, check=replace(question.check, level=Level.STRUCTURE))
        self._report_problem = say
        self._read = {
            path: report for path, report in earlier_reports(self._question).items() if report.level.reads_content
        }
        self._passed = ANEW_EVERY
        self._is_written = False

    def keep(self, reading: Reading | None, *, moved: bool) -> None:
        """Write the part if files changed or were read, or if its interval has passed.

        Args:
            reading: The save that is being read.
            moved: Whether a file may have changed.

        Raises:
            UsageError: The part cannot be written there, as the first attempt shows.
        """
        reports = {} if reading is None else reading.reports
        new = {path: report for path, report in reports.items() if self._read.get(path) is not report}
        self._read |= new
        moved = moved or bool(new)
        self._passed += 1
        if not moved and self._passed < ANEW_EVERY:
            return
        try:
            written = part(self._question, read=self._read)
        except (CkptToolError, OSError) as error:
            if isinstance(error, UsageError) and not self._is_written:
                raise
            self._passed = ANEW_EVERY
            self._report_problem("part", f"the part was not written: {error}; the next poll tries again")
            return
        self._passed, self._is_written = 0, True
        self._report_problem("part", "")
        if written is not None:
            self._forget(written.seat.root)

    def _forget(self, root: str) -> None:
        """Discard the reports on deleted files, because a watch runs for months."""
        import os

        if os.path.isdir(root):
            self._read = {path: report for path, report in self._read.items() if os.path.exists(f"{root}/{path}")}
