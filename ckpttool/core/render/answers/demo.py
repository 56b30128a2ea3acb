"""The folder of the demo tree, and commands to try on the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.demo import Demo
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.units import counted
from ckpttool.core.render.json import Document
from ckpttool.core.render.shell import quote
from ckpttool.core.render.text import Pairs, line, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(answer: Demo) -> Document:
    """Return the document `ckpttool/demo/1`."""
    return {
        "schema": "ckpttool/demo/1",
        "folder": answer.folder,
        "tree": answer.tree,
        "config": answer.config,
        "damaged": list(answer.damaged),
        "commands": [command for command, _ in _commands(answer)],
    }


def table(answer: Demo) -> RenderableType:
    """Show the written files, and the commands to try."""
    return stack(
        line(f"A run of 4 ranks, and its config: {quote(answer.folder)}", style="bold green"),
        line(
            f"Written by a real trainer. {counted(len(answer.damaged), 'shard')} of its newest checkpoint are "
            "truncated, as after a power failure; the file times are made up."
        ),
        line("\nTry:"),
        Pairs([(about, line(command, style="bold")) for command, about in _commands(answer)]),
    )


def _commands(answer: Demo) -> tuple[tuple[str, str], ...]:
    """Return the commands to try, each with the question that the command answers."""
    return (
        (f"cd {quote(answer.folder)}", "Go there:"),
        ("ckpttool scan", "What is there?"),
        ("ckpttool resolve", "Where to resume?"),
        ("ckpttool verify --checkpoint all", "What is intact?"),
        (f"ckpttool explain {Code.SHARD_TRUNCATED.value}", "What does it mean?"),
        (f"ckpttool preflight --config {answer.config}", "Can we launch?"),
        (f"ckpttool launch --config {answer.config} --output resume.yaml", "How to start it?"),
    )
