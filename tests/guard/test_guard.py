"""What a guarded training left is read by every command that reads logs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard.model.guarding import GuardMode
from ckpttool.health.policies.robust_z import RobustZPolicy
from tests.conftest import FIXTURES
from tests.support.commands import MODULE, Said, ask
from tests.support.guard_events import Told, train
from tests.support.trees import TreeBuilder

EVENTS = "output/guard/events-00000.jsonl"
SPIKE = [*[1.0, 1.1, 0.9, 1.0] * 40, *[50.0] * 3, *[1.0, 1.1, 0.9, 1.0] * 10]  # at steps 161 to 163


def tree(here: Path, *steps: int) -> None:
    builder = TreeBuilder(here).legacy(ranks=2)
    for step in steps:
        builder.save(epoch=step // 2, step=2)


def resolved(*options: str) -> Said:
    return ask("resolve", *options, "--format", "json")


def document(said: Said) -> Any:  # noqa: ANN401  as scripts see it
    return said.json


def chosen(said: Said) -> object:
    resume = document(said)["resume"]
    return None if resume is None else resume["step"]


def test_a_dropped_spike_makes_no_checkpoint_suspect_and_an_applied_one_does(here: Path) -> None:
    tree(here, 100, 162)
    train(here / "output", SPIKE, policy=RobustZPolicy())
    dropped = resolved("--health-timeline", EVENTS)
    assert (dropped.code, chosen(dropped)) == (0, 162)
    (here / EVENTS).unlink()
    train(here / "output", SPIKE, policy=RobustZPolicy(), mode=GuardMode.WATCH)
    applied = resolved("--health-timeline", EVENTS)
    assert (applied.code, chosen(applied)) == (0, 100)


STRIKE = "3 abnormal feature values since 2026-11-20 03:10:00: a strike"


def fleet(here: Path) -> None:
    """Four ranks of eight: a strike and a wrong product on rank 3, a NaN that rank 2 caused, then a stop."""
    for rank in range(4):
        told: dict[int, list[Told]] = {
            100: [(GuardEventKind.SAVED, {"checkpoint": "1_100"})],
            170: [(GuardEventKind.CAPTURE, {"path": "output/guard/captures/nan-at-00000170", "culprit": rank == 2})],
        }
        if rank == 3:
            told[150] = [(GuardEventKind.SDC_STRIKE, {"rank": 3, "since_step": 120, "message": STRIKE})]
            told[160] = [(GuardEventKind.CHECKSUM_ABNORMAL, {"op": "aten.mm", "module": "layers.3.mlp"})]
        if rank == 1:
            told[110] = [(GuardEventKind.GUARD_ERROR, {"part": "features", "error": "RuntimeError: no device"})]
        norms = [*[1.0, 1.1, 0.9] * 55, 50.0, *[1.0] * 3, *[math.nan] * 20]
        train(here / "output", norms, policy=RobustZPolicy(), rank=rank, world_size=8, told=told)
        path = here / "output" / "guard" / f"events-{rank:05d}.jsonl"
        path.write_text(path.read_text().replace(f'"host": "{os.uname().nodename}"', f'"host": "node{rank}"'))


@pytest.mark.parametrize("form", ["txt", "json", "prom"])
def test_a_report_of_a_fleet_is_the_golden_one(here: Path, form: str, golden: Callable[[str, str], None]) -> None:
    fleet(here)
    options = ("--json",) if form == "json" else ("--prometheus", "guard.prom")
    said = ask("guard", "report", "output", *options)
    assert (said.code, said.stderr) == (10, "")
    golden(f"guard/fleet.{form}", (here / "guard.prom").read_text() if form == "prom" else said.stdout)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_report_of_a_run_in_which_a_spike_and_a_nan_were_dropped_is_the_golden_one(
    form: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FIXTURES)
    said = ask("guard", "report", "guard/output", "--format", form)
    assert said.code == 10  # for the NaN was captured
    golden(f"guard/char-lm.{form.replace('table', 'txt')}", said.stdout)


def test_files_folders_globs_and_pipes_mean_the_same(here: Path) -> None:
    fleet(here)
    whole = document(ask("guard", "report", "output", "--json"))["ranks"]
    for asked in (["output/guard"], ["output/guard/events-*.jsonl"], [EVENTS, "output/guard"]):
        assert document(ask("guard", "report", *asked, "--json"))["ranks"] == whole
    piped = subprocess.run(
        [*MODULE, "guard", "report", "-", "--json"],
        input=(here / EVENTS).read_bytes(),
        capture_output=True,
        check=False,
    )
    assert json.loads(piped.stdout)["ranks"] == whole[:1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"step,loss\n1,2\n", "is not an event file of a guard"),
        (b"\x1f\x8b\x08x", "truncated or damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_14_and_the_others_are_told(here: Path, content: bytes, reason: str) -> None:
    train(here / "output", [1.0] * 5)
    (here / "other.jsonl").write_bytes(content)
    said = ask("guard", "report", "output", "other.jsonl")
    assert said.code == 14
    assert reason in said.stdout
    assert "5 updates, none dropped" in said.stdout
    assert ask("guard", "report", "other.jsonl").code == 14
    assert ask("guard", "report", "output").code == 0


def test_the_numbers_for_prometheus_replace_the_old_ones_and_are_read_by_its_rules(here: Path) -> None:
    train(here / "output", [1.0] * 5 + [math.nan])
    target = here / "guard.prom"
    target.write_text("old\n")
    assert ask("guard", "report", "output", "--prometheus", "guard.prom", "-q").code == 0
    text = target.read_text()
    assert text.endswith("\n")
    assert 'ckpttool_guard_dropped_total{rank="0"} 1\n' in text
    assert "ckpttool_guard_stopped 0\n" in text
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) ckpttool_guard_\w+ .+|ckpttool_guard_\w+(\{rank=\"\d+\"\})? [\d.e-]+", line)
    assert not [name for name in here.iterdir() if name.name not in {"guard.prom", "output"}]
    said = ask("guard", "report", "output", "--prometheus", "nowhere/guard.prom")
    assert said.code != 0
    assert "nowhere/guard.prom" in said.stderr


def test_the_next_command_is_about_the_folder_that_was_asked_about_wherever_it_was_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recorded in ("/gone/guard/captures/nan-at-00000002", "output/guard/captures/nan-at-00000002"):
        train(here / "a copy", [1.0] * 5, told={2: [(GuardEventKind.CAPTURE, {"path": recorded})]})
        said = ask("guard", "report", "a copy").stdout
        assert said.splitlines()[-1] == "  ckpttool guard inspect 'a copy/guard/captures/nan-at-00000002'"
        (here / "a copy/guard/events-00000.jsonl").unlink()
    path = train(here / "elsewhere", [1.0] * 5, told={2: [(GuardEventKind.CAPTURE, {"path": recorded})]})
    shutil.move(path, here / "alone.jsonl")
    said = ask("guard", "report", "alone.jsonl").stdout
    assert said.splitlines()[-1] == f"  ckpttool guard inspect {recorded}", "nothing better is known"
    shutil.move(here / "alone.jsonl", path)
    monkeypatch.chdir(path.parent)
    said = ask("guard", "report", "events-00000.jsonl").stdout
    assert said.splitlines()[-1].endswith("/captures/nan-at-00000002")


def test_a_file_that_nobody_may_read_is_14_with_the_reason(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckpttool.guard.verbs import reports as guard_reports

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    train(here / "output", [1.0] * 5)
    monkeypatch.setattr(guard_reports, "open_log", refuse)
    said = ask("guard", "report", "output")
    assert said.code == 14
    assert "cannot be read: Permission denied" in said.stdout
    assert said.stdout.startswith("The files record no guarded training")
