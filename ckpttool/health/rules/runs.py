"""Assign checkpoints to attempts in the logs, because a repeated step has two norms and two times."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.model.events import SavedCheckpoint

_MOST_OPTIONS = 2000
"""Maximum product of runs and attempts: forty times fifty, for example. No training run has more."""

_STRIDE_ROWS = 10
"""Number of steps at the start of an attempt that show the logging interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The attempt in the logs that saved a checkpoint."""

    attempts: tuple[int, ...]
    """The attempts that may have saved the checkpoint, ascending."""
    sure: bool
    """Whether one of these attempts certainly saved the checkpoint.

    If not, the logs may show the step only for other starts.
    """

    @property
    def known(self) -> int | None:
        """The attempt that saved the checkpoint; None if unknown."""
        return self.attempts[0] if self.sure and len(self.attempts) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """The logs' entries for a checkpoint's step at the time of the save."""

    row: StepMetrics | None
    """The entry; None if the logs have none, or it is unknown which of several starts saved the checkpoint."""
    embedding_local_norm: float | None = None
    """Value at the last applied update, because a dropped update does not change the weights."""
    is_doubtful: bool = False
    """Whether the logs show the step, but possibly not at the time of the save."""


_NOWHERE = Home(attempts=(), sure=True)
_ANYWHERE = Home(attempts=(), sure=False)


def homes(saves: Sequence[SavedCheckpoint], attempts: Sequence[LogAttempt] | None) -> tuple[Home, ...]:
    """Return for each checkpoint the attempts in the logs that may have saved it.

    All saves of a run come from one start of the training run, and a later run comes from a later start. So runs are
    assigned to attempts in order. A run fits an attempt that shows all of its steps, and as many runs as possible are
    assigned. If some remain, the assignment must also use as many attempts as possible. If two such assignments differ
    for a run, its attempt is unknown. A run may have only some of its steps in the log, because the log lost its
    beginning or its end; it is then assigned to an attempt that fits no other run. A run without any attempt is in none
    of the logs, for example because each start overwrites the log.

    Steps are compared only within one run and its own log: with another batch size a trainer may restart the count, and
    does so in both. If a layout has no runs, each attempt that shows the step may have saved it.

    Args:
        saves: The checkpoints of a tree, in any order.
        attempts: The starts in the logs, in order of time; None if steps decrease implausibly often.
    """
    if attempts is None:
        return (_ANYWHERE,) * len(saves)
    by_run: dict[tuple[str, int], list[Step]] = {}
    for save in saves:
        if save.run is not None and save.step is not None:
            by_run.setdefault((save.prefix, save.run), []).append(save.step)
    strides = [_stride(attempt) for attempt in attempts]
    finest = min((stride for stride in strides if stride), default=1)
    spans = [
        _Span(attempt=attempt, stride=stride or finest, finest=finest)
        for attempt, stride in zip(attempts, strides, strict=True)
    ]
    by_save: dict[tuple[str, int], Home] = {}
    for prefix in {prefix for prefix, _ in by_run}:
        runs = sorted(run for save, run in by_run if save == prefix)
        laid = _laid([sorted(set(by_run[prefix, run])) for run in runs], spans)
        by_save.update({(prefix, run): home for run, home in zip(runs, laid, strict=True)})
    return tuple(_home(save, spans, by_save) for save in saves)


def logged_step(save: SavedCheckpoint, home: Home, attempts: Sequence[LogAttempt] | None) -> LoggedStep:
    """Return the logs' line for a checkpoint's step: from its attempt, or from any if all possible attempts agree."""
    if save.step is None:
        return LoggedStep(row=None)
    showing = [attempts[place] for place in home.attempts] if attempts is not None else []
    norms = [_norm(attempt, save.step) for attempt in showing]
    if not home.sure or not all(_same(norms[0], norm) for norm in norms[1:]):
        return LoggedStep(row=None, is_doubtful=True)
    if not showing:
        return LoggedStep(row=None)
    return LoggedStep(row=_row(showing[0], save.step), embedding_local_norm=norms[0])


def course(attempts: Sequence[LogAttempt], place: int) -> tuple[list[StepMetrics], Step | None]:
    """Return the steps that led to the weights of an attempt: its own steps, and the steps that it continued from.

    With a larger batch size, a start may begin at a lower step than the save that it continued from, although its
    samples continue. The steps before it are then renumbered to end right before it: the attempt's own steps keep
    their numbers.

    Returns:
        The steps, ascending; and the last step after which a start began at a lower step, or None if no start did.
    """
    rows: list[StepMetrics] = []
    lower_from = None
    for attempt in attempts[: place + 1]:
        kept = max(_place(rows, attempt.first), _place_by_samples(rows, attempt))
        del rows[kept:]
        lower = rows[-1].step + 1 - attempt.first if rows else 0
        if lower > 0:
            lower_from = attempt.first
            rows = [replace(row, step=Step(row.step - lower)) for row in rows]
        rows += attempt.rows
    return rows, lower_from


def _place_by_samples(rows: Sequence[StepMetrics], attempt: LogAttempt) -> int:
    """Return the number of steps from which a start with a larger batch size continued, by the samples, or 0.

    With an equal batch size, more samples at the same step mean that data was skipped, and that the run did go back.
    """
    place = _place(rows, attempt.first)
    first = next((row for row in attempt.rows if row.consumed_samples is not None), None)
    if place == len(rows) or first is None or first.consumed_samples is None:
        return 0
    batch, batch_before = batch_of(attempt.rows), batch_of(rows[place:]) or batch_of(rows[::-1])
    if batch is not None and batch_before is not None and batch <= batch_before:
        return 0
    # A single step does not show its batch size.
    limit = first.consumed_samples - (batch or 1) * (first.step + 1 - attempt.first)
    for at in range(len(rows), place, -1):
        before = rows[at - 1].consumed_samples
        if before is not None and before <= limit:
            return at
    return 0


def batch_of(rows: Sequence[StepMetrics]) -> float | None:
    """Return the samples per step between the first two entries that show the samples, or None if fewer than two do."""
    counted = ((row.step, row.consumed_samples) for row in rows if row.consumed_samples is not None)
    (step, samples), (later, more) = next(counted, (0, 0)), next(counted, (0, 0))
    return (more - samples) / (later - step) if later else None


def _home(save: SavedCheckpoint, spans: Sequence[_Span], by_save: dict[tuple[str, int], Home]) -> Home:
    if save.step is None:
        return _NOWHERE
    step = save.step
    showing = tuple(place for place, span in enumerate(spans) if span.first <= step <= span.last)
    if save.run is None:
        return Home(attempts=showing, sure=True)
    home = by_save[save.prefix, save.run]
    return home if home.attempts and home.sure else Home(attempts=home.attempts, sure=not showing)


def _stride(attempt: LogAttempt) -> int | None:
    """Return the logging interval of an attempt in steps, or None if it shows only one."""
    head = [row.step for row in attempt.rows[:_STRIDE_ROWS]]
    return min((later - step for step, later in pairwise(head)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The steps of an attempt."""

    attempt: LogAttempt
    stride: int
    """Logging interval of the trainer in steps."""
    finest: int
    """The smallest logging interval over all attempts; a longer gap may lie between two starts."""

    @property
    def first(self) -> Step:
        return self.attempt.first

    @property
    def last(self) -> Step:
        return self.attempt.last

    def holds(self, steps: Sequence[Step]) -> int:
        """Return how many ascending saves of a run have their step in this attempt; 0 if it is not their attempt."""
        if self.attempt.begun and steps[0] <= self.first - self.stride:
            return 0  # saved before this start
        if self.attempt.ended and steps[-1] >= self.last + self.stride:
            return 0  # saved after its end
        if not self.attempt.begun and self._goes_on_from(steps):
            return 0
        return sum(self._shows(step) for step in steps)

    def _shows(self, step: Step) -> bool:
        """Return whether the attempt did a step, which is printed or between two neighbouring printed steps."""
        rows = self.attempt.rows
        if not self.first <= step <= self.last:
            return False
        place = _place(rows, step)
        return rows[place].step == step or rows[place].step - rows[place - 1].step <= self.finest

    def _goes_on_from(self, steps: Sequence[Step]) -> bool:
        """Return whether the log begins right after a save, as the log of a resumed run does.

        A log that lost its beginning may begin there by coincidence; if every printed step is saved, it always does.
        """
        spacing = min((later - step for step, later in pairwise(steps)), default=math.inf)
        return spacing > self.stride and any(self.first - self.stride <= step < self.first for step in steps)


