"""Training logs of the PyNative trainer: one line of fields in braces per step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.base import LogSource, UnreadableError, blocks, number, problem, rewind

if TYPE_CHECKING:
    from ckpttool.core.logs.base import Block

_LINE = re.compile(
    rb"\{ step:\[ *(?P<step>\d{1,18})/ *\d+\], (?P<fields>[^\n]*)"
    rb"|\[SkipStepOnNaN\] Global gradient norm is \S{1,20} at step (?P<skipped>\d{1,18}), skipping"
    rb"|\[SkipStepOnNaN\] The global gradient norm has been NaN/Inf for (?P<count>\d{1,18}) consecutive steps"
)
_SIGN = b"mindformers/pynative/"
_FIELD = re.compile(rb"(\w+): *([^,}\n]*)")
_NO_LOSS = b"N/A"
"""The loss of all pipeline stages but the last."""
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class PyNativeLog:
    """MindFormers 1.9 and later: `info.log`, stdout or msrun's `worker_N.log`, of any pipeline stage.

    Source:
        `LossCallback._print_log` and `Trainer._skip_step_on_nan` of the wheels 1.9.0 and 2.1.0. The line of a step
        shows the learning rate of the schedule at that step; its update used the rate one step earlier.
    """

    name = "mindformers-pynative"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content: the place in the code, or a step line."""
        return _SIGN in head or b"{ step:[" in head

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each step once, even if several ranks print it; a truncated line yields its remaining fields."""
        last, skipped = Step(0), Step(0)
        previous = b""
        for block in blocks(source):
            if isinstance(block, LogProblem):
                yield block
                continue
            for match in _LINE.finditer(block.data):
                if match["skipped"]:
                    skipped = Step(int(match["skipped"]))
                    continue
                line = block.line_number(match.start())
                if match["count"]:
                    count = int(match["count"])
                    yield LogNote(kind=NoteKind.NAN_STOP, source=source.name, line=line, step=skipped, count=count)
                    continue
                if match[0] == previous:
                    continue
                previous = match[0]
                metrics, problems = _step(source, block, match, is_skipped=int(match["step"]) == skipped)
                yield from problems
                if metrics.step <= last:
                    yield rewind(source, line, metrics.step, last)
                last = metrics.step
                yield metrics


def _step(
    source: LogSource, block: Block, match: re.Match[bytes], *, is_skipped: bool
) -> tuple[StepMetrics, list[LogProblem]]:
    fields = dict(_FIELD.findall(match["fields"]))
    reasons = [] if match["fields"].rstrip().endswith(b"}") else ["the step line is truncated"]
    values: dict[bytes, float | None] = {}
    for name in (b"loss", b"grad_norm", b"consumed_samples", b"lr"):
        text = fields.get(name, b"").strip()
        try:
            values[name] = None if not text or text.startswith(_NO_LOSS) else number(text)
        except UnreadableError as error:
            values[name] = None
            reasons.append(f"{name.decode()} {error}")
    samples = values[b"consumed_samples"]
    if samples is not None and not math.isfinite(samples):
        samples = None
        reasons.append("consumed_samples is not a finite number")
    time = _TIME.search(block.data, block.line_start(match.start()), match.start())
    line = block.line_number(match.start())
    metrics = StepMetrics(
        step=Step(int(match["step"])),
        loss=values[b"loss"],
        global_norm=values[b"grad_norm"],
        skipped=True if is_skipped else None,
        time=time[0].decode() if time else None,
        consumed_samples=None if samples is None else int(samples),
        learning_rate=values[b"lr"] if source.curves else None,
    )
    return metrics, [problem(source, line, reason, match[0]) for reason in reasons]
