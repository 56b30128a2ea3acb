"""`ckpttool explain`."""

from __future__ import annotations

import re
import shutil
from typing import Annotated, Any, NamedTuple

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.headings import exits_of
from ckpttool.core.commands.options import Format, FormatOpt, exits, grouped
from ckpttool.core.errors import ExitCode, UsageError, unknown_word
from ckpttool.core.extensions import row_of
from ckpttool.core.findings import Row
from ckpttool.core.render.answers import explanation as texts
from ckpttool.core.render.guide import Verdict, verdicts
from ckpttool.core.render.json import Document, dumps
from ckpttool.core.render.text import WIDTH

CodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CODE]",
        autocompletion=completing.codes,
        help="A finding's code, a verdict or an exit code; all if omitted.",
        rich_help_panel="Arguments",
    ),
]


@exits({0: "Shown."})
@grouped
def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Explain a finding, a verdict or an exit code.

    Also explains the evidence, the meaning of a verdict (struct-ok), or of an exit code (14) per command. Without
    CODE it lists every finding, one per line.

    Example: ckpttool explain shard-missing
    """
    width = min(WIDTH, shutil.get_terminal_size().columns)
    text = _of_answers(code or "", width)
    row = None if code is None or text is not None else _find(code)
    if text is not None:
        output.result(dumps(text.document) if fmt is Format.JSON else text.text)
    elif fmt is Format.JSON:
        from ckpttool.core.verbs import explaining

        output.result(dumps(explaining.explain(row).to_dict()))
    else:
        output.result(texts.list_text(width=width) if row is None else texts.one_text(row, width=width))


class _Word(NamedTuple):
    """A word in answers other than the codes of findings."""

    text: str
    document: Document


def _of_answers(code_text: str, width: int) -> _Word | None:
    """Explain an exit code or a verdict; None if it is neither."""
    ended, verdict = _exit_code(code_text), _verdict(code_text)
    if ended is not None:
        meanings = _meanings_of(ended)
        return _Word(texts.exit_text(ended, meanings, width=width), texts.exit_document(ended, meanings))
    if verdict is not None:
        return _Word(texts.verdict_text(verdict, width=width), texts.verdict_document(verdict))
    return None


def _find(code: str) -> Row:
    try:
        return row_of(code.strip().lower().replace("_", "-"))
    except ValueError:
        raise _no_code(code) from None


def _verdict(code_text: str) -> Verdict | None:
    return next(
        (verdict for verdict in verdicts() if verdict.word == code_text.strip().lower().replace("_", "-")), None
    )


def _exit_code(code_text: str) -> ExitCode | None:
    return ExitCode(int(code_text)) if re.fullmatch("[0-9]{1,3}", code_text) and int(code_text) in {*ExitCode} else None


def _meanings_of(code: int) -> dict[str, str]:
    """Return the meaning of an exit code in each command that declares it; a group represents its commands."""
    from ckpttool.cli.main import app

    group: Any = typer.main.get_command(app)
    by_command = {name: exits_of(group.get_command(None, name)) for name in group.list_commands(None)}
    return {name: exits[code] for name, exits in by_command.items() if code in exits}


def _no_code(code_text: str) -> UsageError:
    """Report which codes contain a word."""
    part = [code for code in texts.codes() if code_text.lower() in code.split("-")][:3]
    return unknown_word("finding", code_text, texts.codes(), "`ckpttool explain` lists all codes", part)
