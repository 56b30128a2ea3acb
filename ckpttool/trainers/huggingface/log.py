"""Hugging Face's `trainer_state.json`: the log history that its Trainer saves with each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.domain.metrics import LogItem
from ckpttool.domain.units import ByteCount
from ckpttool.formats.strict_json import ParseError, get_list, parse_object
from ckpttool.logs.base import LogSource, problem
from ckpttool.logs.fields import json_row, steps_of

STATE_LIMIT = ByteCount(64 << 20)
"""Over a hundred thousand log entries; the file is one JSON document, so it has to be in memory whole."""


class HfTrainer:
    """The `log_history` of a `trainer_state.json`."""

    name = "hf-trainer"

    def recognise(self, head: bytes) -> bool:
        """Tell from the beginning of the content."""
        return head.lstrip().startswith(b"{") and b'"log_history"' in head

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the training entries; those of evaluations have no loss of their own: who wants no curves sees none."""
        wanted = {"loss", "grad_norm", *(("eval_loss",) if source.curves else ())}
        parts: list[bytes] = []
        while sum(map(len, parts)) <= STATE_LIMIT and (part := source.stream.read(STATE_LIMIT)):
            parts.append(part)
        try:
            state = parse_object(b"".join(parts), what=source.name, limit=STATE_LIMIT, nonfinite=True)
            history = get_list(state, "log_history", where=source.name)
        except ParseError as error:
            yield problem(source, error.line or 0, str(error), b"")
            return
        rows = (
            (index, json_row(source, entry))
            for index, entry in enumerate(history, 1)
            if isinstance(entry, dict) and wanted & entry.keys()
        )
        yield from steps_of(source, rows)
