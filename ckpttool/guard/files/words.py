"""The guard's lines in the log of the training run, worded like torch_npu's detector and MindFormers' monitor.

People search their logs for these phrases. The lines go to Python's logger `ckpttool.guard`, which has no handler of
its own: without a handler, Python prints warnings on stderr. Steps are appended to the original sentences.

Source:
    torch_npu 7.1, `asd.py`: an abnormal value and the start and end of the checksum are INFO; a strike and a wrong
    product are WARNING. MindFormers 1.5 and later, `TrainingStateMonitor`: INFO; the stop is an exception, here ERROR.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.metrics import LocalTime, show_local_time
from ckpttool.core.domain.units import Step

LOGGER = logging.getLogger("ckpttool.guard")

_MOST_REMEMBERED = 100
"""Maximum number of abnormal values to list for a strike. Usually three make a strike."""

Line = tuple[int, str]
"""A logging level and a text."""


def log_embedding(step: Step, squares: float | None) -> None:
    """Log the embedding's sum of squares at a save, as MindFormers does. None means that it was not measured."""
    if squares is not None:
        _log((logging.INFO, f"embedding_local_norm: {squares} of step {step}"))


class Words:
    """Logger of events in the trainers' words. It matches the `Emit` protocol and never raises."""

    def __init__(self, rank: Callable[[], int]) -> None:
        """Store a function that returns this process's rank. It is called at an event, when ranks are known."""
        self._rank = rank
        self._applied: EventValue = None
        self._spikes: deque[tuple[float, str]] = deque(maxlen=_MOST_REMEMBERED)
        self._above = ""  # the reason of the last drop, up to the details

    def __call__(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Log the lines of one event. Most events have no lines."""
        if kind is GuardEventKind.STEP:
            self._applied = values.get("optimizer_step")
            return
        lines = _LINES.get(kind)
        if lines is None:
            return
        with suppress(Exception):  # a log line must not end a training run; the event file has the event
            for line in lines(self, step, values):
                _log(line)

    # The detector's lines.

    def _spike(self, step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        stamp = _stamp(values.get("clock"))
        # A parameter has one value per step: for "bp time", torch_npu counts its micro-batches.
        text = (
            f"param name {values.get('name')}, abnormal value {values.get('value')}, "
            f"previous value {values.get('previous')}, history avg {values.get('average')}, bp time {step}, "
            f"normal count {values.get('normal_count', 0)} (global step {step})."
        )
        self._spikes.append((_seconds(values.get("clock")), f"time {stamp}, {text}"))
        yield logging.INFO, f"[Event][{stamp}] [Rank {values.get('rank')}]: A grad-norm spike may happen, {text}"

    def _strike(self, step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        count = values.get("count")
        head = (
            f"[Warning][{_stamp(values.get('clock'))}] [Rank {values.get('rank')}]: feature detection detects abnormal "
            f"results! (global step {step}) {count} abnormal values since {_stamp(values.get('since_clock'))} "
            f"(global step {values.get('since_step')})"
        )
        since = _seconds(values.get("since_clock"))
        group = [text for clock, text in self._spikes if clock >= since][-count if isinstance(count, int) else 0 :]
        members = [f"Grad-norm spike: index {index}, {text}" for index, text in enumerate(group)]
        yield logging.WARNING, "\n".join([head, *members])

    def _checksum_on(self, step: Step, _values: Mapping[str, EventValue]) -> Iterator[Line]:
        text = "feature detection detects abnormal results, checksum is on."
        yield logging.INFO, f"[Info] Rank {self._rank()}: {text} (global step {step})"

    def _checksum_off(self, step: Step, _values: Mapping[str, EventValue]) -> Iterator[Line]:
        yield logging.INFO, f"[Info] Rank {self._rank()}: checksum is off (global step {step})"

    def _wrong_product(self, step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        place = ", ".join(f"{key} {values[key]}" for key in ("batch", "row", "column") if values.get(key) is not None)
        yield (
            logging.WARNING,
            (
                f"[Warning][Rank {values.get('rank')}]: The result of Matmul checksum is abnormal! (global step "
                f"{step}) {values.get('op')} in {values.get('module') or 'the model'}, {values.get('phase')}, {place}, "
                f"{values.get('fault')}, on {values.get('device')} of {values.get('host')}"
            ),
        )

    # The monitor's lines.

    def _dropped(self, step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        norm, limit, why = values.get("value"), values.get("limit"), values.get("message")
        is_above = isinstance(norm, float) and isinstance(limit, (int, float)) and norm >= limit
        if values.get("dropped") is False:
            why = f"is still greater or equal than threshold {limit}" if is_above else f"{_WITHOUT_IN_WATCH}: {why}"
            yield logging.INFO, f"The global norm [{norm}] of step {step} {why}, continue training."
            return
        if self._applied is not None:
            text = f"opt_global_step: {self._applied}, skip_data_grad_norm_threshold: {limit}, is_skip: [ True]"
            yield logging.INFO, f"{text} of step {step}"
        begin = f"Current global norm [{norm}] of step {step} has been {values.get('count')} consecutive times "
        self._above = f"{begin}greater than threshold {limit}" if is_above else f"{begin}{_WITHOUT}"
        reason = f"greater than threshold: {limit}" if is_above else f"{_WITHOUT}: {why}"
        yield logging.INFO, f"{begin}{reason}"

    def _stop(self, _step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        if values.get("stopped") is not False and self._above:
            yield logging.ERROR, f"{self._above}, stop training..."

    # Lines of ckpttool alone.

    def _alarm(self, step: Step, values: Mapping[str, EventValue]) -> Iterator[Line]:
        message = " ".join(str(values.get("message")).split())
        yield logging.WARNING, f"[Warning][Rank {self._rank()}]: step {step}: {values.get('name')}: {message}"


_WITHOUT = "dropped without a threshold"
"""Text for drops that MindFormers does not make: for a non-finite loss or norm, or by other rules."""
_WITHOUT_IN_WATCH = f"would be {_WITHOUT}"

_LINES: Mapping[GuardEventKind, Callable[[Words, Step, Mapping[str, EventValue]], Iterator[Line]]] = MappingProxyType(
    {
        GuardEventKind.SDC_EVENT: Words._spike,  # noqa: SLF001  a table of its methods
        GuardEventKind.SDC_STRIKE: Words._strike,  # noqa: SLF001  as above
        GuardEventKind.CHECKSUM_ON: Words._checksum_on,  # noqa: SLF001  as above
        GuardEventKind.CHECKSUM_OFF: Words._checksum_off,  # noqa: SLF001  as above
        GuardEventKind.CHECKSUM_ABNORMAL: Words._wrong_product,  # noqa: SLF001  as above
        GuardEventKind.SKIP: Words._dropped,  # noqa: SLF001  as above
        GuardEventKind.SPIKE: Words._dropped,  # noqa: SLF001  as above
        GuardEventKind.NONFINITE: Words._dropped,  # noqa: SLF001  as above
        GuardEventKind.STOP: Words._stop,  # noqa: SLF001  as above
        GuardEventKind.ALARM: Words._alarm,  # noqa: SLF001  as above
    }
)


def _log(line: Line) -> None:
    level, text = line
    with suppress(Exception):  # a handler of the training may raise, but not here
        LOGGER.log(level, "%s", text)


def _seconds(clock: EventValue) -> float:
    """Return `clock` in seconds, or the current local time of this machine if it is missing."""
    if isinstance(clock, (int, float)):
        return float(clock)
    now = time.time()
    return now + time.localtime(now).tm_gmtoff


def _stamp(clock: EventValue) -> str:
    return show_local_time(LocalTime(_seconds(clock)))
