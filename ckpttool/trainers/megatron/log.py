"""Training logs of Megatron-LM and its forks: one line per iteration, with fields between bars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import LogItem, LogProblem, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.logs.base import Block, LogSource, UnreadableError, blocks, number, problem, rewind
from ckpttool.core.logs.fields import CURVES

_ITERATION = re.compile(rb"\biteration +(\d{1,18})/ *\d+ \|([^\n]*)")
_VALIDATION = (
    rb"\bvalidation loss at iteration (\d{1,18})(?: on validation set)? \|"
    rb"(?:[^\n]{0,2000}\|)? lm loss value: ([^ |\n]+)"
)
_OF_CURVES = re.compile(_ITERATION.pattern + b"|" + _VALIDATION)
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_FIELDS = {
    "loss": b"lm loss",
    "global_norm": b"grad norm",
    "skipped": b"number of skipped iterations",
    "consumed_samples": b"consumed samples",
    "learning_rate": b"learning rate",
}


class Megatron:
    """Log format of Megatron-LM, Megatron-DeepSpeed, MindSpeed and other trainers that print `iteration N/ M | … |`."""

    name = "megatron"

    def recognise(self, head: bytes) -> bool:
        """Return whether the first bytes contain an iteration or a validation line; some logs have only one kind."""
        return _OF_CURVES.search(head) is not None

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each iteration; a truncated line yields its intact fields, and a problem."""
        last = Step(0)
        line = _OF_CURVES if source.curves else _ITERATION
        pending: StepMetrics | None = None  # its validation loss may follow
        for block in blocks(source):
            if isinstance(block, LogProblem):
                yield block
                continue
            for match in line.finditer(block.data):
                if match[1] is None:
                    metrics, problems = _validation(source, block, match)
                    if pending is not None and pending.step == metrics.step:
                        pending = replace(pending, validation_loss=metrics.validation_loss)
                        yield from problems
                        continue
                else:
                    metrics, problems = _iteration(source, block, match)
                if pending is not None:
                    yield pending
                yield from problems
                if metrics.step <= last:
                    yield rewind(source, block.line_number(match.start()), metrics.step, last)
                last = metrics.step
                pending = metrics
        if pending is not None:
            yield pending


def _validation(source: LogSource, block: Block, match: re.Match[bytes]) -> tuple[StepMetrics, list[LogProblem]]:
    step = Step(int(match[3]))
    try:
        return StepMetrics(step=step, validation_loss=number(match[4])), []
    except UnreadableError as error:
        line = block.line_number(match.start())
        return StepMetrics(step=step), [problem(source, line, f"validation loss {error}", match[0])]


def _iteration(source: LogSource, block: Block, match: re.Match[bytes]) -> tuple[StepMetrics, list[LogProblem]]:
    reasons: list[str] = []
    *fields, rest = match[2].split(b"|")
    if rest.strip():
        reasons.append("the line is truncated")
    pairs = (field.split(b":", 1) for field in fields if b":" in field)
    texts = {key.strip(): value.strip() for key, value in pairs}
    values: dict[str, float | None] = {}
    for field, key in _FIELDS.items():
        try:
            values[field] = number(texts[key]) if key in texts else None
        except UnreadableError as error:
            values[field] = None
            if field not in CURVES or source.curves:
                reasons.append(f"{key.decode()} {error}")
    time = _TIME.search(block.data, block.line_start(match.start()), match.start())
    skipped, samples = values["skipped"], values["consumed_samples"]
    metrics = StepMetrics(
        step=Step(int(match[1])),
        loss=values["loss"],
        global_norm=values["global_norm"],
        skipped=None if skipped is None else skipped > 0,
        consumed_samples=int(samples) if samples is not None and math.isfinite(samples) else None,
        time=time[0].decode() if time else None,
        learning_rate=values["learning_rate"],
    )
    line = block.line_number(match.start()) if reasons else 0
    return metrics, [problem(source, line, reason, match[0]) for reason in reasons]
