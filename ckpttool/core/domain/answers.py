"""Base class of all command answers, with their JSON document and exit code."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False  # importing `typing` would take a third of the time of `import ckpttool`
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from ckpttool.core.errors import ExitCode

_IN_ONE_LINE = ("name", "step", "data_skip_steps")
"""The usual fields of a one-line summary, if an answer has them."""


class Answered(ABC):
    """The answer of a command, which can be printed as a JSON document with its own schema.

    Its truth value is true if the command would exit with 0.
    """

    __slots__ = ()

    NOUN: ClassVar[str]
    """Name of the answer's document and schema."""

    @property
    @abstractmethod
    def exit_code(self) -> ExitCode:
        """Exit code of a command that gives this answer."""

    def __bool__(self) -> bool:
        """Return whether the command would exit with 0."""
        return self.exit_code == 0

    def __repr__(self) -> str:
        """Return a one-line summary with the exit code; `to_dict` returns the complete answer."""
        fields = [f"{name}={value!r}" for name, value in self.in_short().items() if value is not None]
        return f"<{type(self).__name__} {' '.join([*fields, f'exit_code={int(self.exit_code)}'])}>"

    def in_short(self) -> dict[str, object]:
        """Return the fields of the one-line summary, by name."""
        return {name: getattr(self, name, None) for name in _IN_ONE_LINE}

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `--format json`.

        Its schema is printed by `ckpttool schema NOUN`.
        """
        from ckpttool import document_of

        return document_of(self)
