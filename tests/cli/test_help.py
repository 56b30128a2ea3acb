"""The promise to people's scripts: which commands and options there are, and that each is shown by an example."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from ckpttool import __version__
from ckpttool.cli.main import COMMANDS
from tests.cli.running import ask, run
from tests.cli.situations import whole
from tests.conftest import TESTS

TREE = {"--world-size", "--sink-size", "--health-file", "--layout"}
CHOICE = {"--level", "--allow-renames", "--checkpoint", "--require-health", "--allow-unknown-health", "--ignore-health"}
DATA = {"--gbs", "--old-gbs", "--new-dataset", "--dataset-changed-at", "--segment"}
OPTIONS = {
    "scan": TREE | {"--format", "--quiet"},
    "resolve": TREE
    | CHOICE
    | DATA
    | {"--config", "--format", "--quiet", "--strict", "--simulate-mindformers", "--prefix"},
    "scale-skip": {"--old-gbs", "--new-gbs", "--steps", "--segment", "--sink-size", "--format"},
    "launch": TREE
    | CHOICE
    | DATA
    | {"--config", "--output", "--force", "--strict", "--format", "--quiet", "--prefix"}
    | {"--nodes", "--devices-per-node", "--master-addr", "--script"},
    "preflight": TREE
    | CHOICE
    | DATA
    | {"--config", "--format", "--quiet", "--strict", "--prefix", "--devices", "--allow", "--report"},
    "lint-config": {"--format", "--allow", "--report"},
    "prune": TREE
    | {"--config", "--format", "--quiet", "--keep-last", "--keep-every", "--keep-healthy", "--keep", "--drop-abandoned"}
    | {"--prefix", "--apply", "--level", "--grace", "--wait", "--trash-days", "--max-age"},
    "trash": set(),
    "repair-meta": TREE | {"--config", "--format", "--quiet", "--checkpoint", "--prefix", "--apply", "--grace"},
    "explain": {"--format"},
}


def help_of(command: str) -> str:
    said = ask(command, "--help")
    assert said.code == 0
    return said.stdout


@pytest.mark.parametrize("command", OPTIONS)
def test_every_promised_option_is_there(command: str) -> None:
    assert OPTIONS[command] - set(re.findall(r"--[a-z-]+", help_of(command))) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(command: str) -> None:
    word = command.replace("-", "_")
    function = getattr(import_module(f"ckpttool.cli.{word}"), word)
    assert COMMANDS[command] == (inspect.getdoc(function) or "").splitlines()[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_text_has_an_example_of_its_command(command: str) -> None:
    assert f"Example: ckpttool {command}" in help_of(command)


@pytest.mark.parametrize("command", OPTIONS)
def test_the_example_works(command: str, here: Path) -> None:
    whole(here)
    for path in here.rglob("*_rank_*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # a checkout of a moment ago looks like a save under way
    config = (TESTS / "configs" / "llama2_legacy.yaml").read_text()
    (here / "pretrain.yaml").write_text(
        config.replace("_parallel: 2", "_parallel: 1").replace("_stage: 2", "_stage: 1")
    )
    text = " ".join(help_of(command).split())
    line = re.search(r"Example: ckpttool (.*?) (?:Arguments|Options):", text)
    assert line is not None
    assert ask(*shlex.split(line[1])).code == 0


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_help_fits_a_terminal(command: str) -> None:
    text = help_of(command) if command else ask("--help").stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_list_of_commands_is_complete_and_in_the_order_of_need() -> None:
    text = ask("--help").stdout
    places = [text.index(f"\n  {command} ") for command in COMMANDS]
    assert places == sorted(places)


def test_the_version_is_said() -> None:
    said = run("--version")
    assert (said.code, said.stdout, said.stderr) == (0, f"ckpttool {__version__}\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_knows_the_commands() -> None:
    said = run(env={"_CKPTTOOL_COMPLETE": "complete_bash", "COMP_WORDS": "ckpttool sc", "COMP_CWORD": "1"})
    assert said.stdout.split() in (["scan", "scale-skip"], [])
