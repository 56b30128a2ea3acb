"""The answers of commands, as JSON and as tables, in one module per answer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from ckpttool.core.extensions import features

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ckpttool.core.domain.answers import Answered
    from ckpttool.core.render.json import Document


class Texts(Protocol):
    """The interface of an answer's module."""

    def document(self, answer: Answered, /) -> Document:
        """Return the document for scripts."""
        ...

    def table(self, answer: Answered, /) -> RenderableType:
        """Render the answer for people."""
        ...


def texts_of(answer: Answered | type[Answered]) -> Texts:
    """Import the module of an answer, by its noun, so that a command need not wait for other modules.

    A module of the core is named after the noun; a feature names its own module.
    """
    core_module = f"{__name__}.{answer.NOUN.replace('-', '_')}"
    try:
        return cast("Texts", import_module(core_module))
    except ModuleNotFoundError as error:
        places = ((feature.answers or {}).get(answer.NOUN) for feature in features())
        place = next(filter(None, places), None)
        if error.name != core_module or place is None:
            raise
        return cast("Texts", import_module(place))


def as_read(answer: Answered) -> Any:  # noqa: ANN401  what a script gets
    """Return the document of an answer as a script would parse it."""
    from ckpttool.core.render import json

    return json.as_read(texts_of(answer).document(answer))
