"""The meaning of findings, verdicts and exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import ExitCode, UsageError, unknown_word
from ckpttool.core.extensions import row_of
from ckpttool.core.render.answers import explanation as texts
from ckpttool.core.render.guide import Verdict, verdicts
from ckpttool.core.render.json import Document, as_read


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Answered):
    """The meaning of findings, with the evidence and the remedies, or the meaning of a verdict or an exit code."""

    NOUN = "explanation"

    code: Row | None
    """The requested finding; None for all findings, or for a verdict or an exit code."""
    explanations: tuple[Row, ...]
    """Empty for a verdict or an exit code."""
    word: Verdict | ExitCode | None = None
    """The requested verdict or exit code; None for findings."""
    commands: Mapping[str, str]
    """The meaning of the exit code in each command that declares it."""

    @property
    def exit_code(self) -> ExitCode:
        """Return 0."""
        return ExitCode.OK

    @property
    def name(self) -> str | None:
        """The requested code or word; None for all findings."""
        if isinstance(self.word, ExitCode):
            return str(self.word.value)
        if self.word is not None:
            return self.word.word
        return None if self.code is None else self.code.value

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `--format json`."""
        return cast("dict[str, Any]", as_read(self._document()))

    def _document(self) -> Document:
        from ckpttool.trainers.registry import FIRST

        if isinstance(self.word, ExitCode):
            return texts.exit_document(self.word, self.commands)
        if self.word is not None:
            return texts.verdict_document(self.word)
        names = names_by_title()
        if self.code is None:
            return texts.list_document(names, first=FIRST)
        return texts.one_document(self.code, names, first=FIRST)


def explain(code: str | None = None, *, meanings: Callable[[ExitCode], Mapping[str, str]] | None = None) -> Explained:
    """Explain a finding, a verdict or an exit code: its meaning, the evidence for it, and what to do.

    Args:
        code: A finding's code, a verdict, or an exit code; None for all findings.
        meanings: Returns the meaning of an exit code in each command that declares it; None if unknown.

    Raises:
        UsageError: The finding, verdict or exit code does not exist.
    """
    if code is None:
        return Explained(code=None, explanations=texts.in_groups(), commands={})
    if re.fullmatch("[0-9]{1,3}", code) and int(code) in {*ExitCode}:
        exit_code = ExitCode(int(code))
        return Explained(
            code=None, explanations=(), word=exit_code, commands={} if meanings is None else meanings(exit_code)
        )
    text = code.strip().lower().replace("_", "-")
    verdict = next((verdict for verdict in verdicts() if verdict.word == text), None)
    if verdict is not None:
        return Explained(code=None, explanations=(), word=verdict, commands={})
    try:
        row = row_of(text)
    except ValueError:
        raise _no_code(code) from None
    return Explained(code=row, explanations=(row,), commands={})


def _no_code(code_text: str) -> UsageError:
    """Return the error for an unknown code, with the codes that contain the word."""
    part = [code for code in texts.codes() if code_text.lower() in code.split("-")][:3]
    return unknown_word("finding", code_text, texts.codes(), "`ckpttool explain` lists all codes", part)


def names_by_title() -> dict[str, str]:
    """Return each trainer's name in JSON, by its display name."""
    from ckpttool.trainers.registry import trainers

    return {trainer.title: trainer.name for trainer in trainers()}
