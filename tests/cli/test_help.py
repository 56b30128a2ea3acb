"""The promise to people's scripts: which commands and options there are, and that each is shown by an example."""

from __future__ import annotations

import inspect
import os
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from ckpttool import __version__
from ckpttool.cli.main import COMMANDS, MAIN, MORE, OLD_NAMES, PLUMBING, TASKS, app
from ckpttool.core.commands import output
from ckpttool.core.commands.headings import FIRST_SCREEN, HEADINGS, MEANS_NOTHING, OUTPUT, by_heading
from ckpttool.core.errors import ExitCode
from ckpttool.core.render import guide, schemas
from tests.conftest import TESTS
from tests.support.commands import ask, known_exits, run
from tests.support.situations import SITUATIONS, whole


@cache
def help_of(*command: str) -> str:
    said = ask(*command, "--help-all")
    assert said.code == 0
    return said.stdout


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "command",
    ["scan", "resolve", "scale-skip", "launch", "preflight", "lint", "prune", "trash", "repair", "explain"],
)
def test_the_example_works(command: str, here: Path) -> None:
    whole(here)
    for path in here.rglob("*_rank_*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # a checkout of a moment ago looks like a save under way
    config = (TESTS / "configs" / "llama2_legacy.yaml").read_text()
    (here / "pretrain.yaml").write_text(
        config.replace("_parallel: 2", "_parallel: 1")
        .replace("_stage: 2", "_stage: 1")
        .replace("load_checkpoint: ''", "load_checkpoint: ./output/checkpoint")
        .replace("resume_training: False", "resume_training: True")
    )
    text = " ".join(help_of(command).split())
    line = re.search(r"Example: ckpttool (.*?) (?:Arguments|Which tree|Data position|Options|Commands):", text)
    assert line is not None
    assert ask(*shlex.split(line[1])).code == 0


HELPED = [
    *COMMANDS,
    "asd check",
    "asd emit",
    "fp8 compare",
    "fp8 probe",
    "fp8 lint",
    "fp8 plan",
    "fp8 verdict",
    "guard report",
    "guard run",
    "guard list",
    "guard inspect",
    "guard replay",
    "log replay",
    "log calibrate",
    "repair shards",
    "repair pointer",
    "repair plan",
    "nan list",
    "nan inspect",
    "nan replay",
    "trash list",
    "trash restore",
    "trash empty",
]
OF_SOME = {
    "Which part", "Data position", "Launch", "Policy", "FP8", "Replay", "What stays", "What is written", "Watch",
    "Mark",
}  # fmt: skip
ALL_HEADINGS = {*HEADINGS, *OF_SOME, OUTPUT, "Commands", "Options", "Exit codes"}
OF_OUTPUT = {
    "--all", "--debug", "--diff", "--dry-run", "--exit-code", "--fix", "--format", "--help", "--help-all", "--json",
    "--limit", "--no-config", "--out", "--output", "--print", "--prometheus", "--quiet", "--ranks-per-node",
    "--report", "--simulate", "--simulate-mindformers", "--stats", "--top", "--verbose",
}  # fmt: skip
"""What names no heading, for it is about what is written and where."""


@pytest.mark.parametrize("command", HELPED)
def test_every_help_text_has_its_parts_and_fits_a_terminal(command: str) -> None:
    text = help_of(*command.split())
    top = command.partition(" ")[0]
    assert [line for line in text.splitlines() if len(line) > 80 or re.search(r"\w-$", line)] == []
    assert top != command or top in OLD_NAMES or f"Example: ckpttool {command}" in text
    assert set(re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)) <= ALL_HEADINGS
    assert [mark for mark in ("<", "x>=", "\x1b") if mark in text] == []  # a type of the machinery
    codes = text[text.index("\nExit codes:\n") :]
    assert [int(code) for code in re.findall(r"^  (\d+) ", codes, re.MULTILINE)] == sorted(
        known_exits().get(command, known_exits()[top])
    )
    assert "  1, 2, 130  " in codes
    assert top == "guide" or (guide.page_of(top) is not None and f"More: ckpttool guide {top}" in codes)


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    for command, place in COMMANDS.items():
        word = command.replace("-", "_")
        function = getattr(import_module(f"ckpttool.{place.module}"), word)
        assert place.summary == (inspect.getdoc(function) or "").splitlines()[0]


def test_every_option_has_its_place() -> None:
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        found = group.get_command(None, name)
        for single in getattr(found, "commands", {"": found}).values():
            under = by_heading(single, name, typer.Context(single, help_option_names=["-h", "--help"])).get(OUTPUT, [])
            words = {re.findall(r"--[a-z-]+", form)[0] for form, _ in under}
            assert words - OF_OUTPUT == set(), name


def test_of_a_group_each_command_names_the_exits_that_it_has_itself() -> None:
    ends = {name: set(known_exits()[f"trash {name}"]) for name in ("list", "restore", "empty")}
    assert 10 in ends["restore"] - ends["list"] - ends["empty"]
    assert 13 in (ends["restore"] & ends["empty"]) - ends["list"]
    assert "were restored" not in help_of("trash", "list")
    assert "The checkpoints were restored, but" in help_of("trash", "restore")


