"""What is wrong with a command line is said before anything is looked at, in plain words."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from email.message import Message
from pathlib import Path

import pytest

from ckpttool.cli.main import COMMANDS
from ckpttool.core.commands.verify import part_of
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.situations import before_morning, whole

LOG = str(FIXTURES / "logs" / "bloom176b_chronicles.log")
CONFIG = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
WITH_A_TREE = [
    "scan",
    "verify",
    "part --part 1/2 --out one.ckptpart",
    "seal",
    "resolve",
    "report --output r.html",
    "health",
    "prune --keep-last 1 --grace 0 --apply",
    "repair-meta",
    "heal",
    "watch --once",
    "trash list",
    "trash empty --apply",
]


def files(here: Path) -> set[str]:
    return {str(path.relative_to(here)) for path in here.rglob("*")}


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", [*WITH_A_TREE, f"preflight --config {CONFIG}", "launch --config b --output o"])
def test_an_empty_folder_name_is_refused_and_not_the_current_folder(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(here)
    monkeypatch.chdir(here / "output")
    before = files(here)
    said = ask(*command.split(), "")
    assert (said.code, said.stdout) == (2, "")
    assert "DIR: the value is empty: check whether a shell variable is unset" in said.stderr
    assert files(here) == before
    if command in {"scan", "resolve"}:
        assert ask(command, ".").code == 0


@pytest.mark.parametrize("command", ["verify", "seal"])
def test_several_checkpoints_may_be_named(command: str, here: Path) -> None:
    whole(here)
    said = ask(command, "output", "--checkpoint", "10_2", "--checkpoint", "15_2", "--format", "json")
    assert said.code == 0
    found = said.json["checkpoints"]
    assert [one["name"] for one in found] == ["10_2", "15_2"]
    assert len(ask(command, "output", "--checkpoint", "10_2", "--format", "json").json["checkpoints"]) == 1


def test_one_that_is_named_twice_or_in_two_ways_is_looked_at_once(here: Path) -> None:
    whole(here)
    said = ask("verify", "output", "--checkpoint", "latest", "--checkpoint", "_1-30_2", "--format", "json")
    assert [one["name"] for one in said.json["checkpoints"]] == ["_1-30_2"]
    assert ask("verify", "output", "--checkpoint", "10_2", "--checkpoint", "nope").code == 2


@pytest.mark.parametrize("command", ["resolve", "repair-meta", f"preflight --config {CONFIG}"])
def test_a_command_that_chooses_one_refuses_two(command: str, here: Path) -> None:
    whole(here)
    said = ask(*command.split(), "output", "--checkpoint", "10_2", "--checkpoint", "15_2")
    assert (said.code, said.stdout) == (2, "")
    assert "--checkpoint is given 2 times (10_2, 15_2), and only one can be chosen" in said.stderr
    assert "given" not in ask(*command.split(), "output", "--checkpoint", "10_2").stderr


def test_a_bug_says_what_whoever_mends_it_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(here)

    def broken(*_: object, **_options: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("ckpttool.core.verbs.scanning.scan", broken)
    said = ask("scan", "output")
    assert said.code == 1
    assert said.stderr == (
        "ckpttool: error: internal error (ZeroDivisionError: division by zero): this is a bug in ckpttool. Report "
        "it to the person who installed ckpttool, with the output of `ckpttool --debug …` and `ckpttool --version`\n"
    )


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (
            ["Homepage, https://h.invalid", "Issues, https://i.invalid/x"],
            "Report it at https://i.invalid/x, with",
        ),
        (None, "Report it to the person who installed ckpttool, with"),
    ],
)
def test_a_bug_is_reported_where_the_package_says(
    links: list[str] | None, words: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(here)
    told = Message()
    for link in links or []:
        told["Project-URL"] = link
    monkeypatch.setattr("importlib.metadata.metadata", lambda _: told)
    monkeypatch.setattr("ckpttool.core.verbs.scanning.scan", lambda *_: 1 // 0)
    assert f"a bug in ckpttool. {words} the output of `ckpttool --debug …` and" in ask("scan", "output").stderr


@pytest.mark.parametrize(
    ("words", "tree"),
    [
        (["output", "20_2"], "DIR"), (["output:20_2"], "output"), (["output/20_2"], "output"),
        (["output/checkpoint/20_2"], "output/checkpoint"),
    ],
)  # fmt: skip
def test_a_checkpoints_name_where_a_tree_belongs_is_told_where_it_goes(words: list[str], tree: str, here: Path) -> None:
    whole(here)
    said = ask("verify", *words, "-q")
    assert said.code == 12
    assert f"; is 20_2 a checkpoint? ckpttool verify {tree} --checkpoint 20_2\n" in said.stderr
    assert ask("verify", tree.replace("DIR", "output"), "--checkpoint", "20_2", "-q").code == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", [*COMMANDS, "asd check"])
def test_what_is_common_to_all_commands_may_stand_on_either_side(command: str, here: Path) -> None:
    whole(here)
    needed = {
        "scale-skip": ["--new-gbs", "8", "--old-gbs", "8", "--steps", "1"], "launch": ["--config", CONFIG, "--output"],
        "preflight": ["--config", CONFIG], "lint-config": [CONFIG], "prune": ["--keep-last", "1"],
        "asd check": ["enable:true"], "replay": [CONFIG], "calibrate": [CONFIG], "watch": ["--once"],
    }.get(command, [])  # fmt: skip
    for common in (["-qv"], ["--json"]):
        line = [*needed, f"new{common[0]}.yaml"] if command == "launch" else needed
        shutil.rmtree("ckpttool-demo", ignore_errors=True)
        before = ask(*common, *command.split(), *line)
        shutil.rmtree("ckpttool-demo", ignore_errors=True)
        after = ask(*command.split(), *line, *common, *(["--force"] if command == "launch" else []))
        assert "no option" not in before.stderr
        assert (after.code, after.stderr) == (before.code, before.stderr)
        assert after.stdout.startswith("{") == before.stdout.startswith("{")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "command", ["scan", "resolve", "health", "scale-skip --new-gbs 8", "explain", "guide", "prune --keep-last 1"]
)
def test_json_is_said_shortly_too(command: str, here: Path) -> None:
    whole(here)
    before_morning(here)
    long = ask(*command.split(), "--format", "json")
    assert long.stdout.startswith("{")
    assert ask(*command.split(), "--json").stdout == ask("--json", *command.split()).stdout == long.stdout
    assert (
        ask("--format", "json", *command.split()).stdout == ask("--format=json", *command.split()).stdout == long.stdout
    )


def test_a_traceback_is_for_those_who_ask_for_it_after_the_command_too(here: Path) -> None:
    assert "Traceback" in ask("scan", str(here / "nowhere"), "--debug").stderr
    assert "Traceback" in ask("--debug", "-q", "scan", str(here / "nowhere")).stderr
    assert "Traceback" not in ask("scan", str(here / "nowhere")).stderr


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("resolve output --gbs 16", "resolve output --new-gbs 16"),
        ("scale-skip output --new-gbs 16", "scale-skip output --gbs 16"),
        ("scale-skip --new-gbs 6 --old-gbs 8 --steps 9", "scale-skip --gbs 6 --old-gbs 8 --step 9"),
        (f"resolve output --health-timeline {LOG}", f"resolve output --spikes-from {LOG}"),
        (f"replay {LOG} --health-timeline output", f"replay {LOG} --tree output"),
        ("prune output --keep-last 1 --grace 300", "prune output --keep-last 1 --grace 5m"),
        (
            "prune output --keep-last 1 --grace 0 --trash-days 7",
            "prune output --keep-last 1 --grace 0s --trash-days 1w",
        ),
        ("prune output --keep-last 1 --max-age 36", "prune output --keep-last 1 --max-age 1.5d"),
    ],
)
def test_one_thing_has_one_name_and_the_old_one_stays(old: str, new: str, here: Path) -> None:
    whole(here)
    before_morning(here)
    before, after = ask(*old.split(), "--json"), ask(*new.split(), "--json")
    assert before.stdout.startswith("{")
    assert (before.code, before.stdout) == (after.code, after.stdout)


def test_what_is_taken_is_said_to_whoever_asks_and_to_nobody_else(here: Path) -> None:
    whole(here)
    said = ask("resolve", "output/checkpoint", "-v", "--gbs", "16", "--strict")
    assert said.stderr == (
        "ckpttool: settings: output/checkpoint --level structure --margin 0 --gbs 16 --engine threads --format table "
        "--strict\n"
        "ckpttool: tree output/checkpoint, layout mindformers-rank, 5 checkpoints, no health file\n"
    )
    for quiet in ([], ["-q"], ["-v", "-q"]):
        assert ask("resolve", "output/checkpoint", "--gbs", "16", "--strict", *quiet).stderr == ""
    assert ask("resolve", "output/checkpoint", "--gbs", "16", "--strict").stdout == said.stdout
    assert "settings: --format table\n" in ask("explain", "-v").stderr


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "line",
    [
        "resolve --max-lost-time 5m --margin 1.5h", "trash list --older-than 7d", "prune --keep-last 1 --grace 90s",
        "verify --max-age 7d --timeout 10m --subset 10%", "trash empty --older-than 2",
        f"replay {LOG} --threshold 0.125",        "health --threshold 1234567.125",
    ],
)  # fmt: skip
def test_what_is_said_to_be_set_can_be_typed_again(line: str, here: Path) -> None:
    whole(here)

    def settings(*words: str) -> str:
        lines = ask(*words, "-v").stderr.splitlines()
        return next(
            text.removeprefix("ckpttool: settings: ") for text in lines if text.startswith("ckpttool: settings: ")
        )

    said = settings(*line.split(), *([] if "replay" in line else ["output"]))
    command = [word for word in line.partition(" -")[0].split() if word != LOG]
    assert settings(*command, *shlex.split(said)) == said
    for word, value in re.findall(r"(--[a-z-]+) ([^-]\S*)", line):
        assert f"{word} {value}" in said


@pytest.mark.parametrize(("share", "parts"), [("33.4%", 3), ("1T", 1)])
def test_a_share_is_another_part_every_day_until_all_was_read(
    share: str, parts: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(here)
    read: list[str] = []
    for day in range(parts):
        monkeypatch.setattr(time, "time", lambda day=day: (20_000 * parts + day) * 86400.0 + 5)
        said = ask("verify", "output", "--checkpoint", "all", "--subset", share, "--json")
        number = part_of(20_000 * parts + day, parts)
        assert f"--subset {share} is part {number}/{parts} today; the part changes daily" in said.stderr
        plain = ask("verify", "output", "--checkpoint", "all", "--subset", f"{number}/{parts}", "--json", "-q")
        shards = [shard["path"] for save in said.json["checkpoints"] for shard in save["shards"]]
        assert shards == [shard["path"] for save in plain.json["checkpoints"] for shard in save["shards"]]
        read += shards
    complete_tree = ask("verify", "output", "--checkpoint", "all", "--json").json["checkpoints"]
    assert sorted(read) == sorted(shard["path"] for save in complete_tree for shard in save["shards"])


def test_every_part_has_its_turn_whatever_days_lie_between_two_runs() -> None:
    for every in (1, 2, 5, 7, 10, 14, 49):
        for parts in (1, 2, 7, 10, 20):
            days = range(20_000, 20_000 + every * parts * 40, every)
            assert {part_of(day, parts) for day in days} == set(range(1, parts + 1)), (every, parts)


def test_no_command_was_forgotten_here() -> None:
    told = {line.split()[0] for line in WITH_A_TREE} | {"preflight", "launch", "inspect", "diff", "repair", "export"}
    told |= {"mark"}
    without_a_tree = {"scale-skip", "lint-config", "replay", "calibrate", "asd", "guard", "explain", "guide"}
    without_a_tree |= {"postflight", "schema", "demo", "nan", "fp8", "lint", "log"}
    assert told | without_a_tree == set(COMMANDS)
