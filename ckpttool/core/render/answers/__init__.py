"""What each command answers, one module an answer: its JSON beside its table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ckpttool.core.domain.answered import Answered
    from ckpttool.core.render.json import Document


TEXTS: dict[str, str] = {}
"""The module of each answer that a feature gives, by its noun: every feature puts its own here."""


class Texts(Protocol):
    """What a module of an answer offers."""

    def document(self, answer: Answered, /) -> Document:
        """Return what a script gets."""
        ...

    def table(self, answer: Answered, /) -> RenderableType:
        """Draw it for people."""
        ...


def texts_of(answer: Answered) -> Texts:
    """Import the module of an answer, by its noun: a command must not wait for the texts of the others."""
    module = TEXTS.get(answer.NOUN) or f"{__name__}.{answer.NOUN.replace('-', '_')}"
    return cast("Texts", import_module(module))


def as_read(answer: Answered) -> Any:  # noqa: ANN401  what a script gets
    """Return the document of an answer as a script reads it."""
    from ckpttool.core.render import json

    return json.as_read(texts_of(answer).document(answer))