_Option = tuple[int, int]
"""A run and an attempt, by index."""


def _laid(runs: Sequence[Sequence[Step]], spans: Sequence[_Span]) -> list[Home]:
    """Assign runs, oldest first, to the attempts, and return the possible attempts of each."""
    if len(runs) * len(spans) > _MOST_OPTIONS:
        return [_ANYWHERE] * len(runs)
    fits_runs = [[span.holds(steps) for span in spans] for steps in runs]
    fits = [[number == len(steps) for number in row] for steps, row in zip(runs, fits_runs, strict=True)]
    most, best = _best(runs, fits, shared=1)
    if most < len(runs):  # the log lacks some attempts, perhaps those that would fit
        best = sorted({*best, *_best(runs, fits, shared=0)[1]})
    placed = {run for run, _ in best}
    # The log lacks part of the other runs.
    parts = [
        (run, place)
        for run, row in enumerate(fits_runs)
        for place, number in enumerate(row)
        if 0 < number < len(runs[run]) and run not in placed
    ]
    parts = [option for option in parts if not any(_conflict(runs, option, choice) for choice in best)]
    options = [*best, *parts]
    return [_home_of(run, runs, options) for run in range(len(runs))]


def _home_of(run: int, runs: Sequence[Sequence[Step]], options: Sequence[_Option]) -> Home:
    own_options = [option for option in options if option[0] == run]
    sure = bool(own_options) and not any(
        _conflict(runs, option, alternative)
        for option in own_options
        for alternative in options
        if alternative[0] != run
    )
    return Home(attempts=tuple(place for _, place in own_options), sure=sure)


