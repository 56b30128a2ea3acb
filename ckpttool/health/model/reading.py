"""The logs that were read, with their notes and problems but without metrics."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LogNote, LogProblem, TrainingLog
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """The logs that were read, with their notes and problems but without metrics."""

    sources: tuple[str, ...]
    """Paths, as the user would write them."""
    steps: int
    """Number of steps in the logs."""
    notes: tuple[LogNote, ...]
    problems: tuple[LogProblem, ...]
    """The first problems."""
    problem_count: int
    unreadable: int = 0
    """Logs that could not be read, or not to the end."""

    @staticmethod
    def of(log: TrainingLog) -> LogReading:
        """Return the logs that were read for a training run."""
        return LogReading(
            sources=log.sources,
            steps=len(log.metrics),
            notes=log.notes,
            problems=log.problems,
            problem_count=log.problem_count,
            unreadable=sum(problem.ends_the_log for problem in log.problems),
        )

    def exit_code(self, *, judged_count: int) -> ExitCode:
        """Return 14 if a log could not be read to the end, or has nothing to judge (`judged_count` is 0)."""
        return ExitCode.INCOMPLETE if self.unreadable or not judged_count else ExitCode.OK
