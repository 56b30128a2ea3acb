"""Options for training logs with the same meaning in every command."""

from __future__ import annotations

from typing import Annotated

import typer

Logs = Annotated[
    list[str],
    typer.Argument(metavar="LOG...", help="Logs, folders of logs, globs, or - for stdin.", rich_help_panel="Arguments"),
]
