"""`ckpttool repair`: the plans of both of its commands for DIR, or one of them, wherever it is among the options."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
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


@pytest.fixture
def tree(here: Path) -> Path:
    """A healthy tree that is called like one of the commands."""
    return Path(shutil.copytree(FIXTURES / "sink2_ckpt/output/checkpoint", here / "shards"))


@pytest.mark.parametrize(
    "line",
    [
        "repair --format json shards ./shards",
        "--format json repair shards ./shards",
        "repair --checkpoint latest shards --json ./shards",
        "repair --dry-run --json shards ./shards",
        "repair --from 2 shards --json -- ./shards",
    ],
)
def test_a_command_is_found_behind_options_and_their_values(line: str, tree: Path) -> None:
    assert tree.exists()
    said = ask(*line.split())
    assert (said.code, said.json["schema"]) == (0, "ckpttool/heal/1"), said.stderr


@pytest.mark.parametrize(
    "line",
    [
        "repair --json ./shards",
        "repair ./shards --format json",
        "repair --format json -- shards",
        "repair --checkpoint latest ./shards --json",
    ],
)
def test_a_tree_alone_is_asked_for_both_plans(line: str, tree: Path) -> None:
    assert tree.exists()
    said = ask(*line.split())
    assert (said.code, said.json["schema"]) == (0, "ckpttool/repairs/1"), said.stderr
    assert said.json["shards"]["root"] == said.json["pointer"]["root"]


def test_a_name_of_a_checkpoint_is_no_command(tree: Path) -> None:
    said = ask("repair", "--checkpoint", "pointer", "./shards")
    assert said.code == 2
    assert "no checkpoint 'pointer'" in said.stderr
    assert tree.exists()


def test_help_is_shown_behind_a_tree(tree: Path) -> None:
    assert ask("repair", str(tree), "--help").stdout == ask("repair", "--help").stdout != ""


def test_what_is_nearly_a_command_is_corrected(here: Path) -> None:
    assert here.exists()
    said = ask("repair", "shard", "x")
    assert said.code == 2
    assert "did you mean shards?" in said.stderr


def test_the_plan_takes_the_grace_time_and_a_wrong_option_names_the_help_of_the_command(here: Path) -> None:
    SITUATIONS["truncated"](here)
    for path in here.rglob("*"):
        os.utime(path)  # a save may be in progress
    early = ask("repair", "output")
    assert "but --apply would be refused now" in early.stdout
    assert "Refused" not in early.stdout
    now = ask("repair", "output", "--grace", "0")
    assert now.code == 0
    assert "\nckpttool repair shards output/checkpoint --checkpoint _1-30_2 --grace 0 --apply\n" in now.stdout
    wrong = ask("repair", "output", "--gracious", "0")
    assert wrong.code == 2
    assert wrong.stderr.endswith("ckpttool repair --help\n")


@pytest.mark.parametrize("command", [("shards",), ("pointer",), ("pointer", "--checkpoint", "15_2")])
def test_the_command_that_a_dry_run_prints_carries_it_out(command: tuple[str, ...], here: Path) -> None:
    SITUATIONS["truncated"](here)
    dry = ask("repair", *command, "output", "--grace", "0")
    (line,) = [line for line in dry.stdout.splitlines() if line.endswith(" --apply")]
    assert line.startswith(f"ckpttool repair {command[0]} output/checkpoint ")
    done = ask(*line.split()[1:])
    assert done.code == 0
    assert "Dry run" not in done.stdout
