"""Every exit code of the contract, each from a situation in which a user would meet it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from ckpttool.cli.main import COMMANDS, OLD_NAMES, app
from ckpttool.core.errors import ExitCode, NotDurableError
from tests.conftest import FIXTURES
from tests.support.commands import Said, ask, environment, known_exits, run
from tests.support.situations import SITUATIONS, real, whole


def assert_error(said: Said, code: ExitCode, words: str) -> None:
    """An error is one line on stderr, and stdout holds no half of a result."""
    assert (said.code, said.stdout) == (code, "")
    assert said.stderr.count("\n") == 1
    assert said.stderr.startswith("ckpttool: error: ")
    assert words in said.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["resolve", "nosuch", "--json"], ExitCode.UNKNOWN_LAYOUT),
        (["scan", "nosuch", "--format", "json"], ExitCode.UNKNOWN_LAYOUT),
        (["verify", "nosuch", "--format=json"], ExitCode.UNKNOWN_LAYOUT),
        (["watch", "nosuch", "--once", "--json"], ExitCode.UNKNOWN_LAYOUT),
        (["resolve", "--gsb", "8", "--json"], ExitCode.USAGE),
        (["explain", "nosuch", "--format", "table", "--json"], ExitCode.USAGE),
        (["no-such-command", "--json"], ExitCode.USAGE),
    ],
)
def test_whoever_asked_for_json_gets_the_error_as_json_and_in_one_line(
    arguments: list[str], code: ExitCode, here: Path
) -> None:
    whole(here)
    said = ask(*arguments)
    assert said.code == code
    assert said.stdout.count("\n") == 1
    told = said.json
    assert (told["schema"], told["exit"]) == ("ckpttool/error/1", code)
    assert said.stderr == f"ckpttool: error: {told['error']}\n"


@pytest.mark.parametrize(
    "arguments",
    [["resolve", "nosuch"], ["resolve", "nosuch", "--format", "table"], ["nan", "replay", "nosuch", "--", "--json"]],
)
def test_whoever_did_not_ask_for_json_finds_stdout_empty_after_an_error(arguments: list[str], here: Path) -> None:
    whole(here)
    said = ask(*arguments)
    assert said.code != ExitCode.OK
    assert said.stdout == ""


def test_after_a_document_comes_no_second_one_whatever_the_exit_code(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    assert ask("verify", "--checkpoint", "all", "--json").json["schema"] == "ckpttool/verdicts/1"
    several = ask("scan", "output", "nosuch", "--json")
    assert several.code == ExitCode.DAMAGE
    assert several.json["schema"] == "ckpttool/trees/1"
    unknown = ask("preflight", "nosuch", "--json")
    assert unknown.code == ExitCode.UNKNOWN_LAYOUT
    assert unknown.json["schema"] == "ckpttool/preflight/1"


def test_0_where_a_newer_one_was_rejected_and_10_with_strict(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    assert ask("resolve").code == ExitCode.OK
    strict = ask("resolve", "--strict")
    assert strict.code == ExitCode.DAMAGE
    assert strict.stdout.replace(" (exit 10)", "", 1) == ask("resolve").stdout != strict.stdout


def test_1_for_a_fault_of_our_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(here)
    monkeypatch.setattr("ckpttool.core.verbs.scanning.scan", lambda question: [][question is None])
    assert_error(ask("scan"), ExitCode.FAILED, "internal error (IndexError: list index out of range)")


@pytest.mark.parametrize("code", ExitCode)
def test_explain_says_of_every_exit_code_what_it_means_and_what_to_do(code: ExitCode) -> None:
    said, document = ask("explain", str(code.value)), ask("explain", str(code.value), "--json").json
    assert said.code == 0
    assert said.stdout.startswith(f"exit {code.value}, ")
    assert "\nWhat to do   " in said.stdout
    assert document["exit_code"] == code.value
    told = {
        name: exits[code]
        for name, exits in known_exits().items()
        if code in exits and name in COMMANDS and name not in OLD_NAMES
    }
    assert document["commands"] == told
    flat = " ".join(said.stdout.split())
    assert all(f"{name}: {text}" in flat or f"{name}, " in flat for name, text in told.items())


@pytest.mark.parametrize(("arguments", "command"), [([], "resolve"), (["asd"], "emit")], ids=["ckpttool", "asd"])
def test_2_and_the_help_for_no_question_at_all(arguments: list[str], command: str) -> None:
    said = ask(*arguments)
    assert (said.code, said.stdout) == (ExitCode.USAGE, "")
    assert said.stderr.startswith("Usage: ")
    assert said.stderr == ask(*arguments, "--help").stdout
    assert command in said.stderr


def test_11_where_nothing_can_be_resumed_from(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    assert ask("resolve").code == ExitCode.NOTHING_TO_RESUME
    assert ask("resolve", "--format", "json").json["resume"] is None
    said = ask("scale-skip", "output", "--new-gbs", "8")
    assert_error(said, ExitCode.NOTHING_TO_RESUME, "there is no checkpoint in output/checkpoint to resume from")


def test_12_for_a_folder_without_checkpoints(here: Path) -> None:
    (here / "output").mkdir()
    assert_error(ask("scan", "output"), ExitCode.UNKNOWN_LAYOUT, "output has no checkpoints that ckpttool knows")
    assert_error(ask("resolve", "output"), ExitCode.UNKNOWN_LAYOUT, "it is empty, as before the first start")
    assert_error(ask("resolve"), ExitCode.UNKNOWN_LAYOUT, "output/checkpoint does not exist")


def test_14_for_a_health_file_that_cannot_be_read(here: Path) -> None:
    SITUATIONS["torn-health-file"](here)
    assert ask("scan").code == ExitCode.INCOMPLETE
    said = ask("resolve", "--health-file", "absent.json")
    assert_error(said, ExitCode.INCOMPLETE, "absent.json does not exist")


def test_14_for_a_torn_health_file_that_nobody_named_until_somebody_says_that_unknown_will_do(here: Path) -> None:
    real(here, "health_pp2")
    shutil.copy(FIXTURES / "configs" / "pretrain_sink2.yaml", here / "base.yaml")
    launch = ["launch", "--config", "base.yaml", "--output", "new.yaml"]
    record = here / "output/health_ckpts.json"
    whole = record.read_text()
    assert chosen("resolve") == "10_2"  # for 15_2 is unhealthy, which the end of the file says
    record.write_text(whole.rstrip("]\n ")[:-5])
    for command in (["resolve"], launch, ["preflight", "--config", "base.yaml"]):
        said = ask(*command)
        assert said.code == ExitCode.INCOMPLETE, command
        assert "the health file cannot be read completely" in " ".join(said.stdout.split())
        assert "--allow-unknown-health" in said.stdout
    assert not (here / "new.yaml").exists()
    assert ask("resolve", "--allow-unknown-health").code == ExitCode.OK
    assert ask(*launch, "--allow-unknown-health").code == ExitCode.OK
    assert chosen("resolve", "--allow-unknown-health") == "15_2"
    record.write_text(whole.rstrip("]\n "))
    assert chosen("resolve", "--allow-unknown-health") == "10_2"  # what it still calls unhealthy stays so
    record.unlink()  # and of one that is not there nothing is missed
    assert ask("resolve").code == ExitCode.OK


def chosen(*arguments: str) -> object:
    resume = ask(*arguments, "--json").json["resume"]
    return resume["name"]


def test_14_for_a_health_file_that_was_named_and_is_none(here: Path) -> None:
    named = "torn.json"
    real(here, "health_pp2")
    shutil.copy(FIXTURES / "configs" / "pretrain_sink2.yaml", here / "base.yaml")
    (here / "torn.json").write_text('[{"is_health": 0, "ckpt_name": "llama2_7b_rank_0-15_2.ckpt"}, {')
    launch = ["launch", "--config", "base.yaml", "--output", "new.yaml"]
    for command in (["resolve"], launch, ["preflight", "--config", "base.yaml"]):
        said = ask(*command, "--health-file", named)
        assert said.code == ExitCode.INCOMPLETE, command
        assert f"health-unheard {named}: the health file was requested" in " ".join(said.stdout.split())
    assert not (here / "new.yaml").exists()
    assert ask("resolve", "--health-file", named, "--ignore-health").code == ExitCode.OK
    assert ask("resolve", "--health-file", "output/health_ckpts.json").code == ExitCode.OK
    assert ask(*launch, "--health-file", "output/health_ckpts.json").code == ExitCode.OK


def test_15_where_nothing_is_left_but_what_was_refused(here: Path) -> None:
    for path in real(here, "sink2_ckpt").glob("rank_1/*.ckpt"):
        path.unlink()
        os.mkfifo(path)
    assert ask("resolve").code == ExitCode.UNSAFE


def test_15_for_a_record_that_leads_out_of_its_folder(here: Path) -> None:
    record = '{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "../../x_rank_0-30_2.ckpt"}'
    (real(here, "sink2_ckpt") / "rank_0/meta.json").write_text(record)
    assert ask("scan").code == ExitCode.UNSAFE


def test_16_where_the_disk_did_not_confirm(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(here)
    message = "new.yaml is written, but the disk did not confirm it"

    def launch(*_: object, **__: object) -> None:
        raise NotDurableError(message)

    monkeypatch.setattr("ckpttool.core.verbs.launching.launch", launch)
    (here / "base.yaml").write_text("seed: 1\n")
    said = ask("launch", "--config", "base.yaml", "--output", "new.yaml")
    assert_error(said, ExitCode.NOT_DURABLE, message)


SLOW_DISK = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests in the background ignores it
from ckpttool.__main__ import main
from ckpttool.core.storage.local import LocalStorage

def stuck(self, folder):
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)

LocalStorage.entries = stuck
sys.argv = ["ckpttool", "resolve", "output"]
main()
"""


