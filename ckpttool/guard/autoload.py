"""Switches the guard on without code changes, by `CKPTTOOL_GUARD` or `CKPTTOOL_GUARD_REPLAY` in the environment.

torch calls `autoload` at the end of its own import, through an entry point of the group `torch.backends`. Lightning
calls `lightning_callbacks` for each `Trainer`. If neither variable is set, both do nothing.
"""

from __future__ import annotations

import os
from typing import Any

from ckpttool.core.errors import CkptToolError, ExitCode
from ckpttool.guard.switch import REPLAY_VARIABLE, VARIABLE, report, report_result, switch_of


def autoload() -> None:
    """Switch the guard on if the environment requests it. Never raise, because that would break the import of torch.

    If a requested replay is impossible, end the process with exit code 14, because otherwise an ordinary training run
    would start.
    """
    if not _is_requested():
        return
    try:
        from ckpttool.guard.adapters.automatic import install

        if (switch := switch_of(os.environ)) is not None:
            install(switch)
    except Exception as error:  # noqa: BLE001  as the docstring says
        report(f"not switched on: {error}")
        if os.environ.get(REPLAY_VARIABLE):
            report_result(ExitCode.INCOMPLETE)
            raise SystemExit(ExitCode.INCOMPLETE) from None


def lightning_callbacks() -> list[Any]:
    """Return the callbacks for Lightning to add to each `Trainer`: one guard if the environment requests it."""
    if not _is_requested():
        return []
    try:
        from ckpttool.guard.adapters.lightning import AutomaticLightningGuard

        switch = switch_of(os.environ)
        return [] if switch is None else [AutomaticLightningGuard(**switch.arguments())]
    except (CkptToolError, ImportError) as error:
        report(f"not switched on in Lightning: {error}")
        return []


def _is_requested() -> bool:
    return bool(os.environ.get(VARIABLE) or os.environ.get(REPLAY_VARIABLE))
