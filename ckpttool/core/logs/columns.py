"""CSV and JSON lines, the general formats for logs with named columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from ckpttool.core.domain.metrics import LogItem, LogProblem
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import ParseError, parse_json
from ckpttool.core.logs.base import LogSource, lines, problem
from ckpttool.core.logs.fields import ALIASES, Row, json_row, resolve_columns, steps_of


class JsonLines:
    """Log with one JSON object per line; several objects for one step are merged."""

    name = "json-lines"

    def recognise(self, head: bytes) -> bool:
        """Return whether a log has this format, by its first line."""
        first = head.lstrip().split(b"\n", 1)[0].strip()
        return first.startswith(b"{") and first.endswith(b"}")

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield a step for each object with a step; other objects, such as a run's settings, are skipped.

        Raises:
            UsageError: No object has a step under a known name or under the user's name for it.
        """
        return steps_of(source, self._rows(source))

    @staticmethod
    def _rows(source: LogSource) -> Iterator[Row | LogProblem]:
        objects = steps = 0
        for item in lines(source):
            if isinstance(item, LogProblem):
                yield item
                continue
            line, text = item
            if not text.strip():
                continue
            try:
                record = parse_json(text, where=f"line {line}", nonfinite=True)
            except ParseError as error:
                yield problem(source, line, error.problem, text)
                continue
            objects += 1
            row = json_row(source, record) if isinstance(record, dict) else {}
            if "step" in row:
                steps += 1
                yield line, row
        if objects and not steps:
            raise UsageError(f"{source.name}: no object has a step; name its field, as in --columns step=iter")


_MOMENT = re.compile(rb"\d{4}-\d\d-\d\d[-T ]\d\d:\d\d")


class Csv:
    """Log of comma-separated values that begins with a line of names."""

    name = "csv"

    def recognise(self, head: bytes) -> bool:
        """Return whether a log is CSV, by its first line and a row, because sentences also have commas.

        The first line has names and no numbers.
        """
        first, _, rest = head.partition(b"\n")
        if _MOMENT.search(first):  # a line of another log format that contains commas
            return False
        names = [name.strip() for name in first.decode("utf-8", "replace").strip().split(",")]
        if len(names) < 2 or not all(name.isprintable() and _is_name(name) for name in names):  # noqa: PLR2004
            return False
        return not {*ALIASES["step"]}.isdisjoint(names) or _is_row(rest.lstrip().partition(b"\n")[0], len(names))

    def read(self, source: LogSource) -> Iterator[LogItem]:
        """Yield a step for each row.

        Raises:
            UsageError: No column has the step under a known name or under the user's name for it.
        """
        return steps_of(source, self._rows(source))

    @staticmethod
    def _rows(source: LogSource) -> Iterator[Row | LogProblem]:
        problems: list[LogProblem] = []
        rows = csv.reader(_text_lines(source, problems))
        first = next(_records(source, rows), None)
        names = [name.strip() for name in first] if isinstance(first, list) else []
        fields = resolve_columns(source, frozenset(names))
        if "step" not in fields:
            raise UsageError(
                f"{source.name}: none of the columns {', '.join(names)} is the step; name it, as in --columns step=iter"
            )
        places = {field: names.index(name) for field, name in fields.items()}
        for row in _records(source, rows):
            if isinstance(row, LogProblem):
                yield row
            elif len(row) == len(names):
                yield rows.line_num, {field: row[place] for field, place in places.items()}
            elif row:
                reason = f"expected {len(names)} columns, found {len(row)}"
                yield problem(source, rows.line_num, reason, ",".join(row).encode())
            yield from problems
            problems.clear()
        yield from problems


def _records(source: LogSource, rows: Iterator[list[str]]) -> Iterator[list[str] | LogProblem]:
    """Yield each row; a row that `csv` rejects, for example for an unclosed quotation mark, is reported and skipped."""
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield problem(source, getattr(rows, "line_num", 0), f"the row cannot be read: {error}", b"")


def _text_lines(source: LogSource, problems: list[LogProblem]) -> Iterator[str]:
    for item in lines(source):
        if isinstance(item, LogProblem):
            problems.append(item)
        else:
            yield item[1].decode("utf-8", "replace")


def _is_row(line: bytes, columns: int) -> bool:
    """Return whether a line has as many values as there are names, including at least one number."""
    values = line.decode("utf-8", "replace").strip().split(",")
    return len(values) == columns and any(value.strip() and not _is_name(value) for value in values)


def _is_name(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return bool(text.strip())
    return False
