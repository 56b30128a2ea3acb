"""`ckpttool repair` without a word for what: the plans of both of its commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.commands import ask
from tests.support.situations import SITUATIONS, whole


def content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("situation", ["missing-shard", "truncated", "whole"])
def test_it_answers_as_both_commands_and_changes_nothing(situation: str, here: Path) -> None:
    (whole if situation == "whole" else SITUATIONS[situation])(here)
    for path in here.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # no save is in progress
    before = content(here)
    said = ask("repair", "output", "--json")
    shards, pointer = ask("repair", "shards", "output", "--json"), ask("repair", "pointer", "output", "--json")
    assert said.json["shards"] == shards.json
    assert said.json["pointer"] == pointer.json
    assert said.code == said.json["exit_code"] == max(shards.code, pointer.code)
    assert ask("heal", "output", "--json").json == shards.json
    assert ask("repair-meta", "output", "--json").json == pointer.json
    assert content(here) == before


def test_it_takes_a_folder_that_is_called_as_a_command_by_its_path(here: Path) -> None:
    whole(here)
    (here / "output").rename(here / "shards")
    assert ask("repair", "./shards").code == ask("repair", "shards", "shards").code == 0


@pytest.mark.parametrize("line", ["output", "output --dry-run", "-q output", "output -q", "--json output"])
def test_the_plan_may_have_its_options_on_either_side(line: str, here: Path) -> None:
    whole(here)
    assert ask("repair", *line.split()).code == 0


def test_a_repair_is_carried_out_only_by_its_own_command(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    before = content(here)
    refused = ask("repair", "output", "--apply")
    assert (refused.code, refused.stdout) == (2, "")
    assert "repair shards --apply" in refused.stderr
    assert content(here) == before
