"""Switch the guard on without code, if `CKPTTOOL_GUARD` is set in the environment of the training run.

torch calls `autoload` at the end of its own import: it is an entry point of the group `torch.backends`. Lightning calls
`lightning_callbacks` for each `Trainer`. Without the variable both do nothing.
"""

from __future__ import annotations

import os
from typing import Any

from ckpttool.core.errors import CkptToolError
from ckpttool.guard.switch import VARIABLE, Switch, report


def autoload() -> None:
    """Switch the guard on if the environment says so. It never raises, because that would break the import of torch."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    try:
        from ckpttool.guard.adapters.automatic import install

        install(Switch.parsed(text))
    except Exception as error:  # noqa: BLE001  as the docstring says
        report(f"not switched on: {error}")


def lightning_callbacks() -> list[Any]:
    """Return the callbacks that Lightning adds to each `Trainer`: one guard if the environment says so."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return []
    try:
        from ckpttool.guard.adapters.lightning import AutomaticLightningGuard

        return [AutomaticLightningGuard(**Switch.parsed(text).arguments())]
    except (CkptToolError, ImportError) as error:
        report(f"not switched on in Lightning: {error}")
        return []
