"""The question of `postflight`: the logs of both runs, and the save between them."""

from __future__ import annotations

from typing import Annotated

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import COLUMNS
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.findings import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class PostflightQuestion:
    """The logs, and what is known about the resume."""

    before: Annotated[
        tuple[str, ...],
        Option(
            "--before",
            "Log of the first run; repeatable. Default: the logs near DIR.",
            "Evidence",
            metavar="LOG",
        ),
    ] = ()
    after: Annotated[
        tuple[str, ...],
        Option(
            "--after",
            "Log of the resumed run; repeatable. Default: the logs near DIR.",
            "Evidence",
            metavar="LOG",
        ),
    ] = ()
    columns: Annotated[str | None, COLUMNS] = None
    from_step: Annotated[
        Step | None,
        Option(
            "--from-step",
            "Step of the checkpoint that the run should have resumed from. Default: from PLAN.json, else the newest "
            "save before the first new step.",
            "Which checkpoint",
            metavar="N",
            least=0,
        ),
    ] = None
    wait: Annotated[
        float,
        Option(
            "--wait",
            "Wait up to this long until the logs show the answer, such as 10m (a bare number is minutes).",
            "Evidence",
            metavar="TIME",
            unit="m",
            into="s",
            shown="",
        ),
    ] = 0.0
    """Seconds to wait for more lines of the resumed run's log."""
    allowed: tuple[Row, ...] = ()
    """Findings that the user has seen and accepts."""
    view: View = USUAL