def test_130_for_ctrl_c_while_the_disk_does_not_answer(here: Path) -> None:
    whole(here)
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_DISK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, stdout, stderr) == (ExitCode.INTERRUPTED, "", "ckpttool: interrupted\n")


def test_the_program_ends_with_the_code_of_the_answer(here: Path) -> None:
    SITUATIONS["missing-shard"](here)
    program, inside = run("scan"), ask("scan")
    assert program.code == inside.code == 10
    assert program.stdout == inside.stdout


@pytest.mark.parametrize("lost", [True, False], ids=["not-read", "missing"])
def test_what_could_not_be_read_may_be_whole_so_nobody_knows_that_there_is_nothing(lost: bool, here: Path) -> None:
    SITUATIONS["whole"](here)
    for shard in (here / "output/checkpoint/rank_1").glob("*.ckpt"):
        shard.unlink()
        if lost:
            shard.symlink_to("/a/disk/that/is/not/mounted.ckpt")
    code = ExitCode.INCOMPLETE if lost else ExitCode.NOTHING_TO_RESUME
    said = ask("resolve")
    assert (said.code, "which one to resume from is unknown" in " ".join(said.stdout.split())) == (code, lost)
    pasted = ask("resolve", "--format", "yaml")
    assert pasted.stdout.startswith(
        "# it is unknown which checkpoint to resume from" if lost else "# nothing to resume"
    )
    checked = ask("preflight", "--config", str(FIXTURES / "configs" / "pretrain_sink2.yaml"), "--format", "json")
    assert (checked.code, '"nothing-to-resume"' in checked.stdout) == (code, not lost)


