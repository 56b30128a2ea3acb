"""What all answers of commands have in common: the document that a script gets."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, cast


class Answered:
    """What a command answers. As JSON it is a document with a schema of its own."""

    __slots__ = ()

    NOUN: ClassVar[str]
    """What its document and its schema are called."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the command prints with `--format json`; `ckpttool schema NOUN` says what that is."""
        texts = import_module("ckpttool.render.answers")  # by its name: an answer must not drag all texts along
        return cast("dict[str, Any]", texts.as_read(self.NOUN, self))
