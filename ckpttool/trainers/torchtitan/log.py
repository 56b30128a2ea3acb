"""torchtitan's training logs: one line per logged step, coloured or not, and one line per validation."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogItem, LogProblem, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.base import Block, LogSource, UnreadableError, blocks, number, problem, rewind

_COLOUR = rb"(?:\x1b\[[\d;]*m)*"
_LINE = re.compile(
    rb"(?:\x1b\[[\d;]*m|\b)(validate )?step: +(\d{1,18}) +%(c)bloss: +([^\s\x1b]+) +%(c)b"
    rb"(?:grad_norm: +([^\s\x1b]+) +%(c)b)?memory: " % {b"c": _COLOUR}
)
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_REMEMBERED = 64
"""Steps by which one rank's line may lag behind another's in the same log."""


class TorchtitanLog:
    """Log format of torchtitan's ranks: `step: 9 loss: 4.06968 grad_norm: 8.0625 memory: …`.

    Source:
        `MetricsProcessor.log` and `log_validation` in torchtitan/components/metrics.py.
    """

    name = "torchtitan"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content."""
        return _LINE.search(head) is not None

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each step once, even if several ranks print it; a validation belongs to the previous step."""
        pending: StepMetrics | None = None
        last = Step(0)
        printed: OrderedDict[tuple[bytes, ...], None] = OrderedDict()
        for block in blocks(source):
            if isinstance(block, LogProblem):
                yield block
                continue
            for match in _LINE.finditer(block.data):
                texts = tuple(text or b"" for text in match.groups())
                if texts in printed or (match[1] and not source.curves):
                    continue
                printed[texts] = None
                if len(printed) > _REMEMBERED:
                    printed.popitem(last=False)
                metrics, problems = _step(source, block, match)
                if match[1] and pending is not None and pending.step == metrics.step:
                    pending = replace(pending, validation_loss=metrics.validation_loss)
                    yield from problems
                    continue
                if pending is not None:
                    yield pending
                yield from problems
                if metrics.step <= last:
                    yield rewind(source, block.line_number(match.start()), metrics.step, last)
                last, pending = metrics.step, metrics
        if pending is not None:
            yield pending


def _step(source: LogSource, block: Block, match: re.Match[bytes]) -> tuple[StepMetrics, list[LogProblem]]:
    values: list[float | None] = []
    problems: list[LogProblem] = []
    for name, text in (("loss", match[3]), ("grad_norm", match[4])):
        try:
            values.append(None if text is None else number(text))
        except UnreadableError as error:
            values.append(None)
            problems.append(problem(source, block.line_number(match.start()), f"{name} {error}", match[0]))
    loss, norm = values
    if match[1]:
        return StepMetrics(step=Step(int(match[2])), validation_loss=loss), problems
    time = _TIME.search(block.data, block.line_start(match.start()), match.start())
    metrics = StepMetrics(
        step=Step(int(match[2])), loss=loss, global_norm=norm, time=time[0].decode() if time else None
    )
    return metrics, problems
