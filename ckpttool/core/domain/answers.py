"""Common base of all command answers, with the document for scripts and the exit code."""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False  # importing `typing` would take a third of the time of `import ckpttool`
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from ckpttool.core.errors import ExitCode

_IN_ONE_LINE = ("name", "step", "data_skip_steps")
"""The usual fields of a one-line summary, if an answer has them."""


class Answered(ABC):
    """The answer of a command. Its JSON is a document with its own schema.

    As a bool, it is true if the command would exit with 0.
    """

    __slots__ = ()

    NOUN: ClassVar[str]
    """Name of the answer's document and schema."""

    @property
    @abstractmethod
    def exit_code(self) -> ExitCode:
        """Exit code of a command with this answer."""

    def __bool__(self) -> bool:
        """Whether the command would exit with 0."""
        return self.exit_code == 0

    def __repr__(self) -> str:
        """Show a summary and the exit code in one line; `to_dict` has the complete answer."""
        fields = [f"{name}={value!r}" for name, value in self.in_short().items() if value is not None]
        return f"<{type(self).__name__} {' '.join([*fields, f'exit_code={int(self.exit_code)}'])}>"

    def in_short(self) -> dict[str, object]:
        """Return the fields of the one-line summary, by name."""
        return {name: getattr(self, name, None) for name in _IN_ONE_LINE}

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `--format json`; `ckpttool schema NOUN` describes it."""
        from ckpttool import document_of

        return document_of(self)
