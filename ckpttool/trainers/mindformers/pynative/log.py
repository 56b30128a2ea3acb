"""Training logs of the PyNative trainer: one line of fields in braces per step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.base import LogSource, UnreadableError, blocks, number, problem, rewind
from ckpttool.core.logs.merge import combined, same_attempt

if TYPE_CHECKING:
    from ckpttool.core.logs.base import Block

_Match = re.Match[bytes]

NAME = "mindformers-pynative"

# The usual line of every version in one search, which starts with a literal; other lines are read field by field.
_STEP = re.compile(
    rb"\{ step:\[(?: *(\d{1,18})/ *\d{1,18}\], (?:consumed_samples: (\d{1,18}), global_batch_size: \d{1,18}, )?"
    rb"loss: +(\d+\.\d+), per_step_time: +\d+ms, (?:\w+_loss: [^,\n]+, )*(?:lr: (\d\.\d+e[+-]\d+), )?"
    rb"grad_norm: +(\d+\.\d+), throughput: +[\d.]+T \})?"
)
_POSITION = re.compile(rb"\{ step:\[ *(\d{1,18})/ *\d{1,18}\]")
_GUARD = b"[SkipStepOnNaN] "
_SKIP = re.compile(rb"\[SkipStepOnNaN\] Global gradient norm is (\S{1,20}) at step (\d{1,18}), skipping")
_STOP = re.compile(rb"\[SkipStepOnNaN\] The global gradient norm has been NaN/Inf for (\d{1,18}) consecutive steps")
_PLACES = (b"[mindformers/pynative/trainer/", b"[mindformers/pynative/callback/")
_OWN_STEP = re.compile(rb"\{ step:\[ *\d{1,18}/ *\d{1,18}\], (?:consumed_samples|loss): ")
_FIELD = re.compile(rb"(\w+): *([^,}\n]*)")
_NO_LOSS = b"N/A"
"""The loss printed by all pipeline stages except the last."""
_NO_NORM = b"NaN"
"""The norm printed if a step has no norm; a norm that is not a number is printed as `nan`."""
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def is_pynative(head: bytes) -> bool:
    """Return whether the beginning of a log shows the trainer's code location, or one of its step lines."""
    return any(place in head for place in _PLACES) or _OWN_STEP.search(head) is not None


class PyNativeLog:
    """Log format of MindFormers 1.9 and later: `info.log`, stdout or msrun's `worker_N.log`, of any pipeline stage.

    Source:
        `LossCallback._print_log` and `Trainer._should_skip_optimizer_step` of the wheels 1.9.0 and 2.1.0. The line of a
        step shows the learning rate of the schedule at that step; its update used the rate one step earlier. The stages
        before the last print `grad_norm: NaN`, because their step has no norm. 1.9.0 prints the same for a step with a
        NaN gradient, whose update it skips; 2.1.0 skips it on request, and reports that in another line.
    """

    name = NAME

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content."""
        return is_pynative(head)

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each step once, even if several ranks print it; a truncated line yields its intact fields."""
        return _Reader(source).read()


