"""`ckpttool explain`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ckpttool.cli import show
from ckpttool.cli.helped import unknown_word
from ckpttool.cli.options import Format, FormatOpt
from ckpttool.render.answers import explanation as texts
from ckpttool.render.findings import Explanation

CodeArgument = Annotated[str | None, typer.Argument(metavar="[CODE]", help="A finding's code; all where left out.")]


def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Say what a finding means, how ckpttool knows it, and what to do.

    Without CODE: every finding that there is, in a line.

    Example: ckpttool explain shard-missing
    """
    width = min(texts.WIDTH, shutil.get_terminal_size().columns)
    show.explanation(None if code is None else _find(code), fmt, width=width)


def _find(code: str) -> Explanation:
    found = texts.explained(code.strip().lower().replace("_", "-"))
    if found is None:
        raise unknown_word("finding", code, texts.codes(), "`ckpttool explain` lists all codes")
    return found
