"""Megatron-LM's training logs, and those of its forks: one line of fields between bars for each iteration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ckpttool.domain.metrics import LogItem, LogProblem, StepMetrics
from ckpttool.domain.units import Step
from ckpttool.logs.base import Block, LogSource, UnreadableError, blocks, number, problem, rewind

_ITERATION = re.compile(rb"\biteration +(\d{1,18})/ *\d+ \|([^\n]*)")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_FIELDS = {
    "loss": b"lm loss",
    "global_norm": b"grad norm",
    "skipped": b"number of skipped iterations",
    "consumed_samples": b"consumed samples",
}


class Megatron:
    """Megatron-LM, Megatron-DeepSpeed, MindSpeed and others that print `iteration N/ M | … |`."""

    name = "megatron"

    def recognise(self, head: bytes) -> bool:
        """Tell from the beginning of the content."""
        return _ITERATION.search(head) is not None

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield each iteration; a line that is cut short gives what it still shows, and a problem."""
        last = Step(0)
        for block in blocks(source):
            if isinstance(block, LogProblem):
                yield block
                continue
            for match in _ITERATION.finditer(block.data):
                metrics, problems = _iteration(source, block, match)
                yield from problems
                if metrics.step <= last:
                    yield rewind(source, block.line_number(match.start()), metrics.step, last)
                last = metrics.step
                yield metrics


def _iteration(source: LogSource, block: Block, match: re.Match[bytes]) -> tuple[StepMetrics, list[LogProblem]]:
    reasons: list[str] = []
    *fields, rest = match[2].split(b"|")
    if rest.strip():
        reasons.append("the line is cut short")
    pairs = (field.split(b":", 1) for field in fields if b":" in field)
    texts = {key.strip(): value.strip() for key, value in pairs}
    values: dict[str, float | None] = {}
    for field, key in _FIELDS.items():
        try:
            values[field] = number(texts[key]) if key in texts else None
        except UnreadableError as error:
            values[field] = None
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
    )
    line = block.line_number(match.start()) if reasons else 0
    return metrics, [problem(source, line, reason, match[0]) for reason in reasons]
