"""The meaning of each finding and exit code, as text for an engineer on call and as JSON for programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import get_args

from ckpttool.core.domain.finding import Severity
from ckpttool.core.errors import ExitCode
from ckpttool.core.extensions import rows
from ckpttool.core.findings import Group, Row
from ckpttool.core.render import guide
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import WIDTH

_LABEL = 13
"""Width of the labels on the left."""

_CONSEQUENCE = {
    Severity.NOTE: "changes no verdict and no exit code",
    Severity.SUSPECT: "does not count as good, exit 10",
    Severity.UNKNOWN: "does not count as good, exit 14",
    Severity.DAMAGE: "does not count as good, exit 10",
    Severity.UNSAFE: "refused, exit 15",
}
"""The effect of each severity on `scan` and `verify`; `resolve` skips such a checkpoint and still exits 0."""


def in_groups() -> tuple[Row, ...]:
    """Return the rows of all findings by group, in the order of the manual's page."""
    groups, listed = get_args(Group), re.findall(r'<a id="([a-z0-9-]+)">', str(guide.page("findings")))
    places = {code: place for place, code in enumerate(listed)}
    return tuple(sorted(rows(), key=lambda row: (groups.index(row.group), places.get(row.value, len(places)))))


def codes() -> tuple[str, ...]:
    """Return all codes, in the order of the explanations."""
    return tuple(row.value for row in in_groups())


def one_text(row: Row, *, width: int = WIDTH) -> str:
    """Explain one code in about ten lines."""
    lines = [*_wrap(f"{row.value}: {row.headline}", width), ""]
    lines += _labelled("What it is", row.meaning, width)
    lines += _labelled("How we know", row.evidence, width)
    for title, text in row.trainers.items():
        lines += _labelled(title, text, width)
    lines += _labelled("Severity", _weights(row), width)
    first, *rest = row.steps
    lines += _labelled("What to do", first, width)
    for step in rest:
        # A command has its own line, unbroken even in a narrow terminal, so that it can be copied.
        lines += [f"{'':{_LABEL}}{step}"] if step.startswith("ckpttool ") else _labelled("", step, width)
    return "\n".join(lines)


def _weights(row: Row) -> str:
    by_consequence: dict[str, list[str]] = {}
    for severity in row.weights:
        by_consequence.setdefault(_CONSEQUENCE[severity], []).append(severity.word)
    return "; ".join(f"{' or '.join(meaning)}: {consequence}" for consequence, meaning in by_consequence.items()) + "."


def _labelled(label: str, text: str, width: int) -> list[str]:
    """Return the lines of a text next to its label; a label that is too long has its own line."""
    above, same_line = ([], label) if len(label) < _LABEL else ([label], "")
    return [*above, *_wrap(text, max(width, 2 * _LABEL), f"{same_line:{_LABEL}}", " " * _LABEL)]


def _wrap(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Break lines only between words, with separate indents for the first line and for later lines."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )


def list_text(*, width: int = WIDTH) -> str:
    """List all codes with their titles, in groups."""
    indent = max(len(code) for code in codes()) + 4
    lines: list[str] = []
    for group, those in groupby(in_groups(), key=lambda row: row.group):
        lines += ["", f"{group}:"] if lines else [f"{group}:"]
        lines += [line for row in those for line in _entry(row, indent, width)]
    verdicts = ", ".join(verdict.word for verdict in guide.verdicts())
    for title, values in (("Verdicts", verdicts), ("Exit codes", ", ".join(str(code.value) for code in ExitCode))):
        lines += ["", f"{title}:"]
        lines += _wrap(values, width, "  ", "  ")
    return "\n".join(lines)


def _entry(row: Row, indent: int, width: int) -> Iterator[str]:
    if width < 2 * indent:
        yield f"  {row.value}"
        yield from _wrap(row.headline, width, "    ", "    ")
        return
    label = f"  {row.value:{indent - 2}}"
    yield from _wrap(row.headline, width, label, " " * indent)


def one_document(row: Row, names: Mapping[str, str], *, first: str) -> Document:
    """Return `ckpttool/explanation/1`, one code.

    Args:
        row: The row of the code.
        names: JSON's name for each trainer, by title.
        first: The trainer that also has a separate field, which is older than the field for all trainers.
    """
    return {"schema": "ckpttool/explanation/1", **_document(row, names, first)}


def list_document(names: Mapping[str, str], *, first: str) -> Document:
    """Return `ckpttool/explanations/1`, every code."""
    return {
        "schema": "ckpttool/explanations/1",
        "explanations": [_document(row, names, first) for row in in_groups()],
    }


def _document(row: Row, names: Mapping[str, str], first: str) -> dict[str, Document]:
    trainers = {names[title]: text for title, text in row.trainers.items()}
    return {
        "code": row.value,
        "title": row.headline,
        "severities": [severity.word for severity in row.weights],
        "meaning": row.meaning,
        "evidence": row.evidence,
        first: trainers.get(first),
        "trainers": {**trainers},
        "remedy": list(row.steps),
    }


def verdict_text(verdict: guide.Verdict, *, width: int = WIDTH) -> str:
    """Explain one verdict."""
    lines = [*_wrap(f"verdict {verdict.word}: {verdict.meaning}", width), ""]
    lines += _labelled("What to do", verdict.remedy, width)
    return "\n".join([*lines, *_labelled("More", "ckpttool guide concepts", width)])


def verdict_document(verdict: guide.Verdict) -> Document:
    """Return `ckpttool/verdict/1`, one verdict."""
    return {
        "schema": "ckpttool/verdict/1",
        "verdict": verdict.word,
        "meaning": verdict.meaning,
        "remedy": verdict.remedy,
    }


def exit_text(code: ExitCode, commands: Mapping[str, str], *, width: int = WIDTH) -> str:
    """Explain one exit code.

    Args:
        code: The code.
        commands: The meaning in each command that declares it.
        width: Columns.
    """
    meaning, remedy = _exit(code)
    lines = [*_wrap(f"exit {code.value}, {_words(code)}: {meaning}", width), ""]
    by_text: dict[str, list[str]] = {}
    for command, text in commands.items():
        by_text.setdefault(text, []).append(command)
    for text, those in by_text.items():
        lines += _labelled("" if lines[-1] else "Where", f"{', '.join(those)}: {text}", width)
    return "\n".join([*lines, *_labelled("What to do", remedy, width)])


def exit_document(code: ExitCode, commands: Mapping[str, str]) -> Document:
    """Return `ckpttool/exit/1`, one exit code."""
    meaning, remedy = _exit(code)
    return {
        "schema": "ckpttool/exit/1",
        "exit_code": code.value,
        "name": _words(code),
        "meaning": meaning,
        "commands": {**commands},
        "remedy": remedy,
    }


def _words(code: ExitCode) -> str:
    return code.name.lower().replace("_", " ")


def _exit(code: ExitCode) -> tuple[str, str]:
    """Return the manual's text on an exit code: the code's meaning and the remedy."""
    page = str(guide.page("exits"))
    meanings = dict(re.findall(r"^\| ([0-9]+) \| (.*) \|$", page, re.MULTILINE))
    to_do = dict(re.findall(r"^- \*\*([0-9]+)\*\*: (.*(?:\n  .*)*)$", page, re.MULTILINE))
    return meanings[str(code.value)], " ".join(to_do[str(code.value)].split())
