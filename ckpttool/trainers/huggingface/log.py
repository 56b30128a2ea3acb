"""Hugging Face's `trainer_state.json`: the log history that Trainer saves with each checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.metrics import LogItem
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.formats.strict_json import ParseError, get_list, parse_object
from ckpttool.core.logs.base import LogSource, problem
from ckpttool.core.logs.fields import json_row, steps_of

STATE_LIMIT = ByteCount(64 << 20)
"""Enough for over a hundred thousand log entries; the file is one JSON document, so all of it must be in memory."""

_NO_STEPS = "the Trainer prints no steps: give the trainer_state.json of its newest checkpoint, which has them"
_PRINTED = re.compile(rb"\{'(?:eval_)?loss': [^{}\n]*'epoch': ")
"""The output that Trainer prints during training, which does not contain the step."""


class HfTrainer:
    """Log format of `log_history` in a `trainer_state.json`; printed logs are reported, but not read."""

    name = "hf-trainer"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content."""
        is_state = head.lstrip().startswith(b"{") and b'"log_history"' in head
        return is_state or _PRINTED.search(head) is not None

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the training entries.

        Evaluations have no training loss, and are included only if curves are requested.
        """
        start = source.stream.read(STATE_LIMIT)
        if (printed := _PRINTED.search(start)) is not None:
            line = start.count(b"\n", 0, printed.start()) + 1
            yield problem(source, line, _NO_STEPS, start[printed.start() :].partition(b"\n")[0])
            return
        columns = {"loss", "grad_norm", *(("eval_loss",) if source.curves else ())}
        parts = [start]
        while sum(map(len, parts)) <= STATE_LIMIT and (part := source.stream.read(STATE_LIMIT)):
            parts.append(part)
        try:
            state = parse_object(b"".join(parts), where=source.name, limit=STATE_LIMIT, nonfinite=True)
            history = get_list(state, "log_history", where=source.name)
        except ParseError as error:
            yield problem(source, error.line or 0, str(error), b"")
            return
        rows = (
            (index, json_row(source, entry))
            for index, entry in enumerate(history, 1)
            if isinstance(entry, dict) and columns & entry.keys()
        )
        yield from steps_of(source, rows)
