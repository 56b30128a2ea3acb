"""What a user of `trash` sees. Read the golden files as a user would, before you update them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.core.write.files import locked
from tests.cli.test_exit_codes import assert_error
from tests.conftest import FIXTURES, Golden
from tests.core.commands.test_answers import lines_too_long
from tests.support.commands import Said, ask
from tests.support.situations import SITUATIONS

TIMES = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-20T03:00:00Z",
    r"\d{4}-\d\d-\d\d \d\d:\d\d(?!:)": "2026-11-20 03:00",
    r"\d{8}T\d{6}Z": "20261120T030000Z",
}


@pytest.fixture
def pruned(here: Path) -> Path:
    """A tree whose three oldest checkpoints are in the trash."""
    SITUATIONS["whole"](here)
    assert ask("prune", "output", "--keep-last", "2", "--grace", "0", "--trash-days", "7", "--apply").code == 0
    return here


def without_times(said: Said) -> str:
    text = said.stdout
    for form, time in TIMES.items():
        text = re.sub(form, time, text)
    return text


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
@pytest.mark.usefixtures("pruned")
def test_the_answer_is_the_golden_one(form: str, suffix: str, golden: Golden) -> None:
    for name, arguments in {
        "list": ("list", "output"),
        "list-until": ("list", "output", "--older-than", "7d"),
        "empty-dry": ("empty", "output"),
        "empty-none": ("empty", "output", "--older-than", "7d", "--apply"),
        "restore": ("restore", "15_2", "output", "--grace", "0"),
        "empty": ("empty", "output", "--apply"),
        "list-empty": ("list", "output"),
    }.items():
        said = ask("trash", *arguments, "--format", form)
        assert said.code == ExitCode.OK
        if form == "json":
            assert said.json["schema"] == "ckpttool/trash/1"
        golden(f"trash/{name}.{suffix}", without_times(said))
        assert lines_too_long(said) == [] or form == "json"


@pytest.mark.usefixtures("pruned")
def test_a_scan_after_a_restore_is_that_before_the_prune() -> None:
    now = ask("scan", "output", "--format", "json").json
    for save in json.loads(ask("trash", "list", "output", "--format", "json").stdout)["trash"]:
        ask("trash", "restore", save["folder"], "output", "--grace", "0")
    then = ask("scan", "output", "--format", "json").json
    assert then != now
    assert ask("prune", "output", "--keep-last", "2", "--grace", "0", "--apply").code == 0
    assert ask("scan", "output", "--format", "json").json == now


@pytest.mark.parametrize("where", [["output/checkpoint"], []])
def test_a_tree_of_which_all_is_in_the_trash_is_found_by_it(where: list[str], here: Path) -> None:
    shutil.copytree(FIXTURES / "newfmt_tp2dp2" / "output", here / "output")
    before = ask("scan", "output", "--format", "json").json["checkpoints"]
    assert ask("prune", "output", "--keep-last", "1", "--grace", "0", "--trash-days", "7", "--apply").code == 0
    shutil.rmtree(here / "output/checkpoint/iteration_00000030")
    (here / "output/checkpoint/latest_checkpointed_iteration.txt").unlink()
    assert ask("scan", "output").code == ExitCode.UNKNOWN_LAYOUT
    listed = ask("trash", "list", *where)
    assert listed.code == ExitCode.OK
    assert "iteration_00000020" in listed.stdout
    assert (listed.stderr == "") is (where == ["output/checkpoint"])
    assert ask("trash", "empty", *where).code == ExitCode.OK
    assert ask("trash", "restore", "iteration_00000020", *where).code == ExitCode.OK
    after = ask("scan", "output", "--format", "json").json["checkpoints"]
    assert after == before[:1]
    assert ask("trash", "empty", *where, "--apply").code == ExitCode.OK


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["resolve", "scan"])
def test_who_asks_about_an_emptied_tree_is_told_that_it_lies_in_the_trash(here: Path, command: str) -> None:
    shutil.copytree(FIXTURES / "layouts/hf_single", "my run")
    assert ask("prune", "my run", "--keep-last", "1", "--grace", "0", "--trash-days", "7", "--apply").code == 0
    shutil.rmtree(here / "my run/checkpoint-12")
    way = "are in the trash: ckpttool trash list 'my run'"
    assert_error(ask(command, "my run"), ExitCode.UNKNOWN_LAYOUT, way)
    shutil.copytree(FIXTURES / "layouts/hf_ddp2", "my run/another")  # nobody says that this is meant
    assert_error(ask(command, "my run"), ExitCode.UNKNOWN_LAYOUT, way)
    shutil.rmtree(here / "my run/another")
    assert ask("trash", "restore", "checkpoint-8", "my run", "--grace", "0").code == ExitCode.OK
    assert "trash" not in ask(command, "my run").stdout
    # Nobody asks it of what cannot be told.
    shutil.rmtree(here / "my run/checkpoint-8")
    shutil.rmtree(here / "my run/.ckpttool/trash")
    (here / "my run/.ckpttool/trash").touch()
    assert_error(ask(command, "my run"), ExitCode.UNKNOWN_LAYOUT, "ckpttool knows; it knows those of")


@pytest.mark.usefixtures("pruned")
def test_a_tree_with_nothing_to_resume_from_names_its_trash(here: Path) -> None:
    for shard in here.glob("output/checkpoint/rank_*/*.ckpt"):
        shard.unlink()
    lies = "are in the trash: ckpttool trash list output/checkpoint"
    resolved = ask("resolve", "output")
    assert (resolved.code, lies in resolved.stdout) == (ExitCode.NOTHING_TO_RESUME, True)
    checks = ask("preflight", "output", "--config", str(FIXTURES / "configs/pretrain_sink2.yaml"), "--json")
    assert lies in checks.stdout
    shutil.rmtree(here / "output/checkpoint/.ckpttool")
    assert "No checkpoint was saved here: name another folder" in ask("resolve", "output").stdout


@pytest.mark.usefixtures("pruned")
def test_13_while_another_ckpttool_changes_the_tree() -> None:
    with locked("output/checkpoint/.ckpttool/prune", timeout=0):
        for arguments in (["restore", "10_2", "output"], ["empty", "output", "--apply"]):
            assert_error(ask("trash", *arguments, "-q"), ExitCode.LOCKED, "is being changed by another ckpttool")
        assert ask("trash", "list", "output").code == ExitCode.OK


@pytest.mark.usefixtures("pruned")
def test_an_age_is_written_as_people_write_it_and_a_bare_number_is_days() -> None:
    for age, goes in {"0": 3, "1.5h": 0, "7": 0, "52000w": 0}.items():
        said = ask("trash", "empty", "output", "--older-than", age, "--format", "json").json
        assert sum(save["taken"] for save in said["trash"]) == goes, age


@pytest.mark.usefixtures("pruned")
@pytest.mark.parametrize(
    "words",
    [["15_2", "10_2", "output"], ["15_2", "10_2"], ["./output/", "10_2", "15_2", "10_2"]],
)
def test_several_are_restored_at_once_with_dir_before_or_behind_them(words: list[str]) -> None:
    said = ask("trash", "restore", *words, "--grace", "0")
    assert said.code == ExitCode.OK
    assert "10_2, 15_2: restored" in said.stdout
    assert "10_2" not in ask("trash", "list", "output").stdout


def test_names_are_looked_up_in_the_tree_that_a_variable_names(pruned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["15_2", "10_2"]
    shutil.copytree(pruned / "output", pruned / "other")
    monkeypatch.setenv("CKPTTOOL_DIR", "other")
    assert f"{', '.join(sorted(names))}: restored\n" in ask("trash", "restore", *names, "--grace", "0").stdout
    assert not ask("trash", "restore", *names, "--grace", "0").stdout  # they are there
    assert ask("trash", "restore", *names, "output", "--grace", "0").code == ExitCode.OK
    monkeypatch.setenv("CKPTTOOL_DIR", "nowhere")
    assert_error(ask("trash", "restore", *names, "--grace", "0"), ExitCode.UNKNOWN_LAYOUT, "nowhere does not exist")


def test_a_checkpoint_is_restored_by_its_own_name_whatever_its_folder_is_called(pruned: Path) -> None:
    trash = pruned / "output/checkpoint/.ckpttool/trash"
    next(trash.glob("*-15_2")).rename(trash / "20261120T030000Z-mine")
    assert ask("trash", "restore", "15_2", "output", "--grace", "0").stdout.startswith("15_2: restored\n")
    assert ask("trash", "restore", "15_2", "output", "--grace", "0").code == ExitCode.USAGE


@pytest.mark.usefixtures("pruned")
def test_whoever_looks_at_a_half_restored_checkpoint_is_told_what_finishes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = ask("scan", "output", "--json").json
    made: list[str] = []
    real: Callable[..., None] = os.link

    def link(name: str, *args: str, **folders: int) -> None:
        made.append(name)
        if len(made) > 2:
            raise KeyboardInterrupt
        real(name, *args, **folders)

    monkeypatch.setattr(os, "link", link)
    assert ask("trash", "restore", "15_2", "output", "--grace", "0").code == ExitCode.INTERRUPTED
    monkeypatch.setattr(os, "link", real)
    for command in ("scan", "resolve"):
        told = ask(command, "output").stdout
        assert "was interrupted here or is running: the checkpoints that it was moving look" in " ".join(told.split())
        assert "until the next ckpttool prune --apply or trash restore" in " ".join(told.split())
    assert ask("trash", "restore", "15_2", "output", "--grace", "0").code == ExitCode.OK
    after = ask("scan", "output", "--json").json
    assert after["findings"] == left["findings"]
    assert ask("verify", "output", "--checkpoint", "15_2").code == ExitCode.OK


def test_the_command_that_undoes_a_prune_undoes_it_as_it_stands(here: Path) -> None:
    (here / "it's one").mkdir()
    SITUATIONS["whole"](here / "it's one")
    pruned = ask("prune", "it's one/output", "--keep-last", "2", "--grace", "0", "--trash-days", "7", "--apply").stdout
    command = " ".join(pruned.split()).partition("To undo: ckpttool ")[2]
    names = {"10_2", "15_2", "20_2"}
    assert set(shlex.split(command)[2:]) == {*names, "it's one/output/checkpoint"}
    assert ask(*shlex.split(command), "--grace", "0").code == ExitCode.OK
    there = json.loads(ask("scan", "it's one/output", "--format", "json").stdout)["checkpoints"]
    assert names <= {save["name"] for save in there}
    ask("prune", "it's one/output", "--keep-last", "2", "--grace", "0", "--trash-days", "7", "--apply")
    footer = " ".join(ask("trash", "list", "it's one/output").stdout.split())
    assert """ckpttool trash restore NAME 'it'"'"'s one/output/checkpoint'""" in footer
