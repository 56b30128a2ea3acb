"""MindFormers' training logs: one line per step, followed by the lines of its monitors."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from operator import add, attrgetter, itemgetter, lt

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.base import Block, LogSource, UnreadableError, blocks, number, problem
from ckpttool.trainers.mindformers.pynative.log import is_pynative

_Match = re.Match[bytes]

# Matches every step line, and the fields of the usual form, byte for byte as every version from 1.5 on writes them.
# Lines that differ are read field by field below. The reader spends its time in this one search, which starts with a
# literal.
_STEP = re.compile(
    rb"Epoch:\[(?: *(\d{1,18})/[ \d]+\], step:\[ *(\d{1,18})/ *(\d{1,18})\], loss: *(\d+\.\d+), "
    rb"(?:(?!per_step_time: )\w+_loss: [^,\n]+, )*per_step_time: \d+ms, lr: \d+\.?\d*(?:e[+-]\d+)?, "
    rb"overflow cond: (True|False), loss_scale: [^,\n]+, global_norm: \[(\d+\.\d*)\])?"
)
POSITION = re.compile(rb"Epoch:\[\s*(\d{1,18})/\s*\d+\],\s*step:\[\s*(\d{1,18})/\s*(\d{1,18})\]")
_LOSS = re.compile(rb"(?<!_)loss:\s*(?:\[\s*)?([^,\]/\s]+)")
_NORM = re.compile(rb"global_norm:?\s*(\[[^\]\n]*\]|[^,\s]+)")
_OVERFLOW = re.compile(rb"overflow cond:\s*(?:\[\s*)?(True|False)")
_LM_LOSS = re.compile(rb"\blm_loss: (\d+\.\d+)")
"""The loss without the balance term of a mixture of experts, for comparisons of runs."""
_RATE = re.compile(rb"\blr: *(\d+\.?\d*(?:e[+-]\d+)?)")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_TIME_CHARS = len("2024-05-01 12:30:00")
_LONGEST_PREFIX = 500
"""Maximum bytes from a time stamp to the step line's brace, which are copied for each step.

A line with a longer prefix is unusual.
"""
_STEP_OF = attrgetter("step")

# These search whole blocks, so no match may cross a line end.
_SKIP = re.compile(
    rb"opt_global_step:[ \t]*\d{1,18},[ \t]*skip_data_grad_norm_threshold:[^,\n]+,[ \t]*"
    rb"is_skip:[ \t]*(?:\[[ \t]*)?(\w+)(?:\] of step (\d{1,18}))?"
)
_ROW = re.compile(
    rb"Current global norm[ \t]+(\[[^\]\n]*\]|\S+) of step (\d{1,18}) has been (\d{1,18}) consecutive times "
    rb"(?:greater than threshold:?[ \t]*[\d.eE+-]+|dropped without a threshold)(, stop training)?"
)
_APPLIED = re.compile(
    rb"The global norm[ \t]+(\[[^\]\n]*\]|\S+) of step (\d{1,18}) "
    rb"(?:is still greater or equal than threshold|would be dropped without a threshold)"
)
_NORM_STOP = re.compile(
    rb"Current global norm[ \t]+(\[[^\]\n]*\]|\S+) is greater equal than threshold [\d.eE+-]+, stop training"
)
_EMBEDDING = re.compile(
    rb"embedding_local_norm: (?:(\d+\.\d+)\s(?!of step)|[ \t]*(\[[^\]\n]*\]|\S+)(?: of step (\d{1,18}))?)"
)
_GUARD = re.compile(rb"(?:is_skip: \[ True\]|embedding_local_norm: \S{1,30}|The global norm \[\S{1,30}\]) of step \d")
_NAN = re.compile(rb"There is nan in \w+ with value [^\n]*, terminate training")


_SETTERS = {field: getattr(StepMetrics, field).__set__ for field in StepMetrics.__annotations__}
"""The setters of the fields of StepMetrics, by field name."""


def _step_rows(count: int, columns: Mapping[str, Iterable[object]]) -> list[StepMetrics]:
    """Return the same values as StepMetrics(...) for each step, in a third of the time, by filling one field at a time.

    A gigabyte of log contains millions of steps, so no line of Python may run for each step.
    """
    made: list[StepMetrics] = list(map(object.__new__, repeat(StepMetrics, count)))
    for field, put in _SETTERS.items():
        deque(map(put, made, columns.get(field, repeat(None))), maxlen=0)
    return made


def _fill_embedding_norm(metrics: StepMetrics, norm: float | None) -> None:
    _SETTERS["embedding_local_norm"](metrics, norm)


def _fill_skip(metrics: StepMetrics, *, skipped: bool) -> None:
    _SETTERS["skipped"](metrics, skipped)


class MindFormers:
    """Log format of MindFormers 1.0 and later: stdout, `info.log` or msrun's `worker_N.log`, of any pipeline stage.

    Source:
        MFLossMonitor writes the step line, TrainingStateMonitor the lines after it, for the same step. `step:`
        counts within the epoch, `of step` from the start of the training.
    """

    name = "mindformers"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content."""
        if POSITION.search(head) is not None:
            return True
        return (b"mindformers[" in head or b"[mindformers/" in head) and not is_pynative(head)

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each step with the values in the lines up to the next step."""
        return _Reader(source).read()


class GuardLines(MindFormers):
    """Log format of any other log with a guard's lines, which are the monitor's lines with the steps added.

    Only dropped updates and saves have lines, so all other steps are unknown.
    """

    name = "guard-lines"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by a line that no trainer writes."""
        return b" of step " in head and _GUARD.search(head) is not None


