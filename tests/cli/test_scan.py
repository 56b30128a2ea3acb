"""What `scan` says of what it did not look at, left out, or cannot know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands import ask
from tests.support.situations import whole

if TYPE_CHECKING:
    import pytest

NEWEST = "rank_2/llama2_7b_rank_2_1-30_2.ckpt"


def test_it_says_that_nothing_was_verified_and_what_would(here: Path) -> None:
    whole(here)
    assert "\nnot verified: ckpttool verify looks into every shard\n" in ask("scan").stdout


def test_a_shard_shorter_than_in_another_save_is_told_and_changes_no_exit_code(here: Path) -> None:
    whole(here)
    assert "maybe cut off" not in ask("scan").stdout
    path = here / "output" / "checkpoint" / NEWEST
    size = path.stat().st_size
    os.truncate(path, 1000)
    said = ask("scan")
    assert said.code == 0
    assert f"maybe cut off: {NEWEST} has 1000 bytes, that rank's of _1-25_2 has {size}" in " ".join(said.stdout.split())
    assert said.stdout.count("maybe cut off") == 1


def test_a_save_that_is_smaller_on_every_rank_is_called_no_cut_one(here: Path) -> None:
    whole(here)
    for path in (here / "output" / "checkpoint").glob("rank_*/*_1-30_2.ckpt"):
        os.truncate(path, 1000)
    assert "maybe cut off" not in ask("scan").stdout


def test_of_many_short_shards_the_first_are_named_and_the_others_counted(here: Path) -> None:
    whole(here)
    for save in ("_1-30_2", "-20_2"):
        for rank in range(2):
            name = f"llama2_7b_rank_{rank}{save}.ckpt"
            os.truncate(here / "output" / "checkpoint" / f"rank_{rank}" / name, 1000)
    said = ask("scan").stdout
    assert said.count("maybe cut off") == 3
    assert "and 1 other shard is shorter, too\n" in said


def test_columns_that_a_narrow_terminal_has_no_room_for_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(here)
    monkeypatch.setenv("COLUMNS", "60")
    said = ask("scan").stdout
    left_out = next(line for line in said.splitlines() if line.startswith("no room for "))
    assert left_out.startswith("no room for OPT STEP, GBS, SAVED (UTC)")
    monkeypatch.setenv("COLUMNS", "200")
    assert "no room for" not in ask("scan").stdout


def test_a_tree_that_was_emptied_points_to_the_trash(here: Path) -> None:
    whole(here)
    for path in (here / "output" / "checkpoint").glob("rank_*/*"):
        path.unlink()
    assert "ckpttool trash list output/checkpoint\n" in ask("scan").stdout


def test_verify_calls_a_save_that_lacks_a_shard_incomplete_and_json_keeps_its_word(here: Path) -> None:
    whole(here)
    (here / "output" / "checkpoint" / NEWEST).unlink()
    said = ask("verify")
    assert said.stdout.startswith("_1-30_2: incomplete\n")
    assert " missing " not in said.stdout.splitlines()[4]
    assert '"verdict": "missing"' in ask("verify", "--json").stdout
