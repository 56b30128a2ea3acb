"""What a user of `prune --plan-out` and `prune --apply-plan` sees. Read the golden files before you update them."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import time
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.prune_plan import ApplyOrder
from ckpttool.errors import ExitCode
from ckpttool.records.hashed_json import closed
from ckpttool.write.files import locked
from tests.cli.test_answers import lines_too_long
from tests.cli.test_exit_codes import assert_error
from tests.cli.test_hostile_names import NAMES, hostile
from tests.conftest import Golden
from tests.support.commands import Said, ask
from tests.support.json_schemas import problems_of
from tests.support.situations import MORNING_NS, SITUATIONS, before_morning
from tests.support.trees import TreeBuilder


@pytest.fixture(autouse=True)
def in_the_morning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be one time, and one machine."""
    monkeypatch.setattr(time, "time", lambda: MORNING_NS / 1e9)
    monkeypatch.setattr(socket, "gethostname", lambda: "node01")


def planned(here: Path, *options: str, situation: str = "whole", last: int = 2) -> Said:
    """Write a plan."""
    SITUATIONS[situation](here)
    before_morning(here)
    return ask("prune", "output", "--keep-last", str(last), "--grace", "0", "--plan-out", "plan.json", *options)


def applied(*options: str) -> Said:
    return ask("prune", "output", "--apply-plan", "plan.json", "--grace", "0", *options)


@pytest.mark.parametrize(("form", "suffix"), [("table", "txt"), ("json", "json")])
def test_what_is_planned_and_done_is_said(form: str, suffix: str, here: Path, golden: Golden) -> None:
    said = {
        "planned": planned(here, "--format", form),
        "would-go": applied("--format", form),
        "gone": applied("--format", form, "--apply"),
        "gone-before": applied("--format", form, "--apply"),
    }
    for name, each in said.items():
        assert each.code == ExitCode.OK, name
        golden(f"prune/plan-{name}.{suffix}", re.sub("2[0-9]{7}T[0-9]{6}Z", "20261120T030000Z", each.stdout))
        if form == "json":
            assert each.json
        else:
            assert lines_too_long(each) == []
    assert problems_of(json.loads((here / "plan.json").read_text("utf-8"))) == []


def test_what_another_machine_moves_is_left_to_it(here: Path, golden: Golden) -> None:
    """Two processes of one machine that call it differently: what a disk that both see comes to."""
    planned(here)
    text = (here / "plan.json").read_text("utf-8")
    machine = '{"host": "node01", "root": '
    root = text.partition(machine)[2].partition("}")[0]
    body = text.replace(f"[{machine}{root}}}]", f'[{{"host": "node00", "root": {root}}}, {machine}{root}}}]')
    (here / "plan.json").write_bytes(closed(body.partition(',\n  "hash"')[0]))
    said = applied("--apply")
    assert said.code == ExitCode.OK
    golden("prune/plan-left.txt", said.stdout)
    assert applied("--json").json["left_to"] == "node00"
    assert (here / "output/checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt").exists()


@pytest.mark.parametrize("options", [[], ["--apply"]])
def test_14_for_what_is_not_as_planned(options: list[str], here: Path, golden: Golden) -> None:
    planned(here)
    for rank in (1, 2):
        os.utime(here / f"output/checkpoint/rank_{rank}/llama2_7b_rank_{rank}-10_2.ckpt", (1, 1))
    said = applied(*options)
    assert said.code == ExitCode.INCOMPLETE
    golden(f"prune/plan-refused{''.join(options)}.txt", said.stdout)
    findings = applied("--json", *options).json["findings"]
    assert [finding["code"] for finding in findings] == ["not-as-planned"] * 2


@pytest.mark.parametrize("situation", ["missing-shard", "all-damaged"])
def test_no_plan_is_written_where_nothing_goes_or_something_refuses(situation: str, here: Path) -> None:
    said = planned(here, "--json", situation=situation)
    is_good = situation == "missing-shard"
    assert said.code == (ExitCode.OK if is_good else ExitCode.NOTHING_TO_RESUME)
    assert (said.json["plan"] is not None) == (here / "plan.json").exists() == is_good


def test_while_somebody_saves_no_plan_is_written_and_an_earlier_one_stays(here: Path) -> None:
    planned(here)
    before = (here / "plan.json").read_bytes()
    (here / "output/checkpoint/rank_1/llama2_7b_rank_1_1-35_2.tmp").touch()
    said = ask("prune", "output", "--keep-last", "1", "--plan-out", "plan.json", "--json")
    assert (said.code, said.json["plan"]) == (ExitCode.INCOMPLETE, None)
    assert (here / "plan.json").read_bytes() == before


