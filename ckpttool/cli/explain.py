"""`ckpttool explain`."""

from __future__ import annotations

import re
import shutil
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import completing, output
from ckpttool.cli.grouped import grouped
from ckpttool.cli.headings import meant_by
from ckpttool.cli.options import Format, FormatOpt
from ckpttool.errors import ExitCode, UsageError, unknown_word
from ckpttool.render.answers import explanation as texts
from ckpttool.render.findings import Explanation, explained
from ckpttool.render.json import dumps
from ckpttool.render.text import WIDTH

CodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CODE]",
        autocompletion=completing.codes,
        help="A finding's code, or an exit code; all findings where left out.",
    ),
]


@grouped
def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Say what a finding means, and what to do.

    Says how ckpttool knows it, too; and of an exit code (14) what it means in which command. Without CODE: every
    finding that there is, in a line.

    Example: ckpttool explain shard-missing
    """
    width = min(WIDTH, shutil.get_terminal_size().columns)
    if code is not None and (ended := _exit_code(code)) is not None:
        meant = meant_by(ended)
        is_json = fmt is Format.JSON
        output.result(
            dumps(texts.exit_document(ended, meant)) if is_json else texts.exit_text(ended, meant, width=width)
        )
        return
    one = None if code is None else _find(code)
    if fmt is Format.JSON:
        output.result(dumps(api.explain(None if one is None else one.code).to_dict()))
    else:
        output.result(texts.list_text(width=width) if one is None else texts.one_text(one, width=width))


def _find(code: str) -> Explanation:
    found = explained(code.strip().lower().replace("_", "-"))
    if found is None:
        raise _no_code(code)
    return found


def _exit_code(word: str) -> ExitCode | None:
    return ExitCode(int(word)) if re.fullmatch("[0-9]{1,3}", word) and int(word) in {*ExitCode} else None


def _no_code(word: str) -> UsageError:
    """Say which codes a word is a part of."""
    part = [code for code in texts.codes() if word.lower() in code.split("-")][:3]
    return unknown_word("finding", word, texts.codes(), "`ckpttool explain` lists all codes", part)
