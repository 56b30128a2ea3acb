"""Random programmes over trees of few ranks and of other trainers: nothing is lost, healed wrongly or ruled out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.few_ranks import run
from tests.reliability.figures import Programme

COMMANDS, NIGHTLY_COMMANDS = 150, 5_000


@pytest.mark.slow
def test_in_trees_of_few_ranks_no_command_loses_a_save_heals_it_wrongly_or_ends_with_nothing_beside_a_good_one(
    programme: Programme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tally = run(tmp_path, seed=1, commands=NIGHTLY_COMMANDS if programme.nightly else COMMANDS)
    assert {"heal 0", "heal 11", "prune 0", "resolve 0", "seal 0"} <= tally.said.keys()
    assert "resolve 11" not in tally.said