def test_a_plan_comes_from_standard_input_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(here)
    stdin = io.TextIOWrapper(io.BytesIO((here / "plan.json").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    answer = api.apply_plan("output", "-", ApplyOrder(grace=0.0))
    assert len(answer.batches) == 3
    assert answer.path == "-"


def test_13_while_another_ckpttool_changes_the_tree(here: Path) -> None:
    planned(here)
    (here / "output/checkpoint/.ckpttool").mkdir()
    with locked("output/checkpoint/.ckpttool/prune", timeout=0):
        assert_error(applied("--apply", "-q"), ExitCode.LOCKED, "is being changed by another ckpttool")
        assert applied().code == ExitCode.OK
    assert applied("--apply").code == ExitCode.OK


def test_15_for_a_rank_folder_that_is_a_link(here: Path) -> None:
    planned(here)
    (here / "output/checkpoint/rank_2").rename(here / "elsewhere")
    (here / "output/checkpoint/rank_2").symlink_to(here / "elsewhere")
    assert applied().code == applied("--apply").code == ExitCode.UNSAFE


PLANNED = ["prune", "output", "--keep-last", "1", "--plan-out"]
APPLIED = ["prune", "output", "--apply-plan"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLANNED, "new.json", "--apply"], "a plan is written for later"),
        ([*PLANNED, "output/checkpoint/plan.json"], "lies in the checkpoint tree: name a file that its machines see"),
        ([*PLANNED, "notes"], "exists and holds no plan of ours; name a new file"),
        ([*PLANNED, "no/plan.json"], "there is no folder 'no'"),
        (["prune", "output", "output", *PLANNED[2:], "new.json"], "--plan-out is about one tree: name one DIR"),
        (["prune", "output", "--keep-last", "1", "--plan-age", "2h"], "it comes with --plan-out FILE"),
        ([*PLANNED, "new.json", "--plan-age", "30s"], "'30s' is less than 60s"),
        (["prune", "output", "--plan-out", "new.json"], "--keep-last N is missing"),
        ([*APPLIED, "plan.json", "--keep-last", "2"], "--apply-plan does what the plan says: leave out --keep-last"),
        ([*APPLIED, "plan.json", "--keep", "5_2", "--drop-abandoned"], "leave out --keep, --drop-abandoned"),
        ([*APPLIED, "plan.json", "--plan-out", "new.json"], "leave out --plan-out"),
        (["prune", "output", "output", *APPLIED[2:], "plan.json"], "--apply-plan is about one tree: name one DIR"),
        ([*APPLIED, "plan.json", "--trash-days", "12h"], "for --trash-days 1 at least"),
        ([*APPLIED, "nowhere.json"], "nowhere.json is no plan: No such file or directory"),
        ([*APPLIED, "notes"], "notes is no plan: ckpttool prune --plan-out writes one"),
        (["prune", "other", "--apply-plan", "plan.json"], "other is not the tree that the plan is of, which is"),
    ],
)
def test_2_for_a_question_that_cannot_be_meant(arguments: list[str], words: str, here: Path) -> None:
    planned(here)
    (here / "notes").write_text("precious")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    assert_error(ask(*arguments, "-q"), ExitCode.USAGE, words)
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


@pytest.mark.parametrize("content", ["cut", "edited"])
def test_14_for_a_plan_that_is_not_what_was_written(content: str, here: Path) -> None:
    planned(here)
    data = (here / "plan.json").read_bytes()
    (here / "plan.json").write_bytes(data[:-9] if content == "cut" else data.replace(b"10_2", b"10_3", 1))
    assert_error(applied("--apply", "-q"), ExitCode.INCOMPLETE, "plan.json: is torn or edited")


def test_14_for_a_plan_that_is_too_old(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(here, "--plan-age", "2h").code == ExitCode.OK
    monkeypatch.setattr(time, "time", lambda: MORNING_NS / 1e9 + 7190)
    assert applied().code == ExitCode.OK
    monkeypatch.setattr(time, "time", lambda: MORNING_NS / 1e9 + 7205)
    assert_error(applied("--apply", "-q"), ExitCode.INCOMPLETE, "nothing was changed: make a new plan")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_are_shown_escaped_and_moved_as_they_are(name: str, here: Path) -> None:
    hostile(here, name)
    TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True).save(epoch=20, step=2, meta=False)
    said = ask("prune", "output", "--keep-last", "1", "--grace", "0", "--plan-out", "plan.json")
    assert said.code == ExitCode.OK
    text = (here / "plan.json").read_text("ascii")
    assert problems_of(json.loads(text)) == []
    shown = applied()
    assert [each for each in shown.stdout if not each.isprintable() and each != "\n"] == []
    assert applied("--apply").code == ExitCode.OK
    trash = here / "output/checkpoint/.ckpttool/trash"
    assert sorted(path.name for path in trash.rglob("*.ckpt")) == [f"{name}_rank_{rank}-10_2.ckpt" for rank in (0, 1)]
    assert ask("trash", "restore", "10_2", "output", "--grace", "0").code == ExitCode.OK
    assert (here / f"output/checkpoint/rank_1/{name}_rank_1-10_2.ckpt").exists()


def test_a_folder_of_a_hostile_name_is_planned_and_applied(here: Path) -> None:
    for name in NAMES.values():
        folder = here / name
        folder.mkdir()
        TreeBuilder(folder).legacy(ranks=1, sparse=True).save(epoch=10, step=2).save(epoch=20, step=2)
        plan = [f"{name}/output", "--grace", "0"]
        assert ask("prune", *plan, "--keep-last", "1", "--plan-out", f"{name}/p").code == ExitCode.OK
        said = ask("prune", *plan, "--apply-plan", f"{name}/p", "--apply")
        assert said.code == ExitCode.OK
        assert "10_2: 1 file" in said.stdout