def test_every_exit_that_help_names_is_one_that_there_is() -> None:
    assert {name for name in known_exits() if " " not in name} == set(COMMANDS)
    assert {name for name in known_exits() if " " in name} <= set(HELPED)
    assert {code for codes in known_exits().values() for code in codes} <= {code.value for code in ExitCode}


def test_what_means_nothing_in_a_command_is_accepted_and_not_shown_and_changes_no_answer(here: Path) -> None:
    SITUATIONS["torn-health-file"](here)
    for command, words in MEANS_NOTHING.items():
        shown = help_of(command, *(["list"] if command == "trash" else []))
        assert [word for word in words if word in shown] == []
        line = [command, *(["list"] if command == "trash" else []), "output", "-q"]
        ask(*line)  # the first seal is one of a kind
        assert ask(*line, "--health-file", "output/checkpoint/rank_0/meta.json").code == ask(*line).code
    assert "--health-file" in help_of("scan")


@pytest.mark.sample(6)
@pytest.mark.parametrize("command", HELPED)
@pytest.mark.parametrize("spelling", ["-h", "help"])
def test_help_is_asked_for_in_three_ways(command: str, spelling: str) -> None:
    words = ["help", *command.split()] if spelling == "help" else [*command.split(), spelling]
    assert ask(*words).stdout == ask(*command.split(), "--help").stdout != ""


def test_help_alone_is_the_list_of_commands() -> None:
    assert ask("help").stdout == ask("--help").stdout == ask("-h").stdout
    assert ask("help", "resolv").code == 2


def test_the_first_screen_has_the_thirteen_main_commands_and_names_the_others() -> None:
    text = ask("--help").stdout
    assert len(MAIN) == 13
    assert re.findall(r"^  ([a-z-]+)  +[A-Z]", text.partition("\nOptions:")[0], re.MULTILINE) == [*MAIN]
    assert [task for task in TASKS.values() if f"\n{task}:\n" not in text] == []
    assert ", ".join((*MORE, *PLUMBING)) in " ".join(text.split())
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize("line", ["--help-all", "help --all", "help -a"])
def test_all_commands_are_listed_on_request_and_no_old_name(line: str) -> None:
    text = ask(*line.split()).stdout.partition("\nOptions:")[0]
    shown = MAIN | MORE | PLUMBING
    assert re.findall(r"^  ([a-z0-9-]+)  +[A-Z]", text, re.MULTILINE) == [*shown]
    flat = " ".join(text.split())
    assert [name for name, place in shown.items() if place.summary not in flat] == []
    assert OLD_NAMES.keys().isdisjoint(shown)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lint-config", "lint"),
        ("heal", "repair shards"),
        ("repair-meta", "repair pointer"),
        ("replay", "log replay"),
        ("calibrate", "log calibrate"),
        ("nan list", "guard list"),
        ("nan inspect", "guard inspect"),
        ("nan replay", "guard replay"),
    ],
)
def test_an_old_name_takes_what_its_new_name_takes(old: str, new: str) -> None:
    def options(name: str) -> set[str]:
        return set(re.findall(r"^  (?:-[a-z], )?(--[a-z-]+)", help_of(*name.split()), re.MULTILINE))

    assert old.partition(" ")[0] in OLD_NAMES
    assert options(old) <= options(new)
    assert len(options(old)) > 5


@pytest.mark.parametrize("command", FIRST_SCREEN)
def test_a_large_command_shows_fifteen_options_first_and_all_of_them_on_request(
    command: str,
) -> None:
    def shown(flag: str) -> list[str]:
        return re.findall(
            r"^  (?:-[a-z], )?(--[a-z-]+|DIR)", ask(command, flag).stdout.partition("\nWhich tree:")[2], re.MULTILINE
        )

    first, every = shown("--help"), shown("--help-all")
    assert len(first) == 15
    assert set(first) == set(FIRST_SCREEN[command])
    assert set(first) < set(every)
    assert len(every) > 45
    assert f"ckpttool {command} --help-all" in ask(command, "--help").stdout
    assert "The other options" not in ask(command, "--help-all").stdout


def test_help_has_colours_on_a_terminal_and_none_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ask("resolve", "--help").stdout
    monkeypatch.setattr(output, "_is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = ask("resolve", "--help").stdout
    assert "\x1b[1mWhich tree:\x1b[0m" in coloured
    assert "  \x1b[36m--gbs N\x1b[0m  " in coloured
    assert re.sub(r"\x1b\[[0-9]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert ask("resolve", "--help").stdout == plain


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "C"}, True),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({}, False),
    ],
)
def test_help_names_the_chinese_page_under_a_chinese_locale(
    variables: dict[str, str], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ("ckpttool guide zh" in ask("--help").stdout) is named


@pytest.mark.parametrize("line", ["--version --json", "-V --format json", "version --format=json", "--json --version"])
def test_the_version_is_said_to_people_and_to_scripts(line: str) -> None:
    told = run("-V") if line.startswith("-V") else ask("version")
    assert (told.code, told.stdout, told.stderr) == (0, f"ckpttool {__version__}\n", "")
    said = ask(*line.split())
    assert (said.code, said.stderr) == (0, "")
    assert said.json["version"] == __version__
    jsonschema.validate(said.json, schemas.schema("version"))
