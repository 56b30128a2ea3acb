"""What is wrong with a command line is said before anything is looked at, in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.cli.main import COMMANDS
from tests.cli.running import ask
from tests.cli.situations import whole
from tests.conftest import FIXTURES

CONFIG = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
WITH_A_TREE = [
    "scan",
    "verify",
    "seal",
    "resolve",
    "health",
    "prune --keep-last 1 --grace 0 --apply",
    "repair-meta",
    "trash list",
    "trash empty --apply",
]


def files(here: Path) -> set[str]:
    return {str(path.relative_to(here)) for path in here.rglob("*")}


@pytest.mark.parametrize("command", [*WITH_A_TREE, f"preflight --config {CONFIG}", "launch --config b --output o"])
def test_an_empty_folder_name_is_refused_and_not_the_current_folder(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(here)
    monkeypatch.chdir(here / "output")
    before = files(here)
    said = ask(*command.split(), "")
    assert (said.code, said.stdout) == (2, "")
    assert "[DIR]': it is empty: is a shell variable not set?" in said.stderr
    assert files(here) == before
    if command in {"scan", "resolve"}:
        assert ask(command, ".").code == 0


@pytest.mark.parametrize(
    "line",
    ["resolve --config", "resolve --health-file", "resolve --checkpoint", "verify --checkpoint", "verify --stats",
     "resolve --health-threshold 1 --log", "replay", "lint-config", "calibrate", "explain",
     f"preflight --config {CONFIG} --report"],
)  # fmt: skip
def test_so_is_every_other_value_that_is_empty(line: str, here: Path) -> None:
    whole(here)
    said = ask(*line.split(), "")
    assert (said.code, said.stdout) == (2, "")
    assert "it is empty: " in said.stderr


def test_a_value_that_means_something_where_it_is_empty_may_be(here: Path) -> None:
    assert ask("asd", "check", "").code == 0
    whole(here)
    assert "no checkpoint has the prefix ''" in ask("resolve", "output", "--prefix", "").stderr


@pytest.mark.parametrize("command", ["verify", "seal"])
def test_several_checkpoints_may_be_named(command: str, here: Path) -> None:
    whole(here)
    said = ask(command, "output", "--checkpoint", "10_2", "--checkpoint", "15_2", "--format", "json")
    assert said.code == 0
    found = said.json["checkpoints"]
    assert isinstance(found, list)
    assert [one["name"] for one in found] == ["10_2", "15_2"]
    assert len(ask(command, "output", "--checkpoint", "10_2", "--format", "json").json["checkpoints"]) == 1  # type: ignore[arg-type]


def test_one_that_is_named_twice_or_in_two_ways_is_looked_at_once(here: Path) -> None:
    whole(here)
    said = ask("verify", "output", "--checkpoint", "latest", "--checkpoint", "_1-30_2", "--format", "json")
    assert [one["name"] for one in said.json["checkpoints"]] == ["_1-30_2"]  # type: ignore[attr-defined]
    assert ask("verify", "output", "--checkpoint", "10_2", "--checkpoint", "nope").code == 2


@pytest.mark.parametrize("command", ["resolve", "repair-meta", f"preflight --config {CONFIG}"])
def test_a_command_that_chooses_one_refuses_two(command: str, here: Path) -> None:
    whole(here)
    said = ask(*command.split(), "output", "--checkpoint", "10_2", "--checkpoint", "15_2")
    assert (said.code, said.stdout) == (2, "")
    assert "--checkpoint is given 2 times (10_2, 15_2), and only one can be chosen" in said.stderr
    assert "given" not in ask(*command.split(), "output", "--checkpoint", "10_2").stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("resolve --gbs 1e3", "'--gbs': '1e3' is not a whole number of at least 1;"),
        ("resolve --gbs 0", "'--gbs': 0 is not a whole number of at least 1;"),
        ("prune --keep-last 1 --grace 5m", "'--grace': '5m' is not a number of at least 0;"),
        ("verify --level all", "'--level': 'all' is not one of 'structure', 'checksum', 'numerics';"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(line: str, words: str, here: Path) -> None:
    whole(here)
    said = ask(*line.split())
    assert said.code == 2
    assert words in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_a_folder_that_is_not_there_is_a_usage_error_of_launch_too(here: Path) -> None:
    whole(here)
    (here / "there").mkdir()
    line = ["launch", "output", "--config", CONFIG, "--output"]
    said = ask(*line, "nowhere/new.yaml")
    assert (said.code, said.stdout) == (2, "")
    assert said.stderr.endswith("--output 'nowhere/new.yaml': there is no folder 'nowhere'\n")
    assert ask(*line, "there/new.yaml").code == 0
    assert ask(*line, "new.yaml").code == 0


def test_the_help_of_a_group_tells_each_command_in_a_whole_sentence() -> None:
    said = ask("asd", "--help").stdout
    assert "and which of its traps it falls into." in " ".join(said.split())
    assert "of..." not in said


def test_a_bug_says_what_whoever_mends_it_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(here)

    def broken(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(api, "scan", broken)
    said = ask("scan", "output")
    assert said.code == 1
    assert said.stderr == (
        "ckpttool: error: ckpttool itself failed (ZeroDivisionError: division by zero): a bug. Whoever gave you "
        "ckpttool wants to see what `ckpttool --debug …` and `ckpttool --version` print\n"
    )


def test_no_command_was_forgotten_here() -> None:
    told = {line.split()[0] for line in WITH_A_TREE} | {"preflight", "launch"}
    without_a_tree = {"scale-skip", "lint-config", "replay", "calibrate", "asd", "explain", "guide", "schema"}
    assert told | without_a_tree == set(COMMANDS)
