"""`ckpttool guide`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ckpttool.cli import output
from ckpttool.cli.grouped import grouped
from ckpttool.cli.helped import unknown_word
from ckpttool.render import guide as pages
from ckpttool.render.text import WIDTH

TopicArgument = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="A page, or a command; all pages where left out.")
]


@grouped
def guide(topic: TopicArgument = None) -> None:
    """Show a page of the manual, which needs no network.

    Laid out on a terminal, as Markdown elsewhere. Without TOPIC: every page that there is, in a line.

    Example: ckpttool guide verify
    """
    if topic is None:
        output.result(pages.list_text(width=min(WIDTH, shutil.get_terminal_size().columns)))
        return
    name = topic.strip().lower().replace("_", "-").partition(".md")[0]  # as a link on a page spells it, too
    found = pages.page(name)
    if found is None:
        raise unknown_word("page", topic, pages.topics(), "`ckpttool guide` lists all pages")
    output.page(found)