def _conflict(runs: Sequence[Sequence[Step]], first: _Option, second: _Option) -> bool:
    """Return whether two runs exclude these attempts: a later run never belongs to an earlier attempt.

    Two runs share an attempt if the log does not show the start between them: then the saves of one end before those of
    the other begin.
    """
    (earlier, before), (later, after) = sorted((first, second))
    return before > after or (before == after and runs[earlier][-1] >= runs[later][0])


def _best(runs: Sequence[Sequence[Step]], fits: Sequence[Sequence[bool]], *, shared: int) -> tuple[int, list[_Option]]:
    """Return the largest number of assigned runs, or of attempts if `shared` is 0, and all optimal options."""
    forward = _most(runs, fits, shared)
    # The same backwards: runs and attempts are reversed, and so are steps by their sign.
    turned = [[Step(-step) for step in reversed(steps)] for steps in reversed(runs)]
    reversed_rows = [row[::-1] for row in _most(turned, [row[::-1] for row in fits[::-1]], shared)[::-1]]
    best = max((number for row in forward for number in row), default=0)
    options = [
        (run, place)
        for run, rows in enumerate(zip(forward, reversed_rows, strict=True))
        for place, (up_to, from_there) in enumerate(zip(*rows, strict=True))
        if up_to and up_to + from_there - 1 == best
    ]
    return best, options


def _most(runs: Sequence[Sequence[Step]], fits: Sequence[Sequence[bool]], shared: int) -> list[list[int]]:
    """Return for each run and attempt the best count of the runs up to this run, if this run belongs to that attempt.

    Args:
        runs: The steps of each run, ascending.
        fits: For each run, whether an attempt shows all of its steps.
        shared: The count of a run in the same attempt as the previous one; any other run counts 1.
    """
    most: list[list[int]] = []
    for run, row in enumerate(fits):
        line: list[int] = []
        before = 0  # in earlier attempts
        for place, fit in enumerate(row):
            row_before = [most[earlier_run][place] for earlier_run in range(run)]
            compatible = [
                n
                for earlier_run, n in enumerate(row_before)
                if n and not _conflict(runs, (earlier_run, place), (run, place))
            ]
            line.append(max([before + 1, *(number + shared for number in compatible)]) if fit else 0)
            before = max([before, *row_before])
        most.append(line)
    return most


def _place(rows: Sequence[StepMetrics], step: Step) -> int:
    return bisect_left(rows, step, key=lambda row: row.step)


def _row(attempt: LogAttempt, step: Step) -> StepMetrics | None:
    place = _place(attempt.rows, step)
    return attempt.rows[place] if place < len(attempt.rows) and attempt.rows[place].step == step else None


def _norm(attempt: LogAttempt, step: Step) -> float | None:
    """Return the embedding norm at the last applied update, if the log shows every step since then."""
    row = _row(attempt, step)
    while row is not None and row.skipped:
        row = _row(attempt, Step(row.step - 1))
    return None if row is None else row.embedding_local_norm


def _same(first: float | None, second: float | None) -> bool:
    return first == second or all(norm is not None and math.isnan(norm) for norm in (first, second))