def numbers() -> list[tuple[str, str]]:
    """Each command and each option of it that takes a number."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return [
        (name, each.opts[0])
        for name in COMMANDS
        for each in getattr(group.get_command(None, name), "params", [])  # type: ignore[arg-type]  # ours asks no context
        if getattr(each, "type", None) is not None  # typer 0.29 tells none
        and each.type.name in {"float", "float range", "parse"}
    ]


@pytest.mark.sample(5)
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("command", "option"), numbers())
def test_2_for_a_number_that_is_none_before_anything_is_looked_at(command: str, option: str) -> None:
    needed = {
        "launch": ("--config", "c", "--output", "o"),
        "preflight": ("--config", "c"),
        "prune": ("--keep-last", "1"),
        "report": ("--output", "r.html"),
        "part": ("--part", "1/2", "--out", "one.ckptpart"),
        "replay": ("log",),
    }
    for value in ("nan", "1e999"):
        said = ask(command, *needed.get(command, ()), f"{option}={value}")
        assert_error(said, ExitCode.USAGE, "is not a finite number")


def test_15_where_a_link_would_be_written_over(here: Path) -> None:
    whole(here)
    (here / "elsewhere.yaml").write_text("mine")
    (here / "new.yaml").symlink_to("elsewhere.yaml")
    config = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
    said = ask("launch", "--config", config, "--output", "new.yaml", "--force")
    assert_error(said, ExitCode.UNSAFE, "it is a symbolic link")
    record = here / "output/checkpoint/rank_1/meta.json"
    record.unlink()
    record.symlink_to("nowhere")
    for apply in ((), ("--apply",)):
        assert ask("repair-meta", "--grace", "0", *apply).code == ExitCode.UNSAFE
    assert (here / "elsewhere.yaml").read_text() == "mine"
