"""Shell completion. The prompt waits for completion, so this module imports little, is quick, and reports no errors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NoReturn

import typer

PATIENCE = 1.0
"""Seconds after which completion gives up, because a disk that does not respond must not block the prompt."""

Completer = Callable[[typer.Context, str], "list[str]"]


def _offered(candidates: Callable[[typer.Context], Iterable[str]]) -> Completer:
    @wraps(candidates)
    def offer(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with _in_time():
                return [candidate for candidate in candidates(ctx) if candidate.startswith(incomplete)]
        except Exception:  # noqa: BLE001  no tree, no rights, no time: then nothing is offered
            return []

    # typer uses these annotations to choose the arguments.
    offer.__annotations__ = {"ctx": typer.Context, "incomplete": str}
    del vars(offer)["__wrapped__"]
    return offer


@contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@_offered
def checkpoints(ctx: typer.Context) -> Iterable[str]:
    """Offer the checkpoint names of the tree on the command line, newest first."""
    from ckpttool.core.commands.settings import variable_of
    from ckpttool.core.domain.question import TreeQuestion
    from ckpttool.core.verbs.scanning import scan

    path = ctx.params.get("tree") or ctx.params.get("path") or ctx.params.get("what")
    variable = variable_of("path", str(ctx.info_name))
    place = path or (os.environ.get(variable) if variable else None)
    question = TreeQuestion(path=place, layout=ctx.params.get("layout"), environment=os.environ)
    return [checkpoint.name for checkpoint in reversed(scan(question).inventory.checkpoints)]


@_offered
def codes(_: typer.Context) -> Iterable[str]:
    """Offer the codes of all findings."""
    from ckpttool.core.extensions import rows

    return [row.value for row in rows()]


@_offered
def layouts(_: typer.Context) -> Iterable[str]:
    """Offer every layout."""
    from ckpttool.trainers.registry import LAYOUT_NAMES

    return LAYOUT_NAMES


@_offered
def simulated(_: typer.Context) -> Iterable[str]:
    """Offer every trainer whose choice of checkpoint can be simulated."""
    from ckpttool.trainers.registry import trainers

    return ["own", *(trainer.name for trainer in trainers() if trainer.simulator_at is not None)]


@_offered
def topics(_: typer.Context) -> Iterable[str]:
    """Offer the pages of the manual and the commands."""
    from ckpttool.core.render.guide import topics

    return topics()


@_offered
def documents(_: typer.Context) -> Iterable[str]:
    """Offer every document that has a schema."""
    from ckpttool.core.render.schemas import names

    return names()
