"""Logs of Hugging Face's Trainer: the history that it saves with each checkpoint, and its printed output."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckpttool.core.domain.metrics import LogItem, LogProblem
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.formats.strict_json import ParseError, get_list, parse_object
from ckpttool.core.logs.base import LogSource, blocks, problem
from ckpttool.core.logs.fields import Row, json_row, steps_of

STATE_LIMIT = ByteCount(64 << 20)
"""Enough for over a hundred thousand log entries; the file is one JSON document, so all of it must be in memory."""

_NO_STEPS = (
    "the Trainer prints no steps: give the trainer_state.json of its newest checkpoint, event files of TensorBoard, or "
    "a log that also has the progress bar (2>&1)"
)
_PRINTED = re.compile(rb"\{'(?:eval_)?loss': [^{}\n]*'epoch': ")
_ENTRY_OR_BAR = re.compile(
    rb"(?P<entry>\{'loss': [^{}\r\n]*'epoch': [^{}\r\n]*\})|\|[^|\r\n]*\| *(?P<step>\d{1,18})/\d+ \["
)
_VALUE = re.compile(rb"'(\w+)': '?([^',{}]*)")


class HfPrinted:
    """Log format of the output that Trainer prints during training.

    A printed entry has no step. The progress bar shows it, because it is drawn again right after each entry.
    """

    name = "hf-printed"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by an entry near its beginning."""
        return _PRINTED.search(head) is not None and not _is_state(head)

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the training entries. Evaluations, which have a progress bar of their own, are left out."""
        yield from steps_of(source, _printed_rows(source))


def _printed_rows(source: LogSource) -> Iterator[Row | LogProblem]:
    """Yield the entries whose step is known; the first one of the others is a problem."""
    entry: tuple[int, bytes] | None = None
    has_problem = False
    for block in blocks(source):
        if isinstance(block, LogProblem):
            yield block
            continue
        for match in _ENTRY_OR_BAR.finditer(block.data):
            if match["entry"] is None:
                if entry is not None:
                    line, text = entry
                    values = {name.decode(): value.decode("ascii", "replace") for name, value in _VALUE.findall(text)}
                    yield line, json_row(source, {**values, "step": match["step"].decode()})
                entry = None
                continue
            if entry is not None and not has_problem:
                yield problem(source, entry[0], _NO_STEPS, entry[1])
                has_problem = True
            entry = block.line_number(match.start()), match["entry"]


def _is_state(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"log_history"' in head


class HfTrainer:
    """Log format of `log_history` in a `trainer_state.json`."""

    name = "hf-trainer"

    def recognise(self, head: bytes) -> bool:
        """Recognize the log by the beginning of its content."""
        return _is_state(head)

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield the training entries.

        Evaluations have no training loss, and are included only if curves are requested.
        """
        start = source.stream.read(STATE_LIMIT)
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