class _Reader:
    """Reader of one log.

    The `pending` step may still get values; a step that was yielded never changes.
    """

    __slots__ = ("_last", "_odd", "_pending", "_prefix", "_skip", "_source", "_stamped")

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._pending: StepMetrics | None = None
        self._odd = False  # whether the open step's line was unusual, as it is with a NaN
        self._last = Step(0)
        self._skip: bool | None = None  # a line without its step; the next one may have it
        self._prefix = 0  # bytes from the time stamp to the step line's brace: the same in all lines of one logger
        self._stamped = _TIME  # the expected number of time stamps, each followed by the rest of such a prefix

    def read(self) -> Iterator[LogItem]:
        for block in blocks(self._source):
            if isinstance(block, LogProblem):
                yield block
                continue
            matches = list(_STEP.finditer(block.data))
            steps = self._decode(block.data, matches)
            usual = [metrics for metrics in steps if metrics is not None]
            is_irregular = len(usual) < len(steps)
            marks = _monitor_marks(block.data, is_irregular=is_irregular or self._odd)
            if is_irregular or not self._only_embeddings(marks, matches, usual):
                yield from self._mixed(block, matches, steps, marks)
            else:
                yield from self._plain(block, matches, usual)
        self._settle_skip()
        if self._pending is not None:
            yield self._pending

    def _plain(self, block: Block, matches: list[_Match], steps: list[StepMetrics]) -> Iterator[LogItem]:
        """Yield the steps of a block that contains only usual step lines and noise, as most blocks do."""
        if not steps:
            return
        numbers = [self._last, *map(_STEP_OF, steps)]
        if self._skip is None and all(map(lt, numbers, numbers[1:])):
            if self._pending is not None:
                yield self._pending
            yield from steps[:-1]
            self._pending = steps[-1]
            self._last = steps[-1].step
            self._odd = False
            return
        for match, metrics in zip(matches, steps, strict=True):
            yield from self._open(metrics, block, match.start())

    def _only_embeddings(self, marks: list[_Mark], matches: list[_Match], steps: list[StepMetrics]) -> bool:
        """Assign a block's embedding norms to the previous steps.

        Return False, without a change, if the block contains other lines from a monitor. With the health monitor on,
        every step has such a line, so reading these lines must cost less than reading the rare ones.
        """
        if any(handle is not _Reader.embedding_line or not match[1] for handle, match in marks):
            return False
        starts = [match.start() for match in matches]
        owners = [self._pending, *steps]
        owner = 0
        for _, match in marks:
            owner = bisect_right(starts, match.start(), owner)
            metrics = owners[owner]
            if metrics is not None and metrics.embedding_local_norm is None:
                _fill_embedding_norm(metrics, float(match[1]))
        return True

    def _mixed(
        self, block: Block, matches: list[_Match], steps: list[StepMetrics | None], marks: list[_Mark]
    ) -> Iterator[LogItem]:
        """Read all lines in order.

        A monitor's line belongs to the previous step.
        """
        calls: list[tuple[int, Callable[[], Iterable[LogItem]]]] = [
            (match.start(), partial(handle, self, block, match)) for handle, match in marks
        ]
        for match, metrics in zip(matches, steps, strict=True):
            position = match.start()
            parse = (
                partial(self._odd_step, block, match)
                if metrics is None
                else partial(self._open, metrics, block, position)
            )
            calls.append((position, parse))
        calls.sort(key=itemgetter(0))
        for _, call in calls:
            yield from call()

    def _decode(self, data: bytes, matches: list[_Match]) -> list[StepMetrics | None]:
        """Parse the usual step lines of a block column by column; the result is None for all other lines.

        A call per line, or a line of Python per value, would take longer than the search.
        """
        if not matches:
            return []
        epochs, steps, sizes, losses, overflows, norms = zip(*[match.groups() for match in matches], strict=True)
        if self._source.curves:
            losses = tuple(
                loss_match[1] if (loss_match := _LM_LOSS.search(match[0])) else loss
                for match, loss in zip(matches, losses, strict=True)
            )
        begins = {pair: self._begin(*pair) for pair in set(zip(epochs, sizes, strict=True))}
        if None in begins.values():
            has_begin = [begins[epoch, size] is not None for epoch, size in zip(epochs, sizes, strict=True)]
            usual = iter(self._decode(data, list(compress(matches, has_begin))))
            return [next(usual) if is_usual else None for is_usual in has_begin]
        offsets: Iterable[int] = repeat(begins[epochs[0], sizes[0]] or 0)
        if len(begins) > 1:
            offsets = [begins[pair] or 0 for pair in zip(epochs, sizes, strict=True)]
        columns: dict[str, Iterable[object]] = {
            "step": map(add, map(int, steps), offsets),
            "loss": [loss or None for loss in map(float, losses)],  # a stage that has no loss prints 0
            "global_norm": map(float, norms),
            "overflow": map(b"True".__eq__, overflows),
            "time": self._times(data, [match.start() for match in matches]),
        }
        if self._source.curves:
            columns["learning_rate"] = [_rate(match[0]) for match in matches]
        return [*_step_rows(len(matches), columns)]

    @staticmethod
    def _begin(epoch: bytes | None, epoch_steps: bytes) -> int | None:
        """Return the number of steps before an epoch; None if the line is unusual.

        Epochs count from 1, and steps are never negative: epoch 0 means that a digit was lost.
        """
        number_of_epoch = 0 if epoch is None else int(epoch)
        return (number_of_epoch - 1) * int(epoch_steps) if number_of_epoch else None

    def _times(self, data: bytes, ends: list[int]) -> list[str | None]:
        """Return the time stamp of the line before each place, all at once if the distances are equal."""
        width = self._prefix
        if 0 < width <= min(_LONGEST_PREFIX, ends[0]):
            heads = b"".join([data[end - width : end] for end in ends])
            if b"\n" not in heads and self._stamped.fullmatch(heads):
                text = str(heads, "latin-1")
                return [text[begin : begin + _TIME_CHARS] for begin in range(0, len(text), width)]
        return [self._time(data, end) for end in ends]

    def _time(self, data: bytes, end: int) -> str | None:
        """Return the time stamp of the line before `end`."""
        match = _TIME.search(data, data.rfind(b"\n", 0, end) + 1, end)
        if match is None:
            return None
        if self._prefix != end - match.start():
            self._prefix = end - match.start()
            self._stamped = re.compile(rb"(?s:%b.{%d})*" % (_TIME.pattern, self._prefix - _TIME_CHARS))
        return str(match[0], "latin-1")

    def _odd_step(self, block: Block, match: _Match) -> Iterator[LogItem]:
        """Parse an unusual step line, field by field, and report unreadable fields."""
        start = match.start()
        line = block.data[start : block.line_end(start)]
        position = POSITION.match(line)
        if position is None:
            yield self._problem(block, start, "a step line without a step: it may be truncated")
            return
        epoch, step, epoch_steps = map(int, position.groups())
        if not epoch:
            yield self._problem(block, start, "epoch 0, but epochs count from 1")
            return
        values: list[float | None] = []
        is_own = self._source.curves and _LM_LOSS.search(line) is not None
        for field, pattern in (("loss", _LM_LOSS if is_own else _LOSS), ("global_norm", _NORM)):
            step_match = pattern.search(line)
            try:
                values.append(number(step_match[1]) if step_match else None)
            except UnreadableError as error:
                values.append(None)
                yield self._problem(block, start, f"{field} {error}")
        loss, norm = values
        overflow = _OVERFLOW.search(line)
        if b"per_step_time:" not in line:
            yield self._problem(block, start, "the step line is truncated")
        metrics = StepMetrics(
            step=Step((epoch - 1) * epoch_steps + step),
            loss=loss or None,
            global_norm=norm,
            overflow=overflow[1] == b"True" if overflow else None,
            time=self._time(block.data, start),
            learning_rate=_rate(line) if self._source.curves else None,
        )
        yield from self._open(metrics, block, start, is_irregular=True)

    def _open(self, metrics: StepMetrics, block: Block, position: int, *, is_irregular: bool = False) -> list[LogItem]:
        """Yield the previous step and keep the new step open; report a log that returns to an earlier step."""
        self._settle_skip()
        pending, self._pending = self._pending, metrics
        if pending is not None and pending.step == metrics.step and pending.global_norm == metrics.global_norm:
            self._pending = pending  # the same line once more: another rank writes into the same log
            if pending.embedding_local_norm is None:
                _fill_embedding_norm(pending, metrics.embedding_local_norm)
            return []
        self._odd = is_irregular
        items: list[LogItem] = [] if pending is None else [pending]
        if metrics.step <= self._last:
            items.append(self._note(NoteKind.REWIND, block, position, metrics.step, previous=self._last))
        self._last = metrics.step
        return items

    def _settle_skip(self) -> None:
        """Add the skip from a line without a step to the open step, because no later line gave a different step."""
        if self._skip is not None and self._pending is not None:
            _fill_skip(self._pending, skipped=self._skip)
        self._skip = None

    def skip_line(self, block: Block, match: _Match) -> list[LogItem]:
        self._settle_skip()
        if match[1] not in {b"True", b"False"}:
            return [self._problem(block, match.start(), "is_skip is neither True nor False")]
        if not match[2]:
            self._skip = match[1] == b"True"
            return []
        metrics, items = self._row_at(block, match, Step(int(match[2])))
        _fill_skip(metrics, skipped=match[1] == b"True")
        return items

    def row_line(self, block: Block, match: _Match) -> list[LogItem]:
        """Parse `of step N has been K consecutive times`, the only line that contains its global step."""
        step = Step(int(match[2]))
        norm, items = self._norm(block, match)
        self._skip = None
        metrics, opened = self._row_at(block, match, step, norm)
        items += opened
        _fill_skip(metrics, skipped=True)
        if match[4]:
            items.append(self._note(NoteKind.COUNT_STOP, block, match.start(), step, value=norm, count=int(match[3])))
        return items

    def applied_line(self, block: Block, match: _Match) -> list[LogItem]:
        """Parse the line of an update that was applied although its norm is high."""
        norm, items = self._norm(block, match)
        return items + self._row_at(block, match, Step(int(match[2])), norm)[1]

    def _row_at(
        self, block: Block, match: _Match, step: Step, norm: float | None = None
    ) -> tuple[StepMetrics, list[LogItem]]:
        """Return the open step if a line names it; otherwise open the named step, which the trainer did not print."""
        metrics = self._pending
        if metrics is not None and metrics.step == step:
            if metrics.global_norm is None:
                _SETTERS["global_norm"](metrics, norm)
            return metrics, []
        metrics = StepMetrics(step=step, global_norm=norm, time=self._time(block.data, match.start()))
        return metrics, self._open(metrics, block, match.start())

    def norm_stop_line(self, block: Block, match: _Match) -> list[LogItem]:
        norm, items = self._norm(block, match)
        return [*items, self._note(NoteKind.NORM_STOP, block, match.start(), self._open_step(), value=norm)]

    def nan_line(self, block: Block, match: _Match) -> list[LogItem]:
        # Only after an unusual step: elsewhere such lines are not searched for, and the result must not depend on block
        # limits.
        return [self._note(NoteKind.NAN_STOP, block, match.start(), self._open_step())] if self._odd else []

    def embedding_line(self, block: Block, match: _Match) -> Sequence[LogItem]:
        """Add the norm to its step, or to the open step.

        A second norm belongs to an unprinted, unknown step, and is ignored.
        """
        items: list[LogItem] = []
        if match[3]:
            items = self._row_at(block, match, Step(int(match[3])))[1]
        if self._pending is None or self._pending.embedding_local_norm is not None:
            return items
        if match[1]:  # the usual form: every step has such a line
            _fill_embedding_norm(self._pending, float(match[1]))
            return items
        norm, problems = self._norm(block, match, 2)
        _fill_embedding_norm(self._pending, norm)
        return [*items, *problems]

    def _norm(self, block: Block, match: _Match, group: int = 1) -> tuple[float | None, list[LogItem]]:
        try:
            return number(match[group]), []
        except UnreadableError as error:
            return None, [self._problem(block, match.start(), f"the norm {error}")]

    def _open_step(self) -> Step | None:
        return None if self._pending is None else self._pending.step

    def _problem(self, block: Block, position: int, reason: str) -> LogProblem:
        return problem(
            self._source, block.line_number(position), reason, block.data[position : block.line_end(position)]
        )

    def _note(  # noqa: PLR0913 (what a note has)
        self,
        kind: NoteKind,
        block: Block,
        position: int,
        step: Step | None,
        *,
        previous: Step | None = None,
        value: float | None = None,
        count: int | None = None,
    ) -> LogNote:
        return LogNote(
            kind=kind,
            source=self._source.name,
            line=block.line_number(position),
            step=step,
            previous_step=previous,
            value=value,
            count=count,
        )


def _rate(line: bytes) -> float | None:
    match = _RATE.search(line)
    return float(match[1]) if match else None


_Mark = tuple[Callable[[_Reader, Block, _Match], Iterable[LogItem]], _Match]

_THRESHOLD_LINES = (
    (_SKIP, _Reader.skip_line),
    (_ROW, _Reader.row_line),
    (_NORM_STOP, _Reader.norm_stop_line),
    (_APPLIED, _Reader.applied_line),
)


def _monitor_marks(data: bytes, *, is_irregular: bool) -> list[_Mark]:
    """Return the monitors' lines.

    Substring searches come first: if nothing matches, they are much cheaper than a regular expression.

    Args:
        data: A block.
        is_irregular: Whether a step in the block or before it is unusual. A NaN is unusual, so only then can training
            have ended at a NaN.
    """
    marks: list[_Mark] = []
    if b"threshold" in data:
        for pattern, handle in _THRESHOLD_LINES:
            marks.extend((handle, match) for match in pattern.finditer(data))
    if b"embedding_local_norm:" in data:
        marks.extend((_Reader.embedding_line, match) for match in _EMBEDDING.finditer(data))
    if is_irregular:
        marks.extend((_Reader.nan_line, match) for match in _NAN.finditer(data))
    return marks
