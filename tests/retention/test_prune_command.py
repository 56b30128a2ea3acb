"""What a user of `prune` and `repair-meta` sees. Read the golden files as a user would, before you update them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.core.write.files import locked
from tests.cli.test_exit_codes import assert_error
from tests.conftest import Golden
from tests.core.commands.test_answers import lines_too_long
from tests.core.commands.test_hostile_names import NAMES, hostile
from tests.support.commands import Said, ask
from tests.support.situations import SITUATIONS, first_run, real
from tests.support.trees import TreeBuilder

FORMATS = {"table": "txt", "json": "json"}

PRUNES: dict[str, tuple[int, set[str]]] = {
    "whole": (0, {"10_2", "15_2", "20_2"}),
    "missing-shard": (0, set()),
    "all-damaged": (11, set()),
    "unhealthy": (0, set()),
    "rewound": (0, set()),
    "replaced-node": (11, set()),
    "stray-folder": (0, {"10_2", "15_2", "20_2"}),
    "no-sink": (0, {"1_3", "2_1", "2_3", "_1-3_3", "_1-3_1", "_1-3_2"}),
    "newer-layout": (0, set()),
}
"""Situation: the exit code of a prune that keeps 2, and what goes."""


def prune(*options: str, last: int = 2) -> Said:
    """Prune a tree that was copied a moment ago."""
    return ask("prune", "output", "--keep-last", str(last), "--grace", "0", *options)


def fates(said: Said) -> dict[str, str]:
    checkpoints = said.json["checkpoints"]
    return {one["name"]: one["fate"] for one in checkpoints}


@pytest.mark.parametrize("situation", PRUNES)
@pytest.mark.parametrize("form", FORMATS)
def test_the_plan_is_the_golden_one(situation: str, form: str, here: Path, golden: Golden) -> None:
    SITUATIONS[situation](here)
    before = sorted(here.rglob("*"))
    said = prune("--format", form)
    code, gone = PRUNES[situation]
    assert said.code == code
    golden(f"prune/{situation}.{FORMATS[form]}", said.stdout)
    if form == "table":
        assert lines_too_long(said) == []
    else:
        assert {name for name, fate in fates(said).items() if fate == "go"} == gone
    assert sorted(here.rglob("*")) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("situation", PRUNES)
def test_what_is_planned_is_what_is_done(situation: str, here: Path) -> None:
    SITUATIONS[situation](here)
    resume = ask("resolve", "output", "--format", "json").json["resume"]
    planned = fates(prune("--format", "json"))
    done = prune("--format", "json", "--apply")
    assert done.code == PRUNES[situation][0]
    assert fates(done) == planned
    left = ask("scan", "output", "--format", "json").json["checkpoints"]
    assert {one["name"] for one in left} == {name for name, fate in planned.items() if fate == "keep"}
    assert ask("resolve", "output", "--format", "json").json["resume"] == resume


def test_done_is_said_as_done(here: Path, golden: Golden) -> None:
    SITUATIONS["whole"](here)
    golden("prune/applied.txt", prune("--apply", "--trash-days", "7").stdout)
    golden("prune/nothing-left-to-do.txt", prune("--trash-days", "7").stdout)
    golden("prune/trash-emptied.txt", prune("--apply").stdout)


def test_a_refusal_says_why_and_exits_14(here: Path, golden: Golden) -> None:
    SITUATIONS["whole"](here)
    (here / "output/checkpoint/rank_1/llama2_7b_rank_1_1-35_2.tmp").touch()
    for options in ([], ["--apply"]):
        said = prune(*options)
        assert said.code == ExitCode.INCOMPLETE
        golden(f"prune/refused{''.join(options)}.txt", said.stdout)
    assert (here / "output/checkpoint/rank_0/llama2_7b_rank_0-10_2.ckpt").exists()


def test_14_within_the_grace_time(here: Path) -> None:
    SITUATIONS["whole"](here)
    shard = here / "output/checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt"
    now = time.time()
    os.utime(shard, (now, now))
    assert ask("prune", "output", "--keep-last", "2", "--apply").code == ExitCode.INCOMPLETE
    assert prune("--apply").code == ExitCode.OK


def test_13_while_another_ckpttool_changes_the_tree(here: Path) -> None:
    SITUATIONS["whole"](here)
    (here / "output/checkpoint/.ckpttool").mkdir()
    with locked("output/checkpoint/.ckpttool/prune", timeout=0):
        for command in (["prune", "--keep-last", "2"], ["repair-meta"]):
            said = ask(*command, "output", "--apply", "--grace", "0", "-q")
            assert_error(said, ExitCode.LOCKED, "is being changed by another ckpttool")
            assert ask(*command, "output", "--grace", "0").code == ExitCode.OK


def test_15_for_a_rank_folder_that_is_a_link(here: Path) -> None:
    SITUATIONS["whole"](here)
    (here / "output/checkpoint/rank_2").rename(here / "elsewhere")
    (here / "output/checkpoint/rank_2").symlink_to(here / "elsewhere")
    assert prune().code == prune("--apply").code == ExitCode.UNSAFE


def test_several_trainings_are_kept_apart(here: Path) -> None:
    TreeBuilder(here).legacy(ranks=2, prefix="a").save(epoch=10, step=2).save(epoch=20, step=2)
    TreeBuilder(here).legacy(ranks=2, prefix="b").save(epoch=15, step=2).save(epoch=25, step=2)
    assert_error(prune("-q", last=1), ExitCode.USAGE, "choose one with --prefix")
    assert prune("--prefix", "a", "--apply", last=1).code == ExitCode.OK
    assert sorted(path.name for path in here.rglob("*rank_0-*.ckpt")) == [
        "a_rank_0-20_2.ckpt",
        "b_rank_0-15_2.ckpt",
        "b_rank_0-25_2.ckpt",
    ]


def test_the_other_rules_are_asked_for_by_name(here: Path) -> None:
    SITUATIONS["whole"](here)
    said = prune("--keep", "10_2", "--keep-every", "30", "--keep-healthy", "1", "--format", "json", last=1)
    assert fates(said) == {"10_2": "keep", "15_2": "keep", "20_2": "go", "_1-25_2": "go", "_1-30_2": "keep"}
    assert said.json["policy"] == {
        "keep_last": 1,
        "keep_every": 30,
        "keep_healthy": 1,
        "keep_within": None,
        "keep_hourly": 0,
        "keep_daily": 0,
        "keep_weekly": 0,
        "keep": ["10_2"],
        "drop_abandoned": False,
        "prefix": None,
    }
    levels = [prune("--level", level, "--format", "json").json["evidence"] for level in ("structure", "checksum")]
    assert [*levels, said.json["evidence"]] == ["structure", "checksum", "auto"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_no_name_is_cut_on_any_terminal(width: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SITUATIONS["newer-layout"](here)
    monkeypatch.setenv("COLUMNS", width)
    said = prune(last=1)
    assert lines_too_long(said, width=int(width)) == []
    assert "…" not in said.stdout
    assert "iteration_00000020" in "".join(said.stdout.split()) or width == "40"


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_are_shown_without_being_obeyed_and_given_back_as_they_are(name: str, here: Path) -> None:
    hostile(here, name)
    TreeBuilder(here).legacy(ranks=2, prefix=name, sparse=True).save(epoch=20, step=2, meta=False)
    for command in (["prune", "--keep-last", "1"], ["repair-meta"]):
        said = ask(*command, "output", "--grace", "0")
        assert [each for each in said.stdout if not each.isprintable() and each != "\n"] == []
    said = ask("prune", "output", "--keep-last", "1", "--grace", "0", "--format", "json", "--apply")
    assert said.stdout.isascii()
    document = json.loads(said.stdout)
    assert {one["name"]: one["fate"] for one in document["checkpoints"]} == {
        "10_2": "go",
        "15_2": "keep",
        "20_2": "keep",
    }
    assert not (here / f"output/checkpoint/rank_0/{name}_rank_0-10_2.ckpt").exists()


# ---- repair-meta ----


def torn(folder: Path) -> None:
    """One record is torn, one is missing, one is from before; the newest shard of rank 0 is lost."""
    checkpoint = first_run(folder)
    (checkpoint / "rank_0/llama2_7b_rank_0-20_2.ckpt").unlink()
    (checkpoint / "rank_1/meta.json").write_bytes(b'{"last_epoch": 15, "last')
    (checkpoint / "rank_2/meta.json").unlink()


@pytest.mark.parametrize("form", FORMATS)
def test_the_repair_is_the_golden_one(form: str, here: Path, golden: Golden) -> None:
    torn(here)
    dry = ask("repair-meta", "output", "--grace", "0", "--format", form)
    assert not (here / "output/checkpoint/rank_2/meta.json").exists()
    done = ask("repair-meta", "output", "--grace", "0", "--format", form, "--apply")
    again = ask("repair-meta", "output", "--grace", "0", "--format", form)
    assert [dry.code, done.code, again.code] == [0, 0, 0]
    for name, said in {"dry": dry, "applied": done, "nothing": again}.items():
        golden(f"repair-meta/{name}.{FORMATS[form]}", said.stdout)
        if form == "table":
            assert lines_too_long(said) == []


def test_a_refused_repair_says_so(here: Path, golden: Golden) -> None:
    torn(here)
    (here / "output/checkpoint/rank_1/x.tmp").touch()
    said = ask("repair-meta", "output", "--grace", "0", "--apply")
    assert said.code == ExitCode.INCOMPLETE
    golden("repair-meta/refused.txt", said.stdout)


def test_a_named_checkpoint_is_not_called_the_newest(here: Path) -> None:
    real(here, "sink2_ckpt")
    said = ask("repair-meta", "output", "--grace", "0", "--checkpoint", "20_2")
    assert said.stdout.startswith("4 records should name 20_2\n")
    ask("repair-meta", "output", "--grace", "0", "--checkpoint", "20_2", "--apply")
    again = ask("repair-meta", "output", "--grace", "0", "--checkpoint", "20_2")
    assert again.stdout.splitlines()[0] == "All records name 20_2"
    ask("repair-meta", "output", "--grace", "0", "--apply")
    (here / "output/checkpoint/rank_1/meta.json").unlink()
    one = ask("repair-meta", "output", "--grace", "0", "--apply")
    assert one.stdout.startswith("1 record now names _1-30_2, the newest intact checkpoint\n")


def test_11_where_no_record_can_be_made(here: Path) -> None:
    SITUATIONS["all-damaged"](here)
    said = ask("repair-meta", "output", "--apply")
    assert said.code == ExitCode.NOTHING_TO_RESUME
    assert said.stdout.startswith("No checkpoint in output/checkpoint is intact")
    assert ask("repair-meta", "output", "--format", "json").json["checkpoint"] is None
