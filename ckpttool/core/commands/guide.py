"""`ckpttool guide`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import Format, FormatOpt, exits, grouped
from ckpttool.core.errors import unknown_word
from ckpttool.core.render import guide as pages
from ckpttool.core.render.json import dumps
from ckpttool.core.render.text import WIDTH

TopicArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]",
        autocompletion=completing.topics,
        help="A page, or a command; all pages if omitted.",
        rich_help_panel="Arguments",
    ),
]


@exits({0: "Shown."})
@grouped
def guide(topic: TopicArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Show a page of the manual, without a network.

    Formatted on a terminal, Markdown elsewhere. Without TOPIC it lists every page, one per line.

    Example: ckpttool guide verify
    """
    # As a link on a page spells it, too.
    name = None if topic is None else topic.strip().lower().replace("_", "-").partition(".md")[0]
    page_text = None if name is None else pages.page(name)
    if topic is not None and page_text is None:
        raise unknown_word("page", topic, pages.topics(), "`ckpttool guide` lists all pages")
    if fmt is Format.JSON:
        output.result(dumps(pages.document(name)))
    elif page_text is not None:
        output.page(page_text)
    else:
        output.result(pages.list_text(width=min(WIDTH, shutil.get_terminal_size().columns)))
