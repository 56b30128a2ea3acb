"""What `scan` says of what it did not look at, left out, or cannot know."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.commands import ask
from tests.support.situations import whole

NEWEST = "rank_2/llama2_7b_rank_2_1-30_2.ckpt"


def test_a_shard_shorter_than_in_another_save_is_told_and_changes_no_exit_code(here: Path) -> None:
    whole(here)
    assert "may be truncated" not in ask("scan").stdout
    path = here / "output" / "checkpoint" / NEWEST
    size = path.stat().st_size
    os.truncate(path, 1000)
    said = ask("scan")
    assert said.code == 0
    assert f"may be truncated: {NEWEST} has 1000 bytes, the same rank's shard of _1-25_2 has {size}" in " ".join(
        said.stdout.split()
    )
    assert said.stdout.count("may be truncated") == 1


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
