"""The display of a manual page on a terminal. No other part of the manual imports rich."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, ClassVar

from rich.markdown import CodeBlock, Markdown, TableDataElement
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
    from rich.markdown import MarkdownElement

_HERE = re.compile(r"\[([^\[\]]*)\]\(#[^)\s]*\)")
"""A link to a heading of the same page, which is useless on a terminal."""
_HEADING = re.compile(r"(\]\([a-z0-9-]+\.md)#[^)\s]*\)")
"""A link to a heading of another page, reduced to the page, which the user can request."""


_PICTURE = re.compile(r"!\[([^\[\]]*)\]\(([^)\s]*)\)")


class _Code(CodeBlock):
    """Commands and their output, with unbroken lines so that they can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = textwrap.indent(str(self.text).rstrip(), "  ")
        # rich truncates list items at its width, so a long line continues on the next line there.
        in_list = options.max_width < console.width
        yield Text(lines, style="cyan", overflow="fold" if in_list else "ignore", no_wrap=not in_list)


class _Cell(TableDataElement):
    """A cell in which a word longer than the column continues on the next line; rich would truncate the word."""

    def __init__(self, justify: JustifyMethod) -> None:
        super().__init__(justify)
        self.content.overflow = "fold"


class _Page(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements, "fence": _Code, "code_block": _Code, "td_open": _Cell, "th_open": _Cell,
    }  # fmt: skip


def laid_out(markdown: str) -> Markdown:
    """Return the page as a rich renderable."""
    markdown = _PICTURE.sub(r"(Picture \2: \1)", markdown)
    return _Page(_HEADING.sub(r"\1)", _HERE.sub(r"\1", markdown)), hyperlinks=False)
