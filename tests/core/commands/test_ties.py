"""Where nobody knows which of two saves is good, each command says so and ends with 14."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.commands import ask
from tests.support.trainer_trees import LAYOUTS

COMMANDS = ("resolve", "verify", "prune --keep-last 1 --grace 0", "repair-meta", "heal", "seal")


def two_saves(root: Path, *, alike: bool) -> Path:
    """Keep two saves of a real tree, of which the newer one is a copy of the other or not."""
    shutil.copytree(LAYOUTS / "orbax_standard", root)
    shutil.rmtree(root / "10")
    if alike:
        shutil.rmtree(root / "20")
        shutil.copytree(root / "30", root / "40")
    return root


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_of_a_save_and_its_copy_under_another_step_no_command_says_that_nothing_is_good(
    tmp_path: Path, command: str
) -> None:
    word, *options = command.split()
    tied = ask(word, str(two_saves(tmp_path / "tied", alike=True)), *options)
    assert tied.code == ExitCode.INCOMPLETE, tied.stdout
    assert "No checkpoint in" not in tied.stdout
    assert "is not intact" not in tied.stdout
    assert "could not be read" not in tied.stdout
    healthy = ask(word, str(two_saves(tmp_path / "healthy", alike=False)), *options)
    if word != "heal":  # of this format it cannot look at the numbers, tied or not
        assert healthy.code == ExitCode.OK, healthy.stdout
