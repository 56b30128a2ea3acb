"""What all answers of commands have in common: the document that a script gets, and the exit code."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False  # `typing` would be a third of what `import ckpttool` costs
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from ckpttool.core.errors import ExitCode


class Answered(ABC):
    """What a command answers. As JSON it is a document with a schema of its own."""

    __slots__ = ()

    NOUN: ClassVar[str]
    """What its document and its schema are called."""

    @property
    @abstractmethod
    def exit_code(self) -> ExitCode:
        """How a command ends that gives this answer."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the command prints with `--format json`; `ckpttool schema NOUN` says what that is."""
        from ckpttool import document_of

        return document_of(self)
