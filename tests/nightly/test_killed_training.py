"""A training that is killed again and again remembers every bit that one remembers which never was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.test_saving import never_killed


@pytest.mark.slow  # beside the test that goes on bit by bit, and those of a full disk and of what a kill leaves
def test_killed_at_random_moments_it_ends_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.nightly.killed_training", str(tmp_path), "60", "4", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "killed too seldom to prove anything"
    whole = never_killed(60)
    assert (tmp_path / "order.bits").read_text(encoding="utf-8") == repr(whole.bits())
    assert set((tmp_path / "order").read_text(encoding="utf-8").splitlines()) == set(whole.order)
