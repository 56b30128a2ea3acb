"""`ckpttool explain`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import completing, output
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Format, FormatOpt
from ckpttool.errors import ExitCode, UsageError, unknown_word
from ckpttool.render.answers import explanation as texts
from ckpttool.render.findings import Explanation, explained
from ckpttool.render.json import dumps
from ckpttool.render.text import WIDTH

CodeArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CODE]", autocompletion=completing.codes, help="A finding's code; all where left out."),
]


@grouped
def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Say what a finding means, and what to do.

    Says how ckpttool knows it, too. Without CODE: every finding that there is, in a line.

    Example: ckpttool explain shard-missing
    """
    width = min(WIDTH, shutil.get_terminal_size().columns)
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


def _no_code(word: str) -> UsageError:
    """Say what an exit code means, or which codes a word is a part of."""
    if word.isascii() and word.isdigit() and int(word[:4]) in {*ExitCode}:
        name = ExitCode(int(word)).name.lower().replace("_", " ")
        return UsageError(f"{word} is no finding but an exit code, {name}: `ckpttool guide exits` says what it means")
    part = [code for code in texts.codes() if word.lower() in code.split("-")][:3]
    return unknown_word("finding", word, texts.codes(), "`ckpttool explain` lists all codes", part)
