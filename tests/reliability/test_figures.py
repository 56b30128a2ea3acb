"""The figures of the last nightly run, which the page about reliability shows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.reliability.figures import FIGURES, PARTS, Figure, Programme, load, store, table, this_run


def test_every_part_of_the_programme_is_in_it() -> None:
    assert set(load()) == set(PARTS)


def test_parts_that_run_alone_leave_the_others_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    kill = Figure(tried=10, unit="kills", seconds=1.0)
    store({"kill": {"prune": kill}}, path)
    errno = Figure(tried=0, unit="errors", seconds=0.0, note="no strace here")
    store({"errno": {"": errno}, "kill": {"ledger": replace(kill, nightly=False)}}, path)
    assert load(path) == {"kill": {"prune": kill, "ledger": replace(kill, nightly=False)}, "errno": {"": errno}}
    said = table(load(path))
    assert "| not run | – | no strace here |" in said
    assert "| 20 kills | 2 s | only a commit's part of ledger |" in said


def test_tests_of_one_part_are_added_up() -> None:
    programme = Programme(nightly=False)
    for number in (1, 2):
        programme.report("fuzz", Figure(tried=number, unit="inputs", seconds=1.0, note="9 parsers"))
    both = Figure(tried=3, unit="inputs", seconds=2.0, note="9 parsers", run=this_run(), nightly=False)
    assert programme.figures["fuzz"] == {"": both}
    with pytest.raises(AssertionError):
        programme.report("nothing", Figure(tried=1, unit="", seconds=0.0))


@pytest.mark.parametrize("option", ["--help", "--collect-only"])
def test_a_command_that_runs_no_test_leaves_the_figures_as_they_were(option: str) -> None:
    before = FIGURES.read_bytes()
    subprocess.run(
        [sys.executable, "-m", "tests.reliability", option], cwd=ROOT, capture_output=True, timeout=300, check=True
    )
    assert FIGURES.read_bytes() == before
