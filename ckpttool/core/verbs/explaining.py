"""The meaning of findings."""

from __future__ import annotations

from typing import Any, cast

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import ExitCode, unknown_word
from ckpttool.core.extensions import row_of
from ckpttool.core.render.answers import explanation as texts
from ckpttool.core.render.json import as_read
from ckpttool.trainers.registry import FIRST, trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Answered):
    """The meaning of findings, the evidence behind them, and the remedies."""

    NOUN = "explanation"

    code: Row | None
    """The requested one; None: all."""
    explanations: tuple[Row, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0: it is explained."""
        return ExitCode.OK

    @property
    def name(self) -> str | None:
        """The requested code; None: all."""
        return None if self.code is None else self.code.value

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `--format json`."""
        names = names_by_title()
        if self.code is None:
            return cast("dict[str, Any]", as_read(texts.list_document(names, first=FIRST)))
        return cast("dict[str, Any]", as_read(texts.one_document(self.explanations[0], names, first=FIRST)))


def explain(code: str | None = None) -> Explained:
    """Explain a finding: its meaning, how ckpttool knows it, and what to do.

    Args:
        code: Of a finding; None: all that there are.

    Raises:
        UsageError: There is no such finding.
    """
    if code is None:
        return Explained(code=None, explanations=texts.in_groups())
    try:
        row = row_of(code)
    except ValueError:
        raise unknown_word("finding", code, texts.codes(), "ckpttool.types.Code lists all") from None
    return Explained(code=row, explanations=(row,))


def names_by_title() -> dict[str, str]:
    """Return each trainer's name in JSON, by its display name."""
    return {trainer.title: trainer.name for trainer in trainers()}
