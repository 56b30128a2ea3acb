"""What tests of engines share."""

from __future__ import annotations

import pytest

from ckpttool.core.verify.engines import threads, waiting


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often whether something hangs: here it soon does."""
    for module in (waiting, threads):
        monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