class _Reader:
    """Reader of one log.

    The `pending` step may still get values; a step that was yielded never changes.
    """

    __slots__ = ("_last", "_pending", "_source")

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._pending: StepMetrics | None = None
        self._last = Step(0)

    def read(self) -> Iterator[LogItem]:
        for block in blocks(self._source):
            if isinstance(block, LogProblem):
                yield block
                continue
            steps = _STEP.finditer(block.data)
            if _GUARD in block.data:
                others = chain(_SKIP.finditer(block.data), _STOP.finditer(block.data))
                yield from self._mixed(block, sorted(chain(steps, others), key=_Match.start))
                continue
            for match in steps:
                yield from self._step(block, match)
        if self._pending is not None:
            yield self._pending

    def _mixed(self, block: Block, matches: list[_Match]) -> Iterator[LogItem]:
        """Read the lines of steps, skips and the end of the training run in order."""
        for match in matches:
            if match.re is _STEP:
                yield from self._step(block, match)
            elif match.re is _SKIP:
                yield from self._open(_skipped(block, match), block, match.start())
            else:
                step = None if self._pending is None else self._pending.step
                line = block.line_number(match.start())
                count = int(match[1])
                yield LogNote(kind=NoteKind.NAN_STOP, source=self._source.name, line=line, step=step, count=count)

    def _step(self, block: Block, match: _Match) -> Sequence[LogItem]:
        step, samples, loss, rate, norm = match.groups()
        if norm is None:
            return self._unusual(block, match.start())
        metrics = StepMetrics(
            step=Step(int(step)),
            loss=float(loss),
            global_norm=float(norm),
            time=_time(block, match.start()),
            consumed_samples=int(samples) if samples else None,
            learning_rate=float(rate) if rate and self._source.curves else None,
        )
        return self._open(metrics, block, match.start())

    def _unusual(self, block: Block, start: int) -> list[LogItem]:
        """Parse a step line field by field, and report unreadable fields."""
        line = block.data[start : block.line_end(start)]
        position = _POSITION.match(line)
        if position is None:
            reason = "a step line without a step: it may be truncated"
            return [problem(self._source, block.line_number(start), reason, line)]
        rest, brace, _ = line[position.end() :].partition(b"}")
        fields = {name: text.strip() for name, text in _FIELD.findall(rest)}
        reasons = [] if brace else ["the step line is truncated"]
        is_skipped = False
        if fields.get(b"grad_norm") == _NO_NORM:
            is_skipped = not fields.get(b"loss", _NO_LOSS).startswith(_NO_LOSS)
            if not is_skipped:
                del fields[b"grad_norm"]
        if fields.get(b"loss", b"").startswith(_NO_LOSS):
            del fields[b"loss"]
        values: dict[bytes, float | None] = {}
        for name in (b"loss", b"grad_norm", b"consumed_samples", *((b"lr",) if self._source.curves else ())):
            try:
                values[name] = number(fields.get(name, b""))
            except UnreadableError as error:
                reasons.append(f"{name.decode()} {error}")
        samples = values.get(b"consumed_samples")
        if samples is not None and not math.isfinite(samples):
            samples = None
            reasons.append("consumed_samples is not a finite number")
        metrics = StepMetrics(
            step=Step(int(position[1])),
            loss=values.get(b"loss"),
            global_norm=values.get(b"grad_norm"),
            skipped=True if is_skipped else None,
            time=_time(block, start),
            consumed_samples=None if samples is None else int(samples),
            learning_rate=values.get(b"lr"),
        )
        problems = [problem(self._source, block.line_number(start), reason, line) for reason in reasons]
        return [*problems, *self._open(metrics, block, start)]

    def _open(self, metrics: StepMetrics, block: Block, start: int) -> Sequence[LogItem]:
        """Return the previous step and keep the new step open; report a log that returns to an earlier step.

        A further line from the same attempt at a step adds its values: a skip has its own line, and so does each rank.
        """
        before, self._pending = self._pending, metrics
        if before is None:
            self._last = metrics.step
            return ()
        if before.step == metrics.step and same_attempt(before, metrics):
            self._pending = combined(before, metrics)
            return ()
        last, self._last = self._last, metrics.step
        if metrics.step > last:
            return (before,)
        return (before, rewind(self._source, block.line_number(start), metrics.step, last))


def _skipped(block: Block, match: _Match) -> StepMetrics:
    """Return a step whose update was skipped.

    The step's line comes later, or never if the training run stops there.
    """
    norm = float("inf") if b"inf" in match[1].lower() else float("nan")
    return StepMetrics(step=Step(int(match[2])), global_norm=norm, skipped=True, time=_time(block, match.start()))


def _time(block: Block, start: int) -> str | None:
    """Return the time stamp of a line, which precedes the message."""
    time = _TIME.search(block.data, block.line_start(start), start)
    return None if time is None else time[0].decode()
