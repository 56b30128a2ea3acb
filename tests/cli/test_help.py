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
from ckpttool.cli.main import COMMANDS, TASKS, app
from ckpttool.core.commands.headings import HEADINGS, MEANS_NOTHING, OUTPUT, by_heading
from ckpttool.core.errors import ExitCode
from ckpttool.core.render import guide, schemas
from tests.conftest import TESTS
from tests.support.commands import ask, known_exits, run
from tests.support.situations import SITUATIONS, whole


@cache
def help_of(*command: str) -> str:
    said = ask(*command, "--help")
    assert said.code == 0
    return said.stdout


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "command",
    ["scan", "resolve", "scale-skip", "launch", "preflight", "lint-config", "prune", "trash", "heal", "explain"],
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
    "nan list",
    "nan inspect",
    "nan replay",
    "trash list",
    "trash restore",
    "trash empty",
]
OF_SOME = {"Which part", "Data position", "Launch", "Policy", "FP8", "Replay", "What stays", "Watch"}
ALL_HEADINGS = {*HEADINGS, *OF_SOME, OUTPUT, "Commands", "Options", "Exit codes"}
OF_OUTPUT = {
    "--all", "--debug", "--diff", "--exit-code", "--fix", "--format", "--help", "--json", "--limit", "--no-config",
    "--out", "--output", "--print", "--prometheus", "--quiet", "--ranks-per-node", "--report", "--simulate",
    "--simulate-mindformers", "--stats", "--top", "--verbose",
}  # fmt: skip
"""What names no heading, for it is about what is written and where."""


@pytest.mark.parametrize("command", HELPED)
def test_every_help_text_has_its_parts_and_fits_a_terminal(command: str) -> None:
    text = help_of(*command.split())
    top = command.partition(" ")[0]
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert top != command or f"Example: ckpttool {command}" in text
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
    assert "Restored" not in help_of("trash", "list")
    assert "Restored, but" in help_of("trash", "restore")


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
    assert ask(*words).stdout == help_of(*command.split()) != ""


def test_help_alone_is_the_list_of_commands() -> None:
    assert ask("help").stdout == ask("--help").stdout == ask("-h").stdout
    assert ask("help", "resolv").code == 2


def test_the_list_of_commands_is_one_screen_and_says_each_in_a_line() -> None:
    text = ask("--help").stdout
    assert [task for task in TASKS.values() if f"\n{task}:\n" not in text] == []
    for name, place in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(place.summary)}$", text, re.MULTILINE)
    assert len(text.splitlines()) <= 56
    places = [text.index(f"\n  {command} ") for command in COMMANDS]
    assert places == sorted(places)  # in the order of need


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
